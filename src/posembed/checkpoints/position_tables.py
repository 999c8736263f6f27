"""The position tables found in a checkpoint, and the tensors that depend on their length."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any

from torch import Tensor, nn

from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.safetensors import AnyTensor, values_of
from posembed.tables.families import FieldPath
from posembed.tables.layout import IMAGE_AXES, TableLayout
from posembed.tables.resize import resize_table

Config = Mapping[str, Any]  # the content of config.json
Tensors = Mapping[str, AnyTensor]  # the tensors of a model by key, in files or in memory
Size = tuple[int, int]  # (height, width), in pixels or patches
IMAGE_TOKENS = ("image_seq_length", "image_seq_len", "num_image_tokens")  # fields: the tokens of a text for an image
TILED = "image_grid_pinpoints"
PIXELS = re.compile(r"(^|_)(image|img|input)_size$")  # fields that count pixels, of which each may be a cell


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


def fields_in(config: Config, above: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    """Yields the fields of a config and of its sections, each with its path and its value. Skips numbered entries."""
    for name, value in config.items():
        if isinstance(name, str) and isinstance(value, Mapping):
            yield from fields_in(value, (*above, name))
        elif isinstance(name, str):
            yield (*above, name), value


def times(size: Any, factor: int | Fraction) -> Any:
    """Returns a number, or each side of a size, multiplied by a factor and rounded down."""
    return int(factor * size) if isinstance(size, int) else [int(factor * side) for side in size]


def tiled_sizes(config: Config, old: Size, new: Size) -> Iterator[tuple[FieldPath, Any]]:
    """Yields the fields that list the sizes (height, width) to which large images are scaled before they are cut into
    tiles (LLaVA-NeXT), each with its value for new tiles. A list with a size that is no multiple of a tile stays."""
    for path, value in fields_in(config):
        if path[-1] == TILED and isinstance(value, list | tuple):
            sizes = [pair(each) for each in value]
            if all(each is not None and each[0] % old[0] == each[1] % old[1] == 0 for each in sizes):
                yield path, [[size[at] // old[at] * new[at] for at in (0, 1)] for size in sizes if size]


@dataclass(frozen=True)
class ConfigField:
    """A config field that gives a length or an image size. stated: whether the files hold it; otherwise its name and
    its value are inferred from the shapes of tensors."""

    path: FieldPath
    value: int | Size
    stated: bool = field(default=True, compare=False)

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class Cells:
    """How a config field gives the size of an axis: (value - kernel) // stride + 1 cells.

    side: which of two values counts, if the field has two: 0 is the height, 1 the width. area: whether the field gives
    the number of cells of a square grid instead of a side. For patches, kernel and stride are the patch size.
    """

    field: ConfigField
    side: int = 0
    kernel: int | Fraction = 1
    stride: int | Fraction = 1
    area: bool = False

    def count(self, value: int | Sequence[int]) -> int:
        """Returns the size of the axis for a value of the field."""
        side = (pair(value) or (0, 0))[self.side]
        return math.isqrt(side) if self.area else int((side - self.kernel) // self.stride) + 1

    def value(self, size: int) -> int:
        """Returns the smallest value that gives the axis this size."""
        return size * size if self.area else math.ceil(self.kernel + (size - 1) * self.stride)


@dataclass(frozen=True, kw_only=True)
class FoundTable:
    """A tensor that may be a position table. If its rows are understood, it is a PositionTable.

    key: its name in the files. parameter: its name in the rebuilt model.
    shape: the stored shape, (N, D) or (1, N, D). dtype: the dtype's name in safetensors.
    found_by: "config" (by rebuilding the model), "family" (listed in tables/families.py), "module" (in a model in
        memory), "settings" (confirmed by settings beside the weights) or "name" (guessed).
    field: the config field that gives its length; None if unknown.
    doubt: the reason why it cannot be resized, or why the user must name it; empty without a doubt.
    fixed: whether its rows do not depend on any length or image size, so that there is nothing to resize.
    in_buckets: whether its rows are distance buckets, which are fixed.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str
    found_by: str = "name"
    field: ConfigField | None = None
    parameter: str = ""
    doubt: str = ""
    fixed: bool = False
    in_buckets: bool = False

    @property
    def rows(self) -> int:
        return self.shape[-2] if len(self.shape) > 1 else 0

    @property
    def width(self) -> int:
        return self.shape[-1]

    def read_by(self, layout: TableLayout, *, cells: tuple[Cells, ...] = (), doubt: str = "") -> PositionTable:
        return PositionTable(**vars(self.doubted(doubt)), layout=layout, cells=cells)

    def doubted(self, doubt: str) -> FoundTable:
        """Returns this tensor or table, marked as not understood."""
        common = {each.name: getattr(self, each.name) for each in fields(FoundTable)}
        return FoundTable(**common | {"doubt": doubt})


