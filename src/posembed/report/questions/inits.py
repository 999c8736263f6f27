"""The page of ``compare inits``: the answer, losses and steps, and what the tables became."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from posembed.lab.questions.inits import InitRow, InitSpec, InitSummary
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.report.dots import dots_figure
from posembed.report.learned.along_training import starts_figure
from posembed.report.learned.tables import measures_picture, tables_of
from posembed.report.page import Cell, Picture, Row, Table, picture
from posembed.report.questions import QuestionPage, estimate_cell, values_table
from posembed.report.questions.inits_published import comparable, disagreements, published_table
from posembed.report.questions.inits_words import answer, best_first, loss_number, outcome
from posembed.report.words import MINUS, capitalised, model_size, number, runs_per, signed
from posembed.statistics import INTERVAL, Estimate

OUTCOMES = {
    "lower": Cell("better", kind="holds"),
    "higher": Cell("worse", kind="worse"),
    "not significant": Cell("not significant", kind="words"),
    "unknown": Cell("no interval", kind="words"),
}


def scale(value: float) -> str:
    return f"{value:.3g}"


def cosine(value: float) -> str:
    return f"{round(value, 2) + 0:.2f}".replace("-", MINUS)  # + 0: no minus sign before a zero


def rank(value: float) -> str:
    return f"{value:.1f}"


BECAME: tuple[tuple[str, str, Callable[[float], str], int], ...] = (
    ("scale", "scale_before", scale, 9),
    ("after", "scale_after", scale, 9),
    ("moved", "moved", scale, 9),
    ("times its scale", "moved_times", number, 5),
    ("cosine to before", "cosine", cosine, 6),
    ("rank", "effective_rank_before", rank, 9),
    ("rank after", "effective_rank_after", rank, 7),
    ("neighbours", "neighbour_cosine_before", cosine, 9),
    ("neighbours after", "neighbour_cosine_after", cosine, 8),
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
        compared = any(row.versus_reference for row in summary.rows)
        head = [Cell("loss", rank=1), Cell("perplexity", rank=9)]
        if compared:
            head += [Cell(f"minus {reference}", rank=2), Cell("", kind="words", rank=3)]
        if summary.loss is not None:
            head.append(Cell("steps", note=f"to {loss_number(summary.loss)}", rank=4))

        def cells(row: InitRow) -> tuple[Cell, ...]:
            found = [estimate_cell(row.loss, loss_number), estimate_cell(row.loss and row.loss.exp())]
            if compared:
                found.append(estimate_cell(row.versus_reference, signed, missing=""))
                is_reference = row.name == reference
                found.append(
                    Cell("the reference", kind="words") if is_reference else OUTCOMES[outcome(row.versus_reference)]
                )
            if summary.loss is not None:
                found.append(estimate_cell(row.steps, "{:,.0f}".format, missing="not all"))
            return tuple(found)

        return Table(
            f"Held-out loss after {summary.steps:,} steps, nats per token: lower is better",
            f"In windows of the training length of {summary.train_length:,}; differences are paired by seed.",
            tuple(head),
            tuple(Row(row.name, cells(row)) for row in best_first(summary) if row.seeds),
            first=self.first,
        )

    def tables(self, summary: InitSummary) -> list[Table]:
        rows = [row for row in best_first(summary) if row.seeds]

        def steps(row: InitRow) -> tuple[Cell, ...]:
            return (
                estimate_cell(row.steps, "{:,.0f}".format, missing="not all"),
                estimate_cell(row.steps_versus_reference, missing=""),
                Cell(f"{row.steps_reached} of {len(row.seeds)}"),
            )

        def became(row: InitRow) -> tuple[Cell, ...]:
            return tuple(estimate_cell(getattr(row, field), write, missing="none") for _, field, write, _ in BECAME)

        tables = [
            Table(
                f"Steps to a training loss of {loss_number(summary.loss)}",
                "The first step at which the mean of the last losses reaches it (losses are kept at about a hundred "
                "steps per run). Without --loss, the steps count to the highest final loss among the runs of a seed.",
                (Cell("steps"), Cell(f"times {summary.reference}"), Cell("runs that reached it")),
                tuple(Row(row.name, steps(row)) for row in rows),
                first=self.first,
            )
        ] if summary.loss is not None else []  # fmt: skip
        tables.append(
            Table(
                "What became of the rows",
                "Scale: the root mean square. Moved: how far, absolutely and relative to the initial scale. Cosine: of "
                "the whole table before and after. Rank: how many directions the rows use. Neighbours: the mean cosine "
                "of consecutive rows.",
                tuple(Cell(head) for head, *_ in BECAME),
                tuple(Row(row.name, became(row)) for row in rows),
                first=self.first,
            )
        )
        return [*tables, published_table(summary)] if comparable(summary) else tables

    def figures(self, summary: InitSummary) -> Iterable[Picture]:
        """Yields differences of losses, since every table sees the same text by seed, and steps."""
        rows = [(row, row.loss) for row in best_first(summary) if row.loss is not None]
        if not rows:
            return
        compared = any(row.versus_reference is not None for row, _ in rows)
        several = any(len(row.seeds) > 1 for row, _ in rows)
        how = f"Dot: mean; ticks: seeds; bar: {INTERVAL}." if several else "One run per table, so no intervals."
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
        counted = [(row.name, row.steps, steps_in_words(row.steps)) for row, _ in rows]
        if summary.loss is not None and any(steps is not None for _, steps, _ in counted):
            yield picture(
                dots_figure(counted, title=f"steps to a training loss of {loss_number(summary.loss)}", below="steps"),
                name="steps",
                described="The number of steps to the same training loss, by initial values.",
                caption=how,
            )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        return [values_table("Held-out loss", "In nats per token.", results, lambda m: {"loss": m.loss})]

    def learned(self, folder: RunFolder[Any, Any], results: Sequence[RunResult[Any, Any]]) -> Iterable[Picture]:
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


def steps_in_words(steps: Estimate | None) -> str:
    return "not all" if steps is None else f"{steps.value:,.0f}"


PAGE = InitsPage()
