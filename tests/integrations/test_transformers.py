"""Encodings inside models of transformers: the old table again, formulas written out, padding, caches, gradients."""

from __future__ import annotations

import copy
import importlib
import io
import math
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

import transformers as hf

import posembed
import replaced_models as made
from posembed import LearnedGridEmbedding, LearnedPositionalEmbedding, RotaryEmbedding
from posembed.errors import ArgumentError
from posembed.integrations.transformers import replace_positions
from posembed.layers import BilevelEncoding, PolarEmbedding
from posembed.nn import ENCODINGS
from posembed.tables import TableLayout
from together import by_turns, together
from tolerance import assert_close, close

CAUSAL = (
    "learned", "rope", "alibi", "t5", "kerple-log", "fire", "rolling", "learned-averaged", "pope",
    "rope-yarn", "learned-interpolated", "rope+window", "alibi+logn", "sinusoidal", "none", "tupe-r",
)  # fmt: skip
BIDIRECTIONAL = ("learned", "rope", "alibi", "t5", "kerple-power", "pope", "sinusoidal", "none", "tupe-r")
BY_LENGTH = ("rope-yarn", "learned-interpolated")
"""A longer text changes what these give to its earlier tokens, which a cache keeps as they were."""
SIZES: dict[str, dict[str, Any]] = {
    "rolling": {"window": 5, "ring": 7},
    "rope+window": {"window": 5},
    "rope-yarn": {"max_len": 8, "longest": 32},
    "learned-interpolated": {"max_len": 8},
    "alibi+logn": {"max_len": 4},
}


def replaced(name: str, encoding: Any, **changes: Any) -> Any:
    torch.manual_seed(1)
    model = made.tiny(name, **changes)
    return replace_positions(model, encoding, **SIZES.get(encoding, {}) if isinstance(encoding, str) else {})


def outputs(model: nn.Module, **given: Any) -> Tensor:
    with torch.no_grad():
        return model(**given)[0]


@together("name", made.MODELS)
def test_a_layer_with_the_old_rows_gives_the_old_outputs(name: str) -> None:
    model, given = made.tiny(name), made.inputs(name)
    if name not in made.IMAGES:
        given["attention_mask"] = torch.tensor([[1] * 9, [1] * 6 + [0] * 3])
    want = outputs(model, **given)
    got = outputs(replace_positions(model, made.same_table(model)), **given)
    present = given.get("attention_mask", torch.ones(got.shape[:2])).bool() if got.dim() == 3 else slice(None)
    assert_close(got[present], want[present], depth=2)


@together("name", made.MODELS, usual=lambda name: name not in made.BUILT_ALIKE)
def test_every_encoding_reaches_the_outputs(name: str) -> None:
    model, given = made.tiny(name), made.inputs(name)
    names = [each for each in ENCODINGS if "images" in ENCODINGS[each].uses] if name in made.IMAGES else []
    names += list(CAUSAL if name in (*made.DECODERS, "clip_text") else BIDIRECTIONAL)
    names = by_turns(names, list(made.MODELS).index(name))
    known = {"none": outputs(replace_positions(model, "none"), **given)}
    for seed, each in enumerate(dict.fromkeys(names)):
        torch.manual_seed(seed)
        replace_positions(model, each, **SIZES.get(each, {}))
        got = outputs(model, **given)
        assert got.isfinite().all()
        assert each == "none" or all(not close(got, other, depth=2) for other in known.values()), each
        known[each] = got


# --- formulas written out -----------------------------------------------------------------------------------------


def test_alibi_is_a_mask_with_slopes_on_a_model_without_a_table() -> None:
    model, ids = made.tiny("gpt2"), made.inputs("gpt2")["input_ids"]
    plain = copy.deepcopy(model)
    nn.init.zeros_(plain.transformer.wpe.weight)
    distance = torch.arange(9).unsqueeze(1) - torch.arange(9)
    mask = torch.stack([-(2.0**-slope) * distance for slope in (4, 8)])
    mask = mask.masked_fill(distance < 0, float("-inf")).unsqueeze(0)
    want = outputs(plain, input_ids=ids, attention_mask=mask)
    assert_close(outputs(replace_positions(model, "alibi"), input_ids=ids), want, depth=2)


