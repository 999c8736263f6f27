"""Tables read by numbers that come with the input, by distances up to an extent, and in buckets of distances."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder
from transformers.models.t5.modeling_t5 import T5Attention

import posembed
from posembed.checkpoints.sources.base import quiet
from posembed.checkpoints.sources.hugging_face import class_of
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.buckets import bucket_of, rebucket
from tiny_models import loud_model, saved
from together import pairwise, together
from tolerance import assert_close, close

T5 = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def answer(model: nn.Module, inputs: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        return next(each for each in model(**inputs).values() if isinstance(each, Tensor))


@dataclass
class Case:
    """A model, a table in it, its old size, and an input whose largest number is the size."""

    model: Callable[[], nn.Module]
    table: str
    inputs: Callable[[int], dict[str, Any]]
    dim: int = 0


def patches(size: int, *, width: int) -> dict[str, Any]:
    torch.manual_seed(1)
    numbers = torch.tensor([[0, size - 1], [2, 3], [size - 1, 1]])
    return {"flattened_patches": torch.cat([numbers, torch.randn(3, width)], dim=1)[None]}


def steps(size: int) -> dict[str, Any]:
    torch.manual_seed(1)
    widths = {"states": 3, "actions": 2, "rewards": 1, "returns_to_go": 1}
    given = {name: torch.randn(1, 3, width) for name, width in widths.items()}
    return {**given, "timesteps": torch.tensor([[0, size // 2, size - 1]])}


def image(size: int) -> dict[str, Any]:
    torch.manual_seed(1)
    places = torch.cartesian_prod(torch.arange(size), torch.arange(size))
    return {"pixel_values": torch.rand(1, len(places), 48), "pixel_position_ids": places[None]}


def gemma() -> nn.Module:
    sizes = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16, "pooling_kernel_size": 2}
    config = transformers.Gemma4VisionConfig(**sizes, patch_size=4, position_embedding_size=12)
    return loud_model("Gemma4VisionModel", config)


NUMBERED = {
    "pix2struct": Case(
        lambda: loud_model("Pix2StructVisionModel", transformers.Pix2StructVisionConfig(
            **SIZES, patch_embed_hidden_size=12, d_ff=16, d_kv=8, seq_len=12)),
        "embeddings.row_embedder.weight", lambda size: patches(size, width=12),
    ),
    "gemma 4": Case(gemma, "patch_embedder.position_embedding_table", image, dim=1),
    "decision transformer": Case(
        lambda: loud_model("DecisionTransformerModel", transformers.DecisionTransformerConfig(
            hidden_size=16, n_layer=1, n_head=2, state_dim=3, act_dim=2, max_ep_len=12, n_positions=32)),
        "embed_timestep.weight", steps,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERED)
@pytest.mark.parametrize("length", [8, 22])
def test_inputs_with_old_numbers_get_the_old_answers(name: str, length: int) -> None:
    case = NUMBERED[name]
    model = case.model()
    shared = min(length, 12)
    inputs = case.inputs(shared)
    before, table = answer(model, inputs), model.get_parameter(case.table).detach().clone()
    edit = posembed.resize_model_(model, length=length, table=case.table)
    assert not any("interpolates" in check for check in edit.checks)  # none of them does
    after = model.get_parameter(case.table).detach()
    assert after.shape[case.dim] == length
    assert torch.equal(after.narrow(case.dim, 0, shared), table.narrow(case.dim, 0, shared))
    assert torch.equal(answer(model, inputs), before)
    assert answer(model, case.inputs(length)).isfinite().all()


@pytest.mark.parametrize("rows", [60, 70, 1500])
def test_a_table_may_have_more_rows_than_an_image_that_can_be_tried(rows: int, tmp_path: Path) -> None:
    """Gemma 4 merges the patches of whole images, so a row for each of 64 lines already takes 4,096 patches."""
    sizes = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16, "pooling_kernel_size": 2}
    config = transformers.Gemma4VisionConfig(**sizes, patch_size=4, position_embedding_size=rows)
    model = loud_model("Gemma4VisionModel", config)
    name = "patch_embedder.position_embedding_table"
    table, inputs = model.get_parameter(name).detach().clone(), image(8)
    before = answer(model, inputs)
    posembed.resize_model_(model, length=2 * rows, table=name)
    assert torch.equal(model.get_parameter(name)[:, :rows], table)
    assert torch.equal(answer(model, inputs), before)


def unified() -> nn.Module:
    if "gemma4_unified" not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no Gemma 4 without a vision model")
    sizes = {**SIZES, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16,
             "vocab_size": 60, "per_layer_config": {}, "global_head_dim": 8}  # fmt: skip
    images = {"patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 16, "output_proj_dims": 16,
              "mm_posemb_size": 12}  # fmt: skip
    config = transformers.CONFIG_MAPPING["gemma4_unified"](
        text_config=sizes, vision_config=images, audio_config=None, image_token_id=59
    )
    return loud_model("Gemma4UnifiedModel", config)


def text_with_patches(size: int) -> dict[str, Any]:
    torch.manual_seed(1)
    places = torch.tensor([[0, size - 1], [2, 3], [size - 1, 1], [4, 0]])
    ids = torch.tensor([[5, 59, 59, 59, 59, 6]])
    return {"input_ids": ids, "mm_token_type_ids": (ids == 59).long(), "attention_mask": torch.ones_like(ids),
            "pixel_values": torch.rand(1, 4, 192), "image_position_ids": places[None]}  # fmt: skip


@pytest.mark.parametrize("length", [8, 22])
def test_a_table_of_rows_and_columns_side_by_side(length: int) -> None:
    """Gemma 4 without a vision model stores (N, 2, D): for each number, one row for lines and one for columns."""
    model = unified()
    (name,) = [each for each, _ in model.named_parameters() if each.endswith("pos_embedding")]
    shared = min(length, 12)
    inputs = text_with_patches(shared)
    before, table = answer(model, inputs), model.get_parameter(name).detach().clone()
    posembed.resize_model_(model, length=length, table=name)
    assert model.get_parameter(name).shape == (length, 2, 16)
    assert torch.equal(model.get_parameter(name)[:shared], table[:shared])
    assert torch.equal(answer(model, inputs), before)
    assert answer(model, text_with_patches(length)).isfinite().all()


def test_rows_and_columns_of_one_field_change_together() -> None:
    model = NUMBERED["pix2struct"].model()
    with pytest.raises(
        CheckpointError, match=r"no table of positions in a line; .* --table embeddings\.column_embedder"
    ):
        posembed.resize_model_(model, length=20)
    edit = posembed.resize_model_(model, length=20, table="embeddings.column_embedder.weight")
    assert {change.key for change in edit.tables} == {
        "embeddings.row_embedder.weight", "embeddings.column_embedder.weight"
    }  # fmt: skip
    assert not any("every row" in check for check in edit.checks)  # an input reads some of them


def test_a_larger_extent_of_distances_changes_no_answer() -> None:
    if "inkling2_text" not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no inkling2_text")
    sizes = {**SIZES, "vocab_size": 60, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 16, "d_rel": 4}
    config = transformers.CONFIG_MAPPING["inkling2_text"](
        **sizes, rel_extent=24, sliding_window_size=24, layer_types=["hybrid"], num_experts=4,
        mlp_layer_types=["dense"], swa_num_attention_heads=2, swa_num_key_value_heads=2, swa_head_dim=8,
    )  # fmt: skip
    kind = class_of(config)
    torch.manual_seed(0)
    model = kind(config).eval()
    (table,) = [name for name, rows in model.named_parameters() if rows.shape == (4, 24)]
    with torch.no_grad():
        model.get_parameter(table).normal_()
    inputs = {"input_ids": torch.arange(50)[None]}  # also distances that no row is for
    before = answer(model, inputs)
    posembed.resize_model_(model, length=40, table=table)
    assert model.get_parameter(table).shape == (4, 40)
    assert_close(answer(model, inputs), before, depth=2)


# Buckets


@together("buckets", [4, 8, 32, 64])
@together("farthest", [20, 128])
def test_buckets_are_those_of_transformers(buckets: int, farthest: int) -> None:
    distances = torch.arange(-3 * farthest, 3 * farthest)
    for both in (True, False):
        theirs = T5Attention._relative_position_bucket(
            distances, bidirectional=both, num_buckets=buckets, max_distance=farthest
        )
        if buckets // (4 if both else 2) < farthest:  # T5's logarithm has no other case
            assert torch.equal(bucket_of(distances, buckets, farthest=farthest, both=both), theirs)
    theirs = MPNetEncoder.relative_position_bucket(distances, num_buckets=buckets, max_distance=farthest)
    assert torch.equal(bucket_of(distances, buckets, farthest=farthest), theirs)


@together("both", [True, False])
@together("new", [8, 14, 32, 64])
def test_new_buckets_hold_the_mean_of_the_old_rows_of_their_distances(both: bool, new: int) -> None:
    torch.manual_seed(0)
    rows = torch.randn(32, 3)
    resized = rebucket(rows, new, farthest=40, both=both)
    distances = range(-80, 81 if both else 1)
    old, held = {}, {}
    for distance in distances:
        at = torch.tensor(distance)
        old[distance] = rows[bucket_of(at, 32, farthest=40, both=both)]
        held.setdefault(int(bucket_of(at, new, farthest=40, both=both)), []).append(old[distance])
    for bucket, each in held.items():
        assert_close(resized[bucket], torch.stack(each).mean(dim=0))
        if all(torch.equal(row, each[0]) for row in each):
            assert torch.equal(resized[bucket], each[0])


def test_both_sides_of_a_model_get_their_own_buckets(tmp_path: Path) -> None:
    config = transformers.T5Config(**T5, relative_attention_num_buckets=8, relative_attention_max_distance=20)
    model = loud_model("T5Model", config)
    key = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    old = {side: model.get_parameter(f"{side}.{key}").detach() for side in ("encoder", "decoder")}
    source = saved(model, tmp_path / "old")
    (source / "README.md").write_text("# A model")
    posembed.resize_checkpoint(source, tmp_path / "new", buckets=16)
    grown = transformers.T5Model.from_pretrained(tmp_path / "new").eval()
    assert grown.config.relative_attention_num_buckets == 16
    assert "from 8 to 16 buckets" in (tmp_path / "new" / "README.md").read_text()
    for side, both in (("encoder", True), ("decoder", False)):
        expected = rebucket(old[side], 16, farthest=20, both=both)
        assert torch.equal(grown.get_parameter(f"{side}.{key}").detach(), expected)
    ids = torch.tensor([[5, 6, 7]])  # distances that have a bucket each, in both
    inputs = {"input_ids": ids, "decoder_input_ids": ids}
    assert_close(answer(grown, inputs), answer(model, inputs), depth=2)


def test_buckets_that_a_model_does_not_read_are_refused() -> None:
    sizes = {**SIZES, "vocab_size": 60, "intermediate_size": 16, "max_position_embeddings": 40}
    model = transformers.MPNetModel(transformers.MPNetConfig(**sizes, relative_attention_num_buckets=32))
    with pytest.raises(
        CheckpointError, match="with 64 buckets, the model still reads only the first 32"
    ):  # its code has 32 for all configs
        posembed.resize_model_(model, buckets=64)
    with pytest.raises(ArgumentError, match="even number from 4"):
        posembed.resize_model_(model, buckets=7)
    bert = transformers.BertModel(transformers.BertConfig(**sizes))
    with pytest.raises(CheckpointError, match="no table holds buckets"):
        posembed.resize_model_(bert, buckets=64)
    t5 = transformers.T5EncoderModel(transformers.T5Config(**T5, relative_attention_num_buckets=8))
    with pytest.raises(ArgumentError, match="8 already"):
        posembed.resize_model_(t5, buckets=8)


@pytest.mark.parametrize(("kind", "farthest"), pairwise(["T5Model", "T5EncoderModel"], [6, 128]))
def test_a_model_with_the_most_buckets_reads_long_texts_and_more_are_refused(kind: str, farthest: int) -> None:
    sizes = {**T5, "relative_attention_num_buckets": 8, "relative_attention_max_distance": farthest}
    model = loud_model(kind, transformers.T5Config(**sizes))
    most = (2 if kind == "T5Model" else 4) * farthest - 2
    ids = torch.arange(3 * farthest)[None] % 60
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if kind == "T5Model" else {})}
    for buckets in (most + 2, 4 * most):
        with pytest.raises(CheckpointError, match="pass at most" if farthest == 128 else "not resized"):
            posembed.resize_model_(model, buckets=buckets)
    posembed.resize_model_(model, buckets=most)
    assert answer(model, inputs).isfinite().all()


def test_a_limit_of_buckets_is_the_lowest_of_all_tables() -> None:
    """Decoders have all buckets on one side, so they can have half as many as encoders."""
    model = loud_model("T5Model", transformers.T5Config(**T5, relative_attention_num_buckets=8))
    with pytest.raises(CheckpointError, match=r"^decoder.*pass at most 254 \(254 for decoder.* and 510 for encoder"):
        posembed.resize_model_(model, buckets=600)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("buckets", [64, 512, 4096])
def test_more_buckets_than_distances_up_to_the_farthest_keep_all_biases(both: bool, buckets: int) -> None:
    rows = torch.randn(16, 3)
    distances = torch.arange(-1100, 1100)
    old, new = (bucket_of(distances, size, farthest=20, both=both) for size in (16, buckets))
    held = rebucket(rows, buckets, farthest=20, both=both)[new]
    single = buckets // (4 if both else 2)
    for near in (distances.abs() < single, distances.abs() > 40):
        assert torch.equal(held[near], rows[old][near])


# What transformers remembers


@pytest.mark.parametrize("kind", ["Beit", "Data2VecVision"])
def test_transformers_remembers_no_tensor_of_a_model_that_is_only_examined(kind: str) -> None:
    """It keeps the indices of each size that any model of a process has run at, here first on the meta device."""
    sizes = {**SIZES, "intermediate_size": 16, "image_size": 44, "patch_size": 4, "use_relative_position_bias": True}
    model = loud_model(f"{kind}Model", getattr(transformers, f"{kind}Config")(**sizes))
    with quiet(), torch.no_grad(), torch.device("meta"):
        sketch = type(model)(model.config)(torch.empty(1, 3, 44, 44))
    assert sketch[0].is_meta
    assert answer(model, {"pixel_values": torch.randn(1, 3, 44, 44)}).isfinite().all()


@pytest.mark.parametrize("kind", ["Beit", "Data2VecVision"])
def test_models_give_right_answers_in_the_same_process_after_a_resize(kind: str) -> None:
    """transformers keeps indices by their sizes, which a run on the meta device must not fill in."""
    config = getattr(transformers, f"{kind}Config")(
        **SIZES, intermediate_size=16, image_size=16, patch_size=4, use_shared_relative_position_bias=True
    )
    model = loud_model(f"{kind}Model", config)
    grown, side = copy.deepcopy(model), 68 if kind == "Beit" else 72  # too large for small copies
    posembed.resize_model_(grown, image_size=side, method="beit")
    inputs = {"pixel_values": torch.randn(1, 3, side, side)}
    wanted = answer(model, {**inputs, "interpolate_pos_encoding": True})
    assert_close(answer(grown, inputs), wanted, depth=2)
    with torch.no_grad():
        for name, table in grown.named_parameters():
            if name.endswith("relative_position_bias_table"):
                table.zero_()
    assert not close(answer(grown, inputs), wanted, depth=2)


def test_granite_says_that_new_rows_are_not_read() -> None:
    config = transformers.GraniteSpeechConfig().encoder_config
    sizes = {"input_dim": 16, "num_layers": 1, "hidden_dim": 8, "num_heads": 2, "dim_head": 4, "output_dim": 8}
    config = type(config)(**sizes, context_size=12, max_pos_emb=16, conv_kernel_size=3)
    edit = posembed.resize_model_(transformers.GraniteSpeechCTCEncoder(config), length=20)
    assert any("context_size=12" in check for check in edit.checks)


def test_frozen_rows_without_a_formula_are_refused() -> None:
    config = transformers.Qwen2AudioEncoderConfig(
        d_model=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=16, max_source_positions=20
    )
    model = loud_model("Qwen2AudioEncoder", config)
    with pytest.raises(CheckpointError, match="frozen"):
        posembed.resize_model_(model, length=40, table="embed_positions.weight")


def test_copies_with_few_cells_also_fit_stages_that_halve_the_image_often() -> None:
    """PVT's last stage is 32 pixels a cell: an image of 12 x 12 patches leaves rows of its first stage unread."""
    config = transformers.PvtConfig(hidden_sizes=[8] * 4, depths=[1] * 4, num_attention_heads=[1] * 4)
    model = loud_model("PvtModel", config)
    posembed.resize_model_(model, image_size=320, table="encoder.patch_embeddings.0.position_embeddings")
    sizes = [table.shape[1] for name, table in model.named_parameters() if name.endswith("position_embeddings")]
    assert sizes == [80**2, 40**2, 20**2, 10**2 + 1]
    assert answer(model, {"pixel_values": torch.randn(1, 3, 320, 320)}).isfinite().all()
