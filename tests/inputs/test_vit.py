"""ViT's and DeiT's input layers against those of transformers, with the same random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from posembed.errors import ArgumentError, CheckpointError
from posembed.inputs import DeiTInput, ViTInput
from tolerance import assert_close

SETTINGS: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
VIT, DEIT = ("ViTForImageClassification", ViTInput), ("DeiTModel", DeiTInput)


def saved(name: str, folder: Path, **settings: Any) -> Any:
    """A model with every weight from N(0, 1), saved."""
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**SETTINGS, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(("name", "layer_class"), [VIT, DEIT])
@pytest.mark.parametrize(
    ("image_size", "patch_size", "channels"), [(32, 16, 3), ([32, 48], 16, 1), ([16, 8], [2, 4], 3)]
)
def test_output_and_gradients(
    name: str,
    layer_class: type[ViTInput],
    image_size: int | list[int],
    patch_size: int | list[int],
    channels: int,
    tmp_path: Path,
) -> None:
    model = saved(name, tmp_path, image_size=image_size, patch_size=patch_size, num_channels=channels)
    model, layer = model.double(), layer_class.from_checkpoint(tmp_path).double()
    sides = [image_size] * 2 if isinstance(image_size, int) else image_size
    patch = [patch_size] * 2 if isinstance(patch_size, int) else patch_size
    assert layer.position_embeddings.grid == (sides[0] // patch[0], sides[1] // patch[1])
    images = torch.randn(2, channels, *sides, dtype=torch.float64)
    embeddings = model.get_submodule("vit.embeddings" if name == VIT[0] else "embeddings")
    ours, theirs = layer(images), embeddings(images)
    assert_close(ours, theirs)
    weights = torch.randn(ours.shape)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    pairs = {
        "cls_token": embeddings.cls_token,
        "projection.weight": embeddings.patch_embeddings.projection.weight,
        "projection.bias": embeddings.patch_embeddings.projection.bias,
        "position_embeddings.weight": embeddings.position_embeddings,
    }
    if layer_class is DeiTInput:
        pairs["distillation_token"] = embeddings.distillation_token
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    assert set(gradients) == set(pairs) == set(layer.state_dict())
    for own, parameter in pairs.items():
        assert_close(gradients[own], parameter.grad.view_as(gradients[own]))


def test_an_image_of_another_size_is_refused() -> None:
    layer = ViTInput(image_size=(32, 48), patch_size=16, dim=8)
    with pytest.raises(ArgumentError, match=r"images must be \(B, 3, 32, 48\); got \(2, 3, 48, 32\)"):
        layer(torch.randn(2, 3, 48, 32))


@pytest.mark.parametrize(("image_size", "patch_size"), [((32, 40), 16), (40, (16, 20))])
def test_sides_that_are_not_whole_patches(image_size: Any, patch_size: Any) -> None:
    with pytest.raises(ArgumentError, match="image_size must be whole patches in both directions"):
        ViTInput(image_size=image_size, patch_size=patch_size, dim=8)


def test_a_table_of_another_grid_is_refused(tmp_path: Path) -> None:
    saved("ViTModel", tmp_path, image_size=32, patch_size=16)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embeddings.position_embeddings"] = torch.zeros(1, 1 + 6, 8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"do not fit together(.|\n)*position_embeddings"):
        ViTInput.from_checkpoint(tmp_path)
