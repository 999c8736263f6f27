"""Resamples the projection of an image's patches to patches of another size."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
