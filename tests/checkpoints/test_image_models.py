"""Image and video models that store their tables in other ways, or that need inputs of their own for the proof."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posembed
from posembed import resize_table
from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.live import timm_settings
from posembed.checkpoints.plan import plan_edit
from posembed.errors import CheckpointError
from posembed.tables import Axis, TableLayout
from timm_peer import vision_transformer
from tiny_models import reloaded, saved
from tolerance import assert_close

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {**SMALL, "vocab_size": 200, "max_position_embeddings": 64}


def built(name: str, config: dict[str, Any], file: str = "") -> Any:
    """Builds a model of transformers with random weights: many tables and gates are zero at first."""
    import transformers

    held = importlib.import_module(f"transformers.models.{file}") if file else transformers
    kind = getattr(held, name, None)
    if kind is None:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    torch.manual_seed(0)
    model = kind(kind.config_class(**config)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.02)
    return model


def mllama(tiles: int = 2) -> dict[str, Any]:
    return {**SMALL, "num_hidden_layers": 4, "num_global_layers": 1, "attention_heads": 4, "image_size": 56,
            "patch_size": 14, "intermediate_layers_indices": [1, 3], "vision_output_dim": 96, "max_num_tiles": tiles,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]]}  # fmt: skip


SEGGPT = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": (128, 64),
          "pretrain_image_size": 64, "patch_size": 16, "intermediate_hidden_state_indices": (2, 3),
          "merge_index": 1}  # fmt: skip
XCLIP = {"text_config": TEXT, "projection_dim": 32, "prompt_layers": 1, "prompt_num_attention_heads": 2,
         "vision_config": {**SMALL, "image_size": 32, "patch_size": 8, "num_frames": 4, "mit_hidden_size": 32,
                           "mit_intermediate_size": 32, "mit_num_hidden_layers": 1,
                           "mit_num_attention_heads": 2}}  # fmt: skip
FLORENCE = {"image_token_id": 199,
            "vision_config": {"embed_dim": [8, 16], "depths": [1, 1], "num_heads": [2, 2], "num_groups": [2, 2],
                              "patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1],
                              "patch_prenorm": [False, True], "window_size": 4, "projection_dim": 32,
                              "max_position_embeddings": 20, "max_temporal_embeddings": 8},
            "text_config": {"model_type": "bart", "vocab_size": 200, "d_model": 32, "encoder_layers": 1,
                            "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
                            "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 128}}  # fmt: skip
PERCEIVER = {"num_latents": 8, "d_latents": 32, "num_blocks": 1, "num_self_attends_per_block": 1,
             "num_self_attention_heads": 2, "num_cross_attention_heads": 1}  # fmt: skip
LW_DETR = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "pretrain_image_size": 224,
           "image_size": 256, "patch_size": 16, "window_block_indices": [0], "out_indices": [1, 2],
           "mlp_ratio": 1}  # fmt: skip
VIDEOMT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 64, "patch_size": 16,
           "num_blocks": 1, "num_queries": 4, "num_upscale_blocks": 1}  # fmt: skip


def image(size: int, *lead: int) -> Tensor:
    return torch.randn(*(lead or (1,)), 3, size, size)


@dataclass(frozen=True)
class Case:
    """A model, the size of a resize, the keys of the tables that change, and inputs of the new size."""

    name: str
    config: dict[str, Any]
    size: dict[str, Any]
    tables: tuple[str, ...]
    inputs: Callable[[], dict[str, Any]]
    file: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


REL = tuple(f"encoder.layers.{layer}.attention.rel_pos_{axis}" for layer in range(4) for axis in "hw")
CASES = [
    Case("SegGptModel", SEGGPT, {"image_size": (192, 96), "table": REL[0]}, REL,
         lambda: {name: image(96) for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")}),
    Case("SegGptModel", SEGGPT, {"image_size": 96, "table": "embeddings.position_embeddings"},
         ("embeddings.position_embeddings",),
         lambda: {name: image(64) for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")},
         fields={"pretrain_image_size": 96}),
    Case("XCLIPModel", XCLIP, {"frames": 6}, ("mit.position_embedding",),
         lambda: {"input_ids": torch.arange(4)[None], "pixel_values": image(32, 1, 6)}),
    Case("Florence2Model", FLORENCE,
         {"length": 30, "table": "multi_modal_projector.image_position_embed.row_embeddings.weight"},
         tuple(f"multi_modal_projector.image_position_embed.{name}_embeddings.weight" for name in ("row", "column")),
         lambda: {"input_ids": torch.full((1, 65), 199), "pixel_values": image(64)}),
    Case("LwDetrViTBackbone", LW_DETR, {"image_size": 448}, ("embeddings.position_embeddings",),
         lambda: {"pixel_values": image(256)}, fields={"pretrain_image_size": 448}),
    Case("VideomtForUniversalSegmentation", VIDEOMT, {"image_size": 96}, ("embeddings.position_embeddings.weight",),
         lambda: {"pixel_values_videos": image(96, 1, 2)}),
]  # fmt: skip


# The last one that grows one table of cells, and the second that has an argument of its own.
RARE = [pytest.param(each, marks=pytest.mark.whole) for each in (CASES[1], CASES[-1])]


@pytest.mark.parametrize("case", [CASES[0], *CASES[2:-1], *RARE], ids=lambda case: f"{case.name}-{'-'.join(case.size)}")
def test_the_resized_model_loads_and_runs(case: Case, tmp_path: Path) -> None:
    model = built(case.name, case.config, case.file)
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    source = saved(model, tmp_path / "source")
    resize = posembed.resize_checkpoint(source, tmp_path / "out", **case.size)
    new = reloaded(model, tmp_path / "out")
    after = dict(new.named_parameters())
    assert {name for name in before if before[name].shape != after[name].shape} == set(case.tables)
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - set(case.tables))
    assert {change.key: change.kept for change in resize.edit.tables}.keys() == set(case.tables)
    for name, value in case.fields.items():
        assert getattr(new.config, name) == value
    with torch.no_grad():
        outputs = new(**case.inputs())
    assert all(value.isfinite().all() for value in outputs.values() if isinstance(value, Tensor))


@pytest.mark.parametrize("width", [8, pytest.param(32, marks=pytest.mark.whole)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.whole) for seed in (1, 2))])
def test_the_cells_of_prompt_and_image_together_read_seggpts_rows(width: int, seed: int) -> None:
    """Half of its prompt is masked by default, so the cells of its image alone do not show which rows they read."""
    settings = {**SEGGPT, "hidden_size": width, "image_size": (448, 224), "pretrain_image_size": 224}
    model = built("SegGptModel", settings)
    torch.manual_seed(seed)
    nn.init.normal_(model.embeddings.position_embeddings)
    edit = posembed.resize_model_(model, image_size=336, table="embeddings.position_embeddings")
    assert edit.tables[0].after.shape == (1, 21 * 21 + 1, width)


def test_each_tile_of_mllama_is_resized_alone(tmp_path: Path) -> None:
    """Its table holds rows x width numbers for each tile, and a row of them for each ratio of the sides of an image."""
    model = built("MllamaVisionModel", mllama())
    source = saved(model, tmp_path / "source")
    by_key = {report.table.key: report.table for report in posembed.inspect_checkpoint(source).tables}
    assert by_key["gated_positional_embedding.tile_embedding.weight"].rows == 17
    for side in ("pre", "post"):
        assert "needs no resize" in by_key[f"{side}_tile_positional_embedding.embedding.weight"].doubt
    edit = posembed.resize_checkpoint(source, tmp_path / "out", image_size=84).edit
    tiles = {change.key: change for change in edit.tables}["gated_positional_embedding.tile_embedding.weight"]
    old, new = tiles.before.view(4, 2, 17, 32), tiles.after.view(4, 2, 37, 32)
    layout = TableLayout.VIT.on_grid(4, 4)
    for ratio, tile in ((0, 0), (1, 1), (3, 0)):
        assert_close(new[ratio, tile], resize_table(old[ratio, tile], grid=(6, 6), layout=layout))
    larger = reloaded(model, tmp_path / "out")
    inputs = {"pixel_values": image(84, 1, 1, 2), "aspect_ratio_ids": torch.tensor([[1]])}
    with torch.no_grad():
        answer = larger(**inputs, aspect_ratio_mask=torch.ones(1, 1, 2)).last_hidden_state
    assert answer.isfinite().all()
    posembed.resize_model_(model, image_size=84)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(model.parameters(), larger.parameters(), strict=True))


@pytest.mark.parametrize("inner", [16, pytest.param(32, marks=pytest.mark.whole)])
def test_the_decoder_of_mae_keeps_its_fixed_sinusoid(inner: int, tmp_path: Path) -> None:
    def sinusoid(side: int, width: int) -> Tensor:  # of MAE: the column first, then the row
        steps = torch.arange(side, dtype=torch.float64)[:, None]
        angles = steps / 10000 ** (torch.arange(width // 4, dtype=torch.float64) / (width // 4))
        along = torch.cat([angles.sin(), angles.cos()], dim=1)
        cells = torch.cat([along.repeat(side, 1), along.repeat_interleave(side, dim=0)], dim=1)
        return torch.cat([torch.zeros(1, width), cells])[None]

    decoder = {"decoder_hidden_size": inner, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
               "decoder_intermediate_size": 16}  # fmt: skip
    model = built("ViTMAEForPreTraining", {**SMALL, **decoder, "image_size": 32, "patch_size": 8})
    with torch.no_grad():
        model.decoder.decoder_pos_embed.copy_(sinusoid(4, inner))
    source = saved(model, tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=48)
    new = reloaded(model, tmp_path / "out")
    assert_close(new.decoder.decoder_pos_embed.double(), sinusoid(6, inner), dtype=torch.float32)
    expected = resize_table(model.vit.embeddings.position_embeddings, grid=(6, 6), layout=TableLayout.VIT.on_grid(4, 4))
    assert torch.equal(new.vit.embeddings.position_embeddings, expected)


def test_positions_beside_the_pixels_are_resized_as_perceiver_does(tmp_path: Path) -> None:
    model = built(
        "PerceiverForImageClassificationLearned", {**PERCEIVER, "d_model": 64, "image_size": 8, "num_labels": 3}
    )
    source = saved(model, tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=12, method="bicubic")
    new, pixels = reloaded(model, tmp_path / "out"), image(12)
    with torch.no_grad():
        own = model(pixel_values=pixels, interpolate_pos_encoding=True).logits
        assert_close(new(pixel_values=pixels).logits, own, depth=2)


def test_a_perceiver_of_texts_answers_old_texts_as_before(tmp_path: Path) -> None:
    model = built(
        "PerceiverForMaskedLM", {**PERCEIVER, "d_model": 32, "max_position_embeddings": 24, "vocab_size": 100}
    )
    source = saved(model, tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", length=40)
    new, ids = reloaded(model, tmp_path / "out"), torch.arange(20)[None]
    with torch.no_grad():
        assert_close(new(input_ids=ids).logits[:, :24], model(input_ids=ids).logits, depth=2)


SAM3 = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "pretrain_image_size": 64, "image_size": 192, "patch_size": 16, "window_size": 4,
        "global_attn_indexes": [1]}  # fmt: skip
GIT = {**TEXT, "num_image_with_embedding": 3, "vision_config": {**SMALL, "image_size": 32, "patch_size": 8}}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1], "num_heads": [1], "window_size": 4}
DONUT = {**SWIN, "use_absolute_embeddings": True}
SAM2 = {"hidden_size": 8, "image_size": [128, 128], "blocks_per_stage": [1, 2], "embed_dim_per_stage": [8, 16],
        "num_attention_heads_per_stage": [1, 1], "global_attention_blocks": [], "num_query_pool_stages": 1,
        "window_positional_embedding_background_size": [3, 3], "window_size_per_stage": [4, 2]}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "file", "config", "size", "reason"),
    [
        ("SwinModel", "", SWIN, {"image_size": 64, "window": 8},
         r"First pass --image-size alone or, .*write it into config\.json\. Then pass --window alone"),
        ("GitModel", "", GIT, {"frames": 6}, "num_image_with_embedding gives their number, and a resize adds"),
        ("Sam3ViTModel", "sam3.modeling_sam3", SAM3, {"image_size": 128}, "side by side .* so it needs no resize"),
        ("DonutSwinModel", "donut.modeling_donut_swin", DONUT, {"image_size": 64},
         r"1 row besides its 8 x 8 cells.*no run shows what they are: small copies of the model fail at their "
         r"own size \(DonutSwinModel: .*\(64\) must match"),
        ("Sam2HieraDetModel", "sam2.modeling_sam2", SAM2, {"image_size": 256}, "no image size changes them; pass"),
        ("Sam2HieraDetModel", "sam2.modeling_sam2", SAM2, {"grid": (6, 6), "table": "pos_embed_window"},
         "reads larger images with the same rows, so it needs no resize"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_a_run_showed(
    name: str, file: str, config: dict[str, Any], size: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    source = saved(built(name, config, file), tmp_path / "source")
    with pytest.raises(posembed.PosEmbedError, match=reason):
        posembed.resize_checkpoint(source, tmp_path / "out", **size)
    assert not (tmp_path / "out").exists()


# Grids in blocks and tables in columns


def test_a_grid_that_is_stored_in_blocks_is_refused() -> None:
    vision_transformer()
    nest = importlib.import_module("timm").create_model("nest_tiny", num_classes=1, img_size=64)
    with pytest.raises(CheckpointError, match=r"levels.0.pos_embed: .*do not read the cells of a 4 x 4 grid"):
        plan_edit(timm_settings(nest), nest.state_dict(), NewSize(image_size=96))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"grid": (4, 4), "columns": 8}, "columns is the width of a row"),
        ({"dims": (1,), "columns": 8}, "columns is the width of a row"),
    ],
)
def test_columns_need_their_dimension(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(posembed.errors.ArgumentError, match=reason):
        TableLayout(**settings)


def test_tables_in_columns_are_the_tables_one_after_the_other() -> None:
    layout = TableLayout(prefix=1, axes=(Axis("height", 2), Axis("width", 3)), dims=(1,), columns=4)
    table = torch.randn(5, 3 * 7 * 4)
    rows = layout.rows_in(table)
    assert rows.shape == (7, 5 * 3 * 4)
    assert torch.equal(rows[2].view(5, 3, 4), table.view(5, 3, 7, 4)[:, :, 2])
    assert torch.equal(layout.stored(rows, like=table), table)
    with pytest.raises(posembed.errors.ArgumentError, match="holds tables of 7 rows and 4 columns"):
        layout.rows_in(torch.randn(5, 83))


def test_tables_of_no_layers_are_resized_with_the_others(tmp_path: Path) -> None:
    """YOLOS has a table for each layer but the last: a model of one layer has one of no values."""
    config = {**SMALL, "num_hidden_layers": 1, "image_size": [64, 64], "patch_size": 16, "num_detection_tokens": 5}
    model = built("YolosForObjectDetection", config)
    posembed.resize_checkpoint(saved(model, tmp_path / "old"), tmp_path / "new", image_size=96)
    larger = reloaded(model, tmp_path / "new")
    (table,) = (each for name, each in larger.named_parameters() if name.endswith("mid_position_embeddings"))
    assert table.shape == (0, 1, 42, 32)
    assert larger(torch.randn(1, 3, 96, 96)).logits.isfinite().all()
