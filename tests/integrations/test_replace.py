"""``posembed.replace_positions`` does what the function of the model's own library does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

import posembed
from timm_peer import vision_transformer
from tiny_models import GPT, tiny_model


def test_a_model_of_transformers() -> None:
    from posembed.integrations import transformers

    model: Any = tiny_model("gpt2", GPT)
    other, ids = copy.deepcopy(model), torch.arange(8)[None]
    assert posembed.replace_positions(model, "alibi") is model
    theirs: Any = transformers.replace_positions(other, "alibi")
    assert torch.equal(model(ids).last_hidden_state, theirs(ids).last_hidden_state)


def test_a_subclass_of_a_user() -> None:
    class Mine(GPT2LMHeadModel):
        pass

    model = posembed.replace_positions(Mine(tiny_model("gpt2", GPT).config), "rope")
    assert model(torch.arange(8)[None]).logits.shape == (1, 8, 60)


def test_a_model_of_timm() -> None:
    kind = vision_transformer().VisionTransformer
    model = kind(img_size=32, patch_size=8, embed_dim=32, depth=1, num_heads=2, num_classes=3)
    posembed.replace_positions(model, "rope")
    assert model.pos_embed is None
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 3)


def test_another_model_is_refused_with_the_way_to_go() -> None:
    with pytest.raises(posembed.PosEmbedError, match=r"of transformers or timm, got Linear.*your own"):
        posembed.replace_positions(torch.nn.Linear(2, 2), "rope")


@pytest.mark.parametrize("encoding", ["fox", "rope/none", "cope"])
def test_what_differs_by_layer_or_content_is_refused_and_changes_nothing(encoding: str) -> None:
    """The attention of both libraries gives an encoding queries and keys, not the layer's number or its input."""
    kind = vision_transformer().VisionTransformer
    image_model = kind(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=3)
    model: Any = tiny_model("gpt2", GPT)
    before = model(torch.arange(8)[None]).last_hidden_state
    with pytest.raises(posembed.PosEmbedError, match="which layer asks, or what the layer reads"):
        posembed.replace_positions(model, encoding)
    assert torch.equal(model(torch.arange(8)[None]).last_hidden_state, before)
    with pytest.raises(posembed.PosEmbedError, match=r"which layer asks|form a grid|is for a decoder"):
        posembed.replace_positions(image_model, encoding)
    assert image_model.pos_embed is not None
