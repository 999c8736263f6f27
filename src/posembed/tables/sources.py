"""Reads the rows of a table from whatever holds them: a tensor, an array, a layer, or a module around one."""

from __future__ import annotations

import inspect
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.tables.layout import TableLayout
from posembed.tables.modules import key_in, layout_in, module_tensors
from posembed.tables.rows import table_rows

Table: TypeAlias = "Tensor | np.ndarray[Any, Any] | nn.Module"
KINDS = "a tensor or an array (N, D), or a layer with a learned table"
FROM_A_MODEL = "posembed.inspect_checkpoint(path).tables[0].values for a checkpoint, model.wpe.weight for a model"


def position_rows(source: Table) -> Tensor:
    """Returns the rows (N, D) that hold positions, of any floating dtype and on any device, detached.

    Args:
        source: a floating tensor or array (N, D), (1, N, D) or (N, 1, D), or a module that is or holds one table.

    Raises:
        ArgumentError: anything else, such as a path or a model of transformers: ``posembed.plots`` reads those.
    """
    return split(*table_in(source))


def table_in(source: Table) -> tuple[Tensor, TableLayout]:
    """Returns a table and its layout. Without a layer that has a layout, all rows are positions. Raises the errors of
    ``position_rows``."""
    if isinstance(source, nn.Module) and models_in(source) and not learned_tables(source):
        raise ArgumentError(f"expected {KINDS}; got a model of transformers. Pass its table: {FROM_A_MODEL}")
    if not isinstance(source, Tensor | np.ndarray | nn.Module):
        raise ArgumentError(f"expected {KINDS}; got {type(source).__name__}. Pass rows: {FROM_A_MODEL}")
    table, layout = of_module(source) if isinstance(source, nn.Module) else (as_tensor(source), TableLayout())
    if table.is_meta:
        raise ArgumentError("expected a table with values; got one on the meta device. Load its weights first")
    return table, layout


def split(table: Tensor, layout: TableLayout) -> Tensor:
    """Returns the rows of a table that hold positions, dense and detached. An empty table has no rows."""
    if table.is_meta:
        raise ArgumentError("expected a table with values; got one on the meta device. Load its weights first")
    table = table.detach()
    table = table if table.layout == torch.strided else table.to_dense()
    rows = table if table.dim() == 2 and table.is_floating_point() else table_rows(table)
    return layout.split(rows)[1] if len(rows) else rows


def as_tensor(source: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """Returns a tensor as it is, and an array in float64, with NaN where it is masked."""
    if isinstance(source, Tensor):
        return source
    if source.dtype.kind != "f":
        raise ArgumentError(f"expected an array of floats (N, D); got {source.dtype} of shape {source.shape}")
    values = np.array(source, dtype=np.float64)
    return torch.from_numpy(np.where(np.ma.getmaskarray(source), np.nan, values))


def of_module(module: nn.Module, key: str | None = None) -> tuple[Tensor, TableLayout]:
    """Returns the only table of an encoding, or of a module around an encoding, and the table's layout.

    key: the table's name, if there are several.
    """
    encodings = {name: one for name, one in module.named_modules() if is_encoding(one)}
    tables = learned_tables(module)
    if "" in encodings and not tables:
        raise ArgumentError(
            f"{type(module).__name__} has no table of learned rows. Pass rows as a tensor, such as "
            "posembed.tables.sinusoidal_table(512, 64)"
        )
    wanted = [name for name in tables if key is None or key in (name, f"{name}.weight".lstrip("."))]
    if len(wanted) == 1:
        layout = getattr(encodings[wanted[0]], "layout", None)
        return tables[wanted[0]], layout if isinstance(layout, TableLayout) else TableLayout()
    if tables:
        given = f"key={key!r}" if key is not None else "none of them named"
        raise ArgumentError(f"expected the key of one of these tables: {', '.join(map(repr, tables))}; got {given}")
    tensors = module_tensors(module)
    found = key_in(module, tensors, key)
    try:
        return tensors[found], layout_in(module, found)
    except ArgumentError:  # a padding row, and nothing shows where positions begin: all rows are returned
        return tensors[found], TableLayout()


def is_encoding(module: nn.Module) -> bool:
    """Returns whether a module is a ``PositionEncoding``, which this folder may not import."""
    return all(inspect.isfunction(getattr(type(module), name, None)) for name in ("table", "at_input", "at_scores"))


def learned_tables(module: nn.Module) -> dict[str, Tensor]:
    """Returns the tables of the encodings in a module, by path."""
    found: dict[str, Any] = {name: one for name, one in module.named_modules() if is_encoding(one)}
    return {name: table for name, one in found.items() if (table := one.table()) is not None}


def models_in(module: nn.Module) -> dict[str, Any]:
    """Returns the outermost models with a config of transformers in a module, or the module itself, by path."""
    found: dict[str, Any] = {}
    for path, one in module.named_modules(remove_duplicate=False):
        inside = any(not outer or path.startswith(f"{outer}.") for outer in found)
        if not inside and hasattr(getattr(one, "config", None), "to_dict"):
            found[path] = one
    return found
