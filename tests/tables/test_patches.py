"""The PI-resize of FlexiViT, against timm and by its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import timm_peer
from posembed.tables.resize_methods import resample_patches
from together import together
from tolerance import assert_close

SIZES = [(8, 8), (14, 14), (17, 16), (20, 12), (32, 32)]


def weights(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.fixture(scope="module")
def theirs() -> Any:
    timm_peer.vision_transformer()
    from timm.layers import resample_patch_embed

    return resample_patch_embed


@together("size", SIZES)
def test_timm(theirs: Any, size: tuple[int, int]) -> None:
    old = weights(8, 3, 16, 16)
    # timm computes the pseudoinverse in float32.
    assert_close(resample_patches(old, size), theirs(old, list(size)), terms=16 * 16, depth=2)


@together("size", [(16, 16), (17, 16), (20, 24), (32, 32)])
def test_larger_patches_have_the_products_of_the_old_ones(size: tuple[int, int]) -> None:
    old, patches = weights(5, 3, 16, 16).double(), weights(7, 3, 16, 16).double()
    larger = F.interpolate(patches, size=size, mode="bicubic", antialias=True)
    new = resample_patches(old, size)
    assert new.shape == (5, 3, *size)
    ours, before = (torch.einsum("dchw,bchw->bd", *each) for each in ((new, larger), (old, patches)))
    assert_close(ours, before, terms=3 * size[0] * size[1])


@together("size", [(8, 8), (13, 5)])
def test_smaller_patches_have_the_nearest_products(size: tuple[int, int]) -> None:
    """No other weights have products that are nearer to the old ones, on average over independent pixels."""
    old = weights(1, 1, 16, 16).double()
    resized = F.interpolate(torch.eye(256).double().view(1, 256, 16, 16), size=size, mode="bicubic", antialias=True)
    matrix = resized[0].flatten(1)  # (old pixels, new pixels)
    new = resample_patches(old, size).flatten()
    error = matrix @ new - old.flatten()
    assert_close(matrix.T @ error, torch.zeros_like(new), scale=old, terms=256)


@together("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_dtype_stays_and_a_size_that_stays_changes_nothing(dtype: torch.dtype) -> None:
    old = weights(2, 3, 2, 8, 4, dtype=dtype)  # of tubes: frames before height and width
    assert resample_patches(old, (4, 8)).shape == (2, 3, 2, 4, 8)
    assert resample_patches(old, (4, 8)).dtype == dtype
    assert_close(resample_patches(old, (8, 4)), old)
