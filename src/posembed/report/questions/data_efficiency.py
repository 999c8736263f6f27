"""The page of ``compare data-efficiency``: the answer, the loss by amount of training text, and all numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from posembed.lab.questions.amounts import DataRow, DataSpec, DataSummary, amount_in_words
from posembed.lab.runs.results import RunResult
from posembed.plots.charts import Line, dots_figure, line_chart
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, QuestionPage, by_size, estimate_cell, trained_table, values_table
from posembed.report.words import (
    by_outcome,
    called,
    failures,
    listed,
    loss_number,
    measured,
    model_size,
    not_drawn,
    outcome,
    signed,
)
from posembed.statistics import INTERVAL, Estimate


class DataEfficiencyPage(QuestionPage[DataSummary]):
    of_each = "encoding and amount"
    tables_note = "From the runs with the most text."

    def about(self, spec: DataSpec, summary: DataSummary) -> str:
        return (
            f"Each run trains the same small Transformer ({model_size(spec)}) on a part of {spec.data} for "
            f"{spec.steps:,} steps, in {spec.sequences_in_words} (tokenizer: {spec.tokenizer}). Only "
            "the amount of text and the position encoding differ. The number of steps is the same for all amounts, so "
            "all models get the same number of updates, and a smaller amount is read more often."
        )

    def paragraphs(self, summary: DataSummary) -> list[str]:
        by_amount = [" ".join(at_amount(amount, summary)) for amount in summary.amounts]
        growth = [*growths(summary), *learned_by_heart(summary), *failures(summary.rows)]
        return [*by_amount, " ".join(crossings(summary)), " ".join(growth)]

    def main_table(self, summary: DataSummary) -> Table:
        reference = summary.reference
        amounts = list(summary.amounts)
        ends: list[Column] = []
        if len(amounts) > 1:
            note = f"{summary.amounts[amounts[0]]:,} minus {summary.amounts[amounts[-1]]:,}"
            ends.append((Cell("growth", note=note, rank=2), lambda row: growth_cell(row.growth)))
        if any(row.growth_versus_reference for row in summary.rows):
            head = Cell(f"minus {called(reference or '')}", note="growth", rank=5)
            ends.append((head, lambda row: estimate_cell(row.growth_versus_reference, signed, missing="")))
        return table_of(
            best_first(summary),
            "Held-out loss by tokens of training text, in nats per token (lower is better)",
            "Every run reads as many tokens in training; the head says how often it reads its text. Growth: how much "
            "higher the loss is with the smallest amount than with the largest, paired by seed.",
            *self.columns(summary, "held_out", ranked=True),
            *ends,
        )

    def columns(self, summary: DataSummary, field: str, write: Any = None, *, ranked: bool = False) -> Iterable[Column]:
        """Yields a column for each amount, with a field of the rows."""
        sizes = summary.amounts.values()
        for amount, size in summary.amounts.items():  # one by one, since two amounts may be the same number of tokens
            yield from by_size(
                [size],
                lambda row, amount=amount, size=size: {size: getattr(row, field)[amount]},  # type: ignore[misc]
                write or loss_number,
                note=lambda tokens: f"read {times_read(summary.tokens_read / tokens)}",
                rank=lambda tokens: (1 if tokens in (min(sizes), max(sizes)) else 4) if ranked else 0,
                missing="no result",
                failed=FAILED,
            )

    def tables(self, summary: DataSummary) -> list[Table]:
        rows, reference = [row for row in best_first(summary) if row.seeds], summary.reference
        others = [row for row in rows if row.name != reference]
        return [
            table_of(
                others if any(any(row.versus_reference.values()) for row in others) else [],
                f"Held-out loss minus that of {called(reference or '')}",
                "With the same amount of text, paired by seed. A difference is significant if its interval excludes 0.",
                *self.columns(summary, "versus_reference", signed),
            ),
            table_of(
                rows,
                "Loss on the training text",
                "In eval mode, on at most as many tokens as the held-out loss. If it is far below the held-out loss, "
                "the model has learned its text by heart.",
                *self.columns(summary, "training"),
            ),
            trained_table(best_first(summary)),
        ]

    def figures(self, summary: DataSummary) -> Iterable[Picture]:
        lines = [
            Line.of(row.name, {tokens: row.held_out[amount] for amount, tokens in summary.amounts.items()})
            for row in summary.rows
        ]
        lines = [line for line in lines if line.points]
        if not lines:
            return
        ends = [end for line in lines for e in line.points.values() for end in (e.value, e.low, e.high)]
        known = [end for end in ends if end is not None and 0 < end < math.inf] or [1.0]  # of losses of exactly 0
        yield picture(
            line_chart(
                lines,
                names=[row.name for row in summary.rows],
                title="held-out loss, nats per token (log scale; lower is better)",
                below="tokens of training text (log scale)",
                ticks=list(summary.amounts.values()),
                logarithmic=(min(known) * 0.97, max(known) * 1.03),
            ),
            name="amounts",
            described=" ".join(self.answer(summary)),
            caption=" ".join(
                [
                    "The steeper a line falls, the more its encoding gains from text. Where two lines cross, the "
                    f"encoding with the lower mean changes. With several runs, shaded bands are {INTERVAL}s.",
                    *not_drawn(summary.rows),
                ]
            ),
        )
        against = [
            (f"{row.name}, {tokens:,}", difference, "")
            for row in summary.rows
            for amount, tokens in summary.amounts.items()
            if (difference := row.versus_reference[amount]) is not None
        ]
        if against:
            yield picture(
                dots_figure(
                    against,
                    title=f"held-out loss minus that of {summary.reference}, nats per token",
                    below="left is better",
                    marked=0.0,
                ),
                name="differences",
                described="Each encoding's loss minus the reference's with the same amount of text.",
                caption="By encoding and tokens of text. Dots are means and ticks are seeds. With several runs, bars "
                f"are {INTERVAL}s.",
            )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        return [losses_table(results)]


def losses_table(results: Sequence[RunResult[Any, Any]]) -> Table:
    """Returns the measured losses of every run."""
    says = "In nats per token, in eval mode."
    return values_table(
        "Losses", says, results, lambda m: {"held out": m.held_out, "training": m.training, "gap": m.gap}
    )


def times_read(times: float) -> str:
    """Formats how often a text is read: "75 times", "1.2 times"."""
    if times < 0.05:
        return "less than 0.1 times"
    return f"{times:,.0f} times" if times >= 9.95 else f"{times:.1f} times"


def growth_cell(growth: Estimate | None) -> Cell:
    return estimate_cell(growth, signed, missing="")


def best_first(summary: DataSummary) -> list[DataRow]:
    """Sorts by the loss with the largest amount that an encoding has a loss for. Failed rows come last."""

    def key(row: DataRow) -> float:
        known = [loss.value for loss in row.held_out.values() if loss is not None]
        return known[-1] if known else math.inf

    return sorted(summary.rows, key=key)


def at_amount(amount: str, summary: DataSummary) -> list[str]:
    """Returns sentences that compare the encodings at one amount."""
    found = [(row, loss) for row in summary.rows if (loss := row.held_out[amount]) is not None]
    lowest = min(loss.value for _, loss in found)
    best = [called(row.name) for row, loss in found if loss.value == lowest]
    says = f"{listed(best)} {'has' if len(best) == 1 else 'have'} the lowest held-out loss, {loss_number(lowest)} nats."
    if len(found) == 1:
        says = f"{best[0]} has a held-out loss of {loss_number(lowest)} nats."
    first = f"With {amount_in_words(amount)}, {says}"
    compared = [
        (outcome(difference), f"{called(row.name)} ({signed(difference.value)})")
        for row, _ in sorted(found, key=lambda pair: pair[1].value)
        if (difference := row.versus_reference[amount]) is not None
    ]
    return [first, *by_outcome(called(summary.reference or ""), compared)]


def crossings(summary: DataSummary) -> list[str]:
    """Says between which amounts the curve of an encoding crosses that of the reference.

    A crossing is significant if the difference is significant, with opposite signs, at both amounts.
    """
    amounts, reference = list(summary.amounts), called(summary.reference or "")
    if len(amounts) < 2:
        return []
    sentences: list[str] = []
    unsure: list[str] = []
    without: list[str] = []
    for row in summary.rows:
        known = [(amount, e) for amount in amounts if (e := row.versus_reference[amount]) is not None]
        if len(known) < 2:
            continue
        sure = [(amount, side) for amount, e in known if (side := e.side_of(0)) in ("below", "above")]
        crossed = [(a, b, before) for (a, before), (b, after) in pairwise(sure) if before != after]
        for a, b, before in crossed:
            less, more = (called(row.name), reference) if before == "below" else (reference, called(row.name))
            sentences.append(
                f"The curves of {called(row.name)} and {reference} cross between {amount_in_words(a)} and "
                f"{amount_in_words(b)}: {less} is significantly better with the smaller amount, and {more} with the "
                "larger."
            )
        if not crossed:
            signs = {e.value > 0 for _, e in known}
            if len(signs) > 1:
                unsure.append(called(row.name))
            elif len(known) == len(amounts):  # at an amount without both losses, they may cross
                without.append(called(row.name))
    too = " too" if sentences else ""
    for names, one, several, rest in (
        (unsure, "crosses", "cross", f"{too}, but not significantly"),
        (without, "does not cross", "do not cross", " at these amounts"),
    ):
        if names:
            curves, crosses = ("curve", one) if len(names) == 1 else ("curves", several)
            sentences.append(f"The mean {curves} of {listed(names)} {crosses} that of {reference}{rest}.")
    return sentences


def growths(summary: DataSummary) -> list[str]:
    """Says how much the loss of the reference grows from the largest amount to the smallest, and of which encodings it
    grows significantly more or less."""
    reference = next((row for row in summary.rows if row.name == summary.reference), None)
    if reference is None or reference.growth is None:
        return []
    least, *_, most = (amount_in_words(amount) for amount in summary.amounts)
    sentences = [
        f"From {most} to {least}, the held-out loss with {called(reference.name)} grows by "
        f"{measured(reference.growth, loss_number)} nats."
    ]
    sides: dict[str | None, list[str]] = {}
    for row in summary.rows:
        difference = row.growth_versus_reference
        if difference is not None:
            sides.setdefault(difference.side_of(0), []).append(f"{called(row.name)} ({signed(difference.value)})")
    words = {
        "below": "It grows significantly less with {}.",
        "above": "It grows significantly more with {}.",
        "both": "The difference in growth is not significant for {}.",
        None: "The difference in growth has no interval for {}.",
    }
    return sentences + [text.format(listed(sides[side])) for side, text in words.items() if side in sides]


def learned_by_heart(summary: DataSummary) -> list[str]:
    """Compares the losses on the training text with the smallest amount, if the runs read it more than once."""
    least = next(iter(summary.amounts), "")
    known = [(loss.value, called(row.name)) for row in summary.rows if (loss := row.training.get(least)) is not None]
    if len(known) < 2 or summary.tokens_read <= summary.amounts[least]:
        return []
    (low, best), (high, worst) = min(known), max(known)
    return [
        f"With {amount_in_words(least)}, the loss on the training text itself is lowest with {best} "
        f"({loss_number(low)}) and highest with {worst} ({loss_number(high)}). If it is far "
        "below the held-out loss, the model has learned its text by heart."
    ]


PAGE = DataEfficiencyPage()
