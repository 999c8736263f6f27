"""Tensors that follow a pattern and are not learned: position ids, causal masks, fixed sines and cosines.

They are recognised by their values. A resize generates them from the same pattern at the new length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor

from posembed.checkpoints.position_tables import Size, Tensors
from posembed.errors import CheckpointError
from posembed.modelfiles.safetensors import dtype_name, values_of
from posembed.tables.fill import sinusoidal_table
from posembed.tables.layout import Axis, TableLayout

NAMED_LIKE_A_BUFFER = re.compile(r"(\b|_)(pos(ition)?s?|ids?|mask|bias|tril|triu|causal|arange|index|indices)$")
COUNTS = re.compile(r"(\b|_)pos(ition)?s?$")
"""Matches the names of positions that may be floats."""
OF_LAYERS = re.compile(r"weight|zero|scale|quant|packed")  # of quantized layers, whose sides may be as long
NUMBERS_OTHERS = re.compile(r"(\b|_)(cls|class(es)?|labels?|vocab|experts?)_(?!pos)\w+$")
"""Matches the ids of what is not at positions. They count up too."""
# bfloat16 values deviate by up to 2^-9; learned rows deviate from a pattern by far more than this.
TOLERANCE = 0.01


def buffers_by_length(
    tensors: Tensors, lengths: Mapping[int, int], tables: Mapping[str, Collection[int]], changed: Collection[str]
) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Yields (key, before, after) for the ids and masks of a model that cannot be rebuilt. Ids and masks are recognised
    by their length and pattern. after: None for whole numbers of this length without a known pattern, which stay.

    lengths: maps old lengths of the tables to new lengths. tables: the old lengths of all tables, by key. changed: the
    keys of those that are resized. A buffer belongs to the table of its length that shares most of its path; a mask,
    also to those of a module around it.
    """
    for key, tensor in tensors.items():
        shape = tuple(tensor.shape)
        shape = shape[:-1] if shape[-1:] == (1,) else shape  # (N, 1) is a line too
        if key in tables or not shape or (length := lengths.get(shape[-1])) is None:
            continue
        square, ids = len(shape) > 1 and shape[-1] == shape[-2], key.endswith("position_ids")  # also stored as floats
        near = {table: shared(key, table) for table, held in tables.items() if shape[-1] in held}
        own = [table for table, modules in near.items() if modules == max(near.values())]
        own += [table for table in near if square and key.startswith(around(table))]
        if (not square and NUMBERS_OTHERS.search(key)) or not any(table in changed for table in own):
            continue
        named = NAMED_LIKE_A_BUFFER.search(key) is not None
        whole = dtype_name(tensor).startswith(("I", "U", "BOOL"))
        line = math.prod(shape) == shape[-1] and (whole or COUNTS.search(key))
        known = ids or (named and square) or (whole and (square or len(shape) < 3))
        if not known and not line:
            continue
        old = values_of(tensor)
        if not (named and known) and bool((old == old.flatten()[:1]).all()):
            continue  # such as the zero points of a quantized layer, or a norm
        resized = (*shape[:-2], length, length) if square else (*shape[:-1], length)
        new = resized_buffer(old.reshape(shape), resized)
        if new is not None:
            yield key, old, new.reshape(*resized, *old.shape[len(shape) :])
        elif named and known and shape == tuple(tensor.shape):
            raise CheckpointError(f"{key}: not resized: it has the table's length, but is neither ids nor a mask")
        elif whole and (square or line) and not OF_LAYERS.search(key):
            yield key, old, None


def around(table: str) -> str:
    """Returns the path of the module around that of a table, with a dot: "" for the whole model, if that holds the
    table itself."""
    holder = table.removesuffix(".weight").rpartition(".")[0]
    above = holder.rpartition(".")[0] or holder
    return f"{above}." if above else ""


