"""What is special about ``compare by-task``: how similar the tables of two tasks are, compared with two seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from posembed.lab.found import Found
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.similarities import MEASURES, Similar, Similarities
from posembed.plots.charts import dots_figure
from posembed.plots.several import HOW_ALIKE
from posembed.report.answers import estimate_cell
from posembed.report.learned import compared_picture, table_pictures, tables_of
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import QuestionPage
from posembed.report.words import listed, measured, number, signed
from posembed.statistics import INTERVAL

MAIN = MEASURES[0]
MEANINGS = (
    "CKA is 1 if the products of all pairs of rows are equal up to a factor. The Procrustes distance is 0 if one table "
    "becomes the other by rotation, reflection and scaling. The shared subspace is the share of the strongest "
    "directions that both tables use. Similarity: tables of different seeds, of one task or one per task. Same task: "
    "two seeds, the mean of both tasks. Difference: the first minus the second. Random order: one table's rows are "
    "shuffled. Same seed: both tables had the same start."
)
VERDICTS = {
    "yes": "are significantly more different than those of two seeds of one task",
    "more alike": "are significantly more alike than those of two seeds of one task",
    "no": "are not significantly more different than those of two seeds of one task",
    "unknown": "have no interval for the difference from two seeds of one task; it needs three seeds",
}


class Page(QuestionPage):
    how_combined = "Those of similarities and of their differences come from leaving out one seed at a time."

    def paragraphs(self, summary: Found) -> list[str]:
        known: Similarities = summary.special
        if not any(row.seeds for row in summary.rows):
            return list(super().paragraphs(summary))
        lost = [f"{name}, seed {seed}" for name, seeds in known.without_table.items() for seed in seeds]
        without = f"Tables that are not in the run folder are left out: {'; '.join(lost)}." if lost else ""
        return [two_seeds(known, summary.spec.init), two_tasks(known), without, *super().paragraphs(summary)]

    def main_tables(self, summary: Found) -> list[Table]:
        return [similarity_table(summary.special, MAIN)]

    def extra_tables(self, found: Found) -> Iterator[Table]:
        yield from (similarity_table(found.special, measure) for measure in MEASURES[1:])
        yield from super().main_tables(found)

    def figures(self, summary: Found) -> Iterator[Picture]:
        drawn = [(row.name, row.similarity) for row in summary.special.by(MAIN)]
        drawn += [(f"{row.tasks[0]}, random order", row.random_order) for row in summary.special.by(MAIN, tasks=1)]
        if rows := [(name, found, number(found.value)) for name, found in drawn if found is not None]:
            yield picture(
                dots_figure(rows, title=f"similarity of two tables ({HOW_ALIKE[MAIN]})", below="1: equal"),
                name="similarity",
                described=" ".join(self.answer(summary)),
                caption=f"Dots are means, ticks are pairs of runs, and bars are {INTERVAL}s over seeds.",
            )

    def learned(self, folder: RunFolder, results: Sequence[RunResult]) -> Iterable[Picture]:
        tables = {name: rows[max(rows)] for name, (_, rows) in tables_of(folder, results).items()}
        if len(tables) > 1:
            caption = "The trained table of each task, in its first run."
            yield compared_picture(tables, "tasks", title="The tables of all tasks", caption=caption)
        yield from table_pictures(folder, results)


def similarity_table(known: Similarities, measure: str) -> Table:
    def column(field: str, rank: int) -> Column:
        write = signed if field == "difference" else number

        def cell(row: Similar) -> Cell:
            return estimate_cell(getattr(row, field), write, missing="unknown" if len(row.tasks) > 1 else "")

        return Cell(field.replace("_", " ").replace("ceiling", "same task"), rank=rank), cell

    fields = ("similarity", "difference", "ceiling", "random_order", "same_seed")
    return table_of(
        known.by(measure),
        f"How similar the tables are: {HOW_ALIKE[measure]}",
        MEANINGS if measure == MAIN else "",
        *(column(field, rank) for rank, field in enumerate(fields, start=1)),
        (Cell("different?", kind="words", rank=2), lambda row: row.different if len(row.tasks) > 1 else ""),
        first="tasks",
    )


def two_seeds(known: Similarities, init: str) -> str:
    found = [(row.tasks[0], row.similarity, row.random_order) for row in known.by(MAIN, tasks=1)]
    both = [(name, same, floor.value) for name, same, floor in found if same is not None and floor is not None]
    if not both:
        return "No task has the tables of two seeds, so there is nothing to compare two tasks with; use --seeds 3."
    unlike = listed([name for name, same, floor in both if same.side_of(floor) in ("both", "below")])
    sentences = [
        f"Two seeds of one task learn tables whose {HOW_ALIKE[MAIN]} is "
        f"{listed([f'{measured(same)} for {name}' for name, same, _ in both])}.",
        f"With the rows of one table in random order, it would be at most {number(max(floor for *_, floor in both))}.",
        f"For {unlike}, the tables of two seeds are not significantly more alike than that." if unlike else "",
        f"All tables start from the same values ({init}), so they are alike before they learn."
        if init.startswith("sinusoidal")
        else "",
    ]
    return " ".join(filter(None, sentences))


def two_tasks(known: Similarities) -> str:
    pairs, sentences = known.by(MAIN, tasks=2), []
    for verdict, words in VERDICTS.items():
        texts = [
            f"{row.name} ({HOW_ALIKE[MAIN]} {number(alike.value)}, difference {measured(difference, signed)})"
            for row in pairs
            if row.different == verdict and (alike := row.similarity) and (difference := row.difference)
        ]
        sentences += [f"The tables of {listed(texts)} {words}."] if texts else []
    others = {(row.tasks, row.different) for measure in MEASURES[1:] for row in known.by(measure, tasks=2)}
    mixed = [
        row.name
        for row in pairs
        if row.difference and any(tasks == row.tasks and row.different != each for tasks, each in others)
    ]
    if mixed:
        sentences.append(f"For {listed(mixed)}, another measure gives another answer; the page has all three.")
    return " ".join(sentences)
