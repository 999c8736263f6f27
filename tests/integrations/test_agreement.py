"""A text alone = padded = read in chunks with any cache, for every model type; a model that differs is refused."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

import transformers as hf

import replaced_models as made
from posembed import resize_model_
from posembed.errors import ArgumentError
from posembed.integrations.hooks import CACHES
from posembed.integrations.install import find_slot
from posembed.integrations.transformers import from_pretrained, replace_positions
from together import by_turns, together

SIZES: dict[str, dict[str, Any]] = {"rolling": {"window": 5}, "rope+window": {"window": 5}}
PROJECTED = ("rolling", "learned-averaged")
SIDES = {f"{part}_{size}": value for part in ("encoder", "decoder")
         for size, value in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
DECODERS: dict[str, Any] = {
    **{name: lambda name=name: made.tiny(name) for name in made.DECODERS},
    "gpt_bigcode": lambda: hf.GPTBigCodeForCausalLM(hf.GPTBigCodeConfig(**made.GPT2)),
    "gpt_bigcode, all heads": lambda: hf.GPTBigCodeForCausalLM(hf.GPTBigCodeConfig(**made.GPT2, multi_query=False)),
    "bert": lambda: hf.BertLMHeadModel(hf.BertConfig(**made.GPT2, is_decoder=True)),
    "roberta": lambda: hf.RobertaForCausalLM(hf.RobertaConfig(**made.GPT2, is_decoder=True)),
    "electra": lambda: hf.ElectraForCausalLM(hf.ElectraConfig(**made.GPT2, embedding_size=8, is_decoder=True)),
    **{
        family: lambda family=family: getattr(hf, f"{family}ForCausalLM")(
            getattr(hf, f"{family}Config")(
                vocab_size=50, d_model=16, max_position_embeddings=32, init_std=0.3, **SIDES, pad_token_id=0,
                bos_token_id=1, eos_token_id=2,
            )
        )
        for family in ("Bart", "MBart", "PLBart", "Blenderbot")
    },
}  # fmt: skip
READ = {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids", "encoder_hidden_states",
        "pixel_values", *CACHES}  # fmt: skip
"""What slot.py reads from the arguments of a base model."""
NOT_READ = {"use_cache", "encoder_attention_mask", "output_attentions", "output_hidden_states", "return_dict",
            "interpolate_pos_encoding", "bool_masked_pos", "kwargs"}  # fmt: skip
"""What has nothing to do with positions, or nothing without ``encoder_hidden_states``, which is refused."""


def close(got: Tensor, want: Tensor) -> bool:
    """Returns whether two results agree up to rounding, relative to the largest value."""
    return bool((got - want).abs().max() <= 256 * torch.finfo(want.dtype).eps * want.abs().max())


@together("name", DECODERS, usual=lambda name: list(DECODERS).index(name) % 4 == 0)
def test_padded_chunked_and_cached_texts_give_the_same(name: str) -> None:
    torch.manual_seed(0)
    model = DECODERS[name]().eval()
    ids = made.inputs("gpt2")["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, 7:] = mask[1, :5] = 0
    encodings = ("learned", "rope", "alibi", "pope", "rope-yarn", "rope+window", "rolling", "t5", "learned-averaged")
    for encoding in by_turns(encodings, list(DECODERS).index(name) // 2):
        refused = {"gpt_bigcode": (*PROJECTED, "pope"), "gpt_bigcode, all heads": PROJECTED}
        if encoding in refused.get(name, ()):
            continue  # its projections, and one key for several heads, are refused
        replace_positions(model, encoding, **SIZES.get(encoding, {}))
        with torch.no_grad():
            alone = [model(ids[:1, :7]).logits[0], model(ids[1:, 5:]).logits[0]]
            for cache in (
                None,
                hf.DynamicCache(config=model.config),
                hf.StaticCache(config=model.config, max_cache_len=12),
            ):
                sizes = (9,) if cache is None else (4, 1, 4)
                parts, end = [], 0
                for part in ids.split(sizes, dim=1):
                    end += part.size(1)
                    given = {} if cache is None else {made.CACHE: cache}
                    parts.append(model(part, attention_mask=mask[:, :end], **given).logits)
                both = torch.cat(parts, dim=1)
                assert close(both[0, :7], alone[0]), (encoding, type(cache))
                assert close(both[1, 5:], alone[1]), (encoding, type(cache))
        options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        left = ids[1:].repeat(2, 1)
        padded = torch.stack((torch.ones_like(mask[1]), mask[1]))
        want = model.generate(left, attention_mask=padded, use_cache=False, **options)
        for way in ({}, {"prefill_chunk_size": 4}, {"cache_implementation": "static"}, {"num_beams": 2}):
            got = model.generate(left, attention_mask=padded, **options, **way)
            if "num_beams" in way:
                want = model.generate(left, attention_mask=padded, use_cache=False, **options, **way)
            assert torch.equal(got, want), (encoding, way)


def test_every_argument_of_a_base_model_is_known() -> None:
    """A renamed argument that slot.py reads shows here first; without one of the names it could not work at all."""
    models = {name: made.tiny(name) for name in made.MODELS} | {name: build() for name, build in DECODERS.items()}
    for name, model in models.items():
        replace_positions(model, "learned")
        path = find_slot(model)[0]  # type: ignore[index]
        while not model.get_submodule(path)._forward_pre_hooks:
            path = path.rpartition(".")[0]
        taken = set(inspect.signature(model.get_submodule(path).forward).parameters)
        assert taken <= READ | NOT_READ, (name, taken - READ - NOT_READ)
        wanted = {"pixel_values"} if name in made.IMAGES else {"input_ids", "attention_mask"}
        assert wanted <= taken, name
        assert name not in DECODERS or len(taken & set(CACHES)) == 1, name


class Renamed(hf.GPT2Model):
    """A base model whose cache has a name that nobody has used so far."""

    def forward(self, input_ids: Any = None, memory: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        output = super().forward(input_ids, attention_mask=attention_mask, **{made.CACHE: memory}, **kwargs)
        return {0: output[0], "memory": output[made.CACHE]}


def test_a_cache_is_known_under_any_name() -> None:
    torch.manual_seed(0)
    model = replace_positions(Renamed(hf.GPT2Config(**made.GPT2)), "rope").eval()
    ids = made.inputs("gpt2")["input_ids"]
    with torch.no_grad():
        first = model(ids[:, :5], use_cache=True)
        second = model(ids[:, 5:], memory=first["memory"], use_cache=True)
        assert close(torch.cat((first[0], second[0]), dim=1), model(ids)[0])


class Blind(hf.GPT2Model):
    """A base model that does not read its mask."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().forward(input_ids, **kwargs)


