"""Which distances read which row of a table of buckets (T5's relative bias, arXiv:1910.10683, section 2.1).

The model's own code computes it: its attention module is copied with a table whose row i holds the number i.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import nn

from posembed.checkpoints.found import FoundTable
from posembed.tables.modules import parent

MOST_TOKENS = 1024
"""The distances of two tokens in a text of this length are tried; published models share the last bucket before."""

# The methods that compute the biases of a text of n tokens, and their arguments.
METHODS: Mapping[str, Callable[[int], tuple[Any, ...]]] = {
    "compute_bias": lambda n: (n, n),
    "compute_position_bias": lambda n: (torch.zeros(1, n, 1),),
}


@dataclass(frozen=True)
class Bucket:
    """A row of the table, and the differences (position of the key minus position of the query) that read it.

    first, last: None where no limit was found.
    """

    row: int
    first: int | None
    last: int | None


def buckets_of(model: nn.Module | None, table: FoundTable) -> tuple[Bucket, ...]:
    """Returns the buckets of a table from far before to far after the query; () if the model's code is unknown.

    model: a model on the meta device. A row occurs twice if a decoder reads it for all keys after the query.
    """
    if model is None or not table.fixed:
        return ()
    path, name = parent(parent(table.parameter)), parent(table.parameter).rpartition(".")[2]
    holder = model.get_submodule(path)
    call = next((call for call in METHODS if hasattr(holder, call)), None)
    if call is None:
        return ()
    numbered = copy.deepcopy(holder)
    rows = torch.arange(table.rows, dtype=torch.float32)[:, None]
    setattr(numbered, name, nn.Embedding.from_pretrained(rows))
    try:
        with torch.no_grad():
            read = getattr(numbered, call)(*METHODS[call](MOST_TOKENS)).reshape(-1, MOST_TOKENS, MOST_TOKENS)[0]
    except Exception:  # each family has its own arguments
        return ()
    line = torch.cat([read[-1], read[0, 1:]])
    query, key = MOST_TOKENS // 3, MOST_TOKENS // 5
    if not read.isfinite().all() or read[query, key] != line[MOST_TOKENS - 1 + key - query]:
        return ()  # it depends on more than the difference
    found, at = [], 1 - MOST_TOKENS
    for row, same in groupby(line.int().tolist()):
        count = len(list(same))
        found.append(Bucket(row, at, at + count - 1))
        at += count
    found[0] = Bucket(found[0].row, None, found[0].last)
    found[-1] = Bucket(found[-1].row, found[-1].first, None)
    return tuple(found)
