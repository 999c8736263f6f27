"""Reads the rows that figures draw from a tensor, an array, a layer or a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from posembed.arguments import checked
from posembed.errors import ArgumentError, CheckpointError
from posembed.settings import Pair
from posembed.tables.health import describe_rows
from posembed.tables.layout import TableLayout
from posembed.tables.modules import is_table_name, key_in, module_tensors
from posembed.tables.rows import extreme_scale
from posembed.tables.sources import as_tensor, is_encoding, learned_tables, models_in, split
from posembed.tables.sources import of_module as table_of_module
from posembed.tables.spectrum import Spectrum, table_spectrum

if TYPE_CHECKING:
    from posembed.checkpoints.position_tables import Found

KINDS = "a tensor or an array (N, D), a layer with a learned table, or the path or hub name of a checkpoint"
T = TypeVar("T")
FEW = 4
"""The largest number of rows that a title lists."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a table, in order of their positions.

    values: (N, D) float64 on the CPU. first: the number of the first row in its table. grid: (height, width) if the
    rows are the cells of an image, row by row. after: how many rows of the table follow the last of these.
    """

    values: Tensor
    first: int = 0
    grid: tuple[int, int] | None = None
    after: int = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def last(self) -> int:
        """The number of the last row."""
        return self.first + max(len(self), 1) - 1

    @cached_property
    def finite(self) -> Tensor:
        """Which rows are finite, boolean (N,)."""
        return self.values.isfinite().all(dim=1)

    @cached_property
    def measured(self) -> Tensor:
        """The rows (N, D), with zeros in place of those that are not finite."""
        return self.values.where(self.finite[:, None], 0)

    @cached_property
    def norms(self) -> Tensor:
        """The norm of each row, (N,), NaN where it is not finite."""
        scale = extreme_scale(self.measured)
        norms = scale * (self.measured / scale).norm(dim=1)
        return norms.where(self.finite & norms.isfinite(), float("nan"))

    @cached_property
    def spectrum(self) -> Spectrum | None:
        """The spectrum of the rows, with rows that are not finite set to the mean; None without variance."""
        kept = self.values[self.finite]
        if len(kept) < 2 or not kept.size(1):
            return None
        spectrum = table_spectrum(self.values.where(self.finite[:, None], kept.mean(dim=0)))
        return spectrum if spectrum.variance_shares.any() else None

    @property
    def notes(self) -> list[str]:
        """Notes for the title on rows that cannot be drawn."""
        if not self.values.numel():
            return [f"an empty table, {self.values.size(0)} x {self.values.size(1)}"]
        broken = tuple((self.first + (~self.finite).nonzero()[:, 0]).tolist())
        if not broken:
            return []
        which = describe_rows(broken) if len(broken) <= FEW else f"{len(broken):,} of {len(self):,} rows"
        return [f"NaN or infinity in {which}"]


Source: TypeAlias = "Tensor | np.ndarray[Any, Any] | nn.Module | str | PathLike[str] | Rows"


def rows_of(source: Source, key: str | None = None, grid: tuple[int, int] | None = None) -> Rows:
    """Returns the rows that hold positions.

    Args:
        source: a floating tensor or array (N, D), (1, N, D) or (N, 1, D); a module that is or holds a learned table;
            the path or hub name of a checkpoint.
        key: the name of one table, if a module or a checkpoint has several.
        grid: (height, width) of a tensor whose rows are the cells of an image. Layers and checkpoints give their own.

    Raises:
        ArgumentError: ``source`` is anything else, or has no table, or several without a key.
        CheckpointError: files that cannot be read, no table, several without a key, or an unknown key.
    """
    grid = checked("grid", grid, Pair | None)
    if isinstance(source, Rows):
        return source
    if isinstance(source, str | PathLike):
        table, layout = of_checkpoint(source, key)
    elif isinstance(source, nn.Module):
        table, layout = of_module(source, key)
    elif isinstance(source, Tensor | np.ndarray):
        if key is not None:
            raise ArgumentError(f"key={key!r} names a table of a module or a checkpoint; leave it out for a tensor")
        table, layout = as_tensor(source), TableLayout()
    else:
        hint = ", which compare() draws" if isinstance(source, Mapping) else ""
        raise ArgumentError(f"expected {KINDS}; got {type(source).__name__}{hint}")
    rows = split(table, layout)
    if grid is not None and len(rows) != grid[0] * grid[1]:
        raise ArgumentError(f"grid: expected (height, width) of {len(rows)} cells; got {grid}")
    return Rows(rows.to("cpu", torch.float64), layout.front, grid or layout.grid, layout.tail)


def named_rows(source: Source | Mapping[str, Source], key: str | None = None) -> dict[str, Rows]:
    """Returns the rows of one table under "", or the rows of several tables under their names.

    key: the name of the table in every checkpoint, model and module among several; tensors and layers have only one.
    """
    if not isinstance(source, Mapping):
        return {"": rows_of(source, key)}
    if not source:
        raise ArgumentError("expected one table or more by name; got none")
    named = by_name(source)
    keyed = {name for name, one in named.items() if may_have_several(one)}
    if key is not None and not keyed:
        raise ArgumentError(f"key={key!r} names a table of a module or a checkpoint, and none of these is one")
    return {name: rows_of(one, key if name in keyed else None) for name, one in named.items()}


def by_name(given: Mapping[Any, T]) -> dict[str, T]:
    """Returns a mapping with its keys as strings. Raises ArgumentError if two are the same."""
    named = {str(name): one for name, one in given.items()}
    if len(named) != len(given):
        raise ArgumentError(f"expected different names; got {', '.join(map(repr, given))}")
    return named


def by_number(given: Mapping[Any, T], what: str, kind: Any) -> dict[int, T]:
    """Returns a mapping with sorted integer keys. "64" is read as 64, because JSON keys are strings.

    what: the name of the keys for the error, such as "training steps". kind: their type, such as
    Count. Raises ArgumentError for other keys.
    """
    numbers = [int(key) if isinstance(key, str) and key.isdecimal() and key.isascii() else key for key in given]
    found = [checked(what, number, kind) for number in numbers]
    if len(set(found)) != len(found):
        raise ArgumentError(f"{what}: expected each number once; got {', '.join(map(repr, given))}")
    return dict(sorted(zip(found, given.values(), strict=True)))


def may_have_several(source: object) -> bool:
    """Returns whether a key can name a table in ``source``: a checkpoint, or a module other than a single layer."""
    if isinstance(source, nn.Module):
        return not is_encoding(source) and any(True for _ in source.children())
    return isinstance(source, str | PathLike)


def of_module(module: nn.Module, key: str | None) -> tuple[Tensor, TableLayout]:
    """Returns the one table of a module, or the one under ``key``, and how its rows are read.

    A model of transformers with a config, a module around one, and a model of timm are read like their checkpoints.
    """
    from posembed.checkpoints.sources.timm import is_built_by_timm

    if is_built_by_timm(module) and not learned_tables(module):
        from posembed.checkpoints.live import timm_settings

        return found_in(timm_settings(module), module.state_dict(), key)
    models = models_in(module)
    if learned_tables(module) or not models:
        return table_of_module(module, key)
    path = next((path for path in models if key is not None and is_in(path, key)), None)
    if path is None and len({id(model) for model in models.values()}) == 1 and not has_table_around(module, models):
        path = next(iter(models))
    elif path is None:
        key = key_in(module, module_tensors(module), key)
        path = next((path for path in models if is_in(path, key)), None)
    if path is None:
        return table_of_module(module, key)
    model = models[path]
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    return found_in(config, tensors, key.removeprefix(f"{path}.") if key and path else key)


def is_in(path: str, key: str) -> bool:
    return not path or key.startswith(f"{path}.")


def has_table_around(module: nn.Module, models: Iterable[str]) -> bool:
    """Returns whether a tensor outside these models has the name of a position table."""
    names = (name for name in module_tensors(module) if is_table_name(name))
    return any(not any(is_in(path, name) for path in models) for name in names)


def of_checkpoint(source: str | PathLike[str], key: str | None) -> tuple[Tensor, TableLayout]:
    """Returns a table of a checkpoint and how its rows are read. Reads only headers, the config and the tables."""
    from posembed.checkpoints.native.files import tables_of
    from posembed.checkpoints.sources.model_types import open_model

    checkpoint = open_model(str(source))
    return chosen(tables_of(checkpoint, rebuild=False), checkpoint.tensors, key)


def found_in(
    config: Mapping[str, Any] | None, tensors: Mapping[str, Any], key: str | None
) -> tuple[Tensor, TableLayout]:
    from posembed.checkpoints.find import find_tables

    return chosen(find_tables(config, tensors, rebuild=False), tensors, key)


def chosen(found: Found, tensors: Mapping[str, Any], key: str | None) -> tuple[Tensor, TableLayout]:
    from posembed.checkpoints.choose import listing
    from posembed.checkpoints.position_tables import PositionTable
    from posembed.modelfiles.safetensors import values_of

    usual = found.understood if len(found.understood) else found.tables
    wanted = [table for table in found.tables if table.key == key] if key is not None else usual
    if len(wanted) != 1:
        given = f"got key={key!r}" if key is not None else "several could be meant" if wanted else "there is none"
        raise CheckpointError(f"expected the key of a position table; {given}; {listing(found)}")
    table = wanted[0]
    if isinstance(table, PositionTable):
        return table.values(tensors), table.layout
    return values_of(tensors[table.key]), TableLayout()
