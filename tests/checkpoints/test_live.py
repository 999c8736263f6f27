"""A live transformers model gets what its checkpoint would get, buffers and all."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

import posembed
from posembed.errors import ArgumentError, CheckpointError
from tiny_models import GPT, TEXT, reloaded, saved, text_inputs, tiny_model
from together import together

TABLE = "embeddings.position_embeddings.weight"


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "yoso"])
def test_a_live_model(family: str, tmp_path: Path) -> None:
    model = tiny_model(family, GPT if family == "gpt2" else TEXT)
    other = tiny_model(family, GPT if family == "gpt2" else TEXT)
    inputs = text_inputs(model, 16)
    with torch.no_grad():
        before = model(**inputs)[0]
        edit = posembed.resize_model_(model, length=64)
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


def test_a_buffer_whose_values_are_not_known_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match="weight_integer: not resized: the new values of this buffer are not known"
    ):
        posembed.resize_model_(tiny_model("ibert", TEXT), length=64)


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


@together(
    "kinds, side",
    product([("bert", "bert"), ("bert", "roberta"), ("roberta", "roberta")], ["encoder", "decoder"]),
    usual=lambda kinds, side: kinds[0] == "bert" and (side == "encoder") == (kinds[1] == "bert"),
)
def test_a_side_of_a_pair_leaves_the_config_of_the_other(kinds: tuple[str, str], side: str, tmp_path: Path) -> None:
    """Two models of one kind and one length are two models."""
    from transformers import CONFIG_MAPPING, EncoderDecoderConfig, EncoderDecoderModel

    first, second = (CONFIG_MAPPING[kind](**TEXT, pad_token_id=0) for kind in kinds)
    model = EncoderDecoderModel(EncoderDecoderConfig.from_encoder_decoder_configs(first, second)).eval()
    (key,) = [key for key in model.state_dict() if key.startswith(side) and key.endswith(TABLE)]
    posembed.resize_model_(model, length=64, table=key)
    grown = {name: getattr(model, name).config.max_position_embeddings > 40 for name in ("encoder", "decoder")}
    assert grown == {name: name == side for name in grown}
    assert all(getattr(model, n).config is getattr(model.config, n) for n in grown)
    reloaded(model, saved(model, tmp_path / "out"))


@together(
    "family, new",
    product(["gpt_neo", "gpt2", "bert", "xlm", "roberta"], [16, 64]),
    usual=lambda family, new: (
        (family, new) in [("gpt_neo", 64), ("gpt_neo", 16), ("gpt2", 64), ("xlm", 64), ("roberta", 16)]
    ),
)
def test_the_buffers_of_a_live_model_are_those_of_its_checkpoint(family: str, new: int, tmp_path: Path) -> None:
    """A window of 48 is not to be seen in the masks of a table of 40 rows."""
    settings = {
        "gpt_neo": {
            "vocab_size": 60, "max_position_embeddings": 40, "window_size": 48, "hidden_size": 32, "num_layers": 2,
            "attention_types": [[["global", "local"], 1]], "num_heads": 2, "intermediate_size": 16,
        },
        "gpt2": GPT,
        "xlm": {"vocab_size": 60, "emb_dim": 32, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 40},
    }  # fmt: skip
    model = tiny_model(family, settings.get(family, TEXT))
    posembed.resize_model_(model, length=new)
    from_disk = reloaded(model, saved(model, tmp_path / "out"))
    expected = dict(from_disk.named_buffers())
    assert all(torch.equal(buffer, expected[name]) for name, buffer in model.named_buffers())
    inputs = text_inputs(model, new)
    with torch.no_grad():
        assert torch.equal(model(**inputs)[0], from_disk(**inputs)[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch")
def test_linear_layers_that_are_quantized_stay_as_they_are() -> None:
    def quantized(model: torch.nn.Module) -> torch.nn.Module:
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)

    model = tiny_model("bert", TEXT)
    resized = quantized(model)
    posembed.resize_model_(resized, length=64)
    posembed.resize_model_(model, length=64)
    inputs = text_inputs(model, 64)
    with torch.no_grad():
        assert torch.equal(resized(**inputs)[0], quantized(model)(**inputs)[0])


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_table_that_peft_has_wrapped_is_refused_with_what_works() -> None:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["query"], modules_to_save=["position_embeddings"])
    model = peft.get_peft_model(tiny_model("bert", TEXT), settings)
    for each in (model, model.base_model.model):
        with pytest.raises(ArgumentError, match=r"peft has wrapped .*before get_peft_model"):
            posembed.resize_model_(each, length=64)
    merged = model.merge_and_unload()
    posembed.resize_model_(merged, length=64)
    assert merged(**text_inputs(merged, 64))[0].shape[1] == 64
    model = peft.get_peft_model(merged, peft.LoraConfig(target_modules=["query"]))
    posembed.resize_model_(model.base_model.model, length=80)
    assert model(**text_inputs(merged, 80))[0].shape[1] == 80


def test_the_length_of_generated_texts_never_exceeds_the_table() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    for limit, expected in ((64, 32), (50, 32), (20, 20)):
        model = GPT2LMHeadModel(GPT2Config(n_positions=64, n_embd=16, n_layer=1, n_head=2, vocab_size=30))
        model.generation_config.max_length = limit
        posembed.resize_model_(model, length=32)
        assert model.generation_config.max_length == expected
