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
        pytest.skip("timm is not installed; test_conformance.py has its values")
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
