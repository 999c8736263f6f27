"""Turns the options of ``posembed advise``, typed or passed from Python, into needs. Reads a given checkpoint."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.lab.advice.needs import Existing, Grid, Needs
from posembed.settings import Count, converted, options, take
from posembed.words import MASKED, SENTENCES, least


def needs_of(*, checkpoint: str | Path | Existing | None = None, table: int | None = None, **given: Any) -> Needs:
    """Returns the needs; an option that is None has its default. ``longest="none"`` means no limit.

    By default the longest length is the training length. For images, the lengths count the patches of the grids, and
    the vocabulary is 0. A checkpoint gives the default width, its table the default length, and its kind whether it
    reads in both directions.

    Raises:
        ArgumentError: an unknown option, a value that cannot be used, or needs that contradict each other.
        CheckpointError: the checkpoint cannot be read.
    """
    chosen = take(Needs, given)
    if given:
        raise unknown("need", min(given), [*options(Needs), "table", "runs"])
    grid = chosen.get("grid")
    if grid is not None:
        chosen = {"length": math.prod(grid), "vocabulary": 0, **chosen}
        chosen.setdefault("longest", math.prod(chosen.get("longest_grid", grid)))
    held = checkpoint if isinstance(checkpoint, Existing) else existing_of(checkpoint, table, grid)
    if held is not None and held.length is not None and held.grid is None and grid is None:
        chosen.setdefault("longest", chosen.get("length", held.takes))
        chosen.setdefault("length", least(held.length, chosen["longest"]))
    if "length" not in chosen:
        remedy = "give --length, the tokens per training sequence, or --grid for images"
        if held is not None and held.grid is not None:
            cells = "x".join(map(str, held.grid))
            remedy = f"{held.source} reads images of {cells} patches; give --grid {cells}, and --longest-grid"
        elif held is not None:
            none = f"no table with a row for each position was found in {held.source}, which would give a length"
            remedy = f"{none}; {remedy}"
        raise ArgumentError(remedy)
    chosen.setdefault("longest", chosen["length"])
    if held is not None and held.width is not None:
        chosen.setdefault("width", held.width)
    if held is not None and grid is None and held.kind in (SENTENCES, MASKED):
        chosen.setdefault("encoder", True)
    return Needs(**chosen, checkpoint=held)


def existing_of(checkpoint: str | Path | None, table: int | None, grid: Grid | None) -> Existing | None:
    """Returns the positions of a checkpoint, or of a table of the given length. grid: the user's grid of patches.

    If there are several learned tables, it uses the shortest of those for the user's kind of input (text or images).
    """
    if table is not None:
        if checkpoint is not None:
            raise ArgumentError("give --checkpoint or --table, not both: posembed reads the length from a checkpoint")
        table = converted("table", table, Count)
        return Existing(table, grid if grid is not None and math.prod(grid) == table else None)
    if checkpoint is None:
        return None
    from posembed.checkpoints.inspect import inspect_checkpoint
    from posembed.checkpoints.position_tables import PositionTable
    from posembed.checkpoints.settings import limits_of, rotates

    checkpoint = converted("checkpoint", checkpoint, Path | str)
    report = inspect_checkpoint(checkpoint)
    learned = [
        (each.table, tuple(map(str, each.findings)))
        for each in report.tables
        if isinstance(each.table, PositionTable) and each.table.kind == "learned" and not each.relative
    ]
    fitting = [each for each in learned if (each[0].layout.grid is None) == (grid is None)] or learned
    if not fitting:
        _, fed = limits_of(checkpoint)
        turns = rotates(checkpoint) is not False
        return Existing(None, source=str(checkpoint), kind=report.kind, fed=fed, rotates=turns)
    found, findings = min(fitting, key=lambda each: each[0].length)
    limits = limits_of(checkpoint, found.key)
    return Existing(found.length, found.layout.grid, found.width, str(checkpoint), findings, report.kind, *limits)
