"""Patches of another size: the table follows the grid, and the weights that embed a patch are resampled."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import posembed
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.pickles import load_without_running
from posembed.tables.layout import TableLayout
from posembed.tables.resize_methods import resample_patches
from timm_peer import vision_transformer
from together import together
from tolerance import assert_close

WIDE: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
VISION = {**WIDE, "image_size": 64, "patch_size": 16}
TEXT = {**WIDE, "vocab_size": 99}
TINY = {"img_size": 64, "depth": 1, "embed_dim": 32, "num_heads": 2}


def built(name: str, config: dict[str, Any], kind: str = "Model") -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, name + kind)(getattr(transformers, f"{name}Config")(**config)).eval()
    for parameter in model.parameters():  # some tables start as zeros
        nn.init.normal_(parameter, std=0.1)
    return model


CASES = {
    "ViT": lambda: built("ViT", VISION),
    "DeiT": lambda: built("DeiT", VISION),
    "Dinov2": lambda: built("Dinov2", VISION),
    "Beit": lambda: built("Beit", {**VISION, "use_relative_position_bias": True}),
    "CLIP": lambda: built("CLIP", {"vision_config": VISION, "text_config": TEXT}),
    "Siglip": lambda: built("Siglip", {"vision_config": VISION, "text_config": TEXT}),
    "TimeSformer": lambda: built("Timesformer", {**VISION, "num_frames": 4}),
    "SAM": lambda: built("SamVision", {**VISION, "output_channels": 16, "window_size": 2, "mlp_dim": 16,
                                       "global_attn_indexes": [1]}),
}  # fmt: skip


def run(model: nn.Module, pixels: Tensor) -> Tensor:
    of_images = getattr(model, "vision_model", model)
    with torch.no_grad():
        return of_images(pixel_values=pixels)[0]


def test_a_file_whose_weights_make_pixels_is_refused(tmp_path: Path) -> None:
    """As the one of MAE, whose decoder has a row for each pixel of a patch; another size of its images is taken."""
    model = built("ViTMAE", VISION, "ForPreTraining").state_dict()
    fixed = ("vit.embeddings.position_embeddings", "decoder.decoder_pos_embed")
    torch.save(model | {key: torch.randn_like(model[key]) for key in fixed}, tmp_path / "mae.pth")
    with pytest.raises(CheckpointError, match=r"decoder_pred\.weight makes pixels of each patch"):
        posembed.resize_checkpoint(tmp_path / "mae.pth", tmp_path / "new.pth", patch_size=8)
    posembed.resize_checkpoint(tmp_path / "mae.pth", tmp_path / "new.pth", image_size=128, table=fixed[0])


@together("name", CASES, usual=lambda name: name in ("Beit", "CLIP", "SAM"))
def test_a_model_of_transformers_loads_strictly_and_runs(name: str, tmp_path: Path) -> None:
    old = CASES[name]()
    old.save_pretrained(tmp_path / "old")
    resized = posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", patch_size=8)
    new, loading = type(old).from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not any(loading.values())
    lead = (1, 4) if name == "TimeSformer" else (1,)
    assert run(new.eval(), torch.randn(*lead, 3, 64, 64)).isfinite().all()
    held = load_file(tmp_path / "old" / "model.safetensors")
    (projection,) = resized.edit.others
    assert torch.equal(projection.after, resample_patches(held.pop(projection.key), (8, 8)))
    stored = load_file(tmp_path / "new" / "model.safetensors")
    for key in held.keys() - {change.key for change in resized.edit.tables}:
        assert torch.equal(stored[key], held[key])


@together("name", ["ViT", "Dinov2", "CLIP", "SAM"], usual=lambda name: name in ("Dinov2", "SAM"))
def test_images_that_grow_with_their_patches_keep_their_answers(name: str, tmp_path: Path) -> None:
    """The grid and its rows stay, and a patch that is enlarged has the embedding that it had."""
    old = CASES[name]()
    old.save_pretrained(tmp_path / "old")
    resized = posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", patch_size=20, image_size=80)
    assert all(change.how == "the same rows" for change in resized.edit.tables)
    new = type(old).from_pretrained(tmp_path / "new").eval()
    pixels = torch.randn(2, 3, 64, 64)
    patches = F.unfold(pixels, 16, stride=16).transpose(1, 2).reshape(-1, 3, 16, 16)
    larger = F.interpolate(patches, size=(20, 20), mode="bicubic", antialias=True).reshape(2, 16, -1)
    grown = F.fold(larger.transpose(1, 2), (80, 80), 20, stride=20)
    assert_close(run(new, grown), run(old, pixels), depth=20, terms=3 * 20 * 20)


def test_what_follows_in_a_model_of_images_and_text(tmp_path: Path) -> None:
    """More patches are more tokens of the text, in config.json and in the processor."""
    llama = {"model_type": "llama", "num_key_value_heads": 2, **TEXT}
    sizes = {"vision_config": {"model_type": "clip_vision_model", **VISION}, "text_config": llama}
    built("Llava", {**sizes, "image_seq_length": 16}, "ForConditionalGeneration").save_pretrained(tmp_path / "old")
    processor = {"patch_size": 16, "image_seq_length": 16, "processor_class": "LlavaProcessor"}
    (tmp_path / "old" / "processor_config.json").write_text(json.dumps(processor))
    posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", patch_size=(8, 8))
    config, written = (
        json.loads((tmp_path / "new" / f"{name}.json").read_text()) for name in ("config", "processor_config")
    )
    assert (config["vision_config"]["patch_size"], config["image_seq_length"]) == (8, 64)
    assert written == {**processor, "patch_size": 8, "image_seq_length": 64}


@together(("architecture", "size"), [
    ("vit_tiny_patch16_224", {"patch_size": 8}), ("vit_tiny_patch16_224", {"patch_size": (32, 16), "image_size": 128}),
    ("beit_base_patch16_224", {"patch_size": 8}), ("eva02_tiny_patch14_224", {"patch_size": 16}),
], usual=lambda architecture, size: "eva" in architecture or "image_size" in size)  # fmt: skip
def test_timm_makes_the_same_of_the_old_file(architecture: str, size: dict[str, Any], tmp_path: Path) -> None:
    vision_transformer()
    import timm

    args = {**TINY, "img_size": 56} if "14" in architecture else TINY
    model = timm.create_model(architecture, num_classes=3, **args)
    (tmp_path / "old").mkdir()
    save_file(model.state_dict(), tmp_path / "old" / "model.safetensors")
    config = {"architecture": architecture, "num_classes": 3, "model_args": args}
    config["pretrained_cfg"] = {"input_size": [3, args["img_size"], args["img_size"]]}
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    resized = posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", **size)
    assert "timm resizes these 2 tables as well" in repr(resized)
    assert "to the same values" in repr(resized)
    loaded = timm.create_model(f"local-dir:{tmp_path / 'new'}", pretrained=True)
    stored = load_file(tmp_path / "new" / "model.safetensors")
    assert all(torch.equal(value, stored[key]) for key, value in loaded.state_dict().items() if key in stored)
    patch = size["patch_size"]
    assert loaded.patch_embed.patch_size == (patch if isinstance(patch, tuple) else (patch, patch))


def test_a_file_of_a_training_script(tmp_path: Path) -> None:
    """Its average follows, as do its settings; the moments of the weights have other shapes, and are left out."""
    vision_transformer()
    import timm

    def model(**size: Any) -> Any:
        return timm.create_model("vit_tiny_patch16_224", num_classes=3, **TINY | size)

    old, average = model(), model()
    optimizer = torch.optim.AdamW(old.parameters())
    old(torch.randn(1, 3, 64, 64)).sum().backward()
    optimizer.step()
    args = argparse.Namespace(img_size=64, patch_size=16, patchwork=16, lr=0.1)
    whole = {"state_dict": old.state_dict(), "state_dict_ema": average.state_dict(), "args": args}
    torch.save({**whole, "optimizer": optimizer.state_dict(), "epoch": 16}, tmp_path / "old.pt")
    resized = posembed.resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", patch_size=8)
    assert "optimizer: not copied, because the weights of its patches have other shapes" in repr(resized)
    new = load_without_running(tmp_path / "new.pt")
    assert (new["epoch"], vars(new["args"])) == (16, {**vars(args), "patch_size": 8})
    for name, before in (("state_dict", old), ("state_dict_ema", average)):
        model(patch_size=8).load_state_dict(new[name])
        projection = before.patch_embed.proj.weight.detach()
        assert torch.equal(new[name]["patch_embed.proj.weight"], resample_patches(projection, (8, 8)))
        table = before.pos_embed.detach()
        expected = posembed.resize_table(table, grid=(8, 8), layout=TableLayout.VIT.on_grid(4, 4))
        assert torch.equal(new[name]["pos_embed"], expected)


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "two sizes": (CASES["ViT"], {"patch_size": 8, "grid": (8, 8)}, "or --image-size with --patch-size"),
    "the same": (CASES["ViT"], {"patch_size": 16}, "already has patches of 16 x 16 pixels"),
    "too large": (CASES["ViT"], {"patch_size": 65}, "expected a grid of 1 to .* got 0 x 0"),
    "no size": (CASES["ViT"], {"patch_size": 0}, "each at least 1"),
    "text": (lambda: built("Bert", TEXT), {"patch_size": 8}, "no table of a grid of patches"),
    "pixels as output": (lambda: built("ViTMAE", VISION, "ForPreTraining"), {"patch_size": 8},
                         "decoder_pred.weight: not resized: it depends on patch_size"),
    "pixels as output of a convolution": (lambda: built("ViT", {**VISION, "encoder_stride": 16},
                                                        "ForMaskedImageModeling"),
                                          {"patch_size": 8}, "decoder.1 makes pixels of each patch"),
    "patches cut beforehand": (lambda: built("Siglip2Vision", {**WIDE, "num_patches": 16, "patch_size": 16}),
                               {"patch_size": 8},
                               "the patch size of .* is unknown"),
}  # fmt: skip


@together("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    model, size, reason = REFUSED[name]
    model().save_pretrained(tmp_path / "old")
    with pytest.raises((ArgumentError, CheckpointError), match=reason):
        posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", **size)
    assert not (tmp_path / "new").exists()


@together("name", CASES, usual=lambda name: name == "CLIP")
def test_a_model_in_memory_becomes_the_one_in_files(name: str, tmp_path: Path) -> None:
    model = CASES[name]()
    model.save_pretrained(tmp_path / "old")
    posembed.resize_checkpoint(tmp_path / "old", tmp_path / "new", patch_size=8)
    new = type(model).from_pretrained(tmp_path / "new").eval()
    posembed.resize_model_(model, patch_size=8)
    pixels = torch.randn(*(1, 4) if name == "TimeSformer" else (1,), 3, 64, 64)
    assert torch.equal(run(model, pixels), run(new, pixels))
    model.save_pretrained(tmp_path / "saved")
    saved, written = (json.loads((tmp_path / each / "config.json").read_text()) for each in ("saved", "new"))
    assert saved.get("vision_config", saved)["patch_size"] == written.get("vision_config", written)["patch_size"] == 8


def test_a_model_of_timm_in_memory() -> None:
    vision_transformer()
    import timm

    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, **TINY).eval()
    before = model.patch_embed.proj.weight.detach().clone()
    posembed.resize_model_(model, patch_size=8)
    assert torch.equal(model.patch_embed.proj.weight, resample_patches(before, (8, 8)))
    with torch.no_grad():
        assert model(torch.randn(1, 3, 64, 64)).isfinite().all()
    model(torch.randn(1, 3, 64, 64)).sum().backward()
    assert model.patch_embed.proj.weight.grad is not None
    posembed.resize_model_(model, patch_size=16, image_size=128)
    with torch.no_grad():
        assert model(torch.randn(1, 3, 128, 128)).isfinite().all()
