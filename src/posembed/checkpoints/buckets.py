"""Changes the number of buckets in a table of distance buckets (T5, arXiv:1910.10683).

A new text length does not change such a table. Models differ in the distance from which all keys share the last bucket,
and in whether keys after the query have buckets of their own. Runs show both: a copy of the model with one bucket per
distance must give the same output as the model if each distance gets the row of its bucket in the model.

``buckets_of`` shows which distances read which row now. It runs a copy of the model's attention module with a table
whose row i holds the number i.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from typing import Any, cast

import torch
from torch import Tensor, nn

from posembed.checkpoints.choose import Target, listing
from posembed.checkpoints.position_tables import Config, ConfigField, Found, FoundTable, TableSize, section
from posembed.checkpoints.proof.answers import same, seeded
from posembed.checkpoints.proof.copies import small_copy, undisturbed
from posembed.checkpoints.proof.inputs import NotTried, inputs_of
from posembed.checkpoints.responses import BUCKETS
from posembed.checkpoints.sources.base import shapes_of
from posembed.checkpoints.sources.configs import models_around
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.buckets import FARTHEST, bucket_of, rebucket
from posembed.tables.layout import Axis, TableLayout
from posembed.tables.modules import parent
from posembed.words import last_line

REACHES = (
    "relative_attention_max_distance", "max_bucket_distance", "max_rel_pos", "max_rel_2d_pos",
    "position_bias_max_distance", "relative_max_distance",
)  # fmt: skip
SINGLE = 4096  # buckets on a side of a copy that has one for each distance
MOST_BUCKETS = 65_536
MOST_TOKENS = 1024  # of a text whose distances are tried; published models share the last bucket before

# The methods that compute the biases of a text of n tokens, and their arguments.
METHODS: Mapping[str, Callable[[int], tuple[Any, ...]]] = {
    "compute_bias": lambda n: (n, n),
    "compute_position_bias": lambda n: (torch.zeros(1, n, 1),),
}
NEAR = 2  # distances that do not show how far buckets reach


def bucket_target(found: Found, buckets: Any, key: str | None) -> Target:
    """Returns the target for a new number of distance buckets. ``read_buckets`` fills in the layouts."""
    count = operator.index(buckets)
    if count % 2 or not 4 <= count <= MOST_BUCKETS:
        limits = f"an even number from 4 to {MOST_BUCKETS:,}"
        raise ArgumentError(f"--buckets (buckets=...) takes {limits}, the same for both sides; got {buckets!r}")
    tables = [table for table in found.tables if table.fixed and field_of(table)]
    if key is not None and key not in [table.key for table in tables]:
        raise CheckpointError(f"--table {key}: it does not hold buckets of distances; {listing(found)}")
    fields = dict.fromkeys(field_of(table) for table in tables if key in (None, table.key))
    if len(fields) != 1:
        several = f"choose one with --table (table=...): {', '.join(table.key for table in tables)}"
        raise CheckpointError(several if fields else f"no table holds buckets of distances; {listing(found)}")
    (field,) = filter(None, fields)
    if field.value == count:
        raise ArgumentError(f"{field} is {count} already; pass another number of buckets")
    tables = sorted((table for table in tables if table.field == field), key=lambda table: table.key != key)
    changes = tuple(TableSize(table.read_by(TableLayout()), TableLayout(), count) for table in tables)
    assert isinstance(field.value, int)
    return Target(changes, (field.value, count), {field: count})


def field_of(table: FoundTable) -> ConfigField | None:
    return table.field if table.field is not None and BUCKETS.search(table.field.path[-1]) else None


def read_buckets(old_model: nn.Module, new_model: nn.Module, target: Target, config: Config) -> Target:
    """Returns the target with the layout and the resize method of each table. Refuses a table if no run shows that its
    rows are distance buckets."""
    field, changes = target.field, []
    assert field is not None
    around, (before, after) = section(config, field.path[:-1]), target.length
    reaches = [around[name] for name in REACHES if type(around.get(name)) is int]
    for change in target.changes:
        name, table = change.table.parameter, change.table
        shapes = [shapes_of(model).get(name, ()) for model in (old_model, new_model)]
        grown = [dim for dim, (old, new) in enumerate(zip(*shapes, strict=False)) if new - old == after - before]
        if len(grown) != 1:
            grown_to = f"with {field}={after}, its shape {shapes[0]} becomes {shapes[1]}"
            raise CheckpointError(f"{table.key}: not resized: {grown_to}, which is not one row for each bucket")
        dims, tail = () if grown == [0] and len(shapes[0]) == 2 else tuple(grown), shapes[0][grown[0]] - before
        old, new = (TableLayout(tail=tail, axes=(Axis("bucket", n),), dims=dims) for n in (before, after))
        here = replace(table, layout=old)
        how = method_of(old_model, TableSize(here, new, after), field, (*reaches, FARTHEST))
        if isinstance(how, str):
            raise CheckpointError(f"{table.key}: not resized: {how}")
        changes.append(TableSize(here, new, after, how=how))
    limits = {change.table.key: most_buckets(**cast(Any, change.how).keywords) for change in changes}
    lowest = min(limits, key=limits.__getitem__)
    if after > limits[lowest]:
        *above, last = sorted({f"{limit} for {key}" for key, limit in limits.items()})
        each = f" ({', '.join(above)} and {last})" if above else ""
        raise CheckpointError(
            f"{lowest}: not resized: with {after} buckets, each distance has one up to where far ones should share "
            f"one, so the model could not read longer texts; pass at most {limits[lowest]}{each}"
        )
    return replace(target, changes=tuple(changes))


def method_of(model: nn.Module, change: TableSize, field: ConfigField, reaches: Sequence[int]) -> Any:
    """Returns the resize method for a table of buckets, or the reason why no run of a small copy shows the method."""
    failure: Exception | None = None
    for path, narrow in product(models_around(model, change.table.parameter), (True, False)):
        with undisturbed(), torch.no_grad():
            try:
                sizes = change.table.layout.axes[0].size, change.length, 4 * SINGLE
                part = model.get_submodule(path)
                copies = [small_copy(part, narrow=narrow, settings=((field, size),)) for size in sizes]
                same_weights(copies)
            except Exception as error:
                failure = failure or error
                continue
            for inputs in inputs_of(copies[0]):
                try:
                    found = buckets_read(copies, change, path, inputs, reaches)
                except Exception as error:
                    failure = error if failure is None or isinstance(error, NotTried) else failure
                    continue
                return found
    if isinstance(failure, NotTried):
        return f"no run of a small copy of its model shows which rows it reads: {failure}"
    return f"no small copy of its model could be run to check which rows it reads ({last_line(failure or NotTried())})"


def most_buckets(*, farthest: int, both: bool) -> int:
    """Returns the largest number of buckets that a model can have. With more, each distance up to the farthest has its
    own bucket; the logarithm in T5's code is then infinite or negative, and gives buckets outside the table."""
    return (4 if both else 2) * farthest - 2


