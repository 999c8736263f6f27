"""What diffusers' own code makes of resized folders, and of those that it computes again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import posembed
from posembed.errors import CheckpointError
from posembed.tables.layout import TableLayout
from timm_peer import imported

JOINT = {
    "num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "out_channels": 4, "patch_size": 2,
    "joint_attention_dim": 16, "caption_projection_dim": 16, "sample_size": 8,
}  # fmt: skip
AURA = {**JOINT, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "pos_embed_max_size": 16}
SD3 = {**JOINT, "num_layers": 1, "pooled_projection_dim": 16, "pos_embed_max_size": 8}


def test_diffusers_loads_a_larger_auraflow(tmp_path: Path) -> None:
    diffusers: Any = imported("diffusers")
    torch.manual_seed(0)
    old = diffusers.AuraFlowTransformer2DModel(**AURA)
    old.save_pretrained(tmp_path / "old")
    posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", grid=(8, 8))
    new, loading = diffusers.AuraFlowTransformer2DModel.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not any(loading.values())
    rows = new.pos_embed.pos_embed
    layout = TableLayout(grid=(4, 4))
    assert torch.equal(rows, posembed.resize_table(old.pos_embed.pos_embed.detach(), grid=(8, 8), layout=layout))
    latents, text = torch.randn(1, 4, 16, 16), torch.randn(1, 5, 16)
    assert new(latents, text, torch.tensor([0.5])).sample.isfinite().all()
    everywhere = torch.arange(64)
    assert torch.equal(new.pos_embed.pe_selection_index_based_on_dim(16, 16).flatten(), everywhere)
    middle = everywhere.view(8, 8)[2:6, 2:6].flatten()  # a smaller image reads the middle
    assert torch.equal(new.pos_embed.pe_selection_index_based_on_dim(8, 8).flatten(), middle)


def test_diffusers_computes_the_rows_of_sd3_again(tmp_path: Path) -> None:
    """What the refusal says to do: rows keep their distance if both fields grow in proportion."""
    diffusers: Any = imported("diffusers")
    old = diffusers.SD3Transformer2DModel(**SD3)
    old.save_pretrained(tmp_path / "old")
    with pytest.raises(CheckpointError, match="ignore_mismatched_sizes=True"):
        posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", grid=(16, 16))
    path = tmp_path / "old" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "pos_embed_max_size": 16, "sample_size": 16}))
    new = diffusers.SD3Transformer2DModel.from_pretrained(tmp_path / "old", ignore_mismatched_sizes=True)
    before, after = (model.pos_embed.pos_embed[0].unflatten(0, (size, size)) for model, size in ((old, 8), (new, 16)))
    assert torch.equal(after[:8, :8], before)
