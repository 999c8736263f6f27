"""Reads the rows that figures draw from a tensor, an array, a layer or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError, CheckpointError
from posembed.layers.base import PositionEncoding
from posembed.tables.health import describe_rows
from posembed.tables.layout import TableLayout, table_rows
from posembed.tables.modules import key_in, layout_in, module_tensors
from posembed.tables.spectrum import Spectrum, table_spectrum

KINDS = "a tensor or an array (N, D), a layer with a learned table, or the path or hub name of a checkpoint"
FEW = 4
"""The largest number of rows that a title lists."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a table, in order of their positions.

    values: (N, D) float64 on the CPU. first: the number in its table of the first row. grid: (height, width) if the
    rows are the cells of an image, row by row.
    """

    values: Tensor
    first: int = 0
    grid: tuple[int, int] | None = None

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
    def spectrum(self) -> Spectrum | None:
        """The spectrum of the finite rows; None if they have no variance. The other rows are set to the mean."""
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
        ArgumentError: anything else, no table, or several without a key.
        CheckpointError: files that cannot be read, no table, several without a key, or an unknown key.
    """
    if isinstance(source, Rows):
        return source
    layout = TableLayout()
    if isinstance(source, str | PathLike):
        table, layout = of_checkpoint(source, key)
    elif isinstance(source, nn.Module):
        table, layout = of_module(source, key)
    else:
        if key is not None:
            raise ArgumentError(f"key={key!r} names a table of a module or a checkpoint; leave it out for a tensor")
        table = as_tensor(source)
    if table.is_meta:
        raise ArgumentError("expected a table with values; got one on the meta device. Load its weights first")
    table = table.detach()
    rows = table if table.dim() == 2 and table.is_floating_point() else table_rows(table)  # an empty table has no rows
    if len(rows):
        rows = layout.split(rows)[1]
    if grid is not None and len(rows) != grid[0] * grid[1]:
        raise ArgumentError(f"grid: expected (height, width) of {len(rows)} cells; got {grid}")
    return Rows(rows.to("cpu", torch.float64), layout.front, grid or layout.grid)


def named_rows(source: Source | Mapping[str, Source], key: str | None = None) -> dict[str, Rows]:
    """Returns the rows of one table under "", or of several under their names; ``key`` is for checkpoints."""
    if not isinstance(source, Mapping):
        return {"": rows_of(source, key)}
    if not source:
        raise ArgumentError("expected one table or more by name; got none")
    if key is not None and not any(isinstance(one, str | PathLike) for one in source.values()):
        raise ArgumentError(f"key={key!r} names a table of a checkpoint, and none of these is one; leave it out")
    return {str(name): rows_of(one, key if isinstance(one, str | PathLike) else None) for name, one in source.items()}


def as_tensor(source: object) -> Tensor:
    if isinstance(source, Tensor):
        return source
    if not isinstance(source, np.ndarray):
        given = f"{type(source).__name__}{', which compare() draws' if isinstance(source, Mapping) else ''}"
        raise ArgumentError(f"expected {KINDS}; got {given}")
    if source.dtype.kind != "f":
        raise ArgumentError(f"expected an array of floats (N, D); got {source.dtype} of shape {source.shape}")
    return torch.from_numpy(np.array(source, dtype=np.float64))


def of_module(module: nn.Module, key: str | None) -> tuple[Tensor, TableLayout]:
    """Returns the one table of an encoding, or of a module around it, and how its rows are read."""
    encodings = {name: one for name, one in module.named_modules() if isinstance(one, PositionEncoding)}
    tables = {name: table for name, one in encodings.items() if (table := one.table()) is not None}
    if isinstance(module, PositionEncoding) and not tables:
        raise ArgumentError(
            f"{type(module).__name__} has no table of learned rows to draw. Pass rows as a tensor, such as "
            "posembed.sinusoidal_table(512, 64)"
        )
    wanted = [name for name in tables if key is None or key in (name, f"{name}.weight".lstrip("."))]
    if len(wanted) == 1:
        name = wanted[0]
        layout = getattr(encodings[name], "layout", None)
        return tables[name], layout if isinstance(layout, TableLayout) else TableLayout()
    if tables:
        given = f"key={key!r}" if key is not None else "none of them named"
        raise ArgumentError(f"expected the key of one of these tables: {', '.join(map(repr, tables))}; got {given}")
    if hasattr(module, "config") and hasattr(module.config, "to_dict"):
        settings: Any = module.config
        config = {**settings.to_dict(), "architectures": [type(module).__name__]}
        return found_in(config, {name: value.detach() for name, value in module.state_dict().items()}, key)
    tensors = module_tensors(module)
    found = key_in(module, tensors, key)
    try:
        return tensors[found], layout_in(module, found)
    except ArgumentError:  # a padding row, and nothing shows where positions begin: all rows are drawn
        return tensors[found], TableLayout()


def of_checkpoint(source: str | PathLike[str], key: str | None) -> tuple[Tensor, TableLayout]:
    """Returns a table of a checkpoint and how its rows are read. Reads headers, the config and the tables alone."""
    from posembed.modelfiles.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(str(source))
    return found_in(checkpoint.config, checkpoint.tensors, key)


def found_in(
    config: Mapping[str, Any] | None, tensors: Mapping[str, Any], key: str | None
) -> tuple[Tensor, TableLayout]:
    from posembed.checkpoints.choose import listing
    from posembed.checkpoints.find import find_tables
    from posembed.checkpoints.found import PositionTable
    from posembed.modelfiles.safetensors import values_of

    found = find_tables(config, tensors)
    usual = found.understood if len(found.understood) else found.tables
    wanted = [table for table in found.tables if table.key == key] if key is not None else usual
    if len(wanted) != 1:
        given = f"got key={key!r}" if key is not None else "several could be meant" if wanted else "there is none"
        raise CheckpointError(f"expected the key of a position table; {given}; {listing(found)}")
    table = wanted[0]
    if isinstance(table, PositionTable):
        return table.values(tensors), table.layout
    return values_of(tensors[table.key]), TableLayout()
