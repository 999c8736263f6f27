"""A resize is written where a run of the model reads the new rows as planned, and otherwise refused by name."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import posembed
from posembed.checkpoints.position_tables import PositionTable
from posembed.checkpoints.proof.reads import shows_order
from posembed.errors import CheckpointError
from posembed.tables.families import FAMILIES
from tiny_models import IMAGE, TEXT, reloaded, saved, tiny_model
from together import pairwise, together
from tolerance import assert_close

MERGING = {**IMAGE, "num_heads": 2, "depth": 1, "out_hidden_size": 32, "num_position_embeddings": 64}
PATCHES = {"image_size": 32, "patch_size": 8}


def refused(source: Path, out: Path, reason: str, **arguments: Any) -> None:
    before = sorted(path.name for path in out.parent.iterdir())
    with pytest.raises(CheckpointError, match=reason):
        posembed.resize_checkpoint(source, out, **arguments)
    assert sorted(path.name for path in out.parent.iterdir()) == before


# --- tables in a line that no text reads


GRIDS_IN_A_LINE = ("qwen3_vl_vision", "qwen3_vl_moe_vision", "qwen3_5_vision", "qwen3_5_moe_vision",
                   "qwen4_exp_vision", "cohere_compass_vision")  # fmt: skip


@together("family", GRIDS_IN_A_LINE, usual=lambda family: family in ("qwen3_vl_vision", "cohere_compass_vision"))
def test_a_square_grid_in_a_line_is_resized_as_a_grid(family: str, tmp_path: Path) -> None:
    key = "pos_embed.weight"
    model = tiny_model(family, MERGING)
    source = saved(model, tmp_path / "source")
    refused(source, tmp_path / "out", f"{key}.*pass --image-size or --grid", length=100)
    refused(source, tmp_path / "out", f"{key}.*pass --image-size or --grid", length=100, table=key)
    (report,) = posembed.inspect_checkpoint(source).tables
    assert isinstance(report.table, PositionTable)
    side = round(report.table.rows**0.5)
    assert report.table.layout.grid == (side, side)
    edit = posembed.resize_checkpoint(source, tmp_path / "larger", grid=(side + 2, side + 2)).edit
    new = reloaded(model, tmp_path / "larger")
    assert torch.equal(new.get_parameter(key), edit.tables[0].after)
    assert len(edit.tables[0].after) == (side + 2) ** 2
    with pytest.raises(posembed.errors.ArgumentError, match="gives a square grid"):
        posembed.resize_checkpoint(source, tmp_path / "out", grid=(side, side + 2))


def test_a_multimodal_model_of_rope_text_has_no_line_of_text(tmp_path: Path) -> None:
    text = {k: v for k, v in TEXT.items() if k != "max_position_embeddings"}
    mrope = {"rope_type": "default", "mrope_section": [4, 2, 2]}
    text |= {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": mrope}
    model = tiny_model("qwen3_vl", {"text_config": text, "vision_config": MERGING})
    source = saved(model, tmp_path / "source")
    refused(source, tmp_path / "out", r"visual\.pos_embed\.weight.*pass --image-size or --grid", length=100)


@together("family", ["layoutlm", "layoutlmv3", "lilt", "udop"], usual=lambda family: family in ("layoutlmv3", "udop"))
def test_tables_of_coordinates_are_resized_apart_from_those_of_text(family: str, tmp_path: Path) -> None:
    settings = {
        **TEXT,
        "visual_embed": False,
        "coordinate_size": 6,
        "shape_size": 4,
        "max_2d_position_embeddings": 48,
    }
    if family == "udop":
        settings = {
            "vocab_size": 60, "d_model": 32, "d_kv": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2,
            "max_2d_position_embeddings": 48, **PATCHES,
        }  # fmt: skip
    if family == "lilt":
        settings |= {"hidden_size": 48}  # a sixth for each coordinate
    model = tiny_model(family, settings)
    source = saved(model, tmp_path / "source")
    keys = [table.table.key for table in posembed.inspect_checkpoint(source).tables]
    coordinates = [key for key in keys if key.partition("_position")[0][-2:] in (".x", ".y", ".h", ".w")]
    assert len(coordinates) >= 2
    edit = posembed.resize_checkpoint(source, tmp_path / "larger", length=64, table=coordinates[0]).edit
    assert {change.key for change in edit.tables} == set(coordinates)
    assert all(len(change.after) == 64 for change in edit.tables)
    reloaded(model, tmp_path / "larger")
    if family == "udop":  # its text has relative positions alone
        refused(source, tmp_path / "out", "no table of positions in a line", length=64)
    else:
        edit = posembed.resize_checkpoint(source, tmp_path / "out", length=57).edit
        assert not {change.key for change in edit.tables} & set(coordinates)


def test_frames_and_times_are_not_tokens_of_text(tmp_path: Path) -> None:
    video = {key: value for key, value in IMAGE.items() if key != "patch_size"}
    video |= {
        "num_frames": 4,
        "tubelet_size": [1, 8, 8],
        "num_spatial_layers": 1,
        "num_temporal_layers": 1,
        "num_auxiliary_layers": 1,
    }
    cases = {
        "videoprism_vision_model": (video, "temporal_embeddings.position_embeddings", "pass --frames"),
        "patchtst": (
            {"context_length": 32, "d_model": 16, "positional_encoding_type": "random"},
            "position_enc",
            "pass --frames",
        ),
    }
    for family, (settings, key, reason) in cases.items():
        source = saved(tiny_model(family, settings), tmp_path / family)
        (full,) = [t.table.key for t in posembed.inspect_checkpoint(source).tables if t.table.key.endswith(key)]
        refused(source, tmp_path / "out", reason, length=64, table=full)


def test_rows_that_are_read_from_elsewhere_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ProphetNet counts positions from 1, and reads one row ahead: here, nothing but a run says so."""
    monkeypatch.delitem(FAMILIES, "prophetnet")
    settings = {
        "vocab_size": 60, "hidden_size": 32, "num_encoder_layers": 1, "num_decoder_layers": 1,
        "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_encoder_attention_heads": 2,
        "num_decoder_attention_heads": 2,
        "max_position_embeddings": 40,
    }  # fmt: skip
    source = saved(tiny_model("prophetnet", settings), tmp_path / "source")
    refused(source, tmp_path / "out", "reads rows 1 to .* instead of", length=64)