class Forgetful(hf.GPT2Model):
    """A base model that takes a cache and returns none."""

    def forward(self, *args: Any, use_cache: Any = None, cache: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        return super().forward(*args, use_cache=False, **kwargs)


@pytest.mark.parametrize(("kind", "match"), [(Blind, "differ"), (Forgetful, "0 caches")])
def test_a_model_that_differs_is_refused_with_the_versions_and_stays(kind: Any, match: str) -> None:
    torch.manual_seed(0)
    model = kind(hf.GPT2Config(**made.GPT2)).train()
    before, state = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    with pytest.raises(ArgumentError, match=rf"{match}.*transformers {hf.__version__}, posembed "):
        replace_positions(model, "rope")
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not hasattr(model.config, "posembed")


def test_trying_out_leaves_nothing_behind() -> None:
    model = made.tiny("gpt2").train()
    model.transformer.drop.eval()
    state = torch.get_rng_state()
    replace_positions(model, "rope")
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.transformer.drop.training
    assert model.transformer.h[0].training
    slot = model.transformer.wpe
    assert not slot._forward_pre_hooks
    assert not any(isinstance(value, Tensor) for value in vars(slot).values())
    with torch.autocast("cpu", torch.bfloat16):
        replace_positions(model, "rope")


def test_a_pass_after_a_failed_one_is_right() -> None:
    model = replace_positions(made.tiny("gpt2"), "rope")
    given = made.inputs("gpt2")
    want = model(**given).logits

    def fail(*args: Any) -> None:
        raise RuntimeError("in the middle")

    handle = model.transformer.h[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        model(**given)
    handle.remove()
    assert torch.equal(model(**given).logits, want)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neo", "opt", "bert", "roberta", "electra"])
def test_a_table_of_a_replaced_model_is_resized_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = replace_positions(made.tiny(name), "learned").eval()
    ids = made.inputs(name, length=made.LENGTH)["input_ids"]
    field = model.config.max_position_embeddings
    with torch.no_grad():
        want = model(ids)[0]
        edit = resize_model_(model, length=made.LENGTH + 8)
        slot = find_slot(model)[1]  # type: ignore[index]
        assert model.get_parameter(edit.tables[0].key) is slot.encoding.weight
        assert torch.equal(model(ids)[0], want)
        assert model.config.max_position_embeddings == field + 8
        longer = torch.cat((ids, ids[:, :8]), dim=1)
        model.save_pretrained(tmp_path)
        assert torch.equal(from_pretrained(tmp_path).eval()(longer)[0], model(longer)[0])
    around = nn.ModuleDict({"inner": model})
    resize_model_(around, length=20, table=f"inner.{edit.tables[0].key}")
    assert model.config.posembed["encoding"]["arguments"]["max_len"] == 20


@together("name", made.IMAGES)
def test_a_grid_of_a_replaced_model_is_resized_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = replace_positions(made.tiny(name), "learned-2d").eval()
    for new in ((8, 12), (16, 24), (24, 24)):
        resize_model_(model, image_size=new)
        model.save_pretrained(tmp_path)
        loaded, encoding = from_pretrained(tmp_path).eval(), find_slot(model)[1].encoding  # type: ignore[index]
        for height, width in (new, (16, 16), (8, 24)):
            own = (height, width) == new or name.startswith("dinov2")
            given = {"pixel_values": torch.randn(1, 3, height, width)}
            given |= {} if own else {"interpolate_pos_encoding": True}
            right = copy.deepcopy(model)
            find_slot(right)[1].encoding = encoding.on_grid((height // 4, width // 4))  # type: ignore[index]
            with torch.no_grad():
                assert torch.equal(model(**given)[0], right(**given)[0])
                assert torch.equal(loaded(**given)[0], right(**given)[0])
    assert model.config.image_size == 24
    assert replace_positions(model, "rope").config.image_size == 24
    resize_model_(replace_positions(model, "learned-2d"), grid=(4, 4))
    assert model(pixel_values=torch.randn(1, 3, 16, 16))[0].isfinite().all()


@together("encoding", ["learned-2d", "rope-axial", "rope"])
def test_the_image_size_may_be_in_a_section_of_the_config(encoding: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 4}
    model = hf.CLIPForImageClassification(hf.CLIPConfig(vision_config=sizes))
    model = replace_positions(model, encoding).eval()
    for side in (16, 24):
        pixels = torch.randn(1, 3, side, side)
        if side == 24 and encoding == "learned-2d":
            resize_model_(model, image_size=side)
            assert model.config.vision_config.image_size == side
        elif side == 24:
            break
        model.save_pretrained(tmp_path)
        assert torch.equal(from_pretrained(tmp_path).eval()(pixels)[0], model(pixels)[0])


def test_no_other_number_of_the_config_of_a_replaced_model_changes() -> None:
    """Each has the old length, or the old number of patches."""
    model = replace_positions(made.tiny("opt"), "learned")
    images = replace_positions(made.tiny("vit", image_size=64, num_frames=257), "learned-2d")
    model.config.max_source_positions = made.LENGTH
    resize_model_(model, length=made.LENGTH + 8)
    resize_model_(images, grid=(8, 8))
    assert (model.config.max_source_positions, model.config.max_position_embeddings) == (made.LENGTH, made.LENGTH + 8)
    assert (images.config.image_size, images.config.num_frames) == (32, 257)
