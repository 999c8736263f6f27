"""Tables are found however a config or a file names them; a message says only what was established."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import posembed
from posembed.checkpoints.position_tables import PositionTable
from posembed.checkpoints.sources import base, configs
from posembed.errors import CheckpointError
from tiny_models import IMAGE, PAIR, TEXT, reloaded, saved, tiny_model
from together import together


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def keys_found(source: Path) -> list[str]:
    return [report.table.key for report in posembed.inspect_checkpoint(source).tables]


# --- sections of a config that are there twice


TWICE = ("clip", "altclip", "chinese_clip", "clipseg", "groupvit", "metaclip_2", "xclip", "flava")


def pair_of_towers(family: str) -> dict[str, Any]:
    image = {**IMAGE, "num_heads": 2}
    if family == "groupvit":
        image |= {"depths": [1], "num_group_tokens": [4], "num_output_groups": [4]}
    if family == "xclip":
        image |= {
            "mit_hidden_size": 16,
            "mit_num_attention_heads": 2,
            "mit_intermediate_size": 16,
            "mit_num_hidden_layers": 1,
        }
    sections = {
        "text_config": {**TEXT, "projection_dim": 16, "project_dim": 16},
        "vision_config": {**image, "projection_dim": 16},
    }
    if family == "flava":
        sections["image_config"] = sections.pop("vision_config")
    return {**sections, "projection_dim": 16}


@together("family", TWICE, usual=lambda family: family in ("clip", "flava"))
def test_a_section_that_is_there_twice(family: str, tmp_path: Path) -> None:
    """OpenAI's CLIP has ``text_config`` and ``text_config_dict``; the second wins."""
    model = tiny_model(family, pair_of_towers(family))
    source = saved(model, tmp_path / "source")
    once = keys_found(source)
    assert len(once) >= 2
    config = read(source / "config.json")
    sections = [name for name in ("text_config", "vision_config", "image_config") if name in config]
    twice = {**config, **{f"{name}_dict": config[name] for name in sections}}
    (source / "config.json").write_text(json.dumps(twice))
    assert keys_found(source) == once
    edit = posembed.resize_checkpoint(source, tmp_path / "out", length=57).edit
    new = reloaded(model, tmp_path / "out")
    assert len(new.get_parameter(edit.tables[0].key)) == edit.target.value
    written = read(tmp_path / "out" / "config.json")
    assert written["text_config_dict"] == written["text_config"]


# --- numbers that JSON has not


