"""A live transformers model gets what its checkpoint would get, buffers and all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import posembed
from posembed import ArgumentError, CheckpointError
from tiny_models import GPT, TEXT, reloaded, saved, text_inputs, tiny_model

TABLE = "embeddings.position_embeddings.weight"


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "mra"])
def test_a_live_model(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, GPT if family == "gpt2" else {**TEXT, "block_per_row": 1})
    other = tiny_model(family, GPT if family == "gpt2" else {**TEXT, "block_per_row": 1})
    inputs = text_inputs(model, 16)
    with torch.no_grad():
        before = model(**inputs)[0]
        edit = posembed.resize_model_(model, length=64)
        if family != "mra":  # MRA approximates attention by blocks of the whole length
            assert torch.equal(model(**inputs)[0], before)
        assert model(**text_inputs(model, 64))[0].shape[:2] == (1, 64)
    posembed.resize_checkpoint(saved(other, tmp_path / "source"), tmp_path / "out", length=64)
    from_disk = reloaded(model, tmp_path / "out")
    for key, tensor in from_disk.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor)
    buffers = dict(model.named_buffers())
    for name, buffer in from_disk.named_buffers():
        assert torch.equal(buffers[name], buffer)
    assert model.config.max_position_embeddings == from_disk.config.max_position_embeddings
    parameter = model.get_parameter(edit.tables[0].key)
    assert parameter.requires_grad
    module = model.get_submodule(edit.tables[0].key.rpartition(".")[0])
    assert module.num_embeddings == len(parameter)


def test_a_live_models_dtype_and_freezing_stay() -> None:
    model = tiny_model("bert", TEXT).to(torch.bfloat16).requires_grad_(False)
    posembed.resize_model_(model, length=64, method="linear")
    table = model.get_parameter(TABLE)
    assert (table.shape, table.dtype, table.requires_grad) == ((64, 32), torch.bfloat16, False)


def test_a_refusal_leaves_a_live_model_as_it_was() -> None:
    model = tiny_model("bert", TEXT)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for arguments in ({"length": 40}, {"length": 2000, "method": "hierarchical"}, {"image_size": 64}):
        with pytest.raises((ArgumentError, CheckpointError)):
            posembed.resize_model_(model, **arguments)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert model.config.max_position_embeddings == 40
    with pytest.raises(ArgumentError, match="model class of transformers"):
        posembed.resize_model_(torch.nn.Linear(2, 2), length=3)