@dataclass(frozen=True, kw_only=True)
class PositionTable(FoundTable):
    """A table whose rows are understood.

    kind: "learned", or "sinusoidal" for fixed sines and cosines. cells: for each axis of the layout, how the config
    gives its size; () if unknown. method: the resize method of the model's library, if it is not posembed's default.
    """

    layout: TableLayout
    kind: str = "learned"
    cells: tuple[Cells, ...] = ()
    method: str = ""

    @property
    def rows(self) -> int:
        if not self.layout.dims:  # (N, D), (1, N, D) or (N, 1, D)
            return math.prod(self.shape[:-1])
        if self.layout.columns is not None:
            return self.layout.rows(math.prod(self.layout.shape))
        return math.prod(self.shape[dim] for dim in self.layout.dims)

    @property
    def width(self) -> int:
        return math.prod(self.shape) // self.rows if self.layout.dims else super().width

    @property
    def fields(self) -> tuple[ConfigField, ...]:
        return tuple(dict.fromkeys(cells.field for cells in self.cells)) or tuple(filter(None, (self.field,)))

    def as_it_is(self) -> TableSize:
        return TableSize(self, self.layout, self.length)

    def sized(self, values: Mapping[ConfigField, Any]) -> TableSize:
        """Returns the size of the table for other values of some of its config fields."""
        pairs = zip(self.layout.axes, self.cells, strict=True)
        sizes = {
            axis.name: cells.count(pair(values[cells.field]) or 0) for axis, cells in pairs if cells.field in values
        }
        layout = self.layout.resized(sizes)
        return TableSize(self, layout, math.prod(layout.shape))

    @property
    def patch(self) -> Size | None:
        """The size in pixels of a cell of an image, if known. None if the config gives the number of cells."""
        named = zip(self.layout.axes, self.cells, strict=False)
        sides = [each for axis, each in named if axis.name in IMAGE_AXES and not each.area]
        strides = [math.ceil(each.stride) for each in sides if each.stride > 1 or PIXELS.search(each.field.path[-1])]
        return (strides[0], strides[-1]) if strides else None

    def patch_field(self, new: Size, config: Config) -> tuple[ConfigField, int | list[int]]:
        """Returns the config field of the patch size, in the section of the image size, and its new value. config: the
        config with its defaults; {} if there is none."""
        above, old = self.fields[0].path[:-1], self.patch
        stated = section(config, above).get("patch_size")
        if new == old:
            raise ArgumentError(f"{self.key} already has patches of {old[0]} x {old[1]} pixels; pass another size")
        if config and pair(stated) != old:
            raise CheckpointError(f"{self.key}: not resized: config.json gives no patch_size beside {self.fields[0]}")
        field = ConfigField((*above, "patch_size"), stated if isinstance(stated, int) else old or 0)
        return field, new[0] if new[0] == new[1] else list(new)

    def cut(self, old: Size, new: Size) -> PositionTable:
        """Returns this table, in its present layout, with cells sized by patches of a new (height, width) in pixels."""
        cells = list(self.cells)
        for at, (axis, each) in enumerate(zip(self.layout.axes, self.cells, strict=False)):
            if axis.name in IMAGE_AXES:
                if {each.kernel, each.stride} != {old[each.side]}:
                    raise CheckpointError(f"{self.key}: not resized: its cells are not patches of {old[0]} x {old[1]}")
                cells[at] = replace(each, kernel=new[each.side], stride=new[each.side])
        return replace(self, cells=tuple(cells))

    @property
    def length(self) -> int:
        """The usable length: the number of positions that an input may have."""
        return self.layout.length(self.rows)

    def values(self, tensors: Tensors) -> Tensor:
        return self.layout.rows_in(values_of(tensors[self.key]))


@dataclass(frozen=True)
class TableSize:
    """The size of a table: the layout of its rows, the number of positions and, if runs show it, the resize method."""

    table: PositionTable
    layout: TableLayout
    length: int
    how: Callable[[Tensor, Any], Tensor] | None = None

    def resized(self, stored: Tensor, method: str | Callable[[Tensor, Any], Tensor] | None) -> Tensor:
        """Resizes a stored table from its present size. method: None stands for ``how`` or, without it, for the
        default."""
        sizes = {axis.name: axis.size for axis in self.layout.axes} or None
        length = self.length if sizes is None else None
        return resize_table(stored, length=length, sizes=sizes, method=method or self.how, layout=self.table.layout)


@dataclass(frozen=True)
class Found:
    """The position tables of a checkpoint, in the order of its files, and the model rebuilt for it.

    blocked: maps config fields to the reason why no table of the field can be resized. model: the model on the meta
    device; None if no library builds it. config: the model's config object. keys: maps names of the model's tensors to
    their keys in the files, if transformers renames them. buffers: maps config fields to the keys of tensors that
    change shape with the field but are not parameters. stale: keys of position ids and causal masks that old files
    contain but the model no longer has. responding: the config fields that change the shape of any tensor. no_need: why
    a model without a table needs no resize; "" if unknown. stated: the keys of the tables of which
    holds what the user states of rows; None if nothing is stated.
    """

    tables: tuple[FoundTable, ...]
    blocked: Mapping[ConfigField, str] = field(default_factory=dict)
    model: nn.Module | None = None
    config: Any = None
    keys: Mapping[str, str] = field(default_factory=dict)
    buffers: Mapping[ConfigField, tuple[str, ...]] = field(default_factory=dict)
    stale: tuple[str, ...] = ()
    responding: frozenset[ConfigField] = frozenset()
    no_need: str = ""
    stated: AbstractSet[str] | None = None

    @property
    def understood(self) -> tuple[PositionTable, ...]:
        return tuple(table for table in self.tables if isinstance(table, PositionTable))
