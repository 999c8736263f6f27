"""The page of ``compare inits``: the answer, losses and steps, what the tables became, and a published table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from posembed.lab.questions.inits import InitRow, InitSpec, InitSummary
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.report.charts import dots_figure
from posembed.report.learned import measures_picture, starts_figure, tables_of
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, OUTCOMES, QuestionPage, estimate_cell, values_table
from posembed.report.words import by_outcome, failures, from_to, listed, measured, model_size, number, signed
from posembed.statistics import INTERVAL, Estimate


class Published(NamedTuple):
    loss: float
    epoch: int
    """The epoch at which training had converged."""


PUBLISHED = {
    "normal-0.02": Published(1.45, 40),
    "normal-0.01": Published(1.46, 42),
    "normal-0.05": Published(1.52, 45),
    "xavier": Published(1.46, 41),
    "sinusoidal": Published(1.44, 38),
    "zero": Published(1.48, 50),
}
"""The table that guides to learned positions copy from each other."""
REFERENCE = "normal-0.02"
BASE = PUBLISHED[REFERENCE]


def loss_number(value: float) -> str:
    return f"{value:.3f}"


def cosine(value: float) -> str:
    return signed(value, 2).removeprefix("+")


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
FIRST = "initial values"
UNCONFIRMED = ("not significant", "unknown")


class InitsPage(QuestionPage[InitSummary]):
    of_each = "table"

    def about(self, spec: InitSpec, summary: InitSummary) -> str:
        return (
            f"The same small Transformer ({model_size(spec)}) with a learned table of {spec.train_length:,} rows at "
            f"its input, trained on {spec.data} for {spec.steps:,} steps on {spec.train_length:,} tokens at a time "
            f"(tokenizer: {spec.tokenizer}). Only the table's initial values differ."
        )

    def paragraphs(self, summary: InitSummary) -> list[str]:
        losses = " ".join([*_losses(summary), *failures(summary.rows)])
        return [losses, _steps(summary), _rows_after(summary), disagreements(summary)]

    def main_table(self, summary: InitSummary) -> Table:
        reference = summary.reference

        def versus(row: InitRow) -> Cell:
            return (
                Cell("the reference", kind="words")
                if row.name == reference
                else OUTCOMES[outcome(row.versus_reference)]
            )

        columns: list[Column] = [
            (Cell("loss", rank=1), lambda row: estimate_cell(row.loss, loss_number) if row.seeds else FAILED),
            (Cell("perplexity", rank=9), lambda row: estimate_cell(row.loss and row.loss.exp(), missing="")),
        ]
        if any(row.versus_reference for row in summary.rows):
            minus = Cell(f"minus {reference}", rank=2)
            columns += [
                (minus, lambda row: estimate_cell(row.versus_reference, signed, missing="")),
                (Cell("", kind="words", rank=3), versus),
            ]
        if summary.loss is not None:
            columns.append((Cell("steps", note=f"to {loss_number(summary.loss)}", rank=4), steps_cell))
        return table_of(
            best_first(summary),
            f"Held-out loss after {summary.steps:,} steps, nats per token: lower is better",
            f"In windows of the training length of {summary.train_length:,}; differences are paired by seed.",
            *columns,
            first=FIRST,
        )

    def main_tables(self, summary: InitSummary) -> list[Table]:
        return [self.main_table(summary), self.what_became(summary)]

    def what_became(self, summary: InitSummary) -> Table:
        def became(field: str, write: Callable[[float], str]) -> Callable[[InitRow], Cell]:
            def cell(row: InitRow) -> Cell:
                found: Estimate | None = getattr(row, field)
                return Cell("none", kind="muted") if found is None else Cell(write(found.value))

            return cell

        return table_of(
            trained(summary),
            "What became of the rows",
            "Scale: the root mean square. Moved: how far, absolutely and relative to the initial scale. Cosine: of "
            "the whole table before and after. Rank: how many directions the rows use. Neighbours: the mean cosine "
            "of consecutive rows.",
            *((Cell(head, rank=rank), became(field, write)) for head, field, write, rank in BECAME),
            first=FIRST,
        )

    def tables(self, summary: InitSummary) -> list[Table]:
        steps = table_of(
            [] if summary.loss is None else trained(summary),
            f"Steps to a training loss of {loss_number(summary.loss or 0.0)}",
            "The first step at which the mean of the last losses reaches it (losses are kept at about a hundred "
            "steps per run). Without --loss, the steps count to the highest final loss among the runs of a seed.",
            ("steps", steps_cell),
            (f"times {summary.reference}", lambda row: estimate_cell(row.steps_versus_reference, missing="")),
            ("runs that reached it", lambda row: f"{row.steps_reached} of {len(row.seeds)}"),
            first=FIRST,
        )
        return [steps, self.what_became(summary), published_table(summary)]

    def figures(self, summary: InitSummary) -> Iterable[Picture]:
        """Yields differences of losses, since every table sees the same text by seed, and steps."""
        rows = [(row, row.loss) for row in best_first(summary) if row.loss is not None]
        if not rows:
            return
        compared = any(row.versus_reference is not None for row, _ in rows)
        how = f"Dot: mean; ticks: seeds; bar, if there are several runs: {INTERVAL}."
        yield picture(
            dots_figure(
                [(row.name, row.versus_reference if compared else loss, loss_number(loss.value)) for row, loss in rows],
                title=f"held-out loss{f' minus that of {summary.reference}' if compared else ''}, nats per token",
                below="left is better",
                marked=0.0 if compared else None,
            ),
            name="losses",
            described=" ".join(self.answer(summary)),
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


def outcome(difference: Estimate | None, *, same: float = 0.0) -> str:
    """Returns "better" if a difference (``same`` 0) or a ratio (1) is significantly lower, "worse" if it is higher,
    else "not significant", or "unknown" without an interval."""
    side = None if difference is None else difference.side_of(same)
    return {None: "unknown", "below": "better", "above": "worse", "both": "not significant"}[side]


def trained(summary: InitSummary) -> list[InitRow]:
    return [row for row in best_first(summary) if row.seeds]


def steps_cell(row: InitRow) -> Cell:
    return estimate_cell(row.steps, "{:,.0f}".format, missing="not all")


def best_first(summary: InitSummary) -> list[InitRow]:
    return sorted(summary.rows, key=lambda row: row.loss.value if row.loss is not None else math.inf)


def _losses(summary: InitSummary) -> list[str]:
    rows = [(row, row.loss) for row in best_first(summary) if row.loss is not None]
    if not rows:
        return []
    best, lowest = rows[0]
    first = (
        f"The lowest held-out loss after {summary.steps:,} steps is that of {best.name}, "
        f"{loss_number(lowest.value)} nats."
    )
    compared = [
        (outcome(row.versus_reference), f"{row.name} by {measured(row.versus_reference, signed)}")
        for row, _ in rows
        if row.versus_reference is not None
    ]
    return [first, *by_outcome(summary.reference or "", compared)]


def _steps(summary: InitSummary) -> str:
    found = [(row.name, ratio) for row in best_first(summary) if (ratio := row.steps_versus_reference) is not None]
    if not found or summary.loss is None:
        return ""
    found.sort(key=lambda pair: pair[1].value)
    extremes = [f"{measured(ratio, unit=' times')} with {name}" for name, ratio in dict.fromkeys((found[0], found[-1]))]
    late = listed([row.name for row in summary.rows if row.steps_reached < len(row.seeds)])
    return (
        f"Relative to the steps of {summary.reference}, a training loss of {loss_number(summary.loss)} takes "
        f"{listed(extremes)}.{f' Not every run reached it from {late}.' if late else ''}"
    )


def _rows_after(summary: InitSummary) -> str:
    rows = [
        (row.cosine.value, row.name, row.moved_times.value)
        for row in summary.rows
        if row.cosine is not None and row.moved_times is not None
    ]
    if len(rows) < 2:
        return ""
    (low, least, moved_most), (high, most, moved_least) = min(rows), max(rows)
    ranks = sorted(row.effective_rank_after.value for row in summary.rows if row.effective_rank_after is not None)
    return (
        f"Training changed {least} most: its rows moved {number(moved_most)} times their initial scale, and the "
        f"cosine between before and after is {low:.2f}. It changed {most} least: {number(moved_least)} times, and "
        f"{high:.2f}. The effective rank of the trained tables is {from_to([f'{rank:.1f}' for rank in ranks])}."
    )


def comparable(summary: InitSummary) -> list[InitRow]:
    """Returns the rows that the published table has too; none if our reference is another one."""
    if summary.reference != REFERENCE:
        return []
    return [row for row in summary.rows if row.name in PUBLISHED and row.loss is not None]


def disagreements(summary: InitSummary) -> str:
    """Returns where the measured order of losses, or of steps, contradicts the published table."""
    against, unconfirmed = [], []
    rows = [(row, loss) for row in comparable(summary) if (loss := row.versus_reference) is not None]
    if not rows:
        return ""
    for row, loss in rows:
        theirs, steps = PUBLISHED[row.name], row.steps_versus_reference
        if on_the_loss(row) in UNCONFIRMED:
            unconfirmed.append(row.name)
        elif on_the_loss(row) == "disagrees":
            against.append(
                f"the loss of {row.name} minus that of {REFERENCE} is {signed(loss.value)} here and "
                f"{their_difference(theirs)} there"
            )
        if steps is not None and outcome(steps, same=1.0) == ("worse" if theirs.epoch < BASE.epoch else "better"):
            against.append(
                f"{row.name} takes {number(steps.value)} times the steps here and {theirs.epoch / BASE.epoch:.2f} "
                "times the epochs there"
            )
    contradicted = "; ".join(against) or "nowhere"
    sentence = f"Where these runs contradict the table that guides copy from each other: {contradicted}."
    return sentence + (f" They cannot confirm its differences for {listed(unconfirmed)}." if unconfirmed else "")


def published_table(summary: InitSummary) -> Table:
    """Compares differences to N(0, 0.02), since the losses themselves are of other data."""

    def loss(row: InitRow) -> Cell:
        theirs = PUBLISHED[row.name]
        return Cell(f"{theirs.loss:.2f}", note=their_difference(theirs))

    def epoch(row: InitRow) -> Cell:
        theirs = PUBLISHED[row.name]
        return Cell(f"{theirs.epoch}", note=f"{theirs.epoch / BASE.epoch:.2f} times")

    return table_of(
        comparable(summary),
        "Compared with the table that guides copy from each other",
        "That table comes without data, model, seeds or intervals: final loss, and the epoch at which training had "
        "converged. Only differences to N(0, 0.02) can be compared; its times are ratios of epochs, ours of steps to "
        f"a training loss of {'' if summary.loss is None else loss_number(summary.loss)}.",
        ("their loss", loss),
        ("our difference", lambda row: estimate_cell(row.versus_reference, signed, missing="")),
        ("their epoch", epoch),
        ("our ratio of steps", lambda row: estimate_cell(row.steps_versus_reference, missing="")),
        (Cell("on the loss", kind="words"), on_the_loss),
        first=FIRST,
    )


def their_difference(theirs: Published) -> str:
    return signed(theirs.loss - BASE.loss, 2)


def on_the_loss(row: InitRow) -> str:
    """Returns whether our difference has the direction of theirs."""
    if row.name == REFERENCE:
        return "the reference"
    ours = outcome(row.versus_reference)
    if ours in UNCONFIRMED:
        return ours
    return "agrees" if (ours == "better") == (PUBLISHED[row.name].loss < BASE.loss) else "disagrees"


PAGE = InitsPage()
