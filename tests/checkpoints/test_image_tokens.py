"""What follows the size of an image in multimodal models: the tokens of a text that stand for it, and its tiles."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import posembed
from together import together

VISION = {"image_size": 56, "patch_size": 14, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION |= {"intermediate_size": 32}
TEXT: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
TEXT |= {"num_key_value_heads": 4, "vocab_size": 300}
LLAMA, QWEN, CLIP, SIGLIP = (
    {"model_type": "llama", **TEXT},
    {"model_type": "qwen2", **TEXT},
    {"model_type": "clip_vision_model", "projection_dim": 16, **VISION},
    {"model_type": "siglip_vision_model", **VISION},
)
TILES = [[56, 112], [112, 56], [112, 112], [168, 56]]
TWICE = [[2 * height, 2 * width] for height, width in TILES]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "internvl": (
        "InternVL",
        {"vision_config": {**VISION, "image_size": [56, 56], "patch_size": [14, 14]}, "text_config": QWEN}
        | {"image_seq_length": 4, "image_token_id": 299},
    ),
    "idefics3": ("Idefics3", {"vision_config": VISION, "text_config": LLAMA, "scale_factor": 2, "image_token_id": 299}),
    "smolvlm": ("SmolVLM", {"vision_config": VISION, "text_config": LLAMA, "scale_factor": 2, "image_token_id": 299}),
    "gemma3": (
        "Gemma3",
        {"vision_config": VISION, "text_config": {**TEXT, "head_dim": 8}, "mm_tokens_per_image": 4}
        | {"image_token_index": 299},
    ),
    "llava": ("Llava", {"vision_config": CLIP, "text_config": LLAMA, "image_seq_length": 16, "image_token_index": 299}),
    "llava_next": (
        "LlavaNext",
        {"vision_config": CLIP, "text_config": LLAMA, "image_grid_pinpoints": TILES, "image_token_index": 299},
    ),
    "llava_onevision": (
        "LlavaOnevision",
        {"vision_config": SIGLIP, "text_config": QWEN, "image_grid_pinpoints": TILES, "image_token_index": 299},
    ),
}


def built(name: str) -> Any:
    model, settings = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{model}Config")(**settings)
    return getattr(transformers, f"{model}ForConditionalGeneration")(config).eval()


def resized(model: Any, files: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Returns the JSON files of a folder after its images were made twice as large."""
    model.save_pretrained(folder / "source")
    for name, content in files.items():
        (folder / "source" / name).write_text(json.dumps(content))
    posembed.resize_checkpoint(folder / "source", folder / "out", image_size=112)
    return {path.name: json.loads(path.read_text()) for path in (folder / "out").glob("*.json")}


@together(
    ("name", "field", "before", "after"),
    [
        ("internvl", "image_seq_length", 4, 16),
        ("idefics3", "image_seq_len", 4, 16),
        ("smolvlm", "image_seq_len", 4, 16),
        ("gemma3", "image_seq_length", 4, 4),
        ("llava", "image_seq_length", 16, 64),
        ("llava_onevision", "num_image_tokens", 16, 64),
        ("internvl", "image_seq_length", 5, 5),
        ("llava", "num_image_tokens", None, None),
    ],
    usual=lambda name, field, before, after: (name, before) in [("idefics3", 4), ("gemma3", 4), ("llava", None)],
)
def test_the_tokens_of_an_image_follow_its_size(
    name: str, field: str, before: int | None, after: int | None, tmp_path: Path
) -> None:
    model = built(name)
    files = resized(model, {"processor_config.json": {field: before, "image_processor": {field: before}}}, tmp_path)
    processor = files["processor_config.json"]
    assert (processor[field], processor["image_processor"][field]) == (after, after)
    loaded = type(model).from_pretrained(tmp_path / "out").eval()
    if "llava_" not in name and after in (4, 16, 64):
        images = torch.randn(1, 1, 3, 112, 112) if name in ("idefics3", "smolvlm") else torch.randn(1, 3, 112, 112)
        ids = torch.full((1, after + 2), 299).index_fill(1, torch.tensor([0, after + 1]), 7)
        with torch.no_grad():
            assert loaded(input_ids=ids, pixel_values=images).logits.isfinite().all()
    posembed.resize_model_(model, image_size=112)
    assert getattr(model.config, "image_seq_length", None) == getattr(loaded.config, "image_seq_length", None)


@together(
    "name, stated",
    list(product(["llava_next", "llava_onevision"], [True, False])),
    usual=lambda name, stated: stated and name == "llava_next",
)
def test_large_images_keep_their_numbers_of_tiles(name: str, stated: bool, tmp_path: Path) -> None:
    model = built(name)
    processor = {"image_grid_pinpoints": TILES, "size": {"height": 56, "width": 56}}
    files = resized(model, {"preprocessor_config.json": processor} if stated else {}, tmp_path)
    assert files["config.json"]["image_grid_pinpoints"] == TWICE
    if stated:
        assert files["preprocessor_config.json"]["image_grid_pinpoints"] == TWICE
    loaded = type(model).from_pretrained(tmp_path / "out").eval()
    posembed.resize_model_(model, image_size=112)
    assert [list(size) for size in model.config.image_grid_pinpoints] == TWICE
    tiles, sizes = torch.randn(1, 3, 3, 112, 112), torch.tensor([[100, 200]])  # the whole image and two tiles
    with torch.no_grad():
        found = [each.get_image_features(pixel_values=tiles, image_sizes=sizes) for each in (model, loaded)]
    first, second = (torch.cat(list(getattr(each, "pooler_output", each))) for each in found)
    assert torch.equal(first, second)
    assert first.isfinite().all()


def test_tiles_of_other_sizes_stay(tmp_path: Path) -> None:
    model = built("llava_next")
    model.config.image_grid_pinpoints = [[100, 56]]
    assert resized(model, {}, tmp_path)["config.json"]["image_grid_pinpoints"] == [[100, 56]]


@pytest.mark.parametrize("size", [56, 64])
def test_the_tiles_of_idefics(size: int, tmp_path: Path) -> None:
    """Its image is scaled to a size, which stays, and is cut into tiles, which the vision model reads."""
    given = {"size": {"longest_edge": 224}, "max_image_size": {"longest_edge": size}}
    files = resized(built("idefics3"), {"preprocessor_config.json": given}, tmp_path)
    expected = {"longest_edge": 112 if size == 56 else size}
    assert files["preprocessor_config.json"] == {"size": {"longest_edge": 224}, "max_image_size": expected}