@pytest.mark.parametrize("family", ["mamba2", "falcon_h1", "nemotron_h"])
def test_infinity_as_transformers_writes_it(family: str, tmp_path: Path) -> None:
    settings = {
        "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2, "head_dim": 32,
        "state_size": 8, "n_groups": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "intermediate_size": 16, "mamba_d_ssm": 64, "mamba_n_heads": 2, "mamba_d_head": 32,
        "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_num_heads": 2, "mamba_head_dim": 16, "ssm_state_size": 8,
    }  # fmt: skip
    if family == "nemotron_h":
        settings["layers_block_type"] = ["mamba"]
    source = saved(tiny_model(family, settings), tmp_path / "source")
    config = {**read(source / "config.json"), "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    (source / "config.json").write_text(json.dumps(config))  # transformers 4 wrote a bare Infinity
    report = posembed.inspect_checkpoint(source)
    assert report.tables == ()
    assert "rotates queries" in report.why_none or report.why_none.startswith("no length or image size in config.json")


def test_infinity_stays_in_the_config_as_it_was(tmp_path: Path) -> None:
    model = tiny_model("bert", TEXT)
    source = saved(model, tmp_path / "source")
    config = {**read(source / "config.json"), "limits": [{"__float__": "-Infinity"}, {"__float__": "NaN"}]}
    (source / "config.json").write_text(json.dumps(config))
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert read(tmp_path / "out" / "config.json") == {**config, "max_position_embeddings": 64}
    reloaded(model, tmp_path / "out")


# --- keys that are other ones in the built model


SHORT = {**TEXT, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4}
RENAMED: dict[str, dict[str, Any]] = {
    "radio": {**IMAGE, "max_img_size": 64},
    "tipsv2_vision_model": IMAGE,
    "qianfan_ocr": {
        "vision_config": {**IMAGE, "image_size": [32, 32], "patch_size": [8, 8]},
        "text_config": SHORT,
    },
    "inkling2": {"vision_config": {**IMAGE, "posemb_grid_size": 4, "text_hidden_size": 32}, "text_config": SHORT},
    "cohere_asr": {"encoder_config": {**SHORT, "num_mel_bins": 16}, **PAIR, "num_key_value_heads": 2, **SHORT},
}


@pytest.mark.parametrize("family", RENAMED)
def test_a_table_under_a_renamed_key_is_found(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, RENAMED[family])
    source = saved(model, tmp_path / "source")
    in_model = {name for name, _ in model.named_parameters() if "position" in name}
    in_files = load_file(source / "model.safetensors")
    tables = posembed.inspect_checkpoint(source).tables
    assert tables
    for report in tables:
        assert report.table.key in in_files
    assert not {report.table.key for report in tables} & in_model  # the files have names of their own


def test_a_renamed_table_is_resized_in_the_files(tmp_path: Path) -> None:
    model = tiny_model("tipsv2_vision_model", IMAGE)
    source = saved(model, tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", image_size=48).edit
    new = reloaded(model, tmp_path / "out")
    (change,) = edit.tables
    assert new.embeddings.position_embeddings.shape == (1, 37, 32)
    assert change.key == "pos_embed"
    assert torch.equal(new.embeddings.position_embeddings, change.after)


# --- what is said where nothing, or nothing that is understood, was found


def test_a_table_that_no_field_of_the_config_says_the_length_of_is_named(tmp_path: Path) -> None:
    settings = {**TEXT, "num_hash_functions": 2, "num_hash_buckets": 32}
    source = saved(tiny_model("canine", settings), tmp_path / "source")
    reports = {report.table.key: report.table for report in posembed.inspect_checkpoint(source).tables}
    table = reports["char_embeddings.char_position_embeddings.weight"]
    assert not isinstance(table, PositionTable)
    assert table.field is None
    with pytest.raises(CheckpointError, match=r"char_position_embeddings.*no length or image size"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)


@pytest.mark.parametrize(
    ("architecture", "table", "patches"),
    [
        ("hiera_tiny_224", (1, 3136, 96), (96, 3, 7, 7)),
        ("volo_d1_224", (1, 14, 14, 384), (192, 64, 4, 4)),
        ("vit_base_r50_s16_384", (1, 577, 768), (768, 1024, 1, 1)),
        ("pit_b_224", (1, 256, 31, 31), (256, 3, 14, 14)),
    ],
)
def test_a_model_of_timm_that_is_not_plain_without_timm(
    architecture: str, table: tuple[int, ...], patches: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    tensors = {"pos_embed": torch.randn(table), "patch_embed.proj.weight": torch.randn(patches)}
    source = tmp_path / "source"
    source.mkdir()
    save_file(tensors, source / "model.safetensors")
    size = 384 if "384" in architecture else 224
    config = {"architecture": architecture, "pretrained_cfg": {"input_size": [3, size, size]}}
    (source / "config.json").write_text(json.dumps(config))
    (report,) = posembed.inspect_checkpoint(source).tables
    assert not isinstance(report.table, PositionTable)
    with pytest.raises(CheckpointError, match="pos_embed: not resized: its shape") as refusal:
        posembed.resize_checkpoint(source, tmp_path / "out", grid=(30, 30), table="pos_embed")
    assert "correct" not in str(refusal.value)


# --- configs that ask for more than is built


@together("family", ["bert", "gpt2", "clip", "bart", "swin"])
@together("layers", [base.MOST_LAYERS + 1, 10**9])
def test_a_config_of_too_many_layers_costs_nothing(family: str, layers: int, tmp_path: Path) -> None:
    fields: dict[str, dict[str, Any]] = {
        "bert": {"num_hidden_layers": layers},
        "gpt2": {"n_layer": layers},
        "clip": {"text_config": {**TEXT, "num_hidden_layers": layers}},
        "bart": {"decoder_layers": layers},
        "swin": {"depths": [1, layers]},
    }
    config = {"model_type": family, **fields[family]}
    save_file({"embeddings.position_embeddings.weight": torch.zeros(512, 8)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    configs.config_object({"model_type": family})  # imports transformers
    start = time.process_time()
    with pytest.raises(CheckpointError, match=rf"expected at most .* layers; got .*{layers}"):
        posembed.inspect_checkpoint(tmp_path)
    assert time.process_time() - start < 1


def test_a_model_of_too_many_modules_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_MODULES", 200)  # in a hundredth of the time
    source = saved(tiny_model("ernie", {**TEXT, "num_hidden_layers": 12}), tmp_path / "source")
    (report,) = posembed.inspect_checkpoint(source).tables
    assert "more than 200 modules" in report.table.doubt


def test_an_unknown_table_beside_known_ones_is_listed(tmp_path: Path) -> None:
    """CLIP's ResNets in open_clip: the table of their attention pool has no row of its own."""
    text = {"context_length": 16, "vocab_size": 20, "width": 8}
    config = {"embed_dim": 8, "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8}, "text_cfg": text}
    tensors = {
        "positional_embedding": torch.randn(16, 8),
        "token_embedding.weight": torch.randn(20, 8),
        "visual.attnpool.positional_embedding": torch.randn(5, 16),
    }
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    save_file(tensors, tmp_path / "old" / "open_clip_model.safetensors")
    known, other = posembed.inspect_checkpoint(tmp_path / "old").tables
    assert (known.table.key, known.table.doubt) == ("positional_embedding", "")
    assert (other.table.key, "not among the known tables" in other.table.doubt) == (
        "visual.attnpool.positional_embedding",
        True,
    )
    with pytest.raises(CheckpointError, match=r"found positional_embedding; visual\.attnpool"):
        posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", image_size=96)
    posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", length=32)
