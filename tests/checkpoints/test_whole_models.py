"""A resize is written only if the whole model runs at its true size, with its stated number of image tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import posembed
from posembed.errors import CheckpointError
from tiny_models import IMAGE, TEXT, reloaded, saved, tiny_model
from together import asked, together

LLM = {**TEXT, "num_key_value_heads": 1, "head_dim": 16}
GROUPED = {**IMAGE, "image_size": 64, "patch_size": 8}  # 8 x 8 patches, which a projector merges
SAM = {
    "vision_config": {**GROUPED, "output_channels": 8, "mlp_dim": 16, "window_size": 3, "global_attn_indexes": [0],
                      "num_pos_feats": 4},
    "prompt_encoder_config": {"hidden_size": 8, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": {"hidden_size": 8, "mlp_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                            "iou_head_hidden_dim": 8},
}  # fmt: skip
PIXELS = torch.Generator().manual_seed(0)


def of_images_and_text(family: str, text: str, vision: str, **settings: Any) -> nn.Module:
    inner = {"text_config": {**LLM, "model_type": text}, "vision_config": {**GROUPED, "model_type": vision}}
    return tiny_model(family, {**inner, "image_token_id": 7, "image_token_index": 7, **settings})


def gemma3() -> nn.Module:
    sections = {"text_config": LLM, "vision_config": GROUPED}
    return tiny_model("gemma3", {**sections, "mm_tokens_per_image": 16, "image_token_id": 7, "image_token_index": 7})


def internvl() -> nn.Module:
    return of_images_and_text("internvl", "llama", "internvl_vision", image_seq_length=16)


MERGING = {
    "gemma3": gemma3,
    "internvl": internvl,
    "aya_vision": lambda: of_images_and_text("aya_vision", "cohere2", "siglip_vision_model", downsample_factor=2),
    "cohere2_vision": lambda: of_images_and_text(
        "cohere2_vision", "cohere2", "siglip_vision_model", downsample_factor=2, alignment_intermediate_size=16
    ),
}
SINGLE = {
    "llava": lambda: of_images_and_text("llava", "llama", "clip_vision_model", vision_feature_layer=-1),
    "paligemma": lambda: of_images_and_text("paligemma", "gemma", "siglip_vision_model"),
}


def features(model: Any, side: int) -> int:
    with torch.no_grad():
        found = model.get_image_features(torch.randn(1, 3, side, side, generator=PIXELS))
    found = getattr(found, "pooler_output", found)
    found = found if isinstance(found, torch.Tensor) else torch.cat(list(found))
    return found.numel() // found.shape[-1]


CELLS = (3, 4, 7, 9, 12, 16)  # along each side of an image, instead of 8
USUAL = {"gemma3": (7, 9), "internvl": (3, 12), "llava": (7,)}  # without --whole: refused, and written
FITTING = {"gemma3": [4, 9, 12, 16], **{family: list(CELLS) for family in SINGLE}}  # those of others are even


@together("family", [*MERGING, *SINGLE], usual=lambda family: family in USUAL)
def test_a_size_is_written_exactly_if_the_model_makes_tokens_of_its_images(family: str, tmp_path: Path) -> None:
    """The image part alone runs at every size. Layers behind it merge its cells, and may not fit."""
    model = {**MERGING, **SINGLE}[family]()
    source = saved(model, tmp_path / "source")
    before = features(model, 64)
    refusal = rf"not at the new one \({type(model).__name__}: |=16 image tokens, but the model makes 49 of"
    table = vision_table(source)
    for cells in CELLS if asked["whole"] else USUAL[family]:
        out, size = tmp_path / f"out-{cells}", {"image_size": 8 * cells, "table": table}
        if cells in FITTING.get(family, [4, 12, 16]):
            edit = posembed.resize_checkpoint(source, out, **size).edit
            assert edit.image_tokens == (before, features(reloaded(model, out), 8 * cells))
            continue
        with pytest.raises(CheckpointError, match=refusal):
            posembed.resize_checkpoint(source, out, **size)
        assert not out.exists()
        with pytest.raises(CheckpointError, match=refusal):
            posembed.resize_model_(model, **size)


def vision_table(source: Path) -> str:
    tables = [each.table for each in posembed.inspect_checkpoint(source).tables]
    return next(each.key for each in tables if "vision" in each.key)


def test_a_stated_number_of_image_tokens_is_named_with_the_one_that_the_model_makes(tmp_path: Path) -> None:
    source = saved(gemma3(), tmp_path / "source")
    with pytest.raises(
        CheckpointError, match=r"mm_tokens_per_image=16 image tokens, but the model makes 25 .* 40 x 40"
    ):
        posembed.resize_checkpoint(source, tmp_path / "out", image_size=40)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "mm_tokens_per_image": 25}))
    edit = posembed.resize_checkpoint(source, tmp_path / "out", image_size=40).edit
    assert edit.image_tokens == (64, 25)


@pytest.mark.parametrize(("family", "after"), [("internvl", 36), pytest.param("gemma3", 16, marks=pytest.mark.whole)])
def test_processors_get_the_number_of_tokens_that_the_model_makes(family: str, after: int, tmp_path: Path) -> None:
    """Neither merges its cells to as many tokens as it has patches."""
    source = saved(MERGING[family](), tmp_path / "source")
    (source / "processor_config.json").write_text(json.dumps({"image_seq_length": 16}))
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=96, table=vision_table(source))
    assert json.loads((tmp_path / "out" / "processor_config.json").read_text()) == {"image_seq_length": after}


# --- fields that follow from a size


def test_a_field_that_follows_from_the_image_size_changes_with_it(tmp_path: Path) -> None:
    """A SAM with the old image_embedding_size loads, and fails when it runs."""
    model = tiny_model("sam", SAM)
    source = saved(model, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    assert config["prompt_encoder_config"]["image_embedding_size"] == 8
    resize = posembed.resize_checkpoint(source, tmp_path / "out", image_size=96)
    changed = {".".join(each.path): each.after for each in resize.settings if each.file == "config.json"}
    assert changed["prompt_encoder_config.image_embedding_size"] == 12
    posembed.resize_model_(model, image_size=96)
    for new in (model, reloaded(model, tmp_path / "out")):
        assert new.config.prompt_encoder_config.image_embedding_size == 12
        with torch.no_grad():
            masks = new(pixel_values=torch.randn(1, 3, 96, 96), input_points=torch.zeros(1, 1, 1, 2)).pred_masks
        assert masks.shape[-2:] == (48, 48)


def test_a_field_that_a_user_set_otherwise_stays(tmp_path: Path) -> None:
    source = saved(tiny_model("sam", SAM), tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config["prompt_encoder_config"]["another_size"] = 8
    (source / "config.json").write_text(json.dumps(config))
    edit = posembed.resize_checkpoint(source, tmp_path / "out", image_size=96, dry_run=True).edit
    assert edit.config["prompt_encoder_config"]["another_size"] == 8


# --- models that are too large to be run


HIERA = {"patch_stride": [4, 4], "depths": [1, 1, 1], "num_heads": [1, 1, 1], "embed_dim": 8, "num_query_pool": 2}


@pytest.mark.parametrize(
    ("side", "fits"), [(72, False), pytest.param(128, True, marks=pytest.mark.whole), (4644, False), (4640, True)]
)
def test_a_whole_model_is_run_at_any_size(side: int, fits: bool, tmp_path: Path) -> None:
    """At 4,644 pixels, neither the images nor the model can be held in memory for a run."""
    model = tiny_model("hiera", {**HIERA, "image_size": [64, 64]})
    source = saved(model, tmp_path / "source")
    if not fits:
        with pytest.raises(CheckpointError, match=r"not at the new one \(HieraModel: shape .* is invalid for input"):
            posembed.resize_checkpoint(source, tmp_path / "out", image_size=side, dry_run=True)
        return
    edit = posembed.resize_checkpoint(source, tmp_path / "out", image_size=side, dry_run=True).edit
    with torch.device("meta"):
        config = model.config.from_dict(edit.config)
        assert type(model)(config)(pixel_values=torch.empty(1, 3, side, side)).last_hidden_state.shape[0] == 1


@pytest.mark.parametrize(("grid", "sizes"), [(16, "one at the old and one at the new size"), (110, "one with 12 and")])
def test_the_output_says_which_sizes_were_run(grid: int, sizes: str, tmp_path: Path) -> None:
    family, settings = ("vit", IMAGE) if grid == 110 else ("sam_vision_model", {**IMAGE, "image_size": 64})
    if family != "vit":
        settings |= {"output_channels": 16, "window_size": 4, "global_attn_indexes": [0], "mlp_dim": 16}
    source = saved(tiny_model(family, settings), tmp_path / "source")
    size = settings["patch_size"] * grid
    resized = posembed.resize_checkpoint(source, tmp_path / "out", image_size=size, prove=True, dry_run=True)
    checks = " ".join(resized.edit.checks)
    assert f"Small copies of the model, {sizes}" in checks
    assert ("The whole model runs at the new size on PyTorch's meta device" in checks) == (grid == 110)


@pytest.mark.parametrize(
    ("family", "settings", "side"),
    [
        ("hiera", {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}, 544),
        ("yolos", {**IMAGE, "patch_size": 16, "image_size": [512, 864]}, 2064),
    ],
)
def test_large_grids_whose_half_is_no_grid_of_the_model_are_proved(
    family: str, settings: dict, side: int, tmp_path: Path
) -> None:
    """Half the sides of these images leave half a patch, or a part of a window."""
    source = saved(tiny_model(family, settings), tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", image_size=side, prove=True, dry_run=True).edit
    assert "Small copies of the model, " in " ".join(edit.checks)


# --- tables behind the patches


@pytest.mark.parametrize("kind", ["zeros", "random", "sinusoids"])
@pytest.mark.parametrize("width", [32, pytest.param(16, marks=pytest.mark.whole)])
def test_a_decoder_of_patches_is_resized_whatever_its_table_holds(kind: str, width: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    decoder = {
        f"decoder_{name}": value
        for name, value in (
            ("hidden_size", width), ("num_hidden_layers", 1), ("num_attention_heads", 2), ("intermediate_size", 16)
        )
    }  # fmt: skip
    config = transformers.ViTMAEConfig(**{**IMAGE, "image_size": 48, **decoder})
    model = transformers.ViTMAEForPreTraining(config).eval()
    if kind != "sinusoids":
        table = model.decoder.decoder_pos_embed
        table.data = torch.zeros_like(table) if kind == "zeros" else torch.randn_like(table)
    for side in (24, 96) if asked["whole"] else (96,):
        source = saved(model, tmp_path / f"source-{side}")
        edit = posembed.resize_checkpoint(source, tmp_path / f"out-{side}", image_size=side).edit
        assert {change.key for change in edit.tables} == {
            "vit.embeddings.position_embeddings", "decoder.decoder_pos_embed"
        }  # fmt: skip
        new = transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / f"out-{side}")
        assert new(torch.randn(1, 3, side, side)).loss.isfinite()


# --- models whose attention cannot run here


def test_a_model_that_mixes_no_tokens_without_a_gpu_is_refused(tmp_path: Path) -> None:
    """MRA's attention is zero without its kernel, so the same answers at both lengths show nothing."""
    source = saved(tiny_model("mra", {**TEXT, "max_position_embeddings": 128}), tmp_path / "source")
    with pytest.raises(CheckpointError, match=r"no token .* at another position"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=256)
    assert not (tmp_path / "out").exists()


LONG = {**TEXT, "max_position_embeddings": 1536}
MIXING: dict[str, dict[str, Any]] = {
    "bert": LONG,
    "gpt2": {"vocab_size": 60, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 1536},
    "big_bird": {**LONG, "attention_type": "block_sparse"},
    "yoso": {**LONG, "max_position_embeddings": 128},
    "nystromformer": {**TEXT, "max_position_embeddings": 128, "num_landmarks": 16, "segment_means_seq_len": 128},
}


@together("family", [*MIXING, "big_bird/original_full"], usual=lambda family: family in ("big_bird", "nystromformer"))
def test_models_whose_attention_runs_are_resized(family: str, tmp_path: Path) -> None:
    name, _, kind = family.partition("/")
    settings = {**MIXING[name], **({"attention_type": kind} if kind else {})}
    source = saved(tiny_model(name, settings), tmp_path / "source")
    old = settings.get("max_position_embeddings", 1536)
    edit = posembed.resize_checkpoint(source, tmp_path / "out", length=2 * old).edit
    assert edit.target.length[1] == 2 * old