# --- grids


GRIDS: dict[str, dict[str, Any]] = {
    "vit": IMAGE,
    "deit": IMAGE,
    "ijepa": IMAGE,
    "dinov2": IMAGE,
    "dinov2_with_registers": {**IMAGE, "num_register_tokens": 3},
    "pixio": {**IMAGE, "n_cls_tokens": 2},
    "dpt": {**IMAGE, "backbone_out_indices": [0], "neck_hidden_sizes": [8], "reassemble_factors": [1]},
    "internvl_vision": {**IMAGE, "image_size": [32, 32], "patch_size": [8, 8]},
    "clip_vision_model": IMAGE,
    "siglip_vision_model": IMAGE,
    "timesformer": {**IMAGE, "num_frames": 1},
    "vit_msn": IMAGE,
}


# What transformers' code itself can run: every square grid, and others in the families that count patches alone.
RIGHT = {(family, (6, 6)) for family in GRIDS} | {
    (family, grid) for family in ("vit", "deit", "ijepa", "vit_msn") for grid in ((3, 5), (2, 8), (8, 2))
}


def tokens_of(model: nn.Module, image: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(image)[0]


SIDES = [(6, 6), (3, 5), (2, 8), (8, 2)]


@together(
    "family, grid",
    list(product(GRIDS, SIDES)),
    usual=lambda family, grid: family == "vit" or SIDES.index(grid) == [*GRIDS].index(family) % 4,
)
def test_a_grid_runs_at_its_new_size_and_reads_its_own_cells_or_is_refused(
    family: str, grid: tuple[int, int], tmp_path: Path
) -> None:
    model = tiny_model(family, GRIDS[family])
    source = saved(model, tmp_path / "source")
    if (family, grid) not in RIGHT:
        refused(source, tmp_path / "out", r"^\S*embeddings\.position_embedding", grid=grid)
        return
    edit = posembed.resize_checkpoint(source, tmp_path / "out", grid=grid).edit
    new = reloaded(model, tmp_path / "out")
    (change,) = edit.tables
    table = new.get_parameter(change.key)
    image = torch.randn(1, 1, 3, 8 * grid[0], 8 * grid[1])
    image = image if family == "timesformer" else image[0]
    before = tokens_of(new, image)
    # Exchanging two patches together with their rows exchanges what comes of them, and nothing else.
    first, last = table.shape[-2] - grid[0] * grid[1] + 1, table.shape[-2] - 1
    swapped = image.clone()
    swapped[..., :8, 8:16], swapped[..., -8:, -8:] = image[..., -8:, -8:], image[..., :8, 8:16]
    rows = table.data.view(-1, table.shape[-1])
    rows[[first, last]] = rows[[last, first]]
    after = tokens_of(new, swapped)
    if before.dim() == 3 and before.shape[1] >= grid[0] * grid[1]:
        place = before.shape[1] - grid[0] * grid[1]
        order = list(range(before.shape[1]))
        order[place + 1], order[-1] = order[-1], order[place + 1]
        after = after[:, order]
    assert_close(after, before, depth=2)


def test_cells_are_in_order_if_gradients_behind_a_norm_say_so() -> None:
    """The gradients before a norm are not those behind it, and some are small. Another order is not taken for this."""
    torch.manual_seed(0)
    for height, width in ((4, 4), (6, 10), (20, 20), (40, 40)):
        made = torch.randn(height * width, 32, dtype=torch.float64, requires_grad=True)
        rows = torch.randn_like(made) * torch.rand(len(made), 1)
        (before,) = torch.autograd.grad((nn.functional.layer_norm(made, (32,)) * rows).sum(), made)
        numbers = torch.arange(len(rows)).reshape(height, width)
        swapped = numbers.flatten().clone()
        swapped[: len(swapped) // 8 + 2] = swapped[: len(swapped) // 8 + 2].flip(0)
        others = {
            "columns first": numbers.T,
            "from below": numbers.flip(0),
            "blocks": numbers.reshape(height // 2, 2, width // 2, 2).transpose(1, 2),
            "one later": numbers.flatten().roll(1),
            "an eighth in another order": swapped,
        }
        assert shows_order(rows, [before[None]])
        for order, changed in others.items():
            assert not shows_order(rows, [before[None, changed.flatten()]]), (order, height, width)


def test_the_new_grid_is_tried_before_anything_is_written(tmp_path: Path) -> None:
    source = saved(tiny_model("dinov2", IMAGE), tmp_path / "source")
    refused(source, tmp_path / "out", "runs at its own size, but not at the new one", grid=(3, 5))
    refused(source, tmp_path / "out", "do not read the cells of a 2 x 8 grid", grid=(2, 8))
    live = tiny_model("dinov2", IMAGE)
    before = live.embeddings.position_embeddings
    with pytest.raises(CheckpointError, match="2 x 8 grid"):
        posembed.resize_model_(live, grid=(2, 8))
    assert live.embeddings.position_embeddings is before


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_a_trial_asks_nothing_of_the_callers_state(mode: Any) -> None:
    for family, size in (("bert", {"length": 64}), ("vit", {"image_size": 48})):
        model = tiny_model(family, TEXT if family == "bert" else IMAGE)
        torch.manual_seed(3)
        expected = torch.rand(4)
        torch.manual_seed(3)
        with mode(), torch.device("meta"):
            posembed.resize_model_(model, **size)
        assert torch.equal(torch.rand(4), expected)


def test_a_text_too_long_to_be_tried_is_no_reason_to_refuse(tmp_path: Path) -> None:
    settings = {
        "vocab_size": 60,
        "hidden_size": 32,
        "num_layers": 1,
        "num_heads": 2,
        "max_position_embeddings": 40,
    }
    model = tiny_model("gpt_neo", {**settings, "attention_types": [[["global"], 1]]})
    source = saved(model, tmp_path / "source")  # its mask has as many numbers as the square of the length
    edit = posembed.resize_checkpoint(source, tmp_path / "out", length=9000, dry_run=True).edit
    assert edit.tables[0].after is not None
    assert edit.tables[0].after.shape == (9000, 32)


# --- the answers to old inputs


@pytest.mark.parametrize(("buckets", "new"), pairwise([8, 16], [12, 300]))
def test_a_model_whose_old_answers_would_change_is_refused(buckets: int, new: int, tmp_path: Path) -> None:
    """DeBERTa's buckets of distances follow the length, where nothing else says how far they reach."""
    settings = {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": buckets}
    source = saved(tiny_model("deberta-v2", settings), tmp_path / "source")
    refused(source, tmp_path / "out", "another output at the new length", length=new)
    told = saved(tiny_model("deberta-v2", {**settings, "max_relative_positions": 40}), tmp_path / "told")
    posembed.resize_checkpoint(told, tmp_path / "out", length=new)
    with pytest.raises(CheckpointError, match="another output"):
        posembed.resize_model_(tiny_model("deberta-v2", settings), length=new)


# --- grids of more than 4,096 cells, whose copies are smaller

LARGE = {
    "dinov2": {**IMAGE, "image_size": [288, 288], "patch_size": 4},
    "muse_glimmer_vision": {**IMAGE, "pos_emb_height": 64, "pos_emb_width": 64},
    "kimi_k25_vision": {**IMAGE, "pos_emb_height": 64, "pos_emb_width": 64},
    "qwen3_vl_vision": {**MERGING, "num_position_embeddings": 48 * 48},
    "siglip2_vision_model": {**IMAGE, "num_patches": 256},
}


@together(
    "kind, grid",
    [
        ("dinov2", (40, 160)),
        ("muse_glimmer_vision", (66, 70)),
        ("muse_glimmer_vision", (70, 66)),
        ("kimi_k25_vision", (66, 70)),
        ("kimi_k25_vision", (70, 66)),
    ],
    usual=lambda kind, grid: (kind, grid) not in [("muse_glimmer_vision", (70, 66)), ("kimi_k25_vision", (66, 70))],
)
def test_a_grid_that_the_model_would_read_otherwise_is_refused_at_any_size(kind: str, grid: tuple[int, int]) -> None:
    model = tiny_model(kind, LARGE[kind])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(
        CheckpointError, match=r"not resized: (the model reads|a small copy of the model runs at its own)"
    ):
        posembed.resize_model_(model, grid=grid)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@together("kind, grid", [("qwen3_vl_vision", (70, 70)), ("siglip2_vision_model", (67, 67))])
def test_a_number_of_cells_may_have_any_side(kind: str, grid: tuple[int, int]) -> None:
    changed = posembed.resize_model_(tiny_model(kind, LARGE[kind]), grid=grid).tables
    assert [change.after.shape[-2] for change in changed] == [grid[0] * grid[1]]
