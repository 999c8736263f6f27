"""The page of ``compare inits``: the answer, losses and steps, how the tables changed, and a published table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from posembed.lab.questions.inits import MASKED, InitRow, InitSpec, InitSummary
from posembed.lab.runs.results import NORMS_AT_START, RunFolder, RunResult
from posembed.plots.charts import dots_figure
from posembed.report.learned import measures_picture, starts_figure, tables_of
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, OUTCOMES, QuestionPage, estimate_cell, values_table
from posembed.report.words import (
    by_outcome,
    failures,
    from_to,
    interval,
    listed,
    loss_number,
    measured,
    model_size,
    number,
    outcome,
    signed,
)
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
"""The published results that many guides to learned positions repeat."""
REFERENCE = "normal-0.02"
BASE = PUBLISHED[REFERENCE]


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
"""Columns on how the rows changed: (head, field of the row, format, rank of the column)."""
FIRST = "initial values"
MODELS = {
    "causal": "The model is causal: it predicts each token from the tokens before it.",
    "masked": "The model is masked and bidirectional: it predicts hidden tokens from the tokens on both sides. As in "
    "BERT, 15% of the tokens are predicted; 80% of these are masked, 10% are random and 10% are unchanged.",
}
UNCONFIRMED = ("not significant", "unknown")


class InitsPage(QuestionPage[InitSummary]):
    of_each = "table"

    def about(self, spec: InitSpec, summary: InitSummary) -> str:
        return (
            f"Each run trains the same small Transformer ({model_size(spec)}) on {spec.data} for {spec.steps:,} steps, "
            f"in {spec.sequences_in_words} (tokenizer: {spec.tokenizer}). {MODELS[summary.model]} A "
            f"learned table of {spec.train_length:,} rows is added to its input. Only its initial values differ."
        )

    def paragraphs(self, summary: InitSummary) -> list[str]:
        losses = " ".join([*_losses(summary), *failures(summary.rows)])
        return [losses, _steps(summary), _gradients(summary), _rows_after(summary), disagreements(summary)]

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
        if any(row.gradient_at_start for row in summary.rows):
            columns.append((Cell("gradient", note="at step 1", rank=5), gradient_cell("gradient_at_start")))
        return table_of(
            best_first(summary),
            f"Held-out loss of a {summary.model} model after {summary.steps:,} steps, in nats per "
            f"{'hidden ' if summary.model == MASKED else ''}token (lower is better)",
            f"Measured in windows of {summary.train_length:,} tokens, the training length. Differences are paired by "
            "seed.",
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
            "How the rows changed",
            "Scale: the root mean square of the rows. Moved: the root mean square of the change, also as a multiple of "
            "the initial scale. Cosine: between the whole table before and after training. Rank: the number of "
            "directions that the rows use. Neighbours: the mean cosine of consecutive rows.",
            *((Cell(head, rank=rank), became(field, write)) for head, field, write, rank in BECAME),
            first=FIRST,
        )

    def tables(self, summary: InitSummary) -> list[Table]:
        steps = table_of(
            [] if summary.loss is None else trained(summary),
            f"Steps to a training loss of {loss_number(summary.loss or 0.0)}",
            "The first step at which the mean of the most recent losses is at or below this loss (each run "
            "records about a hundred losses). Without --loss, the target of each seed is the highest final loss "
            "among its runs, and the title gives the mean.",
            ("steps", steps_cell),
            (f"times {summary.reference}", lambda row: estimate_cell(row.steps_versus_reference, missing="")),
            ("runs that reached it", lambda row: f"{row.steps_reached} of {len(row.seeds)}"),
            first=FIRST,
        )
        gradients = table_of(
            [row for row in trained(summary) if row.gradient_at_start],
            "Gradients at the start",
            "The norm of the gradient of all weights, before clipping: at the first step, and the highest of the first "
            f"{NORMS_AT_START} steps.",
            ("step 1", gradient_cell("gradient_at_start")),
            (f"highest of {NORMS_AT_START}", gradient_cell("highest_gradient")),
            first=FIRST,
        )
        return [steps, gradients, self.what_became(summary), published_table(summary)]

    def figures(self, summary: InitSummary) -> Iterable[Picture]:
        """Yields a figure of the losses and a figure of the numbers of steps. The first shows differences from the
        reference if possible, because they vary less: all tables with the same seed see the same text."""
        rows = [(row, row.loss) for row in best_first(summary) if row.loss is not None]
        if not rows:
            return
        compared = any(row.versus_reference is not None for row, _ in rows)
        how = f"Dots are means and ticks are seeds. With several runs per table, bars are {INTERVAL}s."
        yield picture(
            dots_figure(
                [(row.name, row.versus_reference if compared else loss, loss_number(loss.value)) for row, loss in rows],
                title=f"held-out loss{f' minus that of {summary.reference}' if compared else ''}, nats per token",
                below="left is better",
                marked=0.0 if compared else None,
            ),
            name="losses",
            described=" ".join(self.answer(summary)),
            caption=f"{how} The losses themselves are on the right.",
        )
        counted = [(row.name, row.steps, steps_cell(row).text) for row, _ in rows]
        if summary.loss is not None and any(steps is not None for _, steps, _ in counted):
            yield picture(
                dots_figure(counted, title=f"steps to a training loss of {loss_number(summary.loss)}", below="steps"),
                name="steps",
                described="The number of steps to the same training loss, for each table.",
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
                described="The cosine of each pair of rows before and after training, for each table.",
                title="How similar the rows are",
                caption="The cosine of each pair of rows, in each table's first run. Red is similar, blue opposite.",
            )
            yield measures_picture(tables)


def trained(summary: InitSummary) -> list[InitRow]:
    return [row for row in best_first(summary) if row.seeds]


def steps_cell(row: InitRow) -> Cell:
    return estimate_cell(row.steps, "{:,.0f}".format, missing="not all")


def gradient_cell(field: str) -> Callable[[InitRow], Cell]:
    return lambda row: estimate_cell(getattr(row, field), missing="")


def best_first(summary: InitSummary) -> list[InitRow]:
    return sorted(summary.rows, key=lambda row: row.loss.value if row.loss is not None else math.inf)


def _losses(summary: InitSummary) -> list[str]:
    rows = [(row, row.loss) for row in best_first(summary) if row.loss is not None]
    if not rows:
        return []
    best, lowest = rows[0]
    first = (
        f"In a {summary.model} model after {summary.steps:,} steps, {best.name} has the lowest held-out loss, "
        f"{loss_number(lowest.value)} nats."
    )
    compared = [
        (outcome(row.versus_reference), f"{row.name} ({_with_interval(row.versus_reference)})")
        for row, _ in rows
        if row.versus_reference is not None
    ]
    return [first, *by_outcome(summary.reference or "", compared)]


def _with_interval(difference: Estimate) -> str:
    known = interval(difference, signed)
    return signed(difference.value) + (f", interval {known}" if known else "")


def _steps(summary: InitSummary) -> str:
    found = [(row.name, ratio) for row in best_first(summary) if (ratio := row.steps_versus_reference) is not None]
    if not found or summary.loss is None:
        return ""
    found.sort(key=lambda pair: pair[1].value)
    extremes = [
        f"{measured(ratio, unit=' times')} as many steps with {name}"
        for name, ratio in dict.fromkeys((found[0], found[-1]))
    ]
    late = listed([row.name for row in summary.rows if row.steps_reached < len(row.seeds)])
    return (
        f"Compared with {summary.reference}, reaching a training loss of {loss_number(summary.loss)} takes "
        f"{listed(extremes)}.{f' Some runs of {late} did not reach it.' if late else ''}"
    )


def _gradients(summary: InitSummary) -> str:
    found = [(row.highest_gradient.value, row) for row in summary.rows if row.highest_gradient is not None]
    if len(found) < 2:
        return ""
    (_, least), (_, most) = (chosen(found, key=lambda pair: pair[0]) for chosen in (min, max))
    peaks = [f"{row.name}, {measured(row.highest_gradient)}" for row in (least, most) if row.highest_gradient]
    return (
        f"The highest gradient norm of the first {NORMS_AT_START} steps, before clipping, is smallest with {peaks[0]}, "
        f"and largest with {peaks[1]}."
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
        f"cosine between the table before and after is {low:.2f}. Training changed {most} least: its rows moved "
        f"{number(moved_least)} times their initial scale, and the cosine is {high:.2f}. The effective rank of the "
        f"trained tables is {from_to([f'{rank:.1f}' for rank in ranks])}."
    )


def comparable(summary: InitSummary) -> list[InitRow]:
    """Returns the rows that are also in the published table, or no rows if our reference is not REFERENCE."""
    if summary.reference != REFERENCE:
        return []
    return [row for row in summary.rows if row.name in PUBLISHED and row.loss is not None]


def disagreements(summary: InitSummary) -> str:
    """Lists the initial values whose measured losses or steps contradict the published table."""
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
                f"the loss of {row.name} minus that of {REFERENCE} is {signed(loss.value)} in these runs and "
                f"{their_difference(theirs)} in that table"
            )
        if steps is not None and outcome(steps, same=1.0) == ("worse" if theirs.epoch < BASE.epoch else "better"):
            against.append(
                f"{row.name} takes {number(steps.value)} times the steps in these runs and "
                f"{theirs.epoch / BASE.epoch:.2f} times the epochs in that table"
            )
    contradicted = "; ".join(against) or "none"
    sentence = f"Contradictions with a table that many guides repeat: {contradicted}."
    return sentence + (
        f" These runs cannot confirm the differences in that table for {listed(unconfirmed)}." if unconfirmed else ""
    )


def published_table(summary: InitSummary) -> Table:
    """Returns a table of our and the published differences from N(0, 0.02). The losses come from different data."""

    def loss(row: InitRow) -> Cell:
        theirs = PUBLISHED[row.name]
        return Cell(f"{theirs.loss:.2f}", note=their_difference(theirs))

    def epoch(row: InitRow) -> Cell:
        theirs = PUBLISHED[row.name]
        return Cell(f"{theirs.epoch}", note=f"{theirs.epoch / BASE.epoch:.2f} times")

    return table_of(
        comparable(summary),
        "Compared with a table that many guides repeat",
        "That table gives the final loss and the epoch at which training had converged, but no data, model, seeds or "
        "intervals. Only differences from N(0, 0.02) can be compared. It gives ratios of epochs; this page gives "
        f"ratios of steps to a training loss of {'' if summary.loss is None else loss_number(summary.loss)}.",
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
    """Returns, in words, whether our difference in loss has the same sign as the published difference."""
    if row.name == REFERENCE:
        return "the reference"
    ours = outcome(row.versus_reference)
    if ours in UNCONFIRMED:
        return ours
    return "agrees" if (ours == "better") == (PUBLISHED[row.name].loss < BASE.loss) else "disagrees"


PAGE = InitsPage()
