"""Positions in blocks: the axial position embeddings of Reformer (arXiv:2001.04451; Ho et al., arXiv:1912.12180).

A text of B blocks of n positions has a table for the blocks and one for the places in a block. Position i gets row
i // n of the first and row i % n of the second, side by side. A longer text gets more blocks of the same size, so every
position keeps its two rows. Other sizes of blocks would give most positions other rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.choose import Target, position_count
from posembed.checkpoints.found import ConfigField, Found, PositionTable
from posembed.checkpoints.rebuild import last_line, models_around
from posembed.checkpoints.trials.answers import SAME, seeded
from posembed.checkpoints.trials.inputs import LONGEST_TEXT, text_inputs
from posembed.checkpoints.trials.small_copies import NotTried, small_copy, undisturbed
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.modules import parent

BLOCK = "block"
READ_BLOCKS = (
    "Small copies of the model, one at the old and one at the new size, run, read the expected row of each table for "
    "every position, and give the same answers to a text of the old length."
)
LIMIT = "max_position_embeddings"  # the longest text that Reformer takes, whatever its tables hold


def table_of_blocks(found: Found, key: str | None) -> PositionTable | None:
    """Returns the table of blocks if a length means this table, because it is named or no table is; None otherwise."""
    blocks = (table for table in found.understood if [axis.name for axis in table.layout.axes] == [BLOCK])
    return next((table for table in blocks if key in (None, table.key)), None)


def block_target(found: Found, table: PositionTable, length: Any) -> Target:
    """Returns the target for another number of blocks of the same size."""
    length = position_count(length)
    (field,) = table.fields
    blocks, places = field.value if not isinstance(field.value, int) else (0, 0)
    if table.doubt:
        raise CheckpointError(f"{table.key}: not resized: {table.doubt}")
    if length % places:
        raise ArgumentError(
            f"{table.key}: positions lie in blocks of {places} ({field}={blocks}, {places}): --length (length=...) "
            f"takes multiples of {places}; got {length}"
        )
    if length == blocks * places:
        raise ArgumentError(f"{table.key} already holds {length} positions; pass another length")
    value = [length // places, places]
    limit = ConfigField((*field.path[:-1], LIMIT), math.prod((blocks, places)))
    sizes = table.sized({field: value})
    return Target((sizes,), (blocks * places, length), value, on=field, more=((limit, length),))


def of_blocks(target: Target) -> bool:
    return [axis.name for axis in target.table.layout.axes] == [BLOCK]


def refuse_other_blocks(old_model: nn.Module, new_model: nn.Module, target: Target) -> None:
    """Refuses tables that small copies do not read in blocks, or that give an old text another answer.

    Reformer computes no gradients in evaluation mode, so these do not show which rows it reads. Its own code computes
    the positions of both copies instead.
    """
    name, failure = target.table.parameter, None
    for path, narrow in product(models_around(old_model, name), (True, False)):
        holder = parent(parent(name.removeprefix(f"{path}.")))  # of the list with both tables
        with undisturbed(), torch.no_grad():
            try:
                copies = [small_copy(model.get_submodule(path), narrow=narrow) for model in (old_model, new_model)]
                same_rows(copies)
                read = [read_in_blocks(copy.get_submodule(holder)) for copy in copies]
                limit = getattr(copies[0].config, LIMIT)  # may be lower than the number of rows
                inputs = text_inputs(copies[0], min(*target.length, LONGEST_TEXT, limit))
                answers = [seeded(copy, inputs) for copy in copies]
                seeded(copies[1], text_inputs(copies[1], min(target.length[1], LONGEST_TEXT)))
            except Exception as error:
                failure = failure or error
                continue
        if not all(read):
            raise CheckpointError(f"{name}: not resized: the model does not read its rows as blocks of positions")
        if float((answers[0] - answers[1]).norm()) > SAME * float(answers[0].norm()):
            raise CheckpointError(f"{name}: not resized: a text gets another answer with the same rows")
        return
    why = last_line(failure or NotTried("no model of transformers contains it"))
    raise CheckpointError(f"{name}: not resized: no small copy of its model could be run ({why})")


def same_rows(copies: Sequence[nn.Module]) -> None:
    """Gives both copies the weights of the first, and random tables that begin with the same rows."""
    for old, new in zip(*(model.parameters() for model in copies), strict=True):
        if old.shape != new.shape:
            old.normal_()
            new.normal_()
        shared = tuple(map(slice, map(min, old.shape, new.shape)))
        new[shared] = old[shared]


def read_in_blocks(holder: nn.Module) -> bool:
    """Returns whether a module gives each position its rows of the table of blocks and of the table of places."""
    tables: list[Tensor] = list(holder.parameters())
    shape = [max(table.shape[dim] for table in tables) for dim in range(2)]
    expected = torch.cat([table.expand(*shape, -1) for table in tables], dim=-1).flatten(0, 1)
    return torch.equal(holder(torch.arange(math.prod(shape))[None])[0], expected)
