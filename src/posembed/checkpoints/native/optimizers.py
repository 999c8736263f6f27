"""The moments (gradient averages) of an optimizer in a file: which are a table's, and their values for a new size.

A state dict of torch.distributed.checkpoint, or of an optimizer that was given names, says to which parameters they
belong. Others number the parameters in an order that only the script knows, so a table is recognised by its shape, or
by a copy of it among the moments. Names and shapes say nothing if another network in the file has them too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from posembed.checkpoints.plan import Edit, TableChange
from posembed.modelfiles.training_files import Place, Tree, at, children, form, joined, leaves, unwrapped, within

MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer"}
"""The names of gradient averages (moments) that start at zero. A ``square_avg`` does in RMSprop of PyTorch, but starts
at one in timm's; Adagrad says where its ``sum`` starts."""


@dataclass(frozen=True)
class Network:
    """Tensors that an optimizer may train. named: their names, each with its shape. counts: how many have a shape."""

    named: set[tuple[str, tuple[int, ...]]]
    counts: Counter[tuple[int, ...]]

    def has(self, named: set[tuple[str, Any]]) -> bool:
        """Whether it has all these names, with their shapes where those are known (not None)."""
        names = {name for name, _ in self.named}
        return all(name in names if shape is None else (name, shape) in self.named for name, shape in named)


def changed_moments(tree: Tree, place: Place, edit: Edit, masters: Mapping[Place, str]) -> dict[Place, Tensor] | None:
    """Returns an optimizer's moments for the tables, in the new sizes, by place. Unchanged rows keep their moments; the
    moments of all other rows start where the optimizer starts. None if it is unknown which moments belong to the
    tables, or what the optimizer keeps. masters: the keys of copies of the tables in the file, by place."""
    optimizer, at_state = tree.optimizers[place], (*place, "state")
    if not isinstance(optimizer.get("state"), Mapping):
        return None if any(isinstance(each, Tensor) for _, each in leaves(optimizer)) else {}
    model, others = networks(tree, masters)
    names, known = names_and_starts(optimizer)
    inside = {each[len(at_state) :]: key for each, key in masters.items() if within(each, [at_state])}
    copied = {joined(each[1:]) for each in inside}
    held = [*moments_of(optimizer)]
    named = {number: unwrapped(str(names.get(number, number))) for number, *_ in held}
    held = [each for each in held if each[1] not in copied]
    sizes = {number: tuple(each.shape) for number, name, each in held if name in known}
    sized = {(name, sizes.get(number)) for number, name in named.items()}
    means = all(known.get(name) is not None for _, name, _ in held)
    numbered = all(each.isdigit() for each in named.values())
    elsewhere = {each.shape for other, its in tree.optimizers.items() if other != place for *_, each in moments_of(its)}
    found = dict[Place, Tensor]()
    for change in edit.tables:
        shape, wanted = tuple(change.before.shape), unwrapped(change.key)
        pinned = {each[0] for each, key in inside.items() if key == change.key}
        if pinned or numbered:
            alike = pinned or {number for number, _, each in held if each.shape == shape}
            certain = bool(pinned) or (model.counts[shape] == 1 and not others.counts[shape])
            of_others = (means and Counter(sizes.values()) <= model.counts + others.counts) or shape in elsewhere
        else:
            same = {number for number, _, each in held if each.shape == shape}
            kin = any(f".{wanted}".endswith(f".{name}") or name.endswith(f".{wanted}") for name in named.values())
            alike = {number for number, _, _ in held if named[number] == wanted}
            certain = (model.has(sized) and not others.has(sized)) or (wanted, shape) not in others.named
            of_others = model.has(sized) or (means and not same) or (others.has(sized) and not kin)
        if not alike and of_others:
            continue  # the optimizer trains no table
        moments = {(*at_state, number, name): each for number, name, each in held if number in alike}
        fit = all(form(each) == (shape, True) and each.layout is torch.strided for each in moments.values())
        if len(alike) != 1 or not (certain and means and fit):
            return None
        found |= {each: resized_moment(moment, change, edit, known[each[-1]]) for each, moment in moments.items()}
    return found


def networks(tree: Tree, masters: Mapping[Place, str]) -> tuple[Network, Network]:
    """Returns the model, and all other tensors in the file, each of these by every end of its name."""
    own = {key: at(tree.root, each) for key, each in tree.places(tree.model).items() if each not in masters}
    untied = {(each.data_ptr(), tuple(each.shape)) for each in own.values()}
    floats = ((each, *form(value)) for each, value in tree.beside.items() if isinstance(value, Tensor))
    known = {*masters, *tree.statistics}
    beside = [(each, shape) for each, shape, real in floats if real and not (each in known or tree.in_state(each))]
    ends = {(unwrapped(joined(each[start:])), shape) for each, shape in beside for start in range(len(each))}
    of_model = Network({(unwrapped(key), tuple(each.shape)) for key, each in own.items()}, shape_counts(untied))
    return of_model, Network(ends, shape_counts(beside))


def shape_counts(tensors: Iterable[tuple[Any, tuple[int, ...]]]) -> Counter[tuple[int, ...]]:
    return Counter(shape for _, shape in tensors)


def names_and_starts(optimizer: Mapping[Any, Any]) -> tuple[dict[Any, str], dict[Any, Any]]:
    """Returns the names of numbered parameters, where the optimizer was given them, and the value at which each kind of
    moment starts, None if it is unknown."""
    names, starts = dict[Any, str](), set[Any]()
    for group in (each for _, each in children(optimizer["param_groups"]) if isinstance(each, Mapping)):
        names |= zip(group.get("params") or (), group.get("param_names") or (), strict=False)
        start = group.get("initial_accumulator_value")
        starts.add(start if isinstance(start, int | float) else None)
    return names, {**dict.fromkeys(MOMENTS, 0.0), "sum": starts.pop() if len(starts) == 1 else None}


def moments_of(optimizer: Mapping[Any, Any]) -> Iterator[tuple[Any, Any, Tensor]]:
    """Yields each tensor that an optimizer keeps, after its parameter's number or name, and its own name."""
    for place, each in leaves(optimizer.get("state")):
        if isinstance(each, Tensor) and each.ndim:
            yield place[0], place[1] if len(place) == 2 else joined(place[1:]), each


def resized_moment(moment: Tensor, change: TableChange, edit: Edit, start: float) -> Tensor:
    """Returns a table's moment in the new size. start: its value for rows that are new or changed."""
    size = next(each for each in edit.target.changes if each.table.key == change.key)
    centred = any(axis.relative and axis.signed for axis in size.layout.axes)

    def placed(rows: Tensor, length: int | tuple[int, ...]) -> Tensor:
        padding, sizes = [0, 0], (length,) if isinstance(length, int) else length
        for old, new in zip(reversed(rows.shape[:-1]), reversed(sizes), strict=True):
            first = (new - old) // 2 if centred else 0
            padding += [first, new - old - first]
        return functional.pad(rows, padding, value=math.nan)

    moved = (size.resized(change.before, placed), change.after, size.resized(moment, placed))
    as_bytes = {"memory_format": torch.contiguous_format}  # rows of one number too
    before, after, rows = (size.layout.rows_in(each).detach().clone(**as_bytes) for each in moved)
    kept = (before.view(torch.uint8) == after.view(torch.uint8)).all(dim=1, keepdim=True)
    return size.layout.stored(torch.where(kept, rows, start), like=moment)
