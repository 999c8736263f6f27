"""A table needs no resize where a run shows that its model reads larger inputs with the same rows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import posembed
from posembed.checkpoints.find import is_in_timm
from posembed.tables.layout import TableLayout
from posembed.tables.rows import as_table, table_rows
from tiny_models import IMAGE, TEXT, saved, tiny_model
from together import pairwise


def lite_text(rows: int) -> Any:
    """The text model of SAM 3 LiteText, which interpolates its table (1, 1, N, D) to each text."""
    if "sam3_lite_text_text_model" not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no SAM 3 LiteText")
    config = transformers.CONFIG_MAPPING["sam3_lite_text_text_model"](
        **{**TEXT, "max_position_embeddings": rows, "num_hidden_layers": 2}, projection_dim=16
    )
    torch.manual_seed(0)
    held = importlib.import_module("transformers.models.sam3_lite_text.modeling_sam3_lite_text")
    model = held.Sam3LiteTextTextModel(config).eval()
    with torch.no_grad():
        model.embeddings.position_embedding.position_embedding.normal_()
    return model


@pytest.mark.parametrize(("rows", "length"), pairwise([7, 32, 77], [4, 150]))
def test_a_table_that_is_spread_over_any_text_needs_no_resize(rows: int, length: int, tmp_path: Path) -> None:
    model = lite_text(rows)
    source = saved(model, tmp_path / "source")
    with pytest.raises(
        posembed.errors.CheckpointError, match=r"spreads its rows .* needs no resize: each text reads rows up to"
    ):
        posembed.resize_checkpoint(source, tmp_path / "out", length=length)
    for tokens in (rows // 2, 2 * rows):  # as the refusal says
        table = model.embeddings.position_embedding.position_embedding
        output = model(input_ids=torch.arange(tokens)[None] % 50).last_hidden_state
        (read,) = torch.autograd.grad((output * torch.randn_like(output)).sum(), table)
        assert read[0, 0, -1].any()


@pytest.mark.parametrize("shape", [(5, 3), (1, 5, 3), (5, 1, 3), (1, 1, 5, 3), (1, 1, 3), (1, 1, 1, 1, 3)])
def test_leading_dimensions_of_one_hold_rows(shape: tuple[int, ...]) -> None:
    table = torch.randn(shape)
    rows = table_rows(table)
    assert rows.shape == (5 if 5 in shape else 1, 3)
    assert rows.data_ptr() == table.data_ptr()
    assert torch.equal(as_table(rows, table), table)
    longer = as_table(torch.randn(9, 3), table)
    assert sorted(longer.shape) == sorted([9, 3, *(1 for _ in shape[2:])])
    assert TableLayout().stored(torch.randn(9, 3), like=table).shape == longer.shape


@pytest.mark.parametrize("shape", [(2, 5, 3), (1, 2, 5, 3), (2, 1, 5, 3), (5, 1, 1, 3), (0, 3), (3,)])
def test_other_dimensions_do_not(shape: tuple[int, ...]) -> None:
    with pytest.raises(posembed.errors.ArgumentError, match="a table is a floating tensor"):
        table_rows(torch.randn(shape))


# Images


DINO = {"model_type": "dinov2", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 8,
        "mlp_ratio": 1, "image_size": 32, "out_indices": [1, 2], "reshape_hidden_states": False,
        "apply_layernorm": True}  # fmt: skip


def test_patches_of_one_size_are_read_from_images_of_any_size(tmp_path: Path) -> None:
    """DepthPro cuts an image of any size into patches of one size, and gives its two models that image size."""
    config = transformers.DepthProConfig(
        image_model_config=DINO, patch_model_config=DINO, fov_model_config=DINO, patch_size=32, fusion_hidden_size=8,
        scaled_images_ratios=[0.5, 1], scaled_images_overlap_ratios=[0.0, 0.5], scaled_images_feature_dims=[8, 8],
        intermediate_hook_ids=[1, 0], intermediate_feature_dims=[8, 8], use_fov_model=False, num_fov_head_layers=1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.DepthProModel(config).eval()
    source = saved(model, tmp_path / "source")
    tables = [report.table for report in posembed.inspect_checkpoint(source).tables]
    assert len(tables) == 2
    assert all("larger images with the same rows, so it needs no resize" in table.doubt for table in tables)
    with pytest.raises(posembed.errors.CheckpointError, match=r"^nothing to resize: .*and 1 more like it"):
        posembed.resize_checkpoint(source, tmp_path / "out", image_size=64)
    with torch.no_grad():
        for side in (64, 128):
            assert model(torch.randn(1, 3, side, side)).last_hidden_state.isfinite().all()


def test_computed_positions_are_named_with_what_to_change(tmp_path: Path) -> None:
    settings = {**IMAGE, "num_frames": 4, "tubelet_size": 2}
    source = saved(tiny_model("videomae", settings), tmp_path / "source")
    with pytest.raises(posembed.errors.CheckpointError, match=r"nothing to resize: .* change num_frames or image_size"):
        posembed.resize_checkpoint(source, tmp_path / "out", frames=8)
    assert "needs no resize" in posembed.inspect_checkpoint(source).why_none


class TimmBlock(nn.Module):
    __module__ = "timm.models.any"


def test_a_part_of_timm_is_known_by_its_code() -> None:
    block = TimmBlock()
    block.table = nn.Parameter(torch.zeros(3, 2))
    model = nn.Sequential(block, nn.Linear(2, 2))
    assert is_in_timm(model, "0.table")
    assert not is_in_timm(model, "1.weight")