def same_weights(copies: Sequence[nn.Module]) -> None:
    """Gives all copies the first copy's weights. Parameters whose shapes differ become zero in all copies."""
    for parameters in zip(*(model.parameters() for model in copies), strict=True):
        for parameter in parameters:
            if len({each.shape for each in parameters}) > 1:
                parameter.zero_()
            else:
                parameter.copy_(parameters[0])


def buckets_read(
    copies: Sequence[nn.Module], change: TableSize, path: str, inputs: Mapping[str, Any], reaches: Sequence[int]
) -> Any:
    """Returns the resize method that agrees with a run, or why none does. Raises NotTried if it reads few distances.

    copies: three models, with the old number of buckets, the new number, and one bucket per distance.
    """
    name, layout = change.table.parameter.removeprefix(f"{path}."), change.table.layout
    tables = [model.get_parameter(name) for model in copies]
    held = [layout.rows_in(table) for table in tables]
    rows = [torch.randn(len(each) - layout.tail, each.shape[1]) for each in held]

    def answer(copy: int, cells: Tensor) -> Tensor:
        others = torch.zeros(layout.tail, cells.shape[1])
        tables[copy].copy_(layout.stored(torch.cat([cells, others]), like=tables[copy]))
        return seeded(copies[copy], inputs)

    wanted = [answer(copy, rows[copy]) for copy in (0, 1)]
    if same(answer(0, torch.zeros_like(rows[0])), wanted[0]):
        raise NotTried("it reads none of the rows for the inputs that were tried")
    for reach, both in product(dict.fromkeys(reaches), (True, False)):
        distances = torch.arange(1 - SINGLE, SINGLE if both else 1)
        at = bucket_of(distances, len(rows[2]), farthest=reach, both=both)
        spread = [torch.zeros_like(rows[2]) for _ in wanted]
        for cells, given in zip(spread, rows, strict=False):
            cells[at] = given[bucket_of(distances, len(given), farthest=reach, both=both)]
        if all(same(answer(2, cells), each) for cells, each in zip(spread, wanted, strict=True)):
            spread[0][at[distances.abs() > NEAR]] = 0
            if same(answer(2, spread[0]), wanted[0]):
                raise NotTried("its inputs that were tried hold near distances alone")
            return partial(rebucket, farthest=reach, both=both)
    few, many = sorted((0, 1), key=lambda copy: len(rows[copy]))
    rows[many][len(rows[few]) :] = 0
    if same(answer(many, rows[many]), wanted[many]):
        return f"with {len(rows[many])} buckets, the model still reads only the first {len(rows[few])}"
    return "a small copy of the model does not read its rows as buckets of distances, as T5 does"


# --- which distances read which row


@dataclass(frozen=True)
class Bucket:
    """A row of the table, and the differences (position of the key minus position of the query) that read this row.

    first, last: the smallest and the largest difference; None where no limit was found.
    """

    row: int
    first: int | None
    last: int | None


def buckets_of(model: nn.Module | None, table: FoundTable) -> tuple[Bucket, ...]:
    """Returns a table's buckets, from far before to far after the query; () if the model's code is unknown.

    model: a model on the meta device. In a decoder, all keys after the query share one row, which may occur twice.
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
    for row, of_row in groupby(line.int().tolist()):
        count = len(list(of_row))
        found.append(Bucket(row, at, at + count - 1))
        at += count
    found[0] = Bucket(found[0].row, None, found[0].last)
    found[-1] = Bucket(found[-1].row, found[-1].first, None)
    return tuple(found)
