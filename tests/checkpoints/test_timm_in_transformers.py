"""Models of transformers with a part that timm builds, whose config states no image size."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import posembed
from posembed.checkpoints.position_tables import pair
from timm_peer import vision_transformer
from together import together
from tolerance import assert_close

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}
TEXT = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
TEXT |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64}


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """timm, also where torchvision is missing, which transformers then asks for."""
    vision_transformer()
    timm = importlib.import_module("timm")
    utils = importlib.import_module("transformers.utils.import_utils")
    monkeypatch.setitem(utils.BACKENDS_MAPPING, "timm", (lambda: True, ""))
    wrapper = importlib.import_module("transformers.models.timm_wrapper.modeling_timm_wrapper")
    monkeypatch.setattr(wrapper, "timm", timm, raising=False)
    return timm


def wrapped(args: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": "timm_wrapper", "architecture": "vit_pe_core_tiny_patch16_384", "model_args": args}


SIZES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({}, (128, 96)),
    ({"img_size": [96, 64]}, (64, 64)),
    ({"img_size": 384}, (768, 768)),  # so large that copies have fewer cells
]


def perception_lm(args: dict[str, Any]) -> Any:
    args = {**args, "use_post_transformer_norm": False, "global_pool": ""}
    config = transformers.PerceptionLMConfig(
        vision_config=wrapped(args), text_config=TEXT, image_token_id=62, video_token_id=63
    )
    path = "transformers.models.perception_lm.modeling_perception_lm"
    return importlib.import_module(path).PerceptionLMForConditionalGeneration(config)


def alone(args: dict[str, Any]) -> Any:
    path = "transformers.models.timm_wrapper"
    config = importlib.import_module(f"{path}.configuration_timm_wrapper").TimmWrapperConfig(**wrapped(args))
    return importlib.import_module(f"{path}.modeling_timm_wrapper").TimmWrapperModel(config)


@together(
    ("build", "stated", "new"),
    [(build, *sizes) for build in (perception_lm, alone) for sizes in SIZES],
    usual=lambda build, stated, new: (build is alone) != (bool(stated) and new != (768, 768)),
)
def test_the_values_are_those_of_timm(
    build: Any, stated: dict[str, Any], new: tuple[int, int], timm: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = build({**SMALL, **stated}).eval()
    (name,) = (name for name, _ in model.named_parameters() if name.endswith("pos_embed"))
    table = nn.init.normal_(model.get_parameter(name), std=0.5)
    sides = [side // 16 for side in pair(stated.get("img_size", 384)) or ()]
    model.save_pretrained(tmp_path / "source")
    posembed.resize_checkpoint(tmp_path / "source", tmp_path / "out", image_size=new)

    config = json.loads((tmp_path / "out" / "config.json").read_text())
    size = config.get("vision_config", config)["model_args"]["img_size"]
    assert pair(size) == new
    loaded, info = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    layers = importlib.import_module("timm.layers")
    expected = layers.resample_abs_pos_embed(table, [side // 16 for side in new], old_size=sides, num_prefix_tokens=1)
    assert torch.equal(loaded.get_parameter(name), expected)
    before, after = model.state_dict(), loaded.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items() if key != name)

    posembed.resize_model_(model, image_size=new)
    assert torch.equal(model.get_parameter(name), expected)
    assert getattr(model.config, "vision_config", model.config).model_args["img_size"] == size
    image = torch.randn(1, 3, *new)
    with torch.no_grad():
        answers = [
            next(module for module in each.modules() if type(module).__module__.startswith("timm.models"))(image)
            for each in (model, loaded)
        ]
    assert_close(*answers, depth=2)
    assert answers[0].isfinite().all()
