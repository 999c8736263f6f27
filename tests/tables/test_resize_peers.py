"""Presets against the code they are named after: timm and transformers themselves, others by their formula."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Dinov2Config, Dinov2WithRegistersConfig, ViTConfig
from transformers.models.dinov2.modeling_dinov2 import Dinov2Embeddings
from transformers.models.dinov2_with_registers.modeling_dinov2_with_registers import Dinov2WithRegistersEmbeddings
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings
from transformers.models.vit.modeling_vit import ViTEmbeddings

from posembed.tables.layout import TableLayout
from posembed.tables.resize import resize_table
from together import together
from tolerance import assert_close

DTYPES = [torch.float32, torch.bfloat16]
NEW_GRIDS = [(24, 24), (7, 7), (5, 19), (14, 13)]


def image_table(cells: int, dtype: torch.dtype = torch.float32, prefix: int = 1, dim: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(cells)
    return torch.randn(1, prefix + cells, dim, generator=generator).to(dtype)


# --- timm --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def timm_resample() -> Callable[..., Tensor]:
    """timm's function without timm's models, which need torchvision: its layers folder under a name of our own."""
    timm = importlib.util.find_spec("timm")
    if timm is None:
        pytest.skip("timm is not installed; its values are tested below")
    layers = types.ModuleType("timm_layers")
    layers.__path__ = [str(Path(timm.submodule_search_locations[0]) / "layers")]
    sys.modules["timm_layers"] = layers
    return importlib.import_module("timm_layers.pos_embed").resample_abs_pos_embed


@together("dtype", DTYPES)
@together("new", NEW_GRIDS)
@together("prefix", [0, 1, 2])
def test_timm(timm_resample: Callable[..., Tensor], dtype: torch.dtype, new: tuple[int, int], prefix: int) -> None:
    old = image_table(196, dtype, prefix)
    theirs = timm_resample(old, list(new), [14, 14], num_prefix_tokens=prefix)
    ours = resize_table(old, grid=new, method="timm", layout=TableLayout(prefix=prefix, grid=(14, 14)))
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours[:, :prefix], theirs[:, :prefix])
    assert_close(ours, theirs)


def test_timm_on_a_grid_that_is_not_square(timm_resample: Callable[..., Tensor]) -> None:
    old = image_table(4 * 9)
    theirs = timm_resample(old, [6, 5], [4, 9], num_prefix_tokens=1)
    ours = resize_table(old, grid=(6, 5), method="timm", layout=TableLayout(prefix=1, grid=(4, 9)))
    assert_close(ours, theirs)


def test_timms_values() -> None:
    """Returned by timm 1.0's resample_abs_pos_embed for a class row and a grid of 3 x 4, made 4 x 3."""
    old = torch.cat([torch.tensor([7.0]), torch.arange(12.0) ** 2])[None, :, None]
    new = resize_table(old, grid=(4, 3), method="timm", layout=TableLayout(prefix=1, grid=(3, 4)))
    theirs = [7.0]
    theirs += [-0.83968, 0.89651, 5.92575, 7.58167, 15.69876, 27.10892]
    theirs += [37.30705, 54.71841, 75.42282, 69.70126, 93.49352, 120.57886]
    assert_close(new[0, :, 0], torch.tensor(theirs))


# --- transformers ------------------------------------------------------------------------------------------------


@together("new", NEW_GRIDS)
@together(
    ("preset", "config", "embeddings"),
    [
        ("vit", ViTConfig, ViTEmbeddings),
        ("vit", Dinov2Config, Dinov2Embeddings),
        ("timm", Dinov2WithRegistersConfig, Dinov2WithRegistersEmbeddings),
    ],
)
def test_transformers(preset: str, config: type, embeddings: type, new: tuple[int, int]) -> None:
    model = embeddings(config(hidden_size=8, num_attention_heads=2, image_size=14 * 4, patch_size=4))
    torch.nn.init.normal_(model.position_embeddings)
    patches = torch.zeros(1, 1 + new[0] * new[1], 8)
    with torch.no_grad():
        theirs = model.interpolate_pos_encoding(patches, 4 * new[0], 4 * new[1])
        ours = resize_table(model.position_embeddings, grid=new, method=preset, layout=TableLayout.VIT.on_grid(14, 14))
    assert_close(ours, theirs)


@pytest.mark.parametrize("new", NEW_GRIDS)
def test_siglip2(new: tuple[int, int]) -> None:
    old = image_table(16 * 16, prefix=0)[0]
    theirs = Siglip2VisionEmbeddings.resize_positional_embeddings(
        old.reshape(16, 16, 8), torch.tensor([new]), max_length=new[0] * new[1]
    )[0]
    ours = resize_table(old, grid=new, method="siglip2", layout=TableLayout(grid=(16, 16)))
    assert_close(ours, theirs)


# --- others ------------------------------------------------------------------------------------------------------


def test_dinov2() -> None:
    """The call that DINOv2's interpolate_pos_encoding makes, offset 0.1, on its own 37 x 37 grid."""
    old = image_table(37 * 37)
    picture = old[:, 1:].reshape(1, 37, 37, 8).permute(0, 3, 1, 2)
    scale = (float(46 + 0.1) / 37, float(16 + 0.1) / 37)
    theirs = torch.nn.functional.interpolate(picture, mode="bicubic", antialias=False, scale_factor=scale)
    ours = resize_table(old, grid=(46, 16), method="dinov2", layout=TableLayout.VIT.on_grid(37, 37))
    assert torch.equal(ours[:, 1:], theirs.permute(0, 2, 3, 1).reshape(1, -1, 8))


def test_long_clip() -> None:
    """Four rows for one behind the first 20, as the three quarters, halves and quarters of Long-CLIP's loop."""
    old = image_table(76)[0]
    new = resize_table(old, length=248, method="long-clip")
    assert torch.equal(new[:20], old[:20])
    for i in range(20, 76):
        for quarter in range(4):
            expected = (4 - quarter) * old[i] / 4 + quarter * old[i + 1] / 4
            assert_close(new[20 + 4 * (i - 20) + quarter], expected)
    for quarter in range(4):
        expected = old[76] + quarter * (old[76] - old[75]) / 4
        assert_close(new[244 + quarter], expected)


def test_bert4keras() -> None:
    """Its PositionEmbedding layer with hierarchical=True: two gathers from one table."""
    old = image_table(31)[0]
    embeddings = (old - 0.4 * old[:1]) / (1 - 0.4)
    ids = torch.arange(1000)
    theirs = 0.4 * embeddings[ids // 32] + (1 - 0.4) * embeddings[ids % 32]
    assert_close(resize_table(old, length=1000, method="bert4keras"), theirs)
