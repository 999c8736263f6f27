"""Methods that resize the grid of an image table: PyTorch's interpolation in the variants that the field uses.

Every method takes rows (H, W, D) of a floating dtype and the new grid, and returns (new H, new W, D) in the same
dtype. It leaves its input alone, and neither grid need be square.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch.nn.functional as F
from torch import Tensor

GridMethod = Callable[[Tensor, tuple[int, int]], Tensor]


def interpolate_grid(rows: Tensor, grid: tuple[int, int], *, mode: str, antialias: bool) -> Tensor:
    """Interpolates with mode "bicubic" or "bilinear" and aligned pixel edges (align_corners False).

    antialias widens the kernel if the grid shrinks. For bicubic it also changes the result if the grid grows:
    PyTorch's cubic constant is -.75 without it and -.5 with it.
    """
    if grid[1] == 1 != grid[0]:
        # With antialias and an output of width 1, PyTorch (2.13, CPU) repeats its first row; not so of height 1.
        turned = interpolate_grid(rows.transpose(0, 1), (1, grid[0]), mode=mode, antialias=antialias)
        return turned.transpose(0, 1)
    picture = rows.permute(2, 0, 1)[None]
    resized = F.interpolate(picture, size=grid, mode=mode, align_corners=False, antialias=antialias)
    return resized[0].permute(1, 2, 0)


def dinov2_grid(rows: Tensor, grid: tuple[int, int], *, offset: float = 0.1) -> Tensor:
    """Interpolates bicubically at the scale factor (new + offset) / old, as DINO's ``interpolate_offset`` does.

    The offset keeps the floor of old * factor from being one too few. It also moves the sampled points, and DINO's
    and DINOv2's backbones were trained with it, so their tables need it.
    """
    factors = tuple((new + offset) / old for new, old in zip(grid, rows.shape[:2], strict=True))
    resized = F.interpolate(rows.permute(2, 0, 1)[None], scale_factor=factors, mode="bicubic", align_corners=False)
    return resized[0].permute(1, 2, 0)


_BICUBIC = partial(interpolate_grid, mode="bicubic", antialias=False)
_BICUBIC_ANTIALIAS = partial(interpolate_grid, mode="bicubic", antialias=True)
_BILINEAR = partial(interpolate_grid, mode="bilinear", antialias=False)
_BILINEAR_ANTIALIAS = partial(interpolate_grid, mode="bilinear", antialias=True)

GRID_METHODS: Mapping[str, GridMethod] = {
    "bicubic": _BICUBIC,
    "bicubic-antialias": _BICUBIC_ANTIALIAS,
    "bilinear": _BILINEAR,
    "bilinear-antialias": _BILINEAR_ANTIALIAS,
    "dinov2": dinov2_grid,
    # The same under common names: timm and OpenCLIP, transformers' ViT, SigLIP 2.
    "timm": _BICUBIC_ANTIALIAS,
    "open-clip": _BICUBIC_ANTIALIAS,
    "vit": _BICUBIC,
    "siglip2": _BILINEAR_ANTIALIAS,
}
"""The names of ``method=`` for a table whose rows are a grid."""
