"""Resizes models of timm, in files and in memory, and compares with timm's own loading of the old file."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import posembed
from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.live import timm_settings
from posembed.checkpoints.plan import plan_edit
from posembed.checkpoints.position_tables import PositionTable
from posembed.checkpoints.sources.timm import loaded_by_timm
from posembed.errors import ArgumentError, CheckpointError
from timm_peer import vision_transformer
from together import together
from tolerance import assert_close

TINY = {"depth": 2, "embed_dim": 32, "num_heads": 2}


@dataclass(frozen=True)
class Case:
    """A model of timm, small, with the new size of its tables, and the number of tables that timm itself resizes."""

    architecture: str
    args: Mapping[str, Any]
    size: Mapping[str, Any]
    tables: int
    by_timm: int = 0
    image: tuple[int, int] | None = None  # of another size than the tables' own
    written: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.architecture}-{'-'.join(map(str, self.size.values()))}"


CASES = [
    Case("vit_tiny_patch16_224", {"img_size": (64, 64), "reg_tokens": 2, **TINY}, {"image_size": (96, 64)}, 1, 1),
    Case("beit_base_patch16_224", {"img_size": 64, **TINY}, {"image_size": (96, 64)}, 2, 2),
    Case("swin_tiny_patch4_window7_224", {"img_size": 32, "window_size": 2, "embed_dim": 16, "depths": (2,),
         "num_heads": (2,)}, {"window": 4}, 2, 2, image=(32, 32)),
    Case("levit_128s", {"img_size": 64, "embed_dim": (16, 16, 16), "depth": (1, 1, 1)}, {"image_size": 128}, 5),
    Case("tiny_vit_5m_224", {"window_sizes": (2, 2, 4, 2), "embed_dims": (16,) * 4, "depths": (1,) * 4,
         "num_heads": (1,) * 4}, {"window": 4}, 3, 3, image=(64, 64), written={"window_sizes": [4, 4, 8, 4]}),
    Case("pit_ti_224", {"img_size": 64, "depth": (1, 1, 1), "base_dims": (8, 8, 8)}, {"image_size": 96}, 1),
    Case("samvit_base_patch16", {"img_size": 64, "window_size": 2, "global_attn_indexes": (1,), **TINY},
         {"image_size": 96}, 3),
    Case("crossvit_tiny_240", {"img_size": 120, "depth": ((1, 1, 0),), "embed_dim": (16, 16), "num_heads": (2, 2),
         "mlp_ratio": (1, 1, 1)}, {"image_size": 240}, 2),
]  # fmt: skip
# Of those that timm resizes: a grid, and windows of one and of several sizes; of those that it does not: two tables.
USUAL = (CASES[0], CASES[2], CASES[4], CASES[7])
IN_MEMORY = (CASES[0], CASES[4])
VIT, BEIT, SAM = (CASES[number] for number in (0, 1, 6))
PLAIN = Case("vit_tiny_patch16_224", {"img_size": 64, **TINY}, {"image_size": 96}, 1)


@pytest.fixture(scope="module")
def timm() -> Any:
    vision_transformer()
    return importlib.import_module("timm")


def built(timm: Any, case: Case) -> Any:
    """Builds a model with random tables: many are zero at first."""
    torch.manual_seed(0)
    model = timm.create_model(case.architecture, num_classes=3, **case.args).eval()
    for name, parameter in model.named_parameters():
        if "pos" in name or "attention_biases" in name or "relative" in name:
            nn.init.normal_(parameter, std=0.5)
    return model


def saved(model: Any, folder: Path) -> Path:
    """Saves a model as timm does."""
    hub = importlib.import_module("timm.models")
    hub.save_for_hf(model, folder, safe_serialization=True)
    return folder


@together("case", CASES, usual=lambda case: case in USUAL)
def test_timm_loads_the_resized_file(case: Case, timm: Any, tmp_path: Path) -> None:
    model = built(timm, case)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    source = saved(model, tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", **case.size)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert {key: tensor.shape for key, tensor in loaded.state_dict().items()} == {
        key: tensor.shape for key, tensor in stored.items()
    }
    resized = [key for key in before if before[key].shape != stored[key].shape]
    assert len(resized) == case.tables
    assert all(torch.equal(before[key], stored[key]) for key in before.keys() - set(resized))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert case.written.items() <= config["model_args"].items()
    height, width = case.image or config["pretrained_cfg"]["input_size"][1:]
    image = torch.randn(1, 3, height, width)
    with torch.no_grad():
        answer = loaded(image)
    assert answer.isfinite().all()
    # What timm makes of the old file, without posembed.
    own = loaded_by_timm(loaded, {key: before[key] for key in resized})
    assert len(own) == case.by_timm
    for key, table in own.items():
        assert_close(stored[key], table)  # timm computes spacings in float32
    if case not in IN_MEMORY:
        return
    with torch.no_grad():
        model(torch.randn(1, 3, *(case.image or case.args["img_size"])))  # TinyViT keeps its biases
    posembed.resize_model_(model, **case.size)
    assert all(torch.equal(tensor, stored[key]) for key, tensor in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model(image), answer)


def test_rows_of_class_tokens_are_copied(timm: Any) -> None:
    model = built(timm, BEIT)
    tensors = model.state_dict()
    for method, same in ((None, True), ("bicubic", False)):
        edit = plan_edit(timm_settings(model), tensors, NewSize(image_size=112), method=method)
        (change, _) = edit.tables
        assert torch.equal(change.before[-3:], change.after[-3:])
        assert same == any("timm resizes" in check and "the same values" in check for check in edit.checks)
        assert same != any("values that differ by" in check for check in edit.checks)


@pytest.mark.parametrize(
    ("architecture", "args", "reason"),
    [
        (
            "efficientformer_l1",
            {},
            "a number in the model's code, and the model reads images of 224 x 224 pixels alone",
        ),
        ("hiera_small_abswin_256", {"img_size": 128}, "nothing to resize: pos_embed .*reads images of other sizes"),
        ("swinv2_cr_tiny_224", {}, r"a small network computes a bias from the distance .*meta_mlp"),
        ("twins_pcpvt_small", {}, r"a convolution stands for them \(pos_block"),
        ("resnet18", {}, "no image size changes the shape of a tensor of this model"),
    ],
)
def test_a_refusal_says_what_was_established(architecture: str, args: dict[str, Any], reason: str, timm: Any) -> None:
    with torch.device("meta"):
        model = timm.create_model(architecture, **args)
    with pytest.raises(CheckpointError, match=reason):
        plan_edit(timm_settings(model), model.state_dict(), NewSize(image_size=64))


def test_a_file_of_other_sizes_than_its_config_says_is_refused(timm: Any, tmp_path: Path) -> None:
    source = saved(built(timm, VIT), tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config["model_args"]["img_size"] = 128
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"with model_args.img_size=128, pos_embed must have the shape"):
        posembed.resize_checkpoint(source, tmp_path / "out", image_size=96)


@pytest.mark.parametrize("architecture", ["hf-hub:timm/vit_tiny_patch16_224", "local-dir:/tmp", "not_a_model"])
def test_a_name_that_is_no_model_is_never_fetched(architecture: str, timm: Any, tmp_path: Path) -> None:
    weights = {"pos_embed": torch.randn(1, 17, 24), "cls_token": torch.randn(1, 1, 24)}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": architecture}))
    (report,) = posembed.inspect_checkpoint(tmp_path).tables
    assert "found by its name" in report.table.doubt


def test_the_same_file_with_and_without_timm(timm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved(built(timm, PLAIN), tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "with", image_size=96)
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    posembed.resize_checkpoint(source, tmp_path / "without", image_size=96)
    names = ("with", "without")
    with_timm, without = (load_file(tmp_path / name / "model.safetensors") for name in names)
    assert all(torch.equal(with_timm[key], without[key]) for key in with_timm.keys() | without.keys())
    assert len({(tmp_path / name / "config.json").read_text() for name in names}) == 1
    report = posembed.inspect_checkpoint(saved(built(timm, CASES[2]), tmp_path / "swin"))
    assert not report.tables
    assert "pip install timm" in report.why_none


def test_figures_leave_out_the_rows_of_tokens(timm: Any) -> None:
    from posembed.plots.source import rows_of

    model = built(timm, VIT)  # a class token, two registers, 4 x 4 patches
    plain = vision_transformer().VisionTransformer(img_size=(32, 48), patch_size=16, num_classes=0, **TINY)
    for vit, front, grid in ((model, 3, (4, 4)), (plain, 1, (2, 3))):
        rows = rows_of(vit)
        assert (rows.first, rows.grid) == (front, grid)
        assert torch.equal(rows.values.float(), vit.pos_embed[0, front:])


def test_inspect_says_what_the_tables_are(timm: Any, tmp_path: Path) -> None:
    report = posembed.inspect_checkpoint(saved(built(timm, SAM), tmp_path / "source"))
    tables = {each.table.key: each.table for each in report.tables}
    assert all(isinstance(table, PositionTable) for table in tables.values())
    axes = {key: [(axis.name, axis.size, axis.relative) for axis in table.layout.axes] for key, table in tables.items()}
    assert axes["pos_embed"] == [("height", 4, False), ("width", 4, False)]
    assert axes["blocks.0.attn.rel_pos_w"] == [("width", 2, True)]  # a window
    assert axes["blocks.1.attn.rel_pos_w"] == [("width", 4, True)]  # the whole image


def test_a_model_without_the_arguments_that_built_it_is_refused(timm: Any) -> None:
    kind = vision_transformer().VisionTransformer
    model = kind(img_size=32, patch_size=8, embed_dim=16, depth=1, num_heads=2, num_classes=3)
    with pytest.raises(ArgumentError, match=r"Build it with timm\.create_model, .*or call its set_input_size"):
        posembed.resize_model_(model, image_size=64)
    assert model.pos_embed.shape == (1, 17, 16)