def test_rope_turns_the_queries_and_keys_of_gpt2() -> None:
    model = made.tiny("gpt2")
    ids = made.inputs("gpt2")["input_ids"]
    with torch.no_grad():
        body, x = model.transformer, model.transformer.wte(ids)
        angle = torch.arange(9.0).unsqueeze(1) * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
        for block in body.h:
            q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in block.attn.c_attn(block.ln_1(x)).split(16, -1))
            first, second = (t[..., :4] + 1j * t[..., 4:] for t in (q, k))
            turn = torch.polar(torch.ones_like(angle), angle)
            q, k = (torch.cat((t.real, t.imag), -1) for t in (first * turn, second * turn))
            scores = (q @ k.transpose(-1, -2) / math.sqrt(8)).masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf)
            x = x + block.attn.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            x = x + block.mlp(block.ln_2(x))
        want = model.lm_head(body.ln_f(x))
    assert_close(outputs(replace_positions(model, "rope"), input_ids=ids), want, depth=2)


@pytest.mark.parametrize("encoding", ["rolling", "pope"])
def test_rows_below_the_projections_and_wider_queries(encoding: str) -> None:
    """The first layer of OPT, whose queries are multiplied by the scale before the attention sees them."""
    model = made.tiny("opt", do_layer_norm_before=True)
    ring = posembed.RollingPositionalEmbedding(window=12, dim=16, ring=12)
    pope = PolarEmbedding(head_dim=8, heads=2, delta_init="uniform")
    x, seen = torch.randn(1, 9, 16), {}
    attention, rows = model.model.decoder.layers[0].self_attn, ring.weight[:9] if encoding == "rolling" else 0
    for name in ("q_proj", "k_proj"):
        nn.init.normal_(getattr(attention, name).bias)
    q, k = (getattr(attention, name)(x + rows).unflatten(-1, (2, 8)).transpose(1, 2) for name in ("q_proj", "k_proj"))
    if encoding == "pope":  # of width 16
        q, k = pope(q, k)
    v = attention.v_proj(x).unflatten(-1, (2, 8)).transpose(1, 2)
    attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    want = attention.out_proj(attended)
    replace_positions(model, ring if encoding == "rolling" else pope)
    model.model.decoder.layers[0].self_attn_layer_norm.register_forward_hook(lambda *_: x)
    attention.register_forward_hook(lambda module, args, output: seen.update(y=output[0]))
    outputs(model, **made.inputs("opt", batch=1))
    assert_close(seen["y"], want, depth=2)


# --- where the tokens are -----------------------------------------------------------------------------------------


@together("name", [*made.DECODERS[:3], *made.ENCODERS])
def test_padding_changes_nothing(name: str) -> None:
    model, ids = made.tiny(name), made.inputs(name, batch=3)["input_ids"]
    ids[1, :3] = ids[2, 6:] = 0
    mask = (ids != 0).long()
    for encoding in by_turns(CAUSAL if name in made.DECODERS else BIDIRECTIONAL, list(made.MODELS).index(name)):
        replace_positions(model, encoding, **SIZES.get(encoding, {}))
        got = outputs(model, input_ids=ids, attention_mask=mask)
        for row, text in enumerate((slice(None), slice(3, None), slice(6))):
            want = outputs(model, input_ids=ids[row : row + 1, text])
            assert_close(got[row : row + 1, text], want, msg=(encoding, row), depth=2)