def shared(one: str, other: str) -> int:
    """Returns how many modules two keys share, from the model inwards."""
    both = zip(one.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


def resized_buffer(old: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """Returns the pattern of ``old`` in another shape with the same number of axes; None for an unknown pattern.

    Known patterns: one value everywhere, counting up along the last axis, a causal triangle over the last two axes.
    """
    if old.numel() == 0 or old.dim() != len(shape):
        return None
    first, last = old.flatten()[0], old[..., -1:].flatten()[0]  # of the first row

    def constant(shape: tuple[int, ...]) -> Tensor:
        return first.expand(shape)

    def counting(shape: tuple[int, ...]) -> Tensor:
        line = torch.arange(shape[-1], dtype=torch.float64, device=old.device) + first.item()
        if shape != old.shape and not torch.equal(line.to(old.dtype).double(), line):
            raise CheckpointError(
                f"{old.dtype} cannot hold the ids of {shape[-1]} positions; store the ids of the file as int64 first"
            )
        return line.to(old.dtype).expand(shape)

    def triangle(shape: tuple[int, ...]) -> Tensor:
        below = torch.ones(shape[-2:], dtype=torch.bool, device=old.device).tril()
        return torch.where(below, first, last).expand(shape)

    for pattern in (constant, counting, triangle) if old.dim() > 1 else (constant, counting):
        if torch.equal(pattern(tuple(old.shape)), old):
            return pattern(shape).clone()
    return None


def index_of(axes: Sequence[Axis], *, behind_token: bool = False) -> Tensor:
    """Returns, for each pair of cells, the row number (N, N) in a table of differences, as Swin stores it.
    behind_token: whether a class token comes before the cells; its pairs have the last three rows, as in BEiT."""
    cells = torch.stack(torch.meshgrid(*(torch.arange(axis.size) for axis in axes), indexing="ij")).flatten(1)
    index = torch.zeros(1, dtype=torch.int64)
    for axis, at in zip(axes, cells, strict=True):
        index = index * axis.rows + at[:, None] - at[None] + axis.size - 1
    if behind_token:
        rows = math.prod(axis.rows for axis in axes)
        index = torch.nn.functional.pad(index, (1, 0, 1, 0))
        index[0, :], index[:, 0], index[0, 0] = rows, rows + 1, rows + 2
    return index


def shifted_windows(count: int, window: Size) -> Tensor | None:
    """Returns Swin's mask (count, N, N) for a square of windows that were shifted by half a window: 0 for two cells
    that were in one region before the shift, and -100 for others. None if ``count`` is not a square."""
    side = math.isqrt(count)
    if side * side != count:
        return None
    ends = (torch.tensor([(side - 1) * size, size - size // 2, size // 2]) for size in window)
    height, width = (torch.arange(3).repeat_interleave(each) for each in ends)
    regions = (3 * height[:, None] + width).unflatten(0, (side, window[0])).unflatten(2, (side, window[1]))
    regions = regions.transpose(1, 2).reshape(count, -1)
    return torch.where(regions[:, :, None] == regions[:, None], 0.0, -100.0)


def buffers_of_windows(
    tensors: Tensors, old: Sequence[Axis], new: Sequence[Axis]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields (key, before, after) for the indices and masks that change when a grid of differences is resized.

    A mask keeps its number of windows: the image grows in proportion.
    """
    cells = math.prod(axis.size for axis in old)
    for key, tensor in tensors.items():
        shape = tuple(tensor.shape)
        if len(shape) not in (2, 3) or shape[-1] != shape[-2] or shape[-1] not in (cells, cells + 1):
            continue
        if len(shape) == 2 and (dtype_name(tensor).startswith(("I", "U")) or key.endswith("index")):
            patterns: list[Tensor | None] = [index_of(axes, behind_token=shape[-1] > cells) for axes in (old, new)]
        elif len(shape) == 3 and NAMED_LIKE_A_BUFFER.search(key):
            patterns = [shifted_windows(shape[0], (axes[0].size, axes[-1].size)) for axes in (old, new)]
        else:
            continue
        before, after = patterns
        values = values_of(tensor)
        if before is None or after is None or not torch.equal(before.to(values.dtype), values):
            raise CheckpointError(f"{key}: not resized: it has the table's size, but is no index or mask of its cells")
        yield key, values, after.to(values.dtype)


def halves(length: int, dim: int) -> Tensor:
    """Returns a sinusoidal table (length, D) with all sines before all cosines."""
    table = sinusoidal_table(length, dim)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


FORMULAS: Mapping[str, Callable[[int, int], Tensor]] = {
    "sines and cosines in pairs (Vaswani)": sinusoidal_table,
    "sines, then cosines (Marian, Pegasus, RoFormer)": halves,
    "sines, then cosines, frequencies to the base (tensor2tensor, fairseq, Whisper)": partial(
        sinusoidal_table, interleaved=False
    ),
}


def standardised(length: int, dim: int, among: int) -> Tensor:
    """Returns a sinusoidal table (length, D), minus the mean of its first rows and divided by 10 times their deviation.

    among: the number of first rows.
    """
    with torch.device("cpu"):
        table = sinusoidal_table(length, dim)
    return (table - table[:among].mean()) / (10 * table[:among].std())


def looks_standardised(table: Tensor) -> bool:
    """Returns whether a table (N, D) is a sinusoid standardised by all of its rows, as in PatchTST."""
    rows, dim = table.shape
    if rows < 2 or not dim or dim % 2:
        return False
    if abs(float(table.float().mean())) > TOLERANCE or abs(float(table.float().std()) - 0.1) > TOLERANCE:
        return False
    return is_close(standardised(rows, dim, rows), table.cpu())


def looks_sinusoidal(table: Tensor) -> bool:
    """Returns whether every nonzero row (N, D) has norm sqrt(D/2), as rows of sines and cosines do."""
    norms = table.double().norm(dim=-1)
    norms = norms[norms > 0]
    expected = (table.shape[-1] / 2) ** 0.5
    return len(norms) > 0 and bool(((norms / expected - 1).abs() < TOLERANCE).all())


def recomputed(old: Tensor, layout: TableLayout, new_layout: TableLayout, length: int) -> tuple[Tensor, str] | None:
    """Recomputes a fixed sinusoid (N, D) at another size. Returns the new table (M, D) and the name of its formula, or
    None if the formula is unknown."""
    device, old = old.device, old.cpu()
    if layout.grid is not None and new_layout.grid is not None:
        front, cells, tail = layout.split(old)
        if cells.shape[1] % 4 or not is_close(grid_sinusoid(layout.grid, cells.shape[1]), cells):
            return None
        new = torch.cat([front, grid_sinusoid(new_layout.grid, cells.shape[1]).to(old.dtype), tail])
        return new.to(device), "sines and cosines of column and row (MAE)"
    rows, dim = new_layout.rows(length), old.shape[1]
    if dim < 2 or dim % 2:
        return None
    if looks_standardised(old):
        new = standardised(max(rows, len(old)), dim, len(old))[:rows].to(old.dtype)
        new[: len(old)] = old[:rows]
        return new.to(device), "standardised sines and cosines (PatchTST)"
    zero_rows = (old == 0).all(dim=1).nonzero().flatten()  # rows for padding
    for name, formula in FORMULAS.items():
        for first in (0, 1, 2):  # the position of row 0
            table = formula(first + max(rows, len(old)), dim)[first:]
            table[zero_rows] = 0
            if is_close(table[: len(old)], old):
                new, shared = table[:rows].to(old.dtype), min(rows, len(old))
                new[:shared] = old[:shared]  # keeps the rounding of the original rows
                return new.to(device), name
    return None


def grid_sinusoid(grid: Size, dim: int) -> Tensor:
    """Returns the sinusoidal table (height * width, D) of a grid, as in MAE: the first half of each vector encodes the
    cell's column, the second half its row."""
    height, width = grid
    columns, lines = halves(width, dim // 2), halves(height, dim // 2)
    return torch.cat([columns.repeat(height, 1), lines.repeat_interleave(width, dim=0)], dim=1)


def is_close(expected: Tensor, actual: Tensor) -> bool:
    return bool((expected - actual.float()).abs().max() < TOLERANCE)
