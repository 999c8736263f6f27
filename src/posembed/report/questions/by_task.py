"""The page of ``compare by-task``: how similar the tables of two tasks are, compared with two seeds of one task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.by_task import MEASURES, ByTaskSummary, TaskRow, TwoTasks
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.tasks.objectives import OBJECTIVES
from posembed.lab.tasks.table_specs import ByTaskSpec
from posembed.plots.canvas import figure_of
from posembed.plots.charts import dots_figure
from posembed.plots.several import HOW_ALIKE, compare
from posembed.report.learned import table_pictures, tables_of
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, QuestionPage, estimate_cell, values_table
from posembed.report.words import failures, interval, listed, measured, model_size, number, signed
from posembed.statistics import INTERVAL, Estimate

MAIN = MEASURES[0]
NAMES = {name: HOW_ALIKE[name] for name in MEASURES}
UNKNOWN = "unknown"
MEANINGS = (
    "CKA is 1 if the products of all pairs of rows are equal up to a factor. The Procrustes distance is 0 if one table "
    "becomes the other by rotation, reflection and scaling. The shared subspace is the share of the strongest "
    "directions that both tables use."
)


class ByTaskPage(QuestionPage[ByTaskSummary]):
    of_each = "task"
    loss_unit = "per predicted token"
    how_combined = "Those of similarities and of their differences come from leaving out one seed at a time."

    def about(self, spec: ByTaskSpec, summary: ByTaskSummary) -> str:
        tasks = "; ".join(f"{row.name} {OBJECTIVES[row.name].line}" for row in summary.rows)
        return (
            f"Each run trains a small Transformer ({model_size(spec)}) with a learned table of {summary.length:,} "
            f"rows on {spec.data} for {spec.steps:,} steps (tokenizer: {spec.tokenizer}). The tasks: {tasks}. For each "
            f"seed, all tasks read the same text, and their tables start from the same values ({spec.init})."
        )

    def paragraphs(self, summary: ByTaskSummary) -> list[str]:
        left_out = [*failures(summary.rows), _without_tables(summary)]
        return [_two_seeds(summary), _two_tasks(summary), " ".join(left_out)]

    def main_table(self, summary: ByTaskSummary) -> Table:
        def between(other: TaskRow, rank: int) -> Column:
            def cell(row: TaskRow) -> Cell:
                pair = next((pair for pair in summary.pairs if set(pair.tasks) == {row.name, other.name}), None)
                return Cell("") if pair is None else similarity_cell(pair.similarity[MAIN])

            return Cell(other.name, note="another seed", rank=rank), cell

        return table_of(
            summary.rows,
            f"How similar the tables of two runs are ({NAMES[MAIN]})",
            "1 means equal up to rotation and scale. Same task: the mean over pairs of seeds, which is the ceiling. "
            "Columns of tasks: pairs of different seeds, one per task. Random order: the same task, with one table's "
            "rows shuffled.",
            (
                Cell("same task", note="another seed", rank=1),
                lambda row: similarity_cell(row.two_seeds[MAIN]) if row.seeds else FAILED,
            ),
            *(between(other, rank) for rank, other in enumerate(summary.rows, start=2)),
            (Cell("random order", rank=8), lambda row: similarity_cell(row.random_order[MAIN])),
            (Cell("loss", rank=9), lambda row: estimate_cell(row.loss, "{:.3f}".format, missing="")),
            first="task",
        )

    def tables(self, summary: ByTaskSummary) -> list[Table]:
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
        return [
            table_of(
                summary.pairs,
                f"Two tasks: {NAMES[measure]}",
                f"{MEANINGS} Two tasks: tables of different seeds, one per task. Same task: two seeds, the mean of "
                "both tasks. Difference: the first minus the second. Same seed: both tables had the same start."
                if measure == MAIN
                else "",
                *(column(head, field, measure) for head, field in heads.items()),
                (Cell("different?", kind="words"), lambda pair, measure=measure: outcome(pair, measure)),  # type: ignore[misc]
                first="tasks",
                name=name_of,
            )
            for measure in MEASURES
        ]

    def figures(self, summary: ByTaskSummary) -> Iterable[Picture]:
        found = [
            *((f"{row.name}, two seeds", row.two_seeds[MAIN]) for row in summary.rows),
            *((name_of(pair), pair.similarity[MAIN]) for pair in summary.pairs),
            *((f"{row.name}, random order", row.random_order[MAIN]) for row in summary.rows),
        ]
        rows = [(name, similarity, number(similarity.value)) for name, similarity in found if similarity is not None]
        if rows:
            yield picture(
                dots_figure(rows, title=f"similarity of two tables ({NAMES[MAIN]})", below="1: equal up to rotation"),
                name="similarity",
                described=" ".join(self.answer(summary)),
                caption=f"Dots are means, ticks are pairs of runs, and bars are {INTERVAL}s over seeds.",
            )

    def values(self, results: Any) -> list[Table]:
        def read(measured: Any) -> dict[str, float]:
            return {
                "loss": measured.loss,
                "scale": measured.scale_after,
                "rank": measured.effective_rank_after,
                "moved": measured.moved,
            }

        says = "Losses are in nats. Scale and rank are those of the trained rows; moved is how far training moved them."
        return [values_table("Held-out loss, and the table", says, results, read)]

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


def outcome(pair: TwoTasks, measure: str) -> str:
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


def _two_seeds(summary: ByTaskSummary) -> str:
    known = [
        (row.name, same, floor.value)
        for row in summary.rows
        if (same := row.two_seeds[MAIN]) is not None and (floor := row.random_order[MAIN]) is not None
    ]
    if not known:
        return "No task has the tables of two seeds, so there is nothing to compare two tasks with; use --seeds 3."
    found = [f"{measured(same, share)} for {name}" for name, same, _ in known]
    start = f" All tables start from the same values ({summary.init}), so they are alike before they learn."
    unlike = listed([name for name, same, floor in known if same.side_of(floor) in ("both", "below")])
    return (
        f"Two seeds of one task learn tables whose {NAMES[MAIN]} is {listed(found)}. With the rows of one table in "
        f"random order, it would be {'at most ' * (len(known) > 1)}{number(max(floor for *_, floor in known))}."
        f"{f' For {unlike}, the tables of two seeds are not significantly more alike than that.' if unlike else ''}"
        f"{start if summary.init.startswith('sinusoidal') else ''}"
    )


def _without_tables(summary: ByTaskSummary) -> str:
    lost = [f"{row.name}, seed {seed}" for row in summary.rows for seed in row.without_table]
    return f"Tables that are not in the run folder are left out: {'; '.join(lost)}." if lost else ""


def _two_tasks(summary: ByTaskSummary) -> str:
    sentences, mixed = [], []
    for verdict, sentence in VERDICTS.items():
        found = []
        for pair in summary.pairs:
            similarity, difference = pair.similarity[MAIN], pair.difference[MAIN]
            if similarity is None or difference is None or outcome(pair, MAIN) != verdict:
                continue
            known = interval(difference, signed)
            gap = f"difference {signed(difference.value)}{f', interval {known}' if known else ''}"
            found.append(f"{name_of(pair)} ({NAMES[MAIN]} {share(similarity.value)}, {gap})")
            if {outcome(pair, name) for name in MEASURES} != {verdict}:
                mixed.append(name_of(pair))
        if found:
            sentences.append(sentence.format(listed(found)))
    if mixed:
        sentences.append(f"For {listed(mixed)}, another measure gives another answer; the page has all three.")
    return " ".join(sentences)


def name_of(pair: TwoTasks) -> str:
    return " and ".join(pair.tasks)


PAGE = ByTaskPage()