@pytest.mark.parametrize("encoding", ["learned-averaged+logn", "alibi+logn"])
def test_logits_grow_with_what_a_layer_s_own_window_shows(encoding: str) -> None:
    model = made.tiny("gpt_neo", attention_types=[[["local"], made.LAYERS]], window_size=10)
    replace_positions(model, encoding, max_len=8)
    ids = made.inputs("gpt_neo", length=30)["input_ids"]
    of_layers = outputs(model, input_ids=ids)
    cache = hf.DynamicCache()
    parts = [outputs(model, input_ids=part, **{made.CACHE: cache}) for part in ids.split((11, 1, 18), dim=1)]
    assert_close(of_layers, torch.cat(parts, dim=1), depth=2)
    model.transformer.wpe.encoding.window = 10
    assert_close(of_layers, outputs(model, input_ids=ids), depth=2)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neo", "opt", "bert", "roberta", "electra", "distilbert"])
def test_a_text_may_be_longer_than_the_old_table(name: str) -> None:
    model = replaced(name, "alibi")
    ids = made.inputs(name, length=2 * made.LENGTH)["input_ids"]
    assert outputs(model, input_ids=ids).shape[1] == 2 * made.LENGTH
    replace_positions(model, "learned", max_len=2 * made.LENGTH)
    assert outputs(model, input_ids=ids).isfinite().all()
    beyond = 1 if name == "roberta" else 0
    assert model.config.max_position_embeddings == 2 * made.LENGTH + beyond
    with pytest.raises(posembed.errors.PositionError):
        model(input_ids=torch.cat((ids, ids[:, :1]), dim=1))


def test_a_row_without_tokens_leaves_the_others_alone() -> None:
    model, ids = replaced("gpt2", "t5"), made.inputs("gpt2")["input_ids"]
    mask = torch.tensor([[1] * 9, [0] * 9])
    got = outputs(model, input_ids=ids, attention_mask=mask)
    assert_close(got[:1], outputs(model, input_ids=ids[:1]), depth=2)


def test_bert_as_a_decoder_generates() -> None:
    torch.manual_seed(0)
    model = hf.BertLMHeadModel(hf.BertConfig(**made.GPT2, is_decoder=True)).eval()
    ids = made.inputs("bert")["input_ids"]
    ids[1, :3] = 0
    for encoding in ("rope", "rolling", "learned"):
        replace_positions(model, encoding, **SIZES.get(encoding, {}))
        both = generated(model, ids, (ids != 0).long(), max_new_tokens=5)
        assert torch.equal(both[1:, 3:], generated(model, ids[1:, 3:], max_new_tokens=5))


@together("name", [*made.DECODERS, "bert"])
def test_packed_texts_are_read_as_if_alone(name: str) -> None:
    """Also by models whose own mask does not keep them apart, as OPT's; gpt2 has the encodings that read the length of
    a text too."""
    ids = made.inputs("gpt2", batch=1, length=18)["input_ids"]
    position_ids = torch.tensor([[*range(12), *range(6)]])
    for encoding in CAUSAL if name == "gpt2" else by_turns(CAUSAL, len(name)):
        model = made.tiny(name)
        if name == "bert":
            model = hf.BertLMHeadModel(hf.BertConfig(**made.GPT2, is_decoder=True)).eval()
        replace_positions(model, encoding, **SIZES.get(encoding, {}))
        packed = outputs(model, input_ids=ids, position_ids=position_ids, use_cache=False)
        for text in (slice(0, 12), slice(12, 18)):
            assert_close(packed[:, text], outputs(model, input_ids=ids[:, text]), msg=encoding, depth=2)


@together("name", ["gpt2", "opt"])
def test_a_mask_of_pairs_alone_says_which_texts_are_read(name: str) -> None:
    """Two ends of one beginning: their positions start again, but both read the beginning."""
    ids, see = made.inputs("gpt2", batch=1, length=9)["input_ids"], torch.ones(9, 9, dtype=torch.bool).tril()
    see[6:, 3:6] = False
    position_ids = torch.tensor([[0, 1, 2, 3, 4, 5, 3, 4, 5]])
    model = replaced(name, "rope")
    got = outputs(model, input_ids=ids, position_ids=position_ids, attention_mask=see[None, None], use_cache=False)
    assert_close(got[:, :6], outputs(model, input_ids=ids[:, :6]), depth=2)
    other = outputs(model, input_ids=ids[:, [0, 1, 2, 6, 7, 8]])
    assert_close(got[:, 6:], other[:, 3:], depth=2)


