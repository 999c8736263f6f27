"""Methods that resize a table, each a pure function, as published or as in other libraries.

A method for positions in a line takes rows (N, D) of a floating dtype and a length, and returns (length, D). A method
for a grid takes rows (H, W, D) and (new H, new W), and returns (new H, new W, D); neither grid need be square. On
relative axes, rows stand for the 2 n - 1 differences of n cells, and the sizes that a method takes count differences.
The result has the dtype of the given rows, which stay unchanged. ``posembed.resize_table`` first removes reserved,
prefix and tail rows, and adds them again at the end.

``kernels_of`` gives the methods for axes of each kind, and ``groups`` says which axes are resized together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.tables.buckets import rebucket
from posembed.tables.layout import IMAGE_AXES, SIDES, Axis, are_sides

TextMethod = Callable[[Tensor, int], Tensor]
GridMethod = Callable[[Tensor, tuple[int, int]], Tensor]


def truncate(rows: Tensor, length: int) -> Tensor:
    """Returns the first ``length`` rows. It cannot make a table longer."""
    if length > len(rows):
        raise ArgumentError(
            f"truncate keeps at most the existing {len(rows)} rows; got a length of {length}. "
            "Use a method that makes new rows: tile, hierarchical, linear ..."
        )
    return rows[:length].clone()


def tile(rows: Tensor, length: int) -> Tensor:
    """Repeats the table: new[k] = old[k mod N] (Longformer, arXiv:2004.05150, section 5).

    Within each copy, rows have the same neighbours as in training.
    """
    return rows[torch.arange(length, device=rows.device) % len(rows)]


def interpolate(rows: Tensor, length: int, *, mode: str = "linear", align_corners: bool = False) -> Tensor:
    """Stretches or shrinks the whole table, each column on its own.

    mode: "linear", or "cubic" (PyTorch's bicubic in one dimension, constant -.75).
    align_corners: True puts the first and last new rows on the first and last old rows: new row k is read at
    k (N - 1) / (length - 1). False aligns the outer edges: row k is read at (k + .5) N / length - .5. Both are in use.
    """
    if mode not in ("linear", "cubic"):
        raise ArgumentError(f"mode must be 'linear' or 'cubic'; got {mode!r}")
    columns = rows.T[None, :, :, None]  # (1, D, N, 1): a picture one pixel wide
    kernel = {"linear": "bilinear", "cubic": "bicubic"}[mode]
    stretched = F.interpolate(columns, size=(length, 1), mode=kernel, align_corners=align_corners)
    return stretched[0, :, :, 0].T


def stretch(rows: Tensor, length: int, *, keep: int = 20) -> Tensor:
    """Keeps the first ``keep`` rows and stretches the others linearly (Long-CLIP, arXiv:2403.15378).

    New row k >= keep is read at keep + (k - keep) (N - keep) / (length - keep). The line through the last two old
    rows continues past them, as in Long-CLIP's code, which keeps 20 of 77 rows and turns each of the others into four.
    """
    if not 0 <= keep <= len(rows) - 2:
        raise ArgumentError(
            f"stretch needs at least two rows after those it keeps; got keep={keep} and {len(rows)} rows. "
            "Pass a keep that leaves two, or another method"
        )
    if length <= keep:
        raise ArgumentError(
            f"stretch must make more rows than the {keep} it keeps; got a length of {length}. "
            "Pass a smaller keep, or method='truncate'"
        )
    # Coordinate = left + weight, from whole numbers, so that the coordinate of an old row gives exactly that row.
    numerator = torch.arange(length - keep, device=rows.device) * (len(rows) - keep)
    left = (numerator // (length - keep)).clamp(max=len(rows) - keep - 2)
    weight = (numerator - left * (length - keep)).to(rows.dtype) / (length - keep)
    tail = rows[keep:]
    return torch.cat([rows[:keep], torch.lerp(tail[left], tail[left + 1], weight[:, None])])


def hierarchical(rows: Tensor, length: int, *, alpha: float = 0.4) -> Tensor:
    """Makes row a N + b from rows a and b, like a two-digit number (Su 2020, kexue.fm/archives/7947; bert4keras).

    With the old rows p_i and u_i = (p_i - alpha p_0) / (1 - alpha), new[a N + b] = alpha u_a + (1 - alpha) u_b. The
    formula reproduces the first N rows up to rounding, so these rows are copied instead. There are only N^2 two-digit
    numbers, so the result has at most N^2 rows. alpha is above 0 and below .5; at .5, (a, b) and (b, a) would give the
    same row.
    """
    if not 0 < alpha < 0.5:
        raise ArgumentError(f"alpha must lie above 0 and below 0.5; got {alpha}. The author's choice is 0.4")
    n = len(rows)
    if length > n * n:
        raise ArgumentError(
            f"from {n} rows, hierarchical makes at most {n} x {n} = {n * n}; got a length of {length}. "
            "Pass a smaller length, or another method: tile, linear ..."
        )
    new = torch.arange(n, max(n, length), device=rows.device)
    return torch.cat([rows[:length], two_digit_rows(rows, new, alpha=alpha)])


def two_digit_rows(rows: Tensor, positions: Tensor, *, alpha: float = 0.4) -> Tensor:
    """Applies the formula of ``hierarchical`` to positions below N^2 of any shape (...). Returns (..., D)."""
    u = (rows - alpha * rows[:1]) / (1 - alpha)
    return alpha * u[positions // len(rows)] + (1 - alpha) * u[positions % len(rows)]


def random_rows(rows: Tensor, length: int, *, std: float | None = None, seed: int = 0) -> Tensor:
    """Keeps the old rows and draws new ones from N(0, std^2): the baseline that every other method must beat.

    By default, std is measured on the table's entries, so that new rows are random in direction but not in scale.
    """
    spread = rows.detach().std(correction=0).item() if std is None else std
    # Drawn on the CPU, so that a seed gives the same rows on every device.
    generator = torch.Generator().manual_seed(seed)
    size = (max(length - len(rows), 0), rows.shape[1])
    new = spread * torch.randn(size, generator=generator, dtype=rows.dtype, device="cpu")
    return torch.cat([rows[:length], new.to(rows.device)])


def noisy_copies(rows: Tensor, length: int, *, share: float = 0.1, seed: int = 0) -> Tensor:
    """Keeps the old rows. New row k is row k mod N plus normal noise, because equal object queries would always predict
    the same box. share: the noise's standard deviation relative to that of the table's entries."""
    noise = random_rows(rows, length, std=share * rows.detach().std(correction=0).item(), seed=seed)
    return torch.cat([rows[:length], tile(rows, length)[len(rows) :] + noise[len(rows) :]])


def mean_row(rows: Tensor, length: int) -> Tensor:
    """Keeps the old rows and appends copies of their mean, a baseline with the right scale but no position."""
    new = rows.mean(dim=0).expand(max(length - len(rows), 0), -1)
    return torch.cat([rows[:length], new])


def interpolate_grid(
    rows: Tensor, grid: tuple[int, int], *, mode: str, antialias: bool, align_corners: bool = False
) -> Tensor:
    """Interpolates with mode "bicubic" or "bilinear" and aligned pixel edges, or aligned corners.

    antialias widens the kernel if the grid shrinks. For bicubic it also changes the result if the grid grows:
    PyTorch's cubic constant is -.75 without it and -.5 with it.
    """
    if grid[1] == 1 != grid[0]:
        # With antialias and an output of width 1, PyTorch (2.13, CPU) repeats its first row; height 1 is correct.
        how = {"mode": mode, "antialias": antialias, "align_corners": align_corners}
        return interpolate_grid(rows.transpose(0, 1), (1, grid[0]), **how).transpose(0, 1)  # type: ignore[arg-type]
    picture = rows.permute(2, 0, 1)[None]
    resized = F.interpolate(picture, size=grid, mode=mode, align_corners=align_corners, antialias=antialias)
    return resized[0].permute(1, 2, 0)


def dinov2_grid(rows: Tensor, grid: tuple[int, int], *, offset: float = 0.1) -> Tensor:
    """Interpolates bicubically with the scale factor (new + offset) / old, as DINO's ``interpolate_offset`` does.

    The offset keeps the floor of old * factor from being one too small. It also moves the sampled points. DINO's and
    DINOv2's backbones were trained with this offset, so their tables need it.
    """
    factors = tuple((new + offset) / old for new, old in zip(grid, rows.shape[:2], strict=True))
    resized = F.interpolate(rows.permute(2, 0, 1)[None], scale_factor=factors, mode="bicubic", align_corners=False)
    return resized[0].permute(1, 2, 0)


def nearest(rows: Tensor, length: int) -> Tensor:
    """Copies the nearest row: new row k is row floor(k N / length) (TimeSformer's own code, for more frames)."""
    return rows[torch.arange(length, device=rows.device) * len(rows) // length]


def extend(rows: Tensor, length: int) -> Tensor:
    """Keeps all rows. New, larger differences of two positions get the row of the largest old one of their sign.

    A model that clamps differences to the largest known difference gives the same outputs with the extended table.
    """
    beyond = (length - len(rows)) // 2
    return rows[(torch.arange(length, device=rows.device) - beyond).clamp(0, len(rows) - 1)]


def geometric(rows: Tensor, length: int) -> Tensor:
    """Interpolates linearly, with old rows spaced geometrically, so that larger differences are stretched more.

    Old difference k lies at 1 + q + ... + q^(k-1), with the q from 1.01 to 1.5 that puts the largest old difference on
    the largest new one (BEiT's run_class_finetuning.py; ``timm.layers.resize_rel_pos_bias_table``, which interpolates
    linearly, where BEiT's code is cubic).
    """
    old, new = len(rows) // 2, length // 2
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        low, high = (low, ratio) if (1 - ratio**old) / (1 - ratio) > new else (ratio, high)
    side = torch.cumsum(ratio ** torch.arange(old, dtype=torch.float64), 0)
    at = torch.cat([-side.flip(0), torch.zeros(1, dtype=torch.float64), side])
    wanted = torch.arange(-new, new + 1, dtype=torch.float64)
    if not old:
        return rows.expand(length, -1).clone()
    left = (torch.searchsorted(at, wanted, right=True) - 1).clamp(0, len(rows) - 2)
    weight = ((wanted - at[left]) / (at[left + 1] - at[left])).clamp(0, 1).to(rows)
    left = left.to(rows.device)
    return torch.lerp(rows[left], rows[left + 1], weight[:, None])


def repeat_last(rows: Tensor, length: int) -> Tensor:
    """Keeps the row of every distance. A new, larger distance gets the row of the largest old distance.

    A model that clamps distances to the largest known distance gives the same outputs with the new table.
    """
    return rows[torch.arange(length, device=rows.device).clamp(max=len(rows) - 1)]


def add_zeros(rows: Tensor, length: int) -> Tensor:
    """Keeps the row of every distance, and adds rows of zeros. A model that ignores larger distances, such as VITS,
    gives the same outputs with the new table."""
    return torch.cat([rows[:length], rows.new_zeros(max(length - len(rows), 0), rows.shape[1])])


def along_both(rows: Tensor, grid: tuple[int, int], *, method: TextMethod) -> Tensor:
    """Applies a method for a line along the height of rows (H, W, D), then along their width."""
    for axis, size in enumerate(grid):
        line = rows.movedim(axis, 0)
        rows = method(line.flatten(1), size).unflatten(1, line.shape[1:]).movedim(0, axis)
    return rows


def resample_patches(weight: Tensor, size: tuple[int, int]) -> Tensor:
    """Resamples a projection of patches, (..., h, w), to patches of another size (height, width) in pixels.

    This is the PI-resize of FlexiViT (arXiv:2212.08013; ``timm.layers.resample_patch_embed``). If a matrix B resizes a
    patch x (bicubic, antialias), the new weights are those whose products with B x come nearest to the products of the
    old weights with x: the pseudoinverse of B^T, times the old weights. For a larger patch, these products are equal.
    Computed in float64 and rounded once. Returns (..., height, width) in the dtype of ``weight``.
    """
    old = weight.shape[-2:]
    pixels = torch.eye(old.numel(), dtype=torch.float64, device=weight.device).unflatten(1, old)
    resized = F.interpolate(pixels[None], size=size, mode="bicubic", antialias=True)[0].flatten(1)  # B^T
    new = weight.flatten(-2).double() @ torch.linalg.pinv(resized).T
    return new.unflatten(-1, size).to(weight.dtype)


STRETCHED: Mapping[str, TextMethod] = {
    "linear": partial(interpolate, mode="linear", align_corners=False),
    "linear-corners": partial(interpolate, mode="linear", align_corners=True),
    "cubic": partial(interpolate, mode="cubic", align_corners=False),
    "cubic-corners": partial(interpolate, mode="cubic", align_corners=True),
}
TEXT_METHODS: Mapping[str, TextMethod] = {
    "truncate": truncate,
    "tile": tile,
    **STRETCHED,
    "stretch": stretch,
    "hierarchical": hierarchical,
    "random": random_rows,
    "mean": mean_row,
    # The same methods under common names.
    "longformer": tile,
    "long-clip": stretch,
    "bert4keras": hierarchical,
    "open-clip": STRETCHED["linear"],
}
"""The names that ``method=`` accepts for positions in a line."""

GRID_METHODS: Mapping[str, GridMethod] = {
    "bicubic": partial(interpolate_grid, mode="bicubic", antialias=False),
    "bicubic-antialias": partial(interpolate_grid, mode="bicubic", antialias=True),
    "bilinear": partial(interpolate_grid, mode="bilinear", antialias=False),
    "bilinear-antialias": partial(interpolate_grid, mode="bilinear", antialias=True),
    "bilinear-corners": partial(interpolate_grid, mode="bilinear", antialias=False, align_corners=True),
    "nearest": partial(along_both, method=nearest),
    "dinov2": dinov2_grid,
    # The same methods under common names: timm and OpenCLIP, transformers' ViT, SigLIP 2, Qwen3-VL.
    "timm": partial(interpolate_grid, mode="bicubic", antialias=True),
    "open-clip": partial(interpolate_grid, mode="bicubic", antialias=True),
    "vit": partial(interpolate_grid, mode="bicubic", antialias=False),
    "siglip2": partial(interpolate_grid, mode="bilinear", antialias=True),
    "qwen3-vl": partial(interpolate_grid, mode="bilinear", antialias=False, align_corners=True),
}
"""The names that ``method=`` accepts for positions on a grid."""

LINE_METHODS: Mapping[str, TextMethod] = {**STRETCHED, "nearest": nearest, "truncate": truncate, "tile": tile}
"""The names that ``method=`` accepts for one axis of images, frames, frequencies or coordinates."""

DIFFERENCE_METHODS: Mapping[str, TextMethod] = {
    "linear": STRETCHED["linear"],
    "cubic": STRETCHED["cubic"],
    "geometric": geometric,
    "extend": extend,
    "sam": STRETCHED["linear"],  # SAM's ``get_rel_pos``
}
"""The names that ``method=`` accepts for one relative axis."""

DIFFERENCE_GRID_METHODS: Mapping[str, GridMethod] = {
    "bicubic": partial(interpolate_grid, mode="bicubic", antialias=False),
    "bicubic-antialias": partial(interpolate_grid, mode="bicubic", antialias=True),
    "bilinear": partial(interpolate_grid, mode="bilinear", antialias=False),
    "geometric": partial(along_both, method=geometric),
    "extend": partial(along_both, method=extend),
    # The same methods under common names: Swin's authors and timm's ``resize_rel_pos_bias_table_simple``, timm's
    # ``resize_rel_pos_bias_table``, transformers' BEiT.
    "swin": partial(interpolate_grid, mode="bicubic", antialias=False),
    "timm": partial(along_both, method=geometric),
    "beit": partial(interpolate_grid, mode="bilinear", antialias=False),
}
"""The names that ``method=`` accepts for a relative height and width."""

LIMITED_METHODS: Mapping[str, TextMethod] = {
    "extend": repeat_last,
    "zeros": add_zeros,
    "linear-corners": partial(interpolate, mode="linear", align_corners=True),
    "cubic-corners": partial(interpolate, mode="cubic", align_corners=True),
}
"""The names that ``method=`` accepts for limited differences. A side is resized, but difference 0 keeps its row."""


@dataclass(frozen=True)
class Kernels:
    """The methods for one kind of axes. default: the name of the default method. what: the axes' name in messages."""

    methods: Mapping[str, TextMethod] | Mapping[str, GridMethod]
    default: str
    what: str

    def chosen(self, method: str | None) -> str:
        """Returns the method if it is one of these, and the default otherwise."""
        return method if method is not None and method in self.methods else self.default


TEXT = Kernels(TEXT_METHODS, "tile", "positions in a line")
GRID = Kernels(GRID_METHODS, "bicubic-antialias", "a grid")
LINE = Kernels(LINE_METHODS, "linear", "one axis")
NUMBERS = Kernels(LINE_METHODS, "tile", "numbers that come with the input")

DIFFERENCES = Kernels(DIFFERENCE_METHODS, "linear", "differences along one axis")
DIFFERENCE_GRID = Kernels(DIFFERENCE_GRID_METHODS, "bicubic", "differences on a grid")
DISTANCES = Kernels(LINE_METHODS, "linear", "distances along one axis")
DISTANCE_GRID = Kernels(GRID_METHODS, "bicubic-antialias", "distances on a grid")
FAR_ZEROS = Kernels(LIMITED_METHODS, "zeros", "distances up to a limit")
QUERIES = Kernels(
    {"noise": noisy_copies, "random": random_rows, "truncate": truncate}, "noise", "object queries, which have no order"
)
BUCKETS = Kernels({"buckets": rebucket}, "buckets", "buckets of distances")
LIMITED = Kernels(LIMITED_METHODS, "extend", "limited differences")
NAMED = {"number": NUMBERS, "bucket": BUCKETS, "distance": FAR_ZEROS, "query": QUERIES}
TOGETHER = (IMAGE_AXES, ("frequency", "time"), SIDES)


def groups(axes: Sequence[Axis]) -> list[slice]:
    """Returns the runs of axes that one method resizes together: height and width, frequency and time, or one axis."""
    found: list[slice] = []
    start = 0
    while start < len(axes):
        pair = axes[start : start + 2]
        both = (
            tuple(axis.name for axis in pair) in TOGETHER and len({(axis.relative, axis.signed) for axis in pair}) == 1
        )
        found.append(slice(start, start + 1 + both))
        start += 1 + both
    return found


def kernels_of(axes: Sequence[Axis]) -> Kernels:
    """Returns the methods for axes that are resized together, or the methods for text if there are no axes."""
    if not axes:
        return TEXT
    if are_sides(axes):
        return LIMITED
    if axes[0].name in NAMED:
        return NAMED[axes[0].name]
    if axes[0].relative and not axes[0].signed:
        return DISTANCES if len(axes) == 1 else DISTANCE_GRID
    if axes[0].relative:
        return DIFFERENCES if len(axes) == 1 else DIFFERENCE_GRID
    return LINE if len(axes) == 1 else GRID
