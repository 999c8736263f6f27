"""The position tables found in a checkpoint, and the tensors that depend on their length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor, nn

from posembed.modelfiles.safetensors import AnyTensor, values_of
from posembed.tables.families import FieldPath
from posembed.tables.layout import TableLayout

Config = Mapping[str, Any]  # the content of config.json
Tensors = Mapping[str, AnyTensor]  # the tensors of a model by key, in files or in memory
Size = tuple[int, int]  # (height, width), in pixels or patches


def pair(value: Any) -> Size | None:
    """Returns (16, 16) for 16, (16, 8) for [16, 8], and None for anything else."""
    if type(value) is int:
        return value, value
    if isinstance(value, list | tuple) and len(value) == 2 and all(type(side) is int for side in value):
        return value[0], value[1]
    return None


def section(config: Config, path: FieldPath) -> Config:
    for name in path:
        inner = config.get(name)
        config = inner if isinstance(inner, Mapping) else {}
    return config


@dataclass(frozen=True)
class ConfigField:
    """A config field that gives a length or an image size."""

    path: FieldPath
    value: int | Size

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, kw_only=True)
class FoundTable:
    """A tensor that may be a position table. If its rows are understood, it is a PositionTable.

    key: its name in the files. parameter: its name in the model that transformers builds.
    shape: the stored shape, (N, D) or (1, N, D). dtype: the dtype's name in safetensors.
    found_by: "config" (by rebuilding the model), "family" (listed in tables/families.py), "module" (in a model in
        memory) or "name" (guessed).
    field: the config field that gives its length; None if unknown.
    doubt: the reason why it cannot be resized, or why the user must name it; empty without a doubt.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str
    found_by: str = "name"
    field: ConfigField | None = None
    parameter: str = ""
    doubt: str = ""

    @property
    def rows(self) -> int:
        return self.shape[-2] if len(self.shape) > 1 else 0

    @property
    def width(self) -> int:
        return self.shape[-1]

    def read_by(self, layout: TableLayout, *, patch: Size | None = None, doubt: str = "") -> PositionTable:
        return PositionTable(**vars(self) | {"doubt": doubt}, layout=layout, patch=patch)

    def doubted(self, doubt: str) -> FoundTable:
        """Returns this tensor or table, marked as not understood."""
        common = {each.name: getattr(self, each.name) for each in fields(FoundTable)}
        return FoundTable(**common | {"doubt": doubt})


@dataclass(frozen=True, kw_only=True)
class PositionTable(FoundTable):
    """A table whose rows are understood.

    kind: "learned", or "sinusoidal" for fixed sines and cosines. patch: the size in pixels of a grid cell, if known.
    """

    layout: TableLayout
    kind: str = "learned"
    patch: Size | None = None

    @property
    def length(self) -> int:
        """The usable length: the number of positions that an input may have."""
        return self.layout.length(self.rows)

    def values(self, tensors: Tensors) -> Tensor:
        return values_of(tensors[self.key]).reshape(self.rows, self.width)


@dataclass(frozen=True)
class TableSize:
    """A size of a table: the layout of its rows, and the number of positions."""

    table: PositionTable
    layout: TableLayout
    length: int


@dataclass(frozen=True)
class Found:
    """The position tables of a checkpoint, in the order of its files, and the model that transformers builds for it.

    blocked: maps config fields to the reason why no table of the field can be resized.
    model: the model on the meta device; None if transformers does not support it. config: its config object.
    keys: maps names of the model's tensors to their keys in the files, if transformers renames them.
    buffers: maps config fields to the keys of tensors that change shape with the field but are not parameters.
    stale: keys of position ids and causal masks that old files contain but the model no longer has.
    """

    tables: tuple[FoundTable, ...]
    blocked: Mapping[ConfigField, str] = field(default_factory=dict)
    model: nn.Module | None = None
    config: Any = None
    keys: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[ConfigField, tuple[str, ...]] = field(default_factory=dict)
    stale: tuple[str, ...] = ()

    @property
    def understood(self) -> tuple[PositionTable, ...]:
        return tuple(table for table in self.tables if isinstance(table, PositionTable))