def test_given_positions_are_read() -> None:
    ids = made.inputs("bert")["input_ids"]
    model = replaced("bert", LearnedPositionalEmbedding(max_len=100, dim=16, dropout=0))
    reversed_ids = torch.arange(8, -1, -1)
    got = outputs(model, input_ids=ids, position_ids=reversed_ids.expand(2, -1) + 90)
    model.bert.embeddings.position_embeddings.encoding.weight.data[:9] = (
        model.bert.embeddings.position_embeddings.encoding.weight.data[90:99].flip(0)
    )
    assert_close(got, outputs(model, input_ids=ids), depth=2)


def test_position_ids_of_another_length_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"position_ids must be \(L,\)=\(9,\)"):
        replaced("gpt2", "rope")(**made.inputs("gpt2"), position_ids=torch.arange(5))


def test_several_texts_of_each_example_are_padded() -> None:
    model = replace_positions(hf.GPT2DoubleHeadsModel(hf.GPT2Config(**made.GPT2)).eval(), "rope")
    ids, mask = made.inputs("gpt2", batch=6)["input_ids"].view(2, 3, 9), torch.ones(2, 3, 9, dtype=torch.int64)
    mask[:, 1, :4] = 0
    alone = outputs(model, input_ids=ids[:, 1:2, 4:])
    assert_close(outputs(model, input_ids=ids, attention_mask=mask)[:, 1, 4:], alone[:, 0], depth=2)


def test_training_draws_the_positions_of_a_ring() -> None:
    model, ids = replaced("gpt2", "rolling").train(), made.inputs("gpt2", length=2)["input_ids"]
    for _ in range(20):
        model(ids).logits.square().sum().backward()
    assert (model.transformer.wpe.encoding.weight.grad != 0).any(dim=1).all()
    model.transformer.drop.p = 0.0
    for block in model.transformer.h:
        block.attn.attn_dropout.p = block.attn.resid_dropout.p = block.mlp.dropout.p = 0.0
    torch.manual_seed(7)
    first = model(ids).logits
    torch.manual_seed(7)
    assert torch.equal(model(ids).logits, first)


# --- generate -----------------------------------------------------------------------------------------------------


def generated(model: nn.Module, ids: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    mask = torch.ones_like(ids) if mask is None else mask
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, **options}
    return model.generate(ids, attention_mask=mask, **options)


@pytest.mark.parametrize("encoding", ["rope", "t5", "rolling", "learned"])
def test_other_ways_to_generate(encoding: str) -> None:
    model, ids = replaced("gpt2", encoding), made.inputs("gpt2")["input_ids"]
    ids[1, :3] = 0
    mask = (ids != 0).long()
    want = generated(model, ids, mask)
    assert torch.equal(generated(model, ids, mask, prefill_chunk_size=4), want)
    assert torch.equal(generated(model, ids[:1], prompt_lookup_num_tokens=2), want[:1])
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    assert torch.equal(generated(torch.load(file, weights_only=False), ids, mask), want)
    with torch.autocast("cpu", torch.bfloat16):
        assert outputs(model, input_ids=ids, attention_mask=mask).isfinite().all()
    assert outputs(model.to(torch.bfloat16), input_ids=ids, attention_mask=mask).dtype == torch.bfloat16


def test_generate_follows_the_whole_text() -> None:
    model = replaced("gpt2", "rope")
    ids = generated(model, made.inputs("gpt2")["input_ids"], max_new_tokens=40)
    assert torch.equal(outputs(model, input_ids=ids[:, :-1]).argmax(-1)[:, 8:], ids[:, 9:])


