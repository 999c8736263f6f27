"""Object queries of detectors: rows without an order, of which the first ones are kept."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

import posembed
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.pickles import load_without_running
from posembed.tables.layout import Axis, TableLayout
from posembed.tables.resize_methods import noisy_copies
from together import together

OLD, NEW = 10, 16
DETR: dict[str, Any] = {
    **{"num_queries": OLD, "backbone": None, "use_timm_backbone": False, "use_pretrained_backbone": False},
    **{f"{side}_{name}": size for side in ("encoder", "decoder")
       for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))},
}  # fmt: skip
LW_DETR: dict[str, Any] = {
    **{"group_detr": 3, "num_queries": OLD, "projector_scale_factors": [1.0], "projector_out_channels": 32},
    **{"d_model": 32, "decoder_ffn_dim": 16, "decoder_layers": 1, "c2f_num_blocks": 1},
    **{"decoder_self_attention_heads": 2, "decoder_cross_attention_heads": 4},
}
RT_DETR: dict[str, Any] = {
    **{"encoder_in_channels": [8] * 3, "encoder_hidden_dim": 32, "encoder_ffn_dim": 16, "encoder_attention_heads": 2},
    **{"decoder_in_channels": [32] * 3, "d_model": 32, "decoder_ffn_dim": 16, "decoder_attention_heads": 2},
    **{"num_queries": OLD, "decoder_layers": 1},
}


def rt_detr() -> Any:
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "layer_type": "basic"}
    stages = transformers.RTDetrResNetConfig(embedding_size=8, **sizes, out_features=["stage2", "stage3", "stage4"])
    return detector("RTDetr", **RT_DETR, backbone_config=stages)


def detector(name: str, **config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "layer_type": "basic", "out_features": ["stage4"]}
    if "backbone" in config:
        config["backbone_config"] = transformers.ResNetConfig(embedding_size=8, **sizes)
    whole = getattr(transformers, f"{name}Config")(**config)
    return getattr(transformers, f"{name}ForObjectDetection")(whole).eval()


MODELS: dict[str, Callable[[], Any]] = {
    "Detr": lambda: detector("Detr", d_model=32, **DETR),
    "ConditionalDetr": lambda: detector("ConditionalDetr", d_model=32, **DETR),
    "DabDetr": lambda: detector("DabDetr", hidden_size=32, **DETR),
    "LwDetr": lambda: detector(
        "LwDetr",
        **LW_DETR,
        backbone_config=transformers.LwDetrViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            mlp_ratio=1,
            window_block_indices=[0],
            out_indices=[2],
            image_size=64,
            pretrain_image_size=64,
        ),
    ),
}


@together("name", MODELS, usual=lambda name: name in ("Detr", "LwDetr"))
def test_the_first_queries_stay(name: str, tmp_path: Path) -> None:
    old = MODELS[name]()
    old.save_pretrained(tmp_path / "old")
    resized = posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", queries=NEW)
    assert "detr/issues/9" in resized.edit.target.note
    groups = 3 if name == "LwDetr" else 1
    before, after = (load_file(tmp_path / each / "model.safetensors") for each in ("old", "new"))
    assert len(resized.edit.tables) == (2 if name == "LwDetr" else 1)
    for change in resized.edit.tables:
        rows, kept = (each[change.key].unflatten(0, (groups, -1)) for each in (after, before))
        assert rows.shape[:2] == (groups, NEW)
        assert torch.equal(rows[:, :OLD], kept)
        assert not torch.equal(rows[:, OLD:], kept[:, : NEW - OLD])
    new, loading = type(old).from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not any(loading.values())
    assert new.config.num_queries == NEW
    with torch.no_grad():
        assert new.eval()(pixel_values=torch.randn(1, 3, 64, 64)).logits.shape[1] == NEW
    back = posembed.resize_checkpoint(tmp_path / "new", tmp_path / "back", queries=OLD)
    for change in back.edit.tables:
        assert torch.equal(change.after, before[change.key])


def test_copies_have_noise_of_a_tenth() -> None:
    rows = torch.randn(40, 512, generator=torch.Generator().manual_seed(1))
    new = noisy_copies(rows, 100)
    assert torch.equal(new[:40], rows)
    assert torch.equal(noisy_copies(rows, 7), rows[:7])
    noise = new[40:80] - rows
    assert float(noise.std()) == pytest.approx(0.1, rel=0.05)
    layout = TableLayout(axes=(Axis("query", 40),))
    assert torch.equal(posembed.resize_table(rows, sizes={"query": 100}, layout=layout), new)
    random = posembed.resize_table(rows, sizes={"query": 100}, method="random", layout=layout)
    assert float((random[40:80] - rows).std()) == pytest.approx(2**0.5, rel=0.05)


class Detector(nn.Module):
    """The queries of DETR's own code, or of RF-DETR's, which trains with several groups."""

    def __init__(self, queries: int, groups: int) -> None:
        super().__init__()
        if groups == 1:
            self.query_embed = nn.Embedding(queries, 8)
        else:
            self.query_feat, self.refpoint_embed = nn.Embedding(queries * groups, 8), nn.Embedding(queries * groups, 4)
        self.class_embed = nn.Linear(8, 5)


@together("groups", [1, 13])
def test_a_file_of_a_training_script(groups: int, tmp_path: Path) -> None:
    old = Detector(OLD, groups)
    args = argparse.Namespace(num_queries=OLD, group_detr=groups, num_classes=OLD, lr=0.1)
    optimizer = torch.optim.AdamW(old.parameters())
    sum(parameter.square().sum() for parameter in old.parameters()).backward()
    optimizer.step()
    whole = {"model": old.state_dict(), "args": args, "optimizer": optimizer.state_dict()}
    torch.save(whole, tmp_path / "old.pth")
    posembed.resize_checkpoint(tmp_path / "old.pth", tmp_path / "new.pth", queries=NEW)
    new = load_without_running(tmp_path / "new.pth")
    assert vars(new["args"]) == {**vars(args), "num_queries": NEW}
    model = Detector(NEW, groups)
    model.load_state_dict(new["model"])
    torch.optim.AdamW(model.parameters()).load_state_dict(new["optimizer"])
    for key, value in old.state_dict().items():
        kept: Tensor = new["model"][key].unflatten(0, (groups, -1)) if "class" not in key else new["model"][key]
        before = value.unflatten(0, (groups, -1)) if "class" not in key else value
        assert torch.equal(kept[:, :OLD] if "class" not in key else kept, before)
    for state, parameter in zip(new["optimizer"]["state"].values(), model.parameters(), strict=True):
        assert state["exp_avg"].shape == parameter.shape


def test_queries_that_no_setting_confirms_are_named(tmp_path: Path) -> None:
    torch.save(Detector(OLD, 1).state_dict(), tmp_path / "old.pth")
    with pytest.raises(CheckpointError, match=r"--table query_embed\.weight"):
        posembed.resize_checkpoint(tmp_path / "old.pth", tmp_path / "new.pth", queries=NEW)
    named = {"queries": NEW, "table": "query_embed.weight"}
    (change,) = posembed.resize_checkpoint(tmp_path / "old.pth", tmp_path / "new.pth", **named).edit.tables
    assert change.kept == OLD


@together(("model", "queries", "reason"), [
    ("Detr", OLD, "already has num_queries=10"), ("Detr", 0, "queries"), ("RTDetr", NEW, "no table of object queries"),
])  # fmt: skip
def test_what_is_refused(model: str, queries: int, reason: str, tmp_path: Path) -> None:
    MODELS.get(model, rt_detr)().save_pretrained(tmp_path / "old")
    with pytest.raises((ArgumentError, CheckpointError), match=reason):
        posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", queries=queries)


def test_a_detector_in_memory() -> None:
    model = MODELS["Detr"]()
    before = model.model.query_position_embeddings.weight.detach().clone()
    posembed.resize_model_(model, queries=NEW)
    assert torch.equal(model.model.query_position_embeddings.weight[:OLD], before)
    with torch.no_grad():
        assert model(pixel_values=torch.randn(1, 3, 64, 64)).logits.shape[1] == model.config.num_queries == NEW
