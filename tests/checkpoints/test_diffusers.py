"""Transformers of pipelines of diffusers: what is learned is resized, and of what is computed the field is named.

The folders are those that diffusers writes; tests/projects/test_diffusers.py compares with its own code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import posembed
from posembed.errors import CheckpointError
from posembed.tables.layout import TableLayout
from together import together

WEIGHTS = "diffusion_pytorch_model.safetensors"
WIDE: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "patch_size": 2}
AURA = {**WIDE, "sample_size": 8, "pos_embed_max_size": 16}
SD3 = {**WIDE, "sample_size": 8, "pos_embed_max_size": 8}
CASES: dict[str, tuple[dict[str, Any], str, tuple[int, ...], str]] = {
    "SD3Transformer2DModel": (SD3, "pos_embed.pos_embed", (1, 64, 16), "sample_size, so nothing learned changes"),
    "PixArtTransformer2DModel": (
        {**WIDE, "sample_size": 8}, "pos_embed.proj.bias", (16,), "change the sizes in config.json",
    ),
    "HunyuanDiT2DModel": (
        {**WIDE, "text_len_t5": 8}, "time_extra_emb.pooler.positional_embedding", (9, 16), "text_embedding_padding",
    ),
    "CogVideoXTransformer3DModel": (
        {**WIDE, "sample_height": 8}, "patch_embed.pos_embedding", (1, 56, 16), "refuses videos of other sizes",
    ),
}  # fmt: skip


def write(folder: Path, name: str, config: dict[str, Any], **tensors: Tensor) -> Path:
    folder.mkdir()
    save_file(tensors, folder / WEIGHTS)
    whole = {"_class_name": name, "_diffusers_version": "0.42.1", **config}
    (folder / "config.json").write_text(json.dumps(whole))
    return folder


def auraflow(folder: Path) -> Path:
    rows = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(0))
    other = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))
    return write(folder, "AuraFlowTransformer2DModel", AURA, **{"pos_embed.pos_embed": rows, "pos_embed.proj": other})


def test_the_learned_grid_of_auraflow(tmp_path: Path) -> None:
    source = auraflow(tmp_path / "old")
    (report,) = posembed.inspect_checkpoint(source).tables
    assert (report.table.doubt, report.table.layout.grid) == ("", (4, 4))
    resized = posembed.resize_checkpoint(source, tmp_path / "new", grid=(6, 6))
    assert not resized.left_out
    config, before = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "new", source))
    assert config == {**before, "pos_embed_max_size": 36}
    old, new = (load_file(folder / WEIGHTS) for folder in (source, tmp_path / "new"))
    layout = TableLayout(grid=(4, 4))
    expected = posembed.resize_table(old["pos_embed.pos_embed"], grid=(6, 6), layout=layout)
    assert torch.equal(new["pos_embed.pos_embed"], expected)
    assert torch.equal(new["pos_embed.proj"], old["pos_embed.proj"])
    with pytest.raises(posembed.errors.ArgumentError, match="gives a square grid; got 6 x 8"):
        posembed.resize_checkpoint(source, tmp_path / "oblong", grid=(6, 8))


def test_a_file_whose_table_is_not_of_its_config(tmp_path: Path) -> None:
    config = {**AURA, "pos_embed_max_size": 25}
    tensors = {"pos_embed.pos_embed": torch.randn(1, 16, 16)}
    source = write(tmp_path / "old", "AuraFlowTransformer2DModel", config, **tensors)
    (report,) = posembed.inspect_checkpoint(source).tables
    assert "pos_embed_max_size=25 means 25 rows" in report.table.doubt


@together("name", CASES)
def test_what_is_not_resized_says_why(name: str, tmp_path: Path) -> None:
    config, key, shape, reason = CASES[name]
    source = write(tmp_path / "old", name, config, **{key: torch.randn(shape)})
    with pytest.raises(CheckpointError, match=reason):
        posembed.resize_checkpoint(source, tmp_path / "new", grid=(8, 8))


def test_a_pipeline_names_its_model(tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    auraflow(tmp_path / "pipeline" / "transformer")
    (tmp_path / "pipeline" / "model_index.json").write_text('{"_class_name": "AuraFlowPipeline"}')
    with pytest.raises(
        CheckpointError, match=r"pipeline/transformer, to a new folder.* text_encoder and tokenizer stay"
    ):
        posembed.inspect_checkpoint(tmp_path / "pipeline")
    posembed.resize_checkpoint(tmp_path / "pipeline" / "transformer", tmp_path / "new", grid=(8, 8))


@pytest.mark.parametrize("shards", [False, True])
def test_older_folders_with_pickled_weights(shards: bool, tmp_path: Path) -> None:
    """diffusers finds the new files by the names that it gives safetensors."""
    source = auraflow(tmp_path / "old")
    held = load_file(source / WEIGHTS)
    (source / WEIGHTS).unlink()
    name = "diffusion_pytorch_model-00001-of-00001.bin" if shards else "diffusion_pytorch_model.bin"
    torch.save(held, source / name)
    if shards:
        index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(held, name)}
        (source / "diffusion_pytorch_model.bin.index.json").write_text(json.dumps(index))
    posembed.resize_checkpoint(source, tmp_path / "new", grid=(6, 6))
    new = WEIGHTS.replace(".s", "-00001-of-00001.s") if shards else WEIGHTS
    assert load_file(tmp_path / "new" / new)["pos_embed.pos_embed"].shape == (1, 36, 16)
    assert not [*(tmp_path / "new").glob("*.bin*")]
    if shards:
        index = json.loads((tmp_path / "new" / f"{WEIGHTS}.index.json").read_text())
        assert set(index["weight_map"].values()) == {new}
