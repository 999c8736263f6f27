"""The table of initial values that guides to learned positions copy from each other, compared with these runs."""

from __future__ import annotations

from dataclasses import dataclass

from posembed.lab.questions.inits import InitRow, InitSummary
from posembed.report.page import Cell, Table, table_of
from posembed.report.questions import estimate_cell
from posembed.report.questions.inits_words import loss_number, outcome
from posembed.report.words import MINUS, listed, number, signed


@dataclass(frozen=True)
class Published:
    loss: float
    """The final loss."""
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
REFERENCE = "normal-0.02"
BASE = PUBLISHED[REFERENCE]


def comparable(summary: InitSummary) -> list[InitRow]:
    """Returns the rows that the published table has too; none if our reference is another one."""
    if summary.reference != REFERENCE:
        return []
    return [row for row in summary.rows if row.name in PUBLISHED and row.loss is not None]


def disagreements(summary: InitSummary) -> list[str]:
    """Returns sentences on where the measured order of losses, or of steps, contradicts the published table."""
    rows = [row for row in comparable(summary) if row.versus_reference is not None]
    if not rows:
        return []
    against = [sentence for row in rows for sentence in _against(row)]
    open_ = [row.name for row in rows if outcome(row.versus_reference) in ("not significant", "unknown")]
    said = "Nothing measured here contradicts the order in the table that guides copy from each other."
    if against:
        said = f"The table that guides copy from each other contradicts these runs: {'; '.join(against)}."
    if open_:
        said += f" These runs cannot confirm its differences for {listed(open_)}."
    return [said]


def _against(row: InitRow) -> list[str]:
    theirs, sentences = PUBLISHED[row.name], []
    loss, steps = row.versus_reference, row.steps_versus_reference
    if loss is not None and outcome(loss) == ("higher" if theirs.loss < BASE.loss else "lower"):
        sentences.append(
            f"the loss of {row.name} minus that of {REFERENCE} is {signed(loss.value)} here and "
            f"{_their_difference(theirs)} there"
        )
    if steps is not None and outcome(steps, same=1.0) == ("higher" if theirs.epoch < BASE.epoch else "lower"):
        sentences.append(
            f"{row.name} takes {number(steps.value)} times the steps here and {theirs.epoch / BASE.epoch:.2f} times "
            "the epochs there"
        )
    return sentences


def published_table(summary: InitSummary) -> Table:
    """Compares differences to N(0, 0.02), since the losses themselves are of other data."""

    def loss(row: InitRow) -> Cell:
        theirs = PUBLISHED[row.name]
        return Cell(f"{theirs.loss:.2f}", note="" if theirs is BASE else _their_difference(theirs))

    def epoch(row: InitRow) -> Cell:
        theirs = PUBLISHED[row.name]
        return Cell(f"{theirs.epoch}", note="" if theirs is BASE else f"{theirs.epoch / BASE.epoch:.2f} times")

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
        (Cell("on the loss", kind="words"), lambda row: Cell(_verdict(row), kind="words")),
        first="initial values",
    )


def _their_difference(theirs: Published) -> str:
    return f"{theirs.loss - BASE.loss:+.2f}".replace("-", MINUS)


def _verdict(row: InitRow) -> str:
    if row.name == REFERENCE:
        return "the reference"
    ours = outcome(row.versus_reference)
    if ours in ("not significant", "unknown"):
        return ours
    return "agrees" if (ours == "lower") == (PUBLISHED[row.name].loss < BASE.loss) else "disagrees"
