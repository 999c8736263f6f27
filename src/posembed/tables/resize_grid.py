"""Another grid for the rows of an image table: one call to PyTorch's interpolation, in the field's variants.

Every method takes rows laid out as their grid, (H, W, D) of a floating dtype, and the new grid, and returns
(new H, new W, D) in the same dtype, leaving its input alone. Neither grid need be square.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch.nn.functional as F
from torch import Tensor

GridMethod = Callable[[Tensor, tuple[int, int]], Tensor]


def interpolate_grid(rows: Tensor, grid: tuple[int, int], *, mode: str, antialias: bool) -> Tensor:
    """mode "bicubic" or "bilinear", pixel edges aligned (align_corners False).

    antialias widens the kernel where the grid shrinks. For bicubic it changes the result where the grid grows too:
    PyTorch's cubic constant is -.75 without it and -.5 with it.
    """
    if grid[1] == 1 != grid[0]:
        # With antialias and an output one wide, PyTorch (2.13, CPU) repeats its first row; one high it does not.
        turned = interpolate_grid(rows.transpose(0, 1), (1, grid[0]), mode=mode, antialias=antialias)
        return turned.transpose(0, 1)
    picture = rows.permute(2, 0, 1)[None]
    resized = F.interpolate(picture, size=grid, mode=mode, align_corners=False, antialias=antialias)
    return resized[0].permute(1, 2, 0)


def dinov2_grid(rows: Tensor, grid: tuple[int, int], *, offset: float = 0.1) -> Tensor:
    """Bicubic at the scale factor (new + offset) / old, as DINO and DINOv2 do (their ``interpolate_offset``).

    The offset was put in so that the floor of old * factor is never one too few. It also moves the places that are
    sampled, and the backbones were trained with it, so their tables want it.
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
    # The same under the names that people know: timm and OpenCLIP, transformers' ViT, SigLIP 2.
    "timm": _BICUBIC_ANTIALIAS,
    "open-clip": _BICUBIC_ANTIALIAS,
    "vit": _BICUBIC,
    "siglip2": _BILINEAR_ANTIALIAS,
}
"""What ``method=`` may name for a table whose rows are a grid."""
