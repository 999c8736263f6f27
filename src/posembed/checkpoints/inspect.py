"""What the position tables of a checkpoint are, what they learned, and what is wrong: ``inspect_checkpoint``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from posembed.checkpoints.choose import why_none
from posembed.checkpoints.files import open_checkpoint
from posembed.checkpoints.find import dotted, find_tables, rows_of
from posembed.checkpoints.found import Found, FoundTable, Tensors
from posembed.checkpoints.tensor_files import AnyTensor, StoredTensor, values_of
from posembed.tables.health import Finding, check_table
from posembed.tables.probes import FEWEST_ROWS, order_error, position_error
from posembed.tables.similarity import cosine_by_distance, neighbour_cosine, toeplitz_residual
from posembed.tables.spectrum import table_spectrum

# A singular value decomposition of more rows than this takes minutes; what is learned shows in fewer.
MOST_ROWS = 4096
TOKEN_TABLE = re.compile(r"(word_embeddings?|wte|embed_tokens|token_embeddings?|tokens_embed|shared)\.weight$")
EMBEDDING = re.compile(r"emb|wte|wpe")
SAMPLED_TOKENS = 8192
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Learned:
    """What the rows of positions hold, in figures. None where a figure says nothing (grids, few rows).

    rows: how many rows were measured, from the first on. directions_90: the fewest directions that hold 90 % of
    their variance. toeplitz: 0 where similarity depends on distance alone. position_error, in positions, and
    order_error: how wrong a linear reader is about where a row stands, and which of two comes first.
    """

    rows: int
    effective_rank: float
    directions_90: int
    neighbour_cosine: float | None = None
    cosine_by_distance: tuple[tuple[int, float], ...] = ()
    toeplitz: float | None = None
    position_error: float | None = None
    order_error: float | None = None


@dataclass(frozen=True, eq=False)
class TableReport:
    """One table: what it is, its share of the model, what hangs on its length, what it learned, what is wrong.

    values: its rows (N, D), in its own dtype. hangs_on: keys of other tensors that change with the same field.
    """

    table: FoundTable
    values: Tensor
    parameters: int
    share_of_model: float
    share_of_embeddings: float
    hangs_on: tuple[str, ...]
    learned: Learned | None
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        table, layout = self.table, self.table.layout
        return {
            "key": table.key,
            "kind": table.kind,
            "found_by": table.found_by,
            "doubt": table.doubt,
            "rows": table.rows,
            "length": table.length,
            "layout": None if layout is None else vars(layout),
            "width": table.width,
            "dtype": table.dtype,
            "parameters": self.parameters,
            "share_of_model": self.share_of_model,
            "share_of_embeddings": self.share_of_embeddings,
            "config_field": None if table.config_field is None else dotted(table.config_field),
            "config_value": table.config_value,
            "hangs_on_it": list(self.hangs_on),
            "learned": None if self.learned is None else vars(self.learned),
            "findings": [vars(finding) for finding in self.findings],
        }


@dataclass(frozen=True, eq=False)
class CheckpointReport:
    """The position tables of a checkpoint.

    model_type: as its config names it, or None. why_none: what was established where there are no tables.
    """

    source: str
    model_type: str | None
    parameters: int
    tables: tuple[TableReport, ...]
    why_none: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        tables = [table.to_dict() for table in self.tables]
        return {
            "source": self.source,
            "model_type": self.model_type,
            "parameters": self.parameters,
            "tables": tables,
            "why_none": self.why_none,
        }


def inspect_checkpoint(source: str | Path) -> CheckpointReport:
    """Every position table of a checkpoint: what it is, what it learned, and what is wrong with it.

    Only headers, the tables themselves and a sample of token rows are read.

    Args:
        source: a folder, a hub name, or one file of weights (``.safetensors``, ``.bin``, ``.pt``).

    Raises:
        CheckpointError: files that cannot be read, or a config that disagrees with them.
    """
    checkpoint = open_checkpoint(source)
    tensors, config = checkpoint.tensors, checkpoint.config or {}
    found = find_tables(checkpoint.config, tensors)
    model_type = config.get("model_type") or config.get("architecture")
    reports = tuple(report_on(table, found, tensors) for table in found.tables)
    why = "" if reports else why_none(found)
    return CheckpointReport(str(source), model_type, sum(map(count, tensors.values())), reports, why)


def report_on(table: FoundTable, found: Found, tensors: Tensors) -> TableReport:
    size = count(tensors[table.key])
    model = sum(map(count, tensors.values()))
    embeddings = sum(count(t) for key, t in tensors.items() if EMBEDDING.search(key) and len(t.shape) > 1)
    values, learned = values_of(tensors[table.key]), None
    findings: tuple[Finding, ...] = ()
    if table.layout is not None:
        values = rows_of(tensors, table)
        learned = what_it_learned(values, table)
        if table.kind == "learned":
            findings = check_table(values, layout=table.layout, token_norm=token_norm(tensors, table))
    return TableReport(
        table,
        values,
        parameters=size,
        share_of_model=size / max(model, 1),
        share_of_embeddings=size / max(embeddings, size),
        hangs_on=what_hangs_on(found, table, tensors),
        learned=learned,
        findings=findings,
    )


def what_it_learned(values: Tensor, table: FoundTable) -> Learned | None:
    """The figures over the rows of positions; None where they are not finite or too few to measure."""
    assert table.layout is not None
    rows = table.layout.split(values)[1][:MOST_ROWS]
    if len(rows) < FEWEST_ROWS or not rows.is_floating_point() or not rows.isfinite().all():
        return None
    spectrum = table_spectrum(rows)
    learned = Learned(len(rows), spectrum.effective_rank, spectrum.directions_for(0.9))
    if table.layout.grid is not None:
        return learned  # cells beside each other in the table need not be neighbours in the image
    by_distance = cosine_by_distance(rows)
    return replace(
        learned,
        neighbour_cosine=neighbour_cosine(rows).median().item(),
        cosine_by_distance=tuple((d, by_distance[d].item()) for d in DISTANCES if d < len(rows)),
        toeplitz=toeplitz_residual(rows),
        position_error=position_error(rows),
        order_error=order_error(rows),
    )


def what_hangs_on(found: Found, table: FoundTable, tensors: Tensors) -> tuple[str, ...]:
    """The other tensors that a new length of this table touches."""
    field = table.config_field
    if field is None:
        return ()
    companions = [other.key for other in found.tables if other.config_field == field and other.key != table.key]
    stale = [key for key in found.stale if tensors[key].shape[-1] in (table.rows, table.length)]
    return (*companions, *found.buffers.get(field, ()), *stale)


def token_norm(tensors: Tensors, table: FoundTable) -> float | None:
    """The mean norm of the token rows that a table's rows are added to, by a sample; None where none is found."""
    for key, tensor in tensors.items():
        if TOKEN_TABLE.search(key) and len(tensor.shape) == 2 and tensor.shape[1] == table.width:
            norms = first_rows(tensor, SAMPLED_TOKENS).float().norm(dim=1)
            norms = norms[norms > 0]  # a padding token's row
            return norms.mean().item() if len(norms) and norms.isfinite().all() else None
    return None


def first_rows(tensor: AnyTensor, number: int) -> Tensor:
    """The first rows of a (N, D) tensor, without reading the others."""
    number = min(number, tensor.shape[0])
    if not isinstance(tensor, StoredTensor):
        return tensor[:number]
    stop = tensor.start + number * (tensor.stop - tensor.start) // max(tensor.shape[0], 1)
    return replace(tensor, shape=(number, tensor.shape[1]), stop=stop).read()


def count(tensor: AnyTensor) -> int:
    return math.prod(tensor.shape)
