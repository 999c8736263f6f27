"""The page of ``compare by-task``: how similar the tables of two tasks are, compared with two seeds of one task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from posembed.lab.found import Found
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.similarities import MEASURES, OneTask, TableSimilarities, TwoTasks
from posembed.plots.canvas import figure_of
from posembed.plots.charts import dots_figure
from posembed.plots.several import HOW_ALIKE, compare
from posembed.report.learned import table_pictures, tables_of
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, QuestionPage, estimate_cell
from posembed.report.words import interval, listed, measured, number, signed
from posembed.statistics import INTERVAL, Estimate

MAIN = MEASURES[0]
NAMES = {name: HOW_ALIKE[name] for name in MEASURES}
UNKNOWN = "unknown"
MEANINGS = (
    "CKA is 1 if the products of all pairs of rows are equal up to a factor. The Procrustes distance is 0 if one table "
    "becomes the other by rotation, reflection and scaling. The shared subspace is the share of the strongest "
    "directions that both tables use."
)


class Page(QuestionPage):
    how_combined = "Those of similarities and of their differences come from leaving out one seed at a time."

    def paragraphs(self, summary: Found) -> list[str]:
        known: TableSimilarities = summary.special
        lost = [f"{each.name}, seed {seed}" for each in known.tasks for seed in each.without_table]
        without = f"Tables that are not in the run folder are left out: {'; '.join(lost)}." if lost else ""
        if not any(row.seeds for row in summary.rows):
            return list(super().paragraphs(summary))
        return [_two_seeds(known, summary.spec.init), _two_tasks(known), without, *super().paragraphs(summary)]

    def main_table(self, summary: Found) -> Table:
        known: TableSimilarities = summary.special

        def between(other: OneTask, rank: int) -> Column:
            def cell(row: OneTask) -> Cell:
                pair = next((pair for pair in known.pairs if set(pair.tasks) == {row.name, other.name}), None)
                return Cell("") if pair is None else similarity_cell(pair.similarity[MAIN])

            return Cell(other.name, note="another seed", rank=rank), cell

        def same(row: OneTask) -> Cell:
            return similarity_cell(row.two_seeds[MAIN]) if summary.row(row.name).seeds else FAILED

        return table_of(
            known.tasks,
            f"How similar the tables of two runs are ({NAMES[MAIN]})",
            "1 means equal up to rotation and scale. Same task: the mean over pairs of seeds, which is the ceiling. "
            "Columns of tasks: pairs of different seeds, one per task. Random order: the same task, with one table's "
            "rows shuffled.",
            (Cell("same task", note="another seed", rank=1), same),
            *(between(other, rank) for rank, other in enumerate(known.tasks, start=2)),
            (Cell("random order", rank=8), lambda row: similarity_cell(row.random_order[MAIN])),
            first="task",
        )

    def extra_tables(self, found: Found) -> Iterator[Table]:
        def column(head: str, field: str, measure: str) -> Column:
            write = signed if field == "difference" else share
            return head, lambda pair: estimate_cell(getattr(pair, field)[measure], write, missing=UNKNOWN)

        heads = {
            "two tasks": "similarity",
            "same task": "ceiling",
            "difference": "difference",
            "random order": "random_order",
            "same seed": "same_seed",
        }
        for measure in MEASURES:
            columns = [column(head, field, measure) for head, field in heads.items()]
            yield table_of(
                found.special.pairs,
                f"Two tasks: {NAMES[measure]}",
                f"{MEANINGS} Two tasks: tables of different seeds, one per task. Same task: two seeds, the mean of "
                "both tasks. Difference: the first minus the second. Same seed: both tables had the same start."
                if measure == MAIN
                else "",
                *columns,
                (Cell("different?", kind="words"), partial(different, measure=measure)),
                first="tasks",
                name=name_of,
            )
        yield super().main_table(found)

    def figures(self, summary: Found) -> Iterator[Picture]:
        known: TableSimilarities = summary.special
        found = [
            *((f"{row.name}, two seeds", row.two_seeds[MAIN]) for row in known.tasks),
            *((name_of(pair), pair.similarity[MAIN]) for pair in known.pairs),
            *((f"{row.name}, random order", row.random_order[MAIN]) for row in known.tasks),
        ]
        rows = [(name, similarity, number(similarity.value)) for name, similarity in found if similarity is not None]
        if rows:
            yield picture(
                dots_figure(rows, title=f"similarity of two tables ({NAMES[MAIN]})", below="1: equal up to rotation"),
                name="similarity",
                described=" ".join(self.answer(summary)),
                caption=f"Dots are means, ticks are pairs of runs, and bars are {INTERVAL}s over seeds.",
            )

    def learned(self, folder: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> Iterable[Picture]:
        tables = {name: rows[max(rows)] for name, (_, rows) in tables_of(folder, results).items()}
        if len(tables) > 1:
            yield picture(
                figure_of(compare, tables),
                name="tasks",
                described="The cosines of each table's rows, their similarity by distance, and their variance.",
                title="The tables of all tasks",
                caption="The trained table of each task, in its first run.",
            )
        yield from table_pictures(folder, results)


def share(value: float) -> str:
    """Formats a similarity. The ends of an interval are limited to 0 and 1."""
    return number(min(max(value, 0.0), 1.0))


def similarity_cell(found: Estimate | None) -> Cell:
    return estimate_cell(found, share, missing=UNKNOWN)


def different(pair: TwoTasks, measure: str) -> str:
    """Says whether the tables of two tasks differ more than those of two seeds: "yes", "no", "more alike" (for a
    difference in the other direction), or "unknown" without an interval."""
    difference = pair.difference[measure]
    side = None if difference is None else difference.side_of(0)
    more_different = "above" if measure == "procrustes_distance" else "below"
    return UNKNOWN if side is None else "no" if side == "both" else "yes" if side == more_different else "more alike"


VERDICTS = {
    "yes": "The tables of {} are significantly more different than those of two seeds of one task.",
    "more alike": "The tables of {} are significantly more alike than those of two seeds of one task.",
    "no": "The tables of {} are not significantly more different than those of two seeds of one task.",
    UNKNOWN: "The tables of {} have no interval for the difference from two seeds of one task; it needs three seeds.",
}


def _two_seeds(summary: TableSimilarities, init: str) -> str:
    known = [
        (row.name, same, floor.value)
        for row in summary.tasks
        if (same := row.two_seeds[MAIN]) is not None and (floor := row.random_order[MAIN]) is not None
    ]
    if not known:
        return "No task has the tables of two seeds, so there is nothing to compare two tasks with; use --seeds 3."
    found = [f"{measured(same, share)} for {name}" for name, same, _ in known]
    start = f" All tables start from the same values ({init}), so they are alike before they learn."
    unlike = listed([name for name, same, floor in known if same.side_of(floor) in ("both", "below")])
    return (
        f"Two seeds of one task learn tables whose {NAMES[MAIN]} is {listed(found)}. With the rows of one table in "
        f"random order, it would be {'at most ' * (len(known) > 1)}{number(max(floor for *_, floor in known))}."
        f"{f' For {unlike}, the tables of two seeds are not significantly more alike than that.' if unlike else ''}"
        f"{start if init.startswith('sinusoidal') else ''}"
    )


def _two_tasks(summary: TableSimilarities) -> str:
    sentences, mixed = [], []
    for verdict, sentence in VERDICTS.items():
        found = []
        for pair in summary.pairs:
            similarity, difference = pair.similarity[MAIN], pair.difference[MAIN]
            if similarity is None or difference is None or different(pair, MAIN) != verdict:
                continue
            known = interval(difference, signed)
            gap = f"difference {signed(difference.value)}{f', interval {known}' if known else ''}"
            found.append(f"{name_of(pair)} ({NAMES[MAIN]} {share(similarity.value)}, {gap})")
            if {different(pair, name) for name in MEASURES} != {verdict}:
                mixed.append(name_of(pair))
        if found:
            sentences.append(sentence.format(listed(found)))
    if mixed:
        sentences.append(f"For {listed(mixed)}, another measure gives another answer; the page has all three.")
    return " ".join(sentences)


def name_of(pair: TwoTasks) -> str:
    return " and ".join(pair.tasks)