@pytest.mark.parametrize("name", ["gpt2", "gpt_neo", "opt"])
def test_a_cache_of_fixed_size_needs_no_mask(name: str) -> None:
    ids = made.inputs(name, length=12)["input_ids"]
    for encoding in by_turns([each for each in CAUSAL if each not in BY_LENGTH], made.DECODERS.index(name)):
        model = replaced(name, encoding)
        want, cache = outputs(model, input_ids=ids), hf.StaticCache(config=model.config, max_cache_len=20)
        parts = [outputs(model, input_ids=part, **{made.CACHE: cache}) for part in ids.split((5, 3, 1, 3), dim=1)]
        assert_close(torch.cat(parts, dim=1), want, msg=encoding, depth=2)
        options = {"max_new_tokens": 5, "cache_implementation": "static"}
        assert torch.equal(generated(model, ids, **options), generated(model, ids, max_new_tokens=5)), encoding


# --- the meta device ----------------------------------------------------------------------------------------------


def test_a_model_without_values_is_refused_and_stays_unchanged() -> None:
    for name in made.MODELS:
        model = made.tiny(name).to("meta")
        before = list(model.state_dict())
        for encoding in ("learned", "rope", "alibi"):
            with pytest.raises(ArgumentError, match=r"meta device.*then move it"):
                replace_positions(model, encoding)
        assert list(model.state_dict()) == before
        moved = replace_positions(made.tiny(name), "learned").to("meta")
        assert all(parameter.is_meta for parameter in moved.parameters())


# --- training -----------------------------------------------------------------------------------------------------


RECOMPUTED = ("gpt2", "gpt_neo", "opt", "bert", "vit", "siglip_vision")
OF_LAYERS = ("rope", "t5", "learned-averaged", "rolling", "learned", "kerple-log", "fire")
IN_TURN = {
    "gpt2": ("learned-averaged", "rolling"), "gpt_neo": ("rope", "t5"), "opt": ("learned", "rolling"),
    "bert": ("t5", "learned"), "vit": ("t5", "learned"), "siglip_vision": ("rope", "t5"),
}  # fmt: skip
"""Without --whole: each model in both ways, each encoding in two models."""
WAYS = [
    case
    for case in product(RECOMPUTED, OF_LAYERS, (False, True))
    if case[0] in made.DECODERS or case[1] in BIDIRECTIONAL
]


@together(
    "name, encoding, reentrant",
    WAYS,
    usual=lambda name, encoding, reentrant: (
        encoding in IN_TURN[name] and (RECOMPUTED.index(name) + OF_LAYERS.index(encoding)) % 2 == reentrant
    ),
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_gradient_checkpointing_gives_the_same_gradients(name: str, encoding: str, reentrant: bool) -> None:
    causal = name in made.DECODERS
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if not causal else {}
    off |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0} if name == "gpt2" else {}
    off |= {"resid_dropout": 0.0, "embed_dropout": 0.0, "attention_dropout": 0.0} if name == "gpt_neo" else {}
    off |= {"dropout": 0.0, "attention_dropout": 0.0} if name == "opt" else {}
    plain = replaced(name, encoding, **off).train()
    again = copy.deepcopy(plain)
    getattr(again, f"{made.RECOMPUTING}_checkpointing_enable")({"use_reentrant": reentrant})
    for model in (plain, again):
        torch.manual_seed(3)
        loss = torch.zeros(())
        for seed, length in ((0, 9), (1, 6)):  # two passes before the backward
            given = made.inputs(name, length=length, seed=seed)
            if name not in made.IMAGES:
                given["attention_mask"] = torch.ones_like(given["input_ids"])
                given["attention_mask"][0, :2] = 0
            torch.manual_seed(seed)
            loss = loss + model(**given)[0].square().mean()
        if model is again and reentrant and name == "siglip_vision":  # its layers get no keyword, only a mask
            with pytest.raises(ArgumentError, match="use_reentrant"):
                loss.backward()
            return
        loss.backward()
    want = dict(plain.named_parameters())
    scale = [parameter.grad for parameter in want.values()]
    for key, parameter in again.named_parameters():
        other = want[key].grad
        assert_close(parameter.grad, other, depth=4, scale=scale, msg=key)
    encoding_grads = [p.grad for key, p in again.named_parameters() if ".encoding." in key]
    assert all(grad is not None and grad.abs().sum() > 0 for grad in encoding_grads)


