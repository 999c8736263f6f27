"""Grids of patches whose size other config fields give, and parts of models that AutoModel does not know."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import posembed
from posembed.checkpoints.sources.hugging_face import class_of
from posembed.errors import ArgumentError
from tiny_models import IMAGE, reloaded, saved
from together import together


def part_of_a_model(family: str, settings: dict[str, Any]) -> nn.Module:
    """A model of a config that AutoModel may not know, with random weights."""
    from transformers import CONFIG_MAPPING, __version__

    if family not in CONFIG_MAPPING:
        pytest.skip(f"transformers {__version__} has no {family}")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = CONFIG_MAPPING[family](**settings)
        if (kind := class_of(config)) is None:
            pytest.skip(f"transformers {__version__} cannot build {family} alone")
        model: nn.Module = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pos" in name:
                parameter.normal_()
    return model


@pytest.mark.parametrize("family", ["idefics2_vision", "kosmos_2_vision_model"])
def test_a_part_that_automodel_does_not_know_is_built_from_the_file_of_its_config(family: str, tmp_path: Path) -> None:
    model = part_of_a_model(family, IMAGE)
    source = saved(model, tmp_path / "source")
    (report,) = posembed.inspect_checkpoint(source).tables
    assert (report.table.found_by, report.table.doubt) == ("config", "")
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=48)
    new = reloaded(model, tmp_path / "out")
    assert new(pixel_values=torch.randn(1, 3, 48, 48)).last_hidden_state.isfinite().all()


PACKED = {**IMAGE, "hidden_size": 48, "num_hidden_layers": 2}
GRIDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "kimi_k25_vision": ({"pos_emb_height": 4, "pos_emb_width": 4}, {"grid": (6, 6)},
                        {"pos_emb_height": 6, "pos_emb_width": 6}),
    "muse_glimmer_vision": ({"pos_emb_height": 4, "pos_emb_width": 4}, {"grid": (6, 6)},
                            {"pos_emb_height": 6, "pos_emb_width": 6}),
    "inkling2_vision": ({"posemb_grid_size": 4, "projection_hidden_dim": 8, "text_hidden_size": 8}, {"grid": (6, 6)},
                        {"posemb_grid_size": 6}),
    "molmo2_vision": ({"num_position_embeddings": 16, "image_size": [32, 32]}, {"grid": (6, 6)},
                      {"num_position_embeddings": 36}),
    "hunyuan_vl_vision": ({"max_image_size": 32}, {"image_size": 48}, {"max_image_size": 48}),
    "glm4v_vision": ({"depth": 1, "num_heads": 2, "out_hidden_size": 16}, {"image_size": 48}, {"image_size": 48}),
    "paddleocr_vl_vision": ({}, {"image_size": 48}, {"image_size": 48}),
    "minicpmv4_6_vision": ({"insert_layer_id": 0}, {"image_size": 64}, {"image_size": 64}),
}  # fmt: skip


# The families that state a side for each axis in two ways, a number of rows, and images, with a class row and without.
USUAL = ("kimi_k25_vision", "inkling2_vision", "molmo2_vision", "hunyuan_vl_vision", "minicpmv4_6_vision")


@together("family", GRIDS, usual=lambda family: family in USUAL)
def test_a_grid_is_resized_by_its_own_fields_and_equals_the_table_resized_alone(family: str, tmp_path: Path) -> None:
    """Models that take patches cut out beforehand run in the proof; the class row before HunYuan's cells is copied."""
    settings, size, fields = GRIDS[family]
    model = part_of_a_model(family, PACKED | settings)
    source = saved(model, tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", **size).edit
    assert {str(field): value for field, value in edit.fields.items()} == fields
    (change,) = edit.tables
    (target,) = edit.target.changes
    layout = target.table.layout
    side = target.layout.axes[0].size
    assert [axis.name for axis in layout.axes] == ["height", "width"]
    assert layout.prefix == (family == "hunyuan_vl_vision")
    alone = posembed.resize_table(change.before, sizes={"height": side, "width": side}, layout=layout)
    new = reloaded(model, tmp_path / "out")
    assert torch.equal(new.get_parameter(target.table.parameter), alone)
    assert torch.equal(layout.rows_in(alone)[: layout.prefix], layout.rows_in(change.before)[: layout.prefix])
    assert all(getattr(new.config, name) == value for name, value in fields.items())


def test_the_sides_of_stages_are_rounded_down_stage_by_stage(tmp_path: Path) -> None:
    """PVT's last stage has floor(80 / 32) = 2 cells a side, and a class row before them, which is copied."""
    settings = {
        "image_size": 64, "depths": [1, 1, 1, 1], "hidden_sizes": [32, 32, 64, 64], "num_attention_heads": [1, 1, 2, 2],
        "sequence_reduction_ratios": [2, 1, 1, 1],
    }  # fmt: skip
    source = saved(model := part_of_a_model("pvt", settings), tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", image_size=80, prove=True).edit
    grids = [(change.layout.prefix, change.layout.grid) for change in edit.target.changes]
    assert grids == [(0, (20, 20)), (0, (10, 10)), (0, (5, 5)), (1, (2, 2))]
    new = reloaded(model, tmp_path / "out")
    assert new(pixel_values=torch.randn(1, 3, 80, 80)).last_hidden_state.isfinite().all()


def test_patches_behind_a_norm_are_compared_behind_their_convolution() -> None:
    """A norm makes the gradients of many small patches look alike. A stage without a cell is named."""
    settings = {
        "image_size": 64, "depths": [1, 1, 1, 1], "hidden_sizes": [32, 32, 64, 64], "num_attention_heads": [1, 1, 2, 2],
        "sequence_reduction_ratios": [2, 1, 1, 1],
    }  # fmt: skip
    model = part_of_a_model("pvt", settings)
    with pytest.raises(ArgumentError, match=r"patch_embeddings.3.* image_size=31 leaves no cell; pass a larg"):
        posembed.resize_model_(model, image_size=31)
    edit = posembed.resize_model_(model, image_size=96)
    assert [change.layout.grid for change in edit.target.changes] == [(24, 24), (12, 12), (6, 6), (3, 3)]
    assert model(pixel_values=torch.randn(1, 3, 96, 96)).last_hidden_state.isfinite().all()


def test_a_part_that_is_not_exported_is_resized_in_memory_as_in_files(tmp_path: Path) -> None:
    settings = {"output_channels": 16, "window_size": 2, "global_attn_indexes": [0], "mlp_dim": 16}
    model = part_of_a_model("got_ocr2_vision", IMAGE | settings)
    source = saved(model, tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", image_size=48)
    posembed.resize_model_(model, image_size=48)
    written = type(model).from_pretrained(tmp_path / "out").state_dict()
    assert written.keys() == model.state_dict().keys()
    assert all(torch.equal(written[key], values) for key, values in model.state_dict().items())


def test_a_row_that_is_added_to_every_cell_is_copied(tmp_path: Path) -> None:
    """ViTPose adds row 0 to all cells, and its patches reach two pixels beyond the image."""
    source = saved(model := part_of_a_model("vitpose_backbone", {**IMAGE, "image_size": [48, 32]}), tmp_path / "source")
    (change,) = posembed.resize_checkpoint(source, tmp_path / "out", image_size=(64, 48)).edit.tables
    assert change.after.shape[1] == 1 + 8 * 6
    assert torch.equal(change.before[:, 0], change.after[:, 0])
    new = reloaded(model, tmp_path / "out")
    assert new(pixel_values=torch.randn(1, 3, 64, 48)).feature_maps[0].isfinite().all()


@pytest.mark.parametrize(("before", "after"), [((32, 32), (32, 40)), ((40, 32), (16, 80)), ((48, 32), (24, 72))])
def test_grids_with_other_sides_are_read_row_by_row(before: tuple[int, int], after: tuple[int, int]) -> None:
    model = part_of_a_model("vitpose_backbone", {**IMAGE, "image_size": list(before)})
    posembed.resize_model_(model, image_size=after)
    assert model.get_parameter("embeddings.position_embeddings").shape[1] == 1 + after[0] // 8 * (after[1] // 8)
    assert model(pixel_values=torch.randn(1, 3, *after)).feature_maps[0].isfinite().all()


def test_the_model_card_counts_the_rows_of_axes_that_lie_apart(tmp_path: Path) -> None:
    model = part_of_a_model("kimi_k25_vision", PACKED | {"pos_emb_height": 4, "pos_emb_width": 4})
    source = saved(model, tmp_path / "source")
    (source / "README.md").write_text("A model.")
    posembed.resize_checkpoint(source, tmp_path / "out", grid=(6, 6))
    assert "from 16 to 36 rows" in (tmp_path / "out" / "README.md").read_text()
