"""The table of starts that guides to learned positions hand on, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from posembed.lab.questions.inits import InitRow, InitSummary
from posembed.report.inits.words import MINUS, loss_number, signed, told
from posembed.report.page import Cell, Row, Table
from posembed.report.words import interval, listed, number


@dataclass(frozen=True)
class Quoted:
    loss: float
    """Final loss."""
    epoch: int
    """At which it had converged."""


QUOTED = {
    "normal-0.02": Quoted(1.45, 40),
    "normal-0.01": Quoted(1.46, 42),
    "normal-0.05": Quoted(1.52, 45),
    "xavier": Quoted(1.46, 41),
    "sinusoidal": Quoted(1.44, 38),
    "zero": Quoted(1.48, 50),
}
QUOTED_REFERENCE = "normal-0.02"
NEITHER = {"untold": "cannot be told", "unknown": "no interval"}


def comparable(summary: InitSummary) -> list[InitRow]:
    """The rows that the quoted table has too; none where they are held against another start than there."""
    if summary.reference != QUOTED_REFERENCE:
        return []
    return [row for row in summary.rows if row.init in QUOTED and row.loss is not None]


def disagreements(summary: InitSummary) -> list[str]:
    """Sentences: where the measured order of losses, or of steps, is not that of the quoted table."""
    rows = [row for row in comparable(summary) if row.versus_reference is not None]
    if not rows:
        return []
    against = [sentence for row in rows for sentence in _against(row)]
    untold = [row.init for row in rows if told(row.versus_reference) in NEITHER]
    said = "Nothing measured here contradicts the order in the table that guides hand on."
    if against:
        said = f"The table that guides hand on says otherwise: {'; '.join(against)}."
    if untold:
        said += f" Whether the losses from {listed(untold)} differ as it says cannot be told from these runs."
    return [said]


def _against(row: InitRow) -> Iterator[str]:
    theirs, base = QUOTED[row.init], QUOTED[QUOTED_REFERENCE]
    ours = told(row.versus_reference)
    expected = "lower" if theirs.loss < base.loss else "higher"
    if row.versus_reference is not None and ours in ("lower", "higher") and ours != expected:
        yield (
            f"{row.init} ends {signed(row.versus_reference.mean)} from {QUOTED_REFERENCE} here, "
            f"{_their_difference(theirs)} there"
        )
    steps = told(row.steps_versus_reference, same=1.0)
    expected = "lower" if theirs.epoch < base.epoch else "higher"
    if row.steps_versus_reference is not None and steps in ("lower", "higher") and steps != expected:
        yield (
            f"{row.init} takes {number(row.steps_versus_reference.mean)} times the steps here, "
            f"{theirs.epoch / base.epoch:.2f} times the epochs there"
        )


def quoted_table(summary: InitSummary) -> Table:
    """Theirs beside ours, as differences to N(0, .02): the losses themselves are of other data."""
    base = QUOTED[QUOTED_REFERENCE]

    def cells(row: InitRow) -> tuple[Cell, ...]:
        theirs = QUOTED[row.init]
        versus, steps = row.versus_reference, row.steps_versus_reference
        return (
            Cell(f"{theirs.loss:.2f}", note="" if theirs is base else _their_difference(theirs)),
            Cell(signed(versus.mean), note=interval(versus, signed)) if versus else Cell(""),
            Cell(f"{theirs.epoch}", note="" if theirs is base else f"{theirs.epoch / base.epoch:.2f} times"),
            Cell(number(steps.mean), note=interval(steps)) if steps else Cell(""),
            Cell(_verdict(row), kind="words"),
        )

    return Table(
        "Beside the table that guides hand on",
        "It comes without data, model, seeds or intervals: final loss, and the epoch at which it had converged. "
        f"Only differences to N(0, .02) can be compared; times are of its epochs, and here of the steps to a "
        f"training loss of {'' if summary.loss is None else loss_number(summary.loss)}.",
        (
            Cell("their loss"),
            Cell("our difference"),
            Cell("their epoch"),
            Cell("our times"),
            Cell("on the loss", kind="words"),
        ),
        tuple(Row(row.init, cells(row)) for row in comparable(summary)),
        first="start",
    )


def _their_difference(theirs: Quoted) -> str:
    return f"{theirs.loss - QUOTED[QUOTED_REFERENCE].loss:+.2f}".replace("-", MINUS)


def _verdict(row: InitRow) -> str:
    if row.init == QUOTED_REFERENCE:
        return "the reference"
    ours = told(row.versus_reference)
    if ours in NEITHER:
        return NEITHER[ours]
    expected = "lower" if QUOTED[row.init].loss < QUOTED[QUOTED_REFERENCE].loss else "higher"
    return "agrees" if ours == expected else "disagrees"