def replicas(model: nn.Module, number: int = 2) -> list[nn.Module]:
    """Returns what nn.DataParallel makes of a model, on the CPU."""
    modules = list(model.modules())
    index = {module: i for i, module in enumerate(modules)}
    all_copies = []
    for _ in range(number):
        copies: list[Any] = [module._replicate_for_data_parallel() for module in modules]
        for module, copied in zip(modules, copies, strict=True):
            copied._former_parameters = {}
            for name, child in module._modules.items():
                setattr(copied, name, None if child is None else copies[index[child]])
            for name, parameter in module._parameters.items():
                copied._parameters[name] = None
                if parameter is not None:
                    del copied._parameters[name]
                    copied._former_parameters[name] = parameter * 1
                    setattr(copied, name, copied._former_parameters[name])
        all_copies.append(copies[0])
    return all_copies


@pytest.mark.parametrize("name", ["gpt2", "gpt_neo", "opt", "bert", "roberta", "vit", "clip_vision"])
def test_replicas_of_data_parallel_give_the_same_outputs_and_gradients(name: str) -> None:
    """They read the values that the parameters had when they were made, rows that layers project included."""
    model, given = replaced(name, "learned-averaged" if name in made.DECODERS else "tupe"), made.inputs(name)
    want = model(**given)[0]
    want.square().sum().backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    first, second = replicas(model)
    for parameter in model.parameters():
        parameter.data.normal_()
    got = torch.cat([one(**{k: v[i : i + 1] for k, v in given.items()})[0] for i, one in enumerate((first, second))])
    got.square().sum().backward()
    assert_close(got, want, depth=2)
    for key, parameter in model.named_parameters():
        assert_close(parameter.grad, gradients[key], depth=4, scale=list(gradients.values()), msg=key)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("vit", "dinov2_registers", "gpt2") else pytest.mark.whole)
        for name in (*made.IMAGES, "gpt2")
    ],
)
def test_threads_do_not_read_the_rows_of_each_other(name: str) -> None:
    model = replaced(name, "alibi" if name == "gpt2" else "learned-2d")
    options = {"interpolate_pos_encoding": True} if name in made.IMAGES and not name.startswith("dinov2") else {}
    shapes = [(16, 16), (8, 32), (24, 8)]
    all_given = [{"pixel_values": torch.randn(1, 3, *shapes[i % 3])} if name in made.IMAGES
                 else made.inputs(name, length=5 + i % 3, seed=i) for i in range(24)]  # fmt: skip
    want = [outputs(model, **given, **options) for given in all_given]
    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(lambda given: outputs(model, **given, **options), all_given * 8))
    assert all(torch.equal(one, other) for one, other in zip(got, want * 8, strict=True))


def test_a_copy_is_independent_and_the_config_is_the_models_own() -> None:
    config = hf.GPT2Config(**made.GPT2)
    first, second = hf.GPT2LMHeadModel(config).eval(), hf.GPT2LMHeadModel(config).eval()
    given = made.inputs("gpt2")
    want = outputs(second, **given)
    replace_positions(first, "learned")
    assert config._attn_implementation != "posembed"
    assert torch.equal(outputs(second, **given), want)
    copied, before = copy.deepcopy(first), outputs(first, **given)
    nn.init.ones_(copied.transformer.wpe.encoding.weight[0:1].data)
    copied.transformer.wpe.encoding.weight.data[3] += 1
    assert torch.equal(outputs(first, **given), before)
    assert not torch.equal(outputs(copied, **given), before)


