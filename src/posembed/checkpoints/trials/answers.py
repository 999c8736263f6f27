"""Compares the answers of small copies of a model before and after a resize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.found import TableSize
from posembed.checkpoints.rebuild import last_line, models_around
from posembed.checkpoints.trials.inputs import (
    LONGEST_TEXT,
    line_inputs,
)
from posembed.checkpoints.trials.small_copies import (
    LOUDER,
    NotTried,
    in_part,
    small_copy,
    undisturbed,
)
from posembed.tables.layout import TableLayout
from posembed.tables.resize import resize_table, takes

KEEPING = ("extend", "zeros")  # methods that keep the answers of models with limited differences
SAME = 1e-5  # relative differences below this are rounding
MERGED = 8  # frames that a model may merge to one
SMOOTH = 3  # waves of random tables


@dataclass(frozen=True)
class KeptAnswers:
    """What resized copies of a model with limited differences answer, compared with the old ones.

    keeping: a method for limited differences with which larger limits change no answer; "" if there is none, which
    shows that the rows mean something else. within, beyond: whether the resize that was asked for keeps the answer to
    an input within all limits, and to one with differences beyond the smaller limits. It uses ``keeping`` by default.
    """

    keeping: str
    within: bool
    beyond: bool


def kept_answers(
    old_model: nn.Module, new_model: nn.Module, target: Target, first: TableSize, method: str | None
) -> KeptAnswers:
    """Compares copies with the same weights, and tables of differences that are smooth and random.

    Limits that shrink are checked as limits that grow from the new size to the old one. Raises NotTried if no copy
    could be run.
    """
    grows = first.length > first.table.length
    limits = [axis.size for axis in (first.table.layout if grows else first.layout).axes]
    texts = [size for each in target.changes if not each.layout.axes for size in (each.length, each.table.length)]
    longest = min([LONGEST_TEXT, *texts])
    long = [min(factor * max(limits), longest) for factor in (2 * MERGED, 2)]
    short = [min(*limits, longest)]
    failure: Exception | None = None
    for path, narrow in product(models_around(old_model, first.table.parameter), (True, False)):
        models = [model.get_submodule(path) for model in (old_model, new_model)]
        tables = in_part(path, target.changes)
        limited = {name: each for name, each in tables.items() if each.layout.axes}
        with undisturbed(), torch.no_grad():
            try:
                old, new = (small_copy(model, narrow=narrow) for model in models)
                small, large, grown = (old, new, limited) if grows else (new, old, backwards(limited))
                pair_up(small, large, grown, waves=SMOOTH)
                inputs, wanted = answered(small, long)
                keeping = (each for each in KEEPING if keeps(large, resized(small, grown, each), inputs, wanted))
                if not (found := next(keeping, "")):
                    return KeptAnswers("", False, False)
                pair_up(old, new, limited, waves=SMOOTH)
                rows = resized(old, tables, method or found)
                within, beyond = (keeps(new, rows, *answered(old, lengths)) for lengths in (short, long))
                return KeptAnswers(found, within, beyond)
            except Exception as error:
                failure = failure or error
    raise NotTried(f"{type(old_model).__name__}: {last_line(failure)}" if failure else "no known model contains it")


def backwards(tables: Mapping[str, TableSize]) -> dict[str, TableSize]:
    """Returns the sizes of tables that change from their new layouts to their old ones."""
    return {
        name: TableSize(replace(each.table, layout=each.layout), each.table.layout, each.table.length)
        for name, each in tables.items()
    }


def keeps(model: nn.Module, tables: Mapping[str, Tensor], inputs: Mapping[str, Any], wanted: Tensor) -> bool:
    """Returns whether a copy with these tables gives the wanted answer."""
    fill(model, tables)
    given = seeded(model, inputs)
    return given.shape == wanted.shape and bool((given - wanted).norm() < SAME * wanted.norm())


def answered(model: nn.Module, lengths: Sequence[int]) -> tuple[dict[str, Any], Tensor]:
    """Returns the first input of one of these lengths that a model can read, and its answer."""
    failure: Exception | None = None
    for inputs in (each for length in lengths for each in line_inputs(model, length)):
        try:
            return inputs, seeded(model, inputs)
        except Exception as error:
            failure = failure or error
    raise failure or NotTried("it takes no input that is known")


def pair_up(
    old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], *, waves: float, loud: bool = False
) -> None:
    """Gives both copies the same weights, and the old one smooth tables. Without waves, all their cells are equal."""
    into = dict(new.named_parameters())
    for name, parameter in old.named_parameters():
        if name in tables:
            layout = tables[name].table.layout
            parameter.copy_(layout.stored(smooth(layout, parameter, waves=waves), like=parameter))
        else:
            shared = tuple(map(slice, map(min, parameter.shape, into[name].shape)))
            # Initial weights are so small that biases of attention would not change an answer.
            into[name][shared] = parameter.mul_(LOUDER if loud and parameter.dim() > 1 else 1)[shared]


def resized(old: nn.Module, tables: Mapping[str, TableSize], method: str | None) -> dict[str, Tensor]:
    """Returns the tables of an old copy, resized with the method, or with their defaults where it is not for them."""
    held, found = dict(old.named_parameters()), {}
    for name, change in tables.items():
        if name in held:
            sizes = {axis.name: axis.size for axis in change.layout.axes} or None
            length = None if sizes else change.length
            named = method if takes(change.table.layout, change.layout, method) else None
            named = named or change.table.method or None
            found[name] = resize_table(held[name], sizes=sizes, length=length, layout=change.table.layout, method=named)
    return found


def fill(new: nn.Module, tables: Mapping[str, Tensor], scale: float = 1) -> None:
    """Copies tables into a copy of the new model."""
    into = dict(new.named_parameters())
    for name, rows in tables.items():
        into[name].copy_(scale * rows)


def smooth(layout: TableLayout, like: Tensor, *, waves: float = SMOOTH) -> Tensor:
    """Returns random rows (N, D) that change slowly along each axis, for a table in this layout."""
    rows = layout.rows_in(torch.zeros_like(like))
    front, _, tail = layout.split(rows)
    total = torch.zeros(*layout.shape, rows.shape[1])
    for dim, size in enumerate(layout.shape):
        along = torch.sin(torch.arange(size)[:, None] / max(size, 1) * waves + 6 * torch.rand(rows.shape[1]))
        total += along.reshape(*(size if at == dim else 1 for at in range(len(layout.shape))), -1)
    return torch.cat([torch.randn_like(front), total.flatten(0, -2), torch.randn_like(tail)])


def seeded(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Runs a model, and returns its first output. Some models shuffle patches or sample durations."""
    torch.default_generator.manual_seed(0)
    return first_of(model(**inputs))


def first_of(outputs: Any) -> Tensor:
    """Returns the first output of a model."""
    return outputs if isinstance(outputs, Tensor) else next(v for v in outputs.values() if isinstance(v, Tensor))
