"""The page of ``compare inits``: the answer, losses and steps, and what the tables became."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from posembed.lab.questions.inits import InitRow, InitSpec, InitSummary
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.report.dots import dots_figure
from posembed.report.learned.along_training import starts_figure
from posembed.report.learned.tables import measures_picture, tables_of
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import QuestionPage, estimate_cell, values_table
from posembed.report.questions.inits_published import disagreements, published_table
from posembed.report.questions.inits_words import answer, best_first, loss_number, outcome
from posembed.report.words import MINUS, capitalised, model_size, number, repeated, runs_per, signed
from posembed.statistics import INTERVAL

THE_REFERENCE = Cell("the reference", kind="words")
OUTCOMES = {
    "lower": Cell("better", kind="holds"),
    "higher": Cell("worse", kind="worse"),
    "not significant": Cell("not significant", kind="words"),
    "unknown": Cell("no interval", kind="words"),
}


def cosine(value: float) -> str:
    return f"{round(value, 2) + 0:.2f}".replace("-", MINUS)  # + 0: no minus sign before a zero


BECAME: tuple[tuple[str, str, Callable[[float], str], int], ...] = (
    ("scale", "scale_before", "{:.3g}".format, 5),
    ("after", "scale_after", "{:.3g}".format, 6),
    ("moved", "moved", "{:.3g}".format, 7),
    ("times its scale", "moved_times", number, 1),
    ("cosine to before", "cosine", cosine, 2),
    ("rank", "effective_rank_before", "{:.1f}".format, 8),
    ("rank after", "effective_rank_after", "{:.1f}".format, 3),
    ("neighbours", "neighbour_cosine_before", cosine, 9),
    ("neighbours after", "neighbour_cosine_after", cosine, 4),
)
"""What became of the rows: head, field of the row, format, rank of the column."""


class InitsPage(QuestionPage[InitSummary]):
    first, of_each = "initial values", "table"

    def title(self, summary: InitSummary) -> str:
        return "Which initial values should a learned table start from?"

    def about(self, spec: InitSpec, summary: InitSummary) -> str:
        unit = "bytes" if spec.tokenizer == "bytes" else f"tokens of {spec.tokenizer}"
        return (
            f"The same small Transformer ({model_size(spec)}) with a learned table of {spec.train_length:,} rows at "
            f"its input, trained on {spec.data} for {spec.steps:,} steps on {spec.train_length:,} {unit} at a time. "
            f"Only the table's initial values differ. {capitalised(runs_per(summary.rows, 'table'))}."
        )

    def answer(self, summary: InitSummary) -> list[str]:
        return answer(summary) + disagreements(summary)

    def main_table(self, summary: InitSummary) -> Table:
        reference = summary.reference
        columns: list[Column] = [
            (
                Cell("loss", rank=1),
                lambda row: estimate_cell(row.loss, loss_number) if row.seeds else Cell("failed", kind="failed"),
            ),
            (Cell("perplexity", rank=9), lambda row: estimate_cell(row.loss and row.loss.exp(), missing="")),
        ]
        if any(row.versus_reference for row in summary.rows):
            columns += [
                (
                    Cell(f"minus {reference}", rank=2),
                    lambda row: estimate_cell(row.versus_reference, signed, missing=""),
                ),
                (
                    Cell("", kind="words", rank=3),
                    lambda row: THE_REFERENCE if row.name == reference else OUTCOMES[outcome(row.versus_reference)],
                ),
            ]
        if summary.loss is not None:
            columns.append((Cell("steps", note=f"to {loss_number(summary.loss)}", rank=4), steps_cell))
        return table_of(
            best_first(summary),
            f"Held-out loss after {summary.steps:,} steps, nats per token: lower is better",
            f"In windows of the training length of {summary.train_length:,}; differences are paired by seed.",
            *columns,
            first=self.first,
        )

    def main_tables(self, summary: InitSummary) -> list[Table]:
        return [self.main_table(summary), self.what_became(summary)]

    def what_became(self, summary: InitSummary) -> Table:
        def became(field: str, write: Callable[[float], str]) -> Callable[[InitRow], Cell]:
            return lambda row: estimate_cell(getattr(row, field), write, missing="none", write_interval=lambda _: "")

        return table_of(
            trained(summary),
            "What became of the rows",
            "Scale: the root mean square. Moved: how far, absolutely and relative to the initial scale. Cosine: of "
            "the whole table before and after. Rank: how many directions the rows use. Neighbours: the mean cosine "
            "of consecutive rows.",
            *((Cell(head, rank=rank), became(field, write)) for head, field, write, rank in BECAME),
            first=self.first,
        )

    def tables(self, summary: InitSummary) -> list[Table]:
        rows = trained(summary)

        steps = table_of(
            [] if summary.loss is None else rows,
            f"Steps to a training loss of {loss_number(summary.loss or 0.0)}",
            "The first step at which the mean of the last losses reaches it (losses are kept at about a hundred "
            "steps per run). Without --loss, the steps count to the highest final loss among the runs of a seed.",
            ("steps", steps_cell),
            (f"times {summary.reference}", lambda row: estimate_cell(row.steps_versus_reference, missing="")),
            ("runs that reached it", lambda row: f"{row.steps_reached} of {len(row.seeds)}"),
            first=self.first,
        )
        return [steps, self.what_became(summary), published_table(summary)]

    def figures(self, summary: InitSummary) -> Iterable[Picture]:
        """Yields differences of losses, since every table sees the same text by seed, and steps."""
        rows = [(row, row.loss) for row in best_first(summary) if row.loss is not None]
        if not rows:
            return
        compared = any(row.versus_reference is not None for row, _ in rows)
        how = "One run per table, so no intervals."
        if repeated(summary.rows):
            how = f"Dot: mean; ticks: seeds; bar: {INTERVAL}."
        yield picture(
            dots_figure(
                [(row.name, row.versus_reference if compared else loss, loss_number(loss.value)) for row, loss in rows],
                title=f"held-out loss{f' minus that of {summary.reference}' if compared else ''}, nats per token",
                below="left is better" if compared else "",
                marked=0.0 if compared else None,
            ),
            name="losses",
            described=" ".join(answer(summary)),
            caption=f"{how} At the right: the loss itself.",
        )
        counted = [(row.name, row.steps, steps_cell(row).text) for row, _ in rows]
        if summary.loss is not None and any(steps is not None for _, steps, _ in counted):
            yield picture(
                dots_figure(counted, title=f"steps to a training loss of {loss_number(summary.loss)}", below="steps"),
                name="steps",
                described="The number of steps to the same training loss, by initial values.",
                caption=how,
            )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        return [values_table("Held-out loss", "In nats per token.", results, lambda m: {"loss": m.loss})]

    def learned(self, folder: RunFolder[Any], results: Sequence[RunResult[Any, Any]]) -> Iterable[Picture]:
        tables = {name: rows for name, (_, rows) in tables_of(folder, results).items()}
        if tables:
            yield picture(
                starts_figure({name: (rows[0], rows[max(rows)]) for name, rows in tables.items()}),
                name="starts",
                described="The cosine of every two rows before and after training, by initial values.",
                title="How alike the rows are",
                caption="The cosine of every two rows, in the first run of each table. Red: alike; blue: opposite.",
            )
            yield measures_picture(tables)


def trained(summary: InitSummary) -> list[InitRow]:
    return [row for row in best_first(summary) if row.seeds]


def steps_cell(row: InitRow) -> Cell:
    return estimate_cell(row.steps, "{:,.0f}".format, missing="not all")


PAGE = InitsPage()