# --- images -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", made.IMAGES)
def test_images_of_another_size(name: str) -> None:
    model = made.tiny(name)
    pixels = torch.randn(1, 3, 8, 24)
    for encoding in ("learned-2d", "sinusoidal-2d", "learned-1d", "rope", "alibi", "rope-mixed", "lookhere"):
        replace_positions(model, encoding)
        options = {} if name.startswith("dinov2") else {"interpolate_pos_encoding": True}
        assert outputs(model, pixel_values=pixels, **options).isfinite().all()
    grid = replace_positions(model, LearnedGridEmbedding(grid=(4, 4), dim=16, dropout=0))
    with pytest.raises(ArgumentError, match="on_grid"):
        grid.train()(pixel_values=pixels, **options)
    next(each for each in grid.modules() if isinstance(each, LearnedGridEmbedding)).requires_grad_(False)
    assert outputs(grid.train(), pixel_values=pixels, **options).isfinite().all()


@pytest.mark.parametrize("family", ["Idefics2", "Idefics3", "SmolVLM", "Phi4Multimodal"])
def test_images_padded_to_a_common_size_are_refused(family: str) -> None:
    """Their models place the patches of a smaller image by its own size."""
    config = getattr(hf, f"{family}VisionConfig")(**made.IMAGE, **({"crop_size": 16} if "Phi" in family else {}))
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    kind = getattr(module, f"{family}Vision{'Model' if 'Phi' in family else 'Transformer'}")
    model, images = kind(config).eval(), made.inputs("vit")["pixel_values"]
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    replace_positions(model, made.same_table(model))
    with torch.no_grad():
        assert_close(model(images, patch_attention_mask=mask)[0], model(images)[0], depth=2)
        mask[1, 2:] = mask[1, :, 2:] = False
        with pytest.raises(ArgumentError, match="patch_attention_mask hides patches"):
            model(images, patch_attention_mask=mask)


def test_special_tokens_are_outside_of_the_grid() -> None:
    """DeiT's two special tokens share the one position that an encoding by name has for them."""
    model = replaced("deit", "learned-2d")
    table = model.deit.embeddings.position_embeddings_posembed.encoding
    rows = torch.cat((table.weight[:1], table.weight)).detach()
    other = replaced("deit", LearnedGridEmbedding(grid=(4, 4), dim=16, layout=TableLayout.DEIT, init=rows, dropout=0))
    given = made.inputs("deit")
    assert_close(outputs(model, **given), outputs(other, **given), depth=2)


