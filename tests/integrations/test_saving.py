"""A model with a replaced table saved and loaded again: by one call, and by no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

import transformers as hf

import posembed
import replaced_models as made
from posembed import LearnedPositionalEmbedding, RotaryEmbedding
from posembed.errors import ArgumentError, CheckpointError
from posembed.integrations.saved import described, encoding_for, rebuilt
from posembed.integrations.transformers import from_pretrained, replace_positions
from posembed.layers import YarnScaling
from posembed.nn import ENCODINGS, Sizes, encoding_by_name
from posembed.nn.encodings import names_for
from together import by_turns, together


class Shifted(RotaryEmbedding):
    """An encoding that is not posembed's."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.scale = nn.Parameter(torch.tensor([2.0]))

    def turned(self, q: Any, k: Any, *rest: Any) -> Any:
        return super().turned(q * self.scale, k, *rest)


def outputs(model: nn.Module, name: str) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**made.inputs(name))[0]


def saved(name: str, encoding: Any, folder: Path, **sizes: Any) -> Any:
    model = replace_positions(made.tiny(name), encoding, **sizes)
    for parameter in model.parameters():
        parameter.data += 0.01 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


@together("name", made.MODELS, usual=lambda name: name not in made.BUILT_ALIKE)
def test_one_call_loads_it_again(name: str, tmp_path: Path) -> None:
    encodings = ("rope", "t5", "learned-2d" if name in made.IMAGES else "learned")
    for encoding in by_turns(encodings, list(made.MODELS).index(name)):
        model = saved(name, encoding, tmp_path)
        again = from_pretrained(tmp_path)
        assert type(again) is type(model)
        assert list(again.state_dict()) == list(model.state_dict())
        assert torch.equal(outputs(again, name), outputs(model, name))
        assert again.config.to_dict() == model.config.to_dict() | {"_name_or_path": str(tmp_path)} or (
            again.config.posembed == model.config.posembed
        )


@pytest.mark.parametrize("kind", ["MarianForCausalLM", "PegasusForCausalLM", "DistilBertModel"])
def test_a_table_of_sines_is_known_before_the_files_are_read(kind: str, tmp_path: Path) -> None:
    """DistilBERT would write its sines into the table as it is loaded."""
    of_decoder = {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8, "d_model": 16}
    own = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 8, "sinusoidal_pos_embds": True}
    sizes = own if kind == "DistilBertModel" else of_decoder
    config = getattr(hf, kind).config_class(vocab_size=20, pad_token_id=1, max_position_embeddings=20, **sizes)
    model = replace_positions(getattr(hf, kind)(config), "rope").eval()
    model.save_pretrained(tmp_path)
    ids = torch.tensor([[3, 4, 5]])
    assert torch.equal(from_pretrained(tmp_path).eval()(ids)[0], model(ids)[0])


