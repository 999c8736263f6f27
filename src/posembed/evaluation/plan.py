"""What has to be measured: for each row of the answer, which checkpoint runs on how much text at each length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from posembed.evaluation.runnable import Kind, Runnable

SHORTEST = 16
"""Fewer tokens than this are no text to measure."""

BASELINES: dict[Kind, tuple[str, ...]] = {
    # The last tokens of a piece see the same context whether the text before it is cut off or fed by itself.
    "causal": ("cut or chopped",),
    "masked": ("chopped",),
    "sentences": ("cut", "chopped"),
}


class Task(NamedTuple):
    """Texts of ``length`` tokens, fed ``piece`` at a time, special ones included; cut: the first piece alone.

    Language models are always measured on the whole of each text: their tasks differ in ``piece`` alone.
    """

    length: int
    piece: int
    cut: bool = False


@dataclass(frozen=True)
class PlannedRow:
    """baseline: such as "chopped at 512"; "" for the checkpoint as it is. tasks: None where it has no position."""

    runnable: Runnable
    baseline: str
    tasks: Mapping[int, Task | None]


def planned_rows(runnables: Sequence[Runnable], lengths: Sequence[int]) -> list[PlannedRow]:
    """One row a checkpoint, then the baselines, where some length is beyond the old one."""
    rows = [
        PlannedRow(
            runnable,
            "",
            {
                length: Task(length, length) if runnable.length is None or length <= runnable.length else None
                for length in lengths
            },
        )
        for runnable in runnables
    ]
    known = [runnable for runnable in runnables if runnable.old_length is not None]
    if not known:
        return rows
    # Of several with the same old length, the one that was not made longer.
    oldest = min(known, key=lambda runnable: (runnable.old_length, runnable.length or float("inf")))
    old = oldest.old_length
    assert old is not None
    if SHORTEST <= old < max(lengths):
        for name in BASELINES[oldest.kind]:
            tasks = {length: baseline_task(oldest.kind, name, length, old) for length in lengths}
            rows.append(PlannedRow(oldest, f"{name} at {old}", tasks))
    return rows


def baseline_task(kind: Kind, name: str, length: int, old: int) -> Task:
    piece = min(length, old)
    if kind != "sentences":
        return Task(piece, piece)
    return Task(length, piece, cut=name == "cut" and piece < length)