# --- refusals -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_replaced_says_why_and_stays() -> None:
    bart = hf.BartModel(hf.BartConfig(vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=1, decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8))  # fmt: skip
    for each in (bart, bart.encoder, bart.decoder):
        with pytest.raises(ArgumentError, match="an encoder-decoder or a part of one: it has cross-attention"):
            replace_positions(each, "rope")
    llama = hf.LlamaForCausalLM(hf.LlamaConfig(**made.TEXT))
    with pytest.raises(ArgumentError, match=r"no position table.*Choose another model$"):
        replace_positions(llama, "alibi")
    openai = hf.OpenAIGPTModel(hf.OpenAIGPTConfig(vocab_size=9, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(ArgumentError, match="AttentionInterface"):
        replace_positions(openai, "rope")
    with pytest.raises(ArgumentError, match="expected a model of transformers"):
        replace_positions(nn.Linear(2, 2), "rope")  # type: ignore[arg-type]


@together("name", made.MODELS, usual=lambda name: name not in made.BUILT_ALIKE)
@together("other", ["eager", "sdpa"])
def test_an_attention_that_the_encoding_does_not_reach_is_refused(name: str, other: str) -> None:
    model, given = replaced(name, "alibi"), made.inputs(name)
    want = outputs(model, **given)
    model.set_attn_implementation(other)
    if name != "gpt_neo":  # its attention cannot be set
        with pytest.raises(ArgumentError, match=r"set_attn_implementation\('posembed'\)"):
            model(**given)
    model.set_attn_implementation("posembed")
    assert torch.equal(outputs(model, **given), want)


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_another_module_in_the_place_of_the_encoding_is_refused(name: str) -> None:
    model = replaced(name, "alibi")
    path, slot = next((path, m) for path, m in model.named_modules() if type(m).__name__ == "PositionSlot")
    model.set_submodule(path, nn.Sequential(slot))
    with pytest.raises(ArgumentError, match="got Sequential"):
        model(**made.inputs(name))
    model.set_submodule(path, slot)
    slot.encoding = nn.Sequential(slot.encoding)
    with pytest.raises(ArgumentError, match=r"got Sequential.*modules_to_save"):
        model(**made.inputs(name))


@pytest.mark.parametrize("family", ["Bart", "MBart", "PLBart", "Blenderbot", "Pegasus"])
def test_a_decoder_that_reads_another_text_is_refused(family: str) -> None:
    sizes = {f"{part}_{size}": value for part in ("encoder", "decoder")
             for size, value in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
    config = getattr(hf, f"{family}Config")(vocab_size=50, d_model=16, max_position_embeddings=32, **sizes)
    model = replace_positions(getattr(hf, f"{family}ForCausalLM")(config).eval(), "rope")
    assert outputs(model, **made.inputs("gpt2")).isfinite().all()
    with pytest.raises(ArgumentError, match="encoder_hidden_states for cross-attention"):
        model(**made.inputs("gpt2"), encoder_hidden_states=torch.randn(2, 7, 16))


@pytest.mark.parametrize("multi_query", [True, False])
@pytest.mark.parametrize("encoding", ["rolling", "learned-averaged"])
def test_projections_whose_layout_is_unknown_are_refused(multi_query: bool, encoding: str) -> None:
    model = hf.GPTBigCodeForCausalLM(hf.GPTBigCodeConfig(**made.GPT2, multi_query=multi_query)).eval()
    with pytest.raises(ArgumentError, match="no W_q and W_k under a known name"):
        replace_positions(model, encoding, **SIZES.get(encoding, {}))


def test_attention_weights_that_would_be_missing_are_refused() -> None:
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**made.GPT2, output_attentions=True))
    with pytest.raises(ArgumentError, match=r"config\.output_attentions = False"):
        replace_positions(model, "rope")


def test_rows_as_wide_as_the_table_and_heads_as_wide_as_the_attentions() -> None:
    """In ELECTRA and ALBERT, whose table is narrower than their layers."""
    for name in ("electra", "albert"):
        model, given = made.tiny(name), made.inputs(name)
        head_dim = model.config.hidden_size // model.config.num_attention_heads
        given_object = BilevelEncoding(max_len=8, dim=8, between=RotaryEmbedding(head_dim))
        for encoding in ("bipe-rope", "bipe-alibi", given_object):
            assert outputs(replace_positions(made.tiny(name), encoding), **given).isfinite().all()


@together(
    ("name", "encoding", "sizes", "match"),
    [
        ("gpt2", "ropes", {}, "unknown encoding"),
        ("gpt2", "rolling", {}, "window"),
        ("gpt2", "rope", {"windows": 3}, "windows"),
        ("gpt2", 3, {}, "PositionEncoding"),
        ("gpt2", RotaryEmbedding(6), {}, "head_dim"),
        ("gpt2", posembed.Alibi(3), {}, "heads"),
        ("gpt2", LearnedPositionalEmbedding(max_len=8, dim=12), {}, "dim"),
        ("bert", "rolling", {"window": 4}, "causal window"),
        ("vit", LearnedGridEmbedding(grid=(3, 3), dim=16), {}, "position"),
        ("electra", LearnedPositionalEmbedding(max_len=8, dim=16), {}, "dim=8"),
    ],
)
def test_encodings_that_do_not_fit(name: str, encoding: Any, sizes: dict[str, Any], match: str) -> None:
    model, given = made.tiny(name), made.inputs(name)
    want, keys = outputs(model, **given), list(model.state_dict())
    with pytest.raises(posembed.PosEmbedError, match=match):
        replace_positions(model, encoding, **sizes)
    assert torch.equal(outputs(model, **given), want)
    assert list(model.state_dict()) == keys
    assert not hasattr(model.config, "posembed")