class Frozen(hf.BertModel):
    """A user's model with frozen parameters of any shape."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.features = nn.Linear(3, 4).requires_grad_(False)
        self.position_priors = nn.Parameter(torch.randn(2, 5), requires_grad=False)


def test_other_frozen_parameters_do_not_matter(tmp_path: Path) -> None:
    model = replace_positions(Frozen(made.tiny("bert").config), "rope").eval()
    model.save_pretrained(tmp_path)
    assert torch.equal(outputs(from_pretrained(tmp_path, Frozen), "bert"), outputs(model, "bert"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_an_encoding_comes_back_in_the_dtype_of_the_model(dtype: torch.dtype, tmp_path: Path) -> None:
    model = replace_positions(made.tiny("gpt2").to(dtype), "learned")
    nn.init.normal_(model.transformer.wpe.encoding.weight)
    model.save_pretrained(tmp_path)
    for given in ({}, {"dtype": dtype}, {"dtype": "auto"}):
        again = from_pretrained(tmp_path, **given).transformer.wpe.encoding.weight
        assert torch.equal(again, model.transformer.wpe.encoding.weight)
        assert again.dtype == dtype


def test_the_sizes_of_an_encoding_come_back(tmp_path: Path) -> None:
    saved("gpt2", "rolling", tmp_path, window=5, ring=7)
    ring = from_pretrained(tmp_path).transformer.wpe.encoding
    assert (ring.window, ring.ring) == (5, 7)
    saved("gpt2", "rope+window+logn", tmp_path, window=5)
    rope = from_pretrained(tmp_path).transformer.wpe.encoding
    assert (rope.window, rope.log_length) == (5, made.LENGTH)
    saved("gpt2", LearnedPositionalEmbedding(max_len=90, dim=16), tmp_path)
    loaded = from_pretrained(tmp_path)
    assert loaded.config.max_position_embeddings == loaded.transformer.wpe.encoding.max_len == 90
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(outputs(from_pretrained(tmp_path / "again"), "gpt2"), outputs(loaded, "gpt2"))


@together(
    "encoding",
    [
        each
        for each in names_for("decoder")
        if each.startswith("learned-")
        and not each.startswith(("learned-averaged", "learned-concat"))  # they add no rows
    ],
)
def test_rows_past_the_training_length_come_back(encoding: str, tmp_path: Path) -> None:
    layer = encoding_by_name(encoding, Sizes(dim=16, heads=2, max_len=4, longest=made.LENGTH))
    saved("gpt2", layer, tmp_path)
    again, ids = from_pretrained(tmp_path).transformer.wpe.encoding, torch.arange(12)
    assert torch.equal(again.eval().rows(ids), layer.eval().rows(ids))


@together("name", made.MODELS)
def test_transformers_alone_refuses_it_and_names_the_call(name: str, tmp_path: Path) -> None:
    kind = type(saved(name, "rope", tmp_path))
    attentions: list[dict[str, str]] = [{}, {"attn_implementation": "eager"}]
    if kind._supports_sdpa:
        attentions.append({"attn_implementation": "sdpa"})
    for attention in attentions:
        for load in (
            lambda given: kind.from_pretrained(tmp_path, **given),
            lambda given: hf.AutoModel.from_pretrained(tmp_path, **given),
            lambda given: kind.from_pretrained(tmp_path, config=hf.AutoConfig.from_pretrained(tmp_path), **given),
            lambda given: kind(hf.AutoConfig.from_pretrained(tmp_path, **given)),
        ):
            with pytest.raises(ValueError, match=r"posembed\.integrations\.transformers\.from_pretrained"):
                load(attention)


def test_another_class_takes_the_encoding_along(tmp_path: Path) -> None:
    model = saved("bert", "t5", tmp_path)
    classifier = from_pretrained(tmp_path, hf.BertForSequenceClassification, num_labels=3)
    both = (m.bert.embeddings.position_embeddings.encoding.bucket_weight for m in (model, classifier))
    assert torch.equal(*both)
    assert outputs(classifier, "bert").shape == (2, 3)


def test_a_model_in_bfloat16(tmp_path: Path) -> None:
    saved("gpt2", "fire", tmp_path)
    loaded = from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}
    assert outputs(loaded, "gpt2").dtype == torch.bfloat16


@pytest.mark.parametrize("argument", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", [torch.bfloat16, "bfloat16", "auto"])
def test_a_dtype_may_have_either_name_and_any_form(argument: str, value: Any, tmp_path: Path) -> None:
    model = replace_positions(made.tiny("gpt2").to(torch.bfloat16), "t5")
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(tmp_path, **{argument: value})
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}


def test_the_arguments_of_transformers_are_taken(tmp_path: Path) -> None:
    model = saved("gpt2", "t5", tmp_path)
    want = outputs(model, "gpt2")
    loaded, report = from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    config = hf.AutoConfig.from_pretrained(tmp_path)
    by_config = from_pretrained(tmp_path, config=config)
    assert "posembed" in config.to_dict()
    auto = from_pretrained(tmp_path, hf.AutoModelForCausalLM)
    for other in (loaded, by_config, auto):
        assert type(other) is type(model)
        assert torch.equal(outputs(other, "gpt2"), want)
    with pytest.raises(ArgumentError, match="leave out attn_implementation"):
        from_pretrained(tmp_path, attn_implementation="eager")


class Own(hf.GPT2LMHeadModel):
    """A class that transformers does not have."""


class Around(hf.GPT2PreTrainedModel):
    """A model of transformers inside another."""

    def __init__(self, config: hf.GPT2Config) -> None:
        super().__init__(config)
        self.transformer = hf.GPT2Model(config)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.transformer(input_ids).last_hidden_state,)


@pytest.mark.parametrize("kind", [Own, Around])
def test_a_class_of_ones_own_must_be_given(kind: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = replace_positions(kind(hf.GPT2Config(**made.GPT2)), "t5")
    model.save_pretrained(tmp_path)
    for wrong in (None, hf.BertModel, hf.AutoModelForImageClassification, RotaryEmbedding):
        with pytest.raises(ArgumentError, match=f"holds a {kind.__name__}, .*pass"):
            from_pretrained(tmp_path, wrong)
    assert torch.equal(outputs(from_pretrained(tmp_path, kind), "gpt2"), outputs(model, "gpt2"))


@pytest.mark.parametrize("given", [posembed.Alibi(2), RotaryEmbedding(8, base=500.0), posembed.layers.T5Bias(2)])
def test_another_encoding_than_the_saved_one_is_refused(given: Any, tmp_path: Path) -> None:
    for encoding in ("rope", "t5"):
        saved("gpt2", encoding, tmp_path)
        with pytest.raises(ArgumentError, match="leave encoding= out"):
            from_pretrained(tmp_path, encoding=given)
    saved("gpt2", "learned", tmp_path)
    same = LearnedPositionalEmbedding(max_len=made.LENGTH, dim=16, init="zero", dropout=0.5)
    assert from_pretrained(tmp_path, encoding=same).transformer.wpe.encoding.dropout == 0.5
    saved("gpt2", Shifted(8), tmp_path)
    with pytest.raises(CheckpointError, match=r"hold transformer\.wpe\.encoding\.scale, which RotaryEmbedding"):
        from_pretrained(tmp_path, encoding=RotaryEmbedding(8))


@pytest.mark.parametrize(
    "entry",
    [{}, {"causal": True}, {"causal": True, "encoding": "rope"}, {"causal": True, "encoding": {}},
     {"causal": True, "encoding": {"class": "Alibi"}}, {"encoding": {"class": "Alibi", "arguments": {"heads": 2}}},
     {"causal": True, "encoding": {"class": "Alibi", "arguments": [2]}}],
)  # fmt: skip
def test_a_damaged_entry_is_refused(entry: dict[str, Any], tmp_path: Path) -> None:
    saved("gpt2", "alibi", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"posembed": entry}))
    with pytest.raises(CheckpointError, match=r"posembed entry of config\.json"):
        from_pretrained(tmp_path)


def test_an_encoding_of_ones_own_must_be_given(tmp_path: Path) -> None:
    model = saved("gpt2", Shifted(8), tmp_path)
    with pytest.raises(ArgumentError, match="encoding="):
        from_pretrained(tmp_path)
    assert torch.equal(outputs(from_pretrained(tmp_path, encoding=Shifted(8)), "gpt2"), outputs(model, "gpt2"))


def test_a_replaced_model_inside_another_is_not_loaded_without_its_encoding(tmp_path: Path) -> None:
    def build(seed: int) -> Any:
        torch.manual_seed(seed)
        encoder = replace_positions(hf.BertModel(hf.BertConfig(**made.GPT2)), "learned")
        decoder = hf.BertLMHeadModel(hf.BertConfig(**made.GPT2, is_decoder=True, add_cross_attention=True))
        return hf.EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()

    model, ids = build(0), made.inputs("bert")["input_ids"]
    model.save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match=r"a model inside \(encoder\).*then call load_state_dict"):
        from_pretrained(tmp_path)
    again = build(1)
    again.load_state_dict(model.state_dict())
    given = {"input_ids": ids, "decoder_input_ids": ids}
    assert torch.equal(again(**given)[0], model(**given)[0])


def test_other_folders_are_refused(tmp_path: Path) -> None:
    made.tiny("gpt2").save_pretrained(tmp_path / "plain")
    with pytest.raises(ArgumentError, match="no entry 'posembed'"):
        from_pretrained(tmp_path / "plain")
    saved("gpt2", "rope", tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    config["posembed"]["encoding"] = {"class": "resize_checkpoint", "arguments": {}}
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="resize_checkpoint"):
        from_pretrained(tmp_path / "other")
    saved("gpt2", "t5", tmp_path / "damaged")
    config = json.loads((tmp_path / "damaged" / "config.json").read_text())
    config["posembed"]["encoding"] = described(posembed.layers.Fire(2))
    (tmp_path / "damaged" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="do not hold"):
        from_pretrained(tmp_path / "damaged")
    config["posembed"]["encoding"]["arguments"]["of_another_version"] = 1
    (tmp_path / "damaged" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="load the model with the version that saved it, or pass encoding="):
        from_pretrained(tmp_path / "damaged")


@together("name", ENCODINGS)
def test_every_encoding_is_described(name: str) -> None:
    entry = ENCODINGS[name]
    grid = (4, 4) if entry.uses == ("images",) else None
    sizes = Sizes(dim=32, heads=4, max_len=64, longest=128, window=16, grid=grid, rope_factors=(1.0, 2.0, 3.0, 4.0))
    encoding = encoding_by_name(name, sizes)
    again = rebuilt(json.loads(json.dumps(described(encoding))))
    assert repr(again) == repr(encoding)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in encoding.state_dict().items()}
    again.added = nn.Tanh()
    assert described(again) is None, "its own module would be lost without a word"
    encoding.added = nn.Parameter(torch.zeros(2))
    assert described(encoding) is None, "its own parameter"


def test_a_model_without_one_number_of_heads_takes_encodings_at_the_input() -> None:
    sizes = {"dim": 16, "heads": None, "max_len": 8, "causal": False}
    assert encoding_for("learned", sizes, table_width=16).table().shape == (8, 16)  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match="heads"):
        encoding_for("alibi", sizes, table_width=16)


def test_what_cannot_be_described_is_none() -> None:
    assert described(Shifted(8)) is None
    scaled = RotaryEmbedding(8, scaling=YarnScaling(16))
    assert repr(rebuilt(json.loads(json.dumps(described(scaled))))) == repr(scaled)
