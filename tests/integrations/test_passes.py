"""What surrounds a pass of a replaced model: masks, caches, other models, copies, compilation, missing names."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import types
import weakref
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

import transformers as hf

import posembed.integrations
import replaced_models as made
import timm_peer
from evaluated_models import save_encoder
from fresh_process import run_fresh
from posembed import LearnedPositionalEmbedding
from posembed.errors import ArgumentError
from posembed.integrations.attention import CURRENT, NAME
from posembed.integrations.decoder import GivenDecoder
from posembed.integrations.masks import present_in
from posembed.integrations.transformers import replace_positions
from posembed.tables import TableMonitor
from together import asked, by_turns, together
from tolerance import assert_close

LEFT = torch.tensor([[1] * 9, [0] * 3 + [1] * 6])
RIGHT = LEFT.flip(1)
HOLES = torch.tensor([[1] * 9, [1, 1, 0, 0, 1, 1, 1, 0, 0]])
SINGLE = torch.tensor([[1] * 9, [0] * 8 + [1]])


def outputs(model: nn.Module, **given: Any) -> Tensor:
    with torch.no_grad():
        return model(**given)[0]


def timm_vit(**changes: Any) -> Any:
    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
    torch.manual_seed(0)
    return timm_peer.vision_transformer().VisionTransformer(**{**settings, **changes}).eval()


# --- masks and caches ---------------------------------------------------------------------------------------------


def masks_of_pairs(mask: Tensor, causal: bool) -> list[Tensor]:
    """Returns masks (B, 1, L, L) with the meaning of mask (B, L): padding sees tokens, itself, all or nothing."""
    length, tokens = mask.size(1), (mask != 0)[:, None, None]
    lower = torch.ones(length, length, dtype=torch.bool).tril() if causal else torch.ones(length, length).bool()
    others = tokens & lower
    itself = others | torch.eye(length, dtype=torch.bool)
    added = [torch.zeros(itself.shape).masked_fill(~itself, hidden) for hidden in (-1e4, -1e6, -1e9, -torch.inf)]
    square = others & tokens.transpose(-1, -2)
    return [others, itself, square, square | torch.eye(length).bool(), square | ~tokens.transpose(-1, -2), *added]


@pytest.mark.parametrize("name", ["gpt2", "opt", "biogpt", "bert"])
def test_a_mask_of_pairs_is_read_like_the_mask_of_tokens(name: str) -> None:
    ids, causal = made.inputs(name)["input_ids"], name != "bert"
    encodings = ("learned", "rope", "alibi")
    for encoding in encodings if name == "gpt2" else by_turns(encodings, made.DECODERS.index(name) if causal else 0):
        model = replace_positions(made.tiny(name), encoding)
        for mask in (LEFT, RIGHT, HOLES, *([SINGLE] if causal else [])):
            want = outputs(model, input_ids=ids, attention_mask=mask)[mask != 0]
            for pairs in masks_of_pairs(mask, causal):
                for cache in ({}, {made.CACHE: hf.DynamicCache()}) if causal else ({},):
                    got = outputs(model, input_ids=ids, attention_mask=pairs, **cache)[mask != 0]
                    assert_close(got, want, depth=2, msg=encoding)


def test_tokens_that_see_others_than_the_tokens_make_no_mask_of_padding() -> None:
    """In all masks of four tokens. Behind the last token of a decoder, one may see only itself."""
    seen = ((torch.arange(2**16)[:, None] >> torch.arange(16)) & 1).bool().view(-1, 4, 4)
    lower, itself = torch.ones(4, 4, dtype=torch.bool).tril(), torch.eye(4, dtype=torch.bool)
    for causal in (False, True):
        tokens = present_in(seen[:, None], 0, causal, None, of_mask=False)
        exact = ((seen == tokens[:, None] & (lower if causal else True)) | itself).all(-1)
        alone = ~(seen & ~itself).any(-1) if causal else torch.zeros_like(exact)
        assert int((~tokens.all(-1)).sum()) > 400
        assert bool((tokens.all(-1, keepdim=True) | ~tokens | exact | alone).all())
    i = torch.arange(9)
    window = ((i[:, None] - i).abs() < 8) | (i == 0)  # the tokens in the middle see all
    original, given = made.tiny("bert"), {**made.inputs("bert"), "attention_mask": window[None, None]}
    want = outputs(original, **given)
    assert_close(outputs(replace_positions(original, made.same_table(original)), **given), want, depth=2)


def test_a_mask_of_packed_texts_leaves_the_given_positions() -> None:
    """The last token does not see the earlier texts, which are no padding."""
    ids, texts = made.inputs("gpt2")["input_ids"], torch.tensor([0] * 5 + [1] * 4)
    seen = ((texts[:, None] == texts) & torch.ones(9, 9, dtype=torch.bool).tril()).expand(2, 1, 9, 9)
    for encoding in ("learned", "rope", "alibi"):
        model = replace_positions(made.tiny("gpt2"), encoding)
        alone = torch.cat([outputs(model, input_ids=ids[:, texts == text]) for text in (0, 1)], dim=1)
        given = {"attention_mask": seen, "position_ids": torch.tensor([[*range(5), *range(4)]]), "use_cache": False}
        assert_close(outputs(model, input_ids=ids, **given), alone, depth=2, msg=encoding)


def test_floats_that_are_added_to_scores_hide_nothing() -> None:
    ids, distance = made.inputs("gpt2")["input_ids"], torch.arange(9)[:, None] - torch.arange(9)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for encoding in ("learned", "rope", "tupe"):
            model = replace_positions(made.tiny("gpt2"), encoding).to(dtype)
            for hidden in (-torch.inf, torch.finfo(dtype).min, -3e4 if dtype == torch.float16 else -1e9):
                added = torch.where(distance >= 0, -0.3 * distance, hidden).to(dtype).expand(1, 2, 9, 9)
                got = outputs(model, input_ids=ids, attention_mask=added)
                positions = torch.arange(9)[None]
                want = outputs(model, input_ids=ids, attention_mask=added, position_ids=positions)
                assert torch.equal(got, want), (encoding, hidden)
    with pytest.raises(ArgumentError, match=r"must be booleans.*got torch\.int64"):
        outputs(model, input_ids=ids, attention_mask=(distance >= 0).long()[None, None])


def test_a_mask_that_hides_tokens_in_a_cache_needs_positions() -> None:
    """A window, blocks, a sink and padding may look alike in one step. The given positions tell them apart."""
    ids, i = made.inputs("gpt2")["input_ids"], torch.arange(9)
    distance = i[:, None] - i
    seen = {
        "window": distance < 4,
        "sink": (distance < 4) | (i < 1),
        "blocks": i[:, None] // 4 == i // 4,
        "padding": (i > 2) | (distance == 0),
    }
    for encoding in ("learned", "rope", "t5"):
        model = replace_positions(made.tiny("gpt2", num_hidden_layers=1), encoding)  # each layer reads the same
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager")
        for kind, each in seen.items():
            mask = ((distance >= 0) & each)[None, None]
            full = outputs(model, input_ids=ids, attention_mask=mask, use_cache=False)
            for end in (8, 9):
                with torch.no_grad():
                    cache = model(ids[:, :7], attention_mask=mask[:, :, :7, :7], use_cache=True)[made.CACHE]
                given = {"input_ids": ids[:, 7:end], "attention_mask": mask[:, :, 7:end, :end], made.CACHE: cache}
                refuses = compiled if (encoding, kind, end) == ("rope", "sink", 8) else model
                run = refuses if asked["whole"] else model
                with pytest.raises(ArgumentError, match="position_ids of the new tokens"):
                    outputs(refuses, **copy.deepcopy(given))
                positions = i[None, 7:end] - (3 if kind == "padding" else 0)
                got = outputs(run, **given, position_ids=positions)
                assert_close(got, full[:, 7:end], depth=2, msg=f"{encoding} {kind}")


def test_a_model_without_position_ids_counts_hidden_tokens_as_left_padding() -> None:
    ids, i = made.inputs("gpt2")["input_ids"], torch.arange(9)
    config = hf.BartConfig(vocab_size=50, d_model=16, decoder_layers=1, decoder_attention_heads=2, init_std=0.3)
    model = replace_positions(hf.BartForCausalLM(config).eval(), "tupe")
    for kind, seen in {"padding": i > 2, "sink": (i > 2) | (i < 1)}.items():
        causal = ((i[:, None] >= i) & seen | (i[:, None] == i))[None, None]
        with torch.no_grad():
            cache = model(ids[:, :8], attention_mask=causal[:, :, :8, :8], use_cache=True)[made.CACHE]
        step = {"input_ids": ids[:, 8:], "attention_mask": causal[:, :, 8:], made.CACHE: cache}
        if kind == "sink":
            with pytest.raises(ArgumentError, match=r"or a mask \(B, Lk\)"):
                outputs(model, **step)
        else:
            assert_close(outputs(model, **step), outputs(model, input_ids=ids[:, 3:])[:, -1:], depth=2)


@pytest.mark.parametrize("name", made.DECODERS)
def test_a_mask_without_the_tokens_of_the_cache_is_refused(name: str) -> None:
    model, ids = replace_positions(made.tiny(name), "rope"), made.inputs(name)["input_ids"]
    with torch.no_grad():
        cache = model(ids[:, :5], use_cache=True)[made.CACHE]
        with pytest.raises(ArgumentError, match=r"must be \(2, 9\) or \(2, 1, 4, 9\), for the 5 tokens in the cache"):
            model(ids[:, 5:], attention_mask=torch.ones(2, 4), **{made.CACHE: cache})


def test_a_mask_of_another_shape_is_refused() -> None:
    model, ids = replace_positions(made.tiny("gpt2"), "rope"), made.inputs("gpt2")["input_ids"]
    for shape in ((9,), (2, 8), (3, 9), (2, 9, 9), (2, 1, 9, 5), (3, 1, 9, 9), (2, 1, 4, 9), (1, 2, 1, 9, 9)):
        with pytest.raises(ArgumentError, match=r"attention_mask must be \(2, 9\)"):
            model(ids, attention_mask=torch.ones(shape, dtype=torch.bool))


def rebuilt_caches(cache: Any) -> dict[str, Any]:
    """Returns caches with the tensors of a DynamicCache, by the way in which each was made."""
    layers = [(layer.keys, layer.values) for layer in cache.layers]
    selected, reordered, deep, longer = (copy.deepcopy(cache) for _ in range(4))
    selected.batch_select_indices(torch.arange(2))
    reordered.reorder_cache(torch.arange(2))
    for i, layer in enumerate(layers):
        longer.update(*(torch.zeros_like(part[:, :, :1]) for part in layer), i)
    longer.crop(-1)
    return {
        "copied": deep, "selected": selected, "reordered": reordered, "cropped": longer,
        "from its tensors": hf.DynamicCache(layers),
        "wrapped": hf.EncoderDecoderCache(copy.deepcopy(cache), hf.DynamicCache()), "the same": cache,
    }  # fmt: skip


def test_a_cache_in_any_form_continues_padded_texts_with_their_positions() -> None:
    """Also if padding is within a text. No encoding needs more than the mask and the tensors of the cache."""
    ids = made.inputs("gpt2")["input_ids"]
    holes = LEFT.clone()
    holes[0, 2:4] = 0
    for encoding in ("learned", "rope", "alibi", "t5", "tupe"):
        model = replace_positions(made.tiny("gpt2"), encoding)
        for mask in (LEFT, holes):
            with torch.no_grad():
                cache = model(ids[:, :6], attention_mask=mask[:, :6], use_cache=True)[made.CACHE]
                for form, each in rebuilt_caches(cache).items():
                    got = outputs(model, input_ids=ids[:, 6:], attention_mask=mask, **{made.CACHE: each})
                    for row in range(2):
                        kept = mask[row] != 0
                        want = outputs(model, input_ids=ids[row : row + 1, kept])[0, -3:]
                        assert_close(got[row], want, depth=2, msg=f"{encoding} {form}")


def test_positions_that_a_cache_cannot_keep_are_never_put_into_one() -> None:
    """Nor can they follow a cache. So no copy, however it was made, can be continued with other positions."""
    ids, count = made.inputs("gpt2")["input_ids"], torch.arange(9)
    others = {
        "holes": count * 2,
        "shifted": count + 5,
        "packed": torch.tensor([*range(5), *range(4)]),
        "back": 8 - count,
    }
    for encoding in ("rope", "alibi", "t5", "tupe"):
        model = replace_positions(made.tiny("gpt2"), encoding)
        for kind, positions in others.items():
            given = {"input_ids": ids, "position_ids": positions[None]}
            for cached in ({"use_cache": True}, {made.CACHE: hf.DynamicCache()}):
                with pytest.raises(ArgumentError, match="use_cache=False"):
                    outputs(model, **given, **cached)
            with pytest.warns(UserWarning, match="returns no cache"):
                assert made.CACHE not in model(**given), kind
            assert made.CACHE not in model.train()(**given), kind  # packed training asks for no cache
            model.eval()
            cache = model(ids[:, :5], use_cache=True)[made.CACHE]
            with pytest.raises(ArgumentError, match="use_cache=False"):
                outputs(model, input_ids=ids[:, 5:], position_ids=positions[None, 5:] + 1, **{made.CACHE: cache})
    model = replace_positions(made.tiny("gpt2"), LearnedPositionalEmbedding(max_len=40, dim=16, dropout=0))
    for kind, positions in others.items():  # rows are added before the cache, which has no part in them
        want, cache = outputs(model, input_ids=ids, position_ids=positions[None]), hf.DynamicCache()
        parts = zip(ids.split((5, 4), dim=1), positions[None].split((5, 4), dim=1), strict=True)
        got = [outputs(model, input_ids=part, position_ids=where, **{made.CACHE: cache}) for part, where in parts]
        assert_close(torch.cat(got, dim=1), want, depth=2, msg=kind)


def test_compiled_code_refuses_the_same_positions() -> None:
    ids, count = made.inputs("gpt2")["input_ids"], torch.arange(9)[None]
    model = replace_positions(made.tiny("gpt2", num_hidden_layers=1), "rope")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        cache = model(ids[:, :5], use_cache=True)[made.CACHE]
    for given in ({"use_cache": True}, {}) if asked["whole"] else ({},):  # without compiling, both are refused above
        with pytest.raises(ArgumentError, match="use_cache=False"):
            outputs(compiled, input_ids=ids, position_ids=count * 2, **given)
    if asked["whole"]:  # as of a mask that hides tokens in a cache
        with pytest.raises(ArgumentError, match="use_cache=False"):
            outputs(compiled, input_ids=ids[:, 5:], position_ids=count[:, 5:] + 1, **{made.CACHE: copy.deepcopy(cache)})
    got = outputs(compiled, input_ids=ids[:, 5:], position_ids=count[:, 5:], **{made.CACHE: cache})
    assert_close(got, outputs(model, input_ids=ids)[:, 5:], depth=2)
    if asked["whole"]:
        given = {"input_ids": ids, "position_ids": count * 2, "use_cache": False}
        assert_close(outputs(compiled, **given), outputs(model, **given), depth=2)
        assert made.CACHE not in compiled.train()(ids, position_ids=count * 2)


def test_drawn_positions_are_never_put_into_a_cache() -> None:
    ids = made.inputs("gpt2")["input_ids"]
    for encoding, sizes in (("learned-shifted", {}), ("learned-randomized", {}), ("rolling", {"window": 4})):
        model = replace_positions(made.tiny("gpt2"), encoding, **sizes)
        with torch.no_grad():
            cache = model(ids[:, :5], use_cache=True)[made.CACHE]
        model.train()
        for given in ({"use_cache": True}, {made.CACHE: hf.DynamicCache()}, {made.CACHE: cache}):
            with pytest.raises(ArgumentError, match=r"draws.*model\.eval\(\)"):
                model(ids[:, 5:], **given)
        assert made.CACHE not in model(ids), encoding


def test_positions_that_are_no_tensor_of_integers_are_refused() -> None:
    model, ids = replace_positions(made.tiny("gpt2"), "learned"), made.inputs("gpt2")["input_ids"]
    others: list[Any] = [list(range(9)), "0 to 8", 3, torch.arange(9.0), torch.tensor(3)]
    for given in others:
        with pytest.raises(ArgumentError, match="position_ids must be"):
            model(ids, position_ids=given)


# --- other models and copies within a pass ------------------------------------------------------------------------


@together("name", made.MODELS, usual=lambda name: name in ("gpt2", "gpt_neo", "opt", "bert", "distilbert", "vit"))
def test_a_pass_may_contain_passes_of_other_models_and_copies(name: str) -> None:
    """Also while gradients are recorded, when rows on a module could not be copied."""
    image = name in made.IMAGES
    model = replace_positions(made.tiny(name), "learned-2d" if image else "learned")
    others = [(kind, replace_positions(made.tiny(kind), "learned"), made.inputs(kind)) for kind in ("gpt2", "vit")]
    given, wants = made.inputs(name), [outputs(other, **inputs) for _, other, inputs in others]
    want, before = outputs(model, **given), list(vars(model))
    copies, running = [], False

    def act(*_: Any) -> None:
        nonlocal running
        if running:
            return
        running = True
        copies.append(copy.deepcopy(model))
        for (kind, other, inputs), expected in zip(others, wants, strict=True):
            assert_close(outputs(other, **inputs), expected, depth=2, msg=kind)
        running = False

    kinds = {type(module): module for module in model.modules() if not any(module.children())}
    handles = [module.register_forward_hook(act) for module in kinds.values()]
    got = model(**given)[0]
    for handle in handles:
        handle.remove()
    assert_close(got, want, depth=2)
    assert copies
    assert before == list(vars(model))
    running = True  # the copies have the hooks too
    assert_close(outputs(copies[0], **given), want, depth=2)


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_a_forward_that_was_wrapped_without_names(name: str) -> None:
    encoding = "learned-averaged" if name in made.DECODERS else "tupe"  # both project rows with the layer's weights
    model, given = replace_positions(made.tiny(name), encoding), made.inputs(name)
    want, base = outputs(model, **given), model.base_model
    forward = base.forward
    base.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    assert torch.equal(outputs(model, **given), want)


@together("name", ["gpt2", "bert", "roberta", "vit"], usual=lambda name: name in ("gpt2", "vit"))
def test_torch_compile_records_the_model_without_a_graph_break(name: str) -> None:
    """Also a base model, whose hooks run before the compiled code."""
    whole = replace_positions(made.tiny(name, num_hidden_layers=1), "learned")
    given = made.inputs(name)
    for model in {whole, whole.base_model} if asked["whole"] else {whole.base_model if name == "gpt2" else whole}:
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        for _ in range(2):
            assert_close(outputs(compiled, **given), outputs(model, **given), depth=2)


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_the_forward_of_a_base_model_may_be_called_by_itself(name: str) -> None:
    """sentence-transformers does so, without the hooks of the model."""
    model, given = replace_positions(made.tiny(name), "rope"), made.inputs(name)
    base, other = model.base_model, replace_positions(made.tiny(name, num_hidden_layers=1), "alibi").base_model
    want, theirs = outputs(base, **given), outputs(other, **given)
    assert inspect.signature(base.forward) == inspect.signature(type(base).forward.__get__(base))
    nested = []
    for layer in base.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.register_forward_hook(lambda *_: nested.append(other.forward(**given)[0]))
    copies = [copy.deepcopy(base), pickle.loads(pickle.dumps(replace_positions(made.tiny(name), "rope").base_model))]
    with torch.no_grad():
        for each in (base, copy.copy(base), *copies):
            assert torch.equal(each.forward(**given)[0], want)
        assert all(torch.equal(each, theirs) for each in nested)
        for each in copies:
            each.forward(**given)[0].sum()
            for parameter in each.parameters():
                parameter.zero_()
            assert not torch.equal(each.forward(**given)[0], want)
    assert nested
    for function in (base.forward.__func__, base.forward):  # as accelerate's mixed precision wraps and unwraps it
        base.forward = types.MethodType(function, base)
        assert torch.equal(outputs(base, **given), want)
    model = made.tiny(name)
    gone = weakref.ref(replace_positions(model, "rope").base_model)
    del model
    assert gone() is None


def test_an_interrupted_pass_is_over() -> None:
    """PyTorch calls no hook after a KeyboardInterrupt. accelerate replaces a model's forward, as the second one's."""
    own, wrapped = made.tiny("bert"), made.tiny("bert")
    wrapped.base_model.forward = types.MethodType(type(wrapped.base_model).forward, wrapped.base_model)
    given = made.inputs("bert")
    padded = given | {"attention_mask": torch.ones_like(given["input_ids"]).tril()}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for model in (replace_positions(own, "rope"), replace_positions(wrapped, "rope")):
        base = model.base_model
        want = outputs(base, **given)
        layer = next(each for each in base.modules() if isinstance(each, nn.LayerNorm))
        for call in (model, base, *((base.forward,) if model is own else ())):
            hook = layer.register_forward_hook(interrupt)
            with pytest.raises(KeyboardInterrupt):
                call(**padded)
            hook.remove()
            with torch.no_grad():
                assert torch.equal(base(**given)[0], want)
            assert CURRENT.held[NAME] is None


def test_sentence_transformers_reads_replaced_positions(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    save_encoder(tmp_path, pooling={"embedding_dimension": 32, "pooling_mode": "mean"})
    encoder = library.SentenceTransformer(str(tmp_path), device="cpu")
    model, texts = encoder[0].auto_model, ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9"]
    want = encoder.encode(texts)
    replace_positions(model, made.same_table(model))
    assert_close(torch.tensor(encoder.encode(texts)), torch.tensor(want), depth=2)
    replace_positions(model, "alibi")
    assert abs(encoder.encode(texts) - want).max() > 1e-3


@together("encoding", ["rope", "t5", "learned", "tupe"], usual=lambda encoding: encoding == "rope")
@together("name", ["gpt2", "bert", "opt"], usual=lambda name: name == "gpt2")
def test_compiled_code_serves_every_size(name: str, encoding: str) -> None:
    """torch.compile records a second graph, of any size, when it sees the second size, and no more."""
    torch._dynamo.reset()
    model, graphs = replace_positions(made.tiny(name), encoding), []

    def record(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=record)
    for batch, length in ((2, 4), (3, 5), (4, 7), (5, 8)):
        ids = torch.arange(batch * length).view(batch, length)
        mask = torch.ones_like(ids)
        mask[0, : length // 2] = 0
        want, got = (outputs(each, input_ids=ids, attention_mask=mask) for each in (model, compiled))
        assert_close(got[mask.bool()], want[mask.bool()], depth=2)
    assert len(graphs) <= 2


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_an_exported_model_takes_other_batches(name: str) -> None:
    model = replace_positions(made.tiny(name), "rope" if name == "bert" else "learned-2d")
    given = made.inputs(name)
    sizes = {each: {0: torch.export.Dim("batch", min=2, max=64)} for each in given}
    with torch.no_grad():
        exported = torch.export.export(model, (), given, dynamic_shapes=sizes).module()
    more = made.inputs(name, batch=5, seed=1)
    assert_close(outputs(exported, **more), outputs(model, **more), depth=2)


# --- inference mode, decoders of encoder-decoders ------------------------------------------------------------------


def test_what_is_created_in_inference_mode_can_be_trained() -> None:
    embedding = nn.Embedding(8, 4)
    models = [made.tiny(name) for name in ("gpt2", "vit")]
    with torch.inference_mode():
        monitor = TableMonitor(embedding)
        for model in models:
            replace_positions(model, "learned")
    embedding(torch.tensor([1, 2])).sum().backward()
    assert monitor.trained is not None
    assert monitor.trained.tolist() == [0, 1, 1, 0, 0, 0, 0, 0]
    for name, model in zip(("gpt2", "vit"), models, strict=True):
        model(**made.inputs(name))[0].sum().backward()
        assert not any(parameter.is_inference() for parameter in model.parameters())
    timm_peer.vision_transformer()
    from posembed.integrations.timm import replace_positions as replace

    image_model = timm_vit()
    with torch.inference_mode():
        replace(image_model, "learned-2d")
    image_model(torch.randn(1, 3, 32, 32)).sum().backward()


@pytest.mark.parametrize(("layers", "heads"), [(1, 2), (2, 4), (1, 1)])
def test_a_decoder_may_have_other_layers_and_heads_than_its_encoder(layers: int, heads: int) -> None:
    config = hf.BartConfig(
        vocab_size=50, d_model=16, encoder_layers=2, encoder_attention_heads=2, decoder_layers=layers,
        decoder_attention_heads=heads, decoder_ffn_dim=32, max_position_embeddings=32, init_std=0.3,
    )  # fmt: skip
    model, ids = hf.BartForCausalLM(config).eval(), made.inputs("gpt2")["input_ids"]
    want = outputs(model, input_ids=ids)
    assert_close(outputs(replace_positions(model, made.same_table(model)), input_ids=ids), want, depth=3)
    for encoding in ("alibi", "rope", "t5"):
        padded = outputs(replace_positions(model, encoding), input_ids=ids, attention_mask=LEFT)
        assert_close(padded[1:, 3:], outputs(model, input_ids=ids[1:, 3:]), depth=3, msg=encoding)
    given = GivenDecoder(Path(), config, None, None, "").sizes
    assert (given["layers"], given["heads"]) == (layers, heads)


# --- names that another library renamed ---------------------------------------------------------------------------


WITHOUT_A_NAME = """
import importlib, sys, warnings

sys.path.insert(0, {tests!r})
warnings.simplefilter("ignore")
import timm_peer

timm_peer.vision_transformer()

def without(name, kind):
    class Without(kind):
        def __getattribute__(self, read):
            if read == name:
                raise AttributeError(read)
            return super().__getattribute__(read)

        def __getattr__(self, read):  # of transformers, which imports its names when they are read
            if read == name or not hasattr(kind, "__getattr__"):
                raise AttributeError(read)
            return super().__getattr__(read)

    return Without

ours = {{"posembed.integrations." + file for _, _, file, _ in {names!r}}}
for each in sorted(ours):
    importlib.import_module(each)  # so that the library has imported all that it imports when it is first read
for module, name, file, versions in {names!r}:
    library = importlib.import_module(module)
    kind = type(library)
    library.__class__ = without(name, kind)
    for each in [each for each in sys.modules if each.startswith("posembed.integrations.")]:
        sys.modules.pop(each)
    try:
        importlib.import_module("posembed.integrations." + file)
    except ImportError as error:
        assert str(error).count(versions) == 1 and name in str(error), (name, str(error))
    else:
        raise AssertionError("imported without " + name)
    library.__class__ = kind
"""


def test_a_missing_name_is_reported_with_both_versions(tmp_path: Path) -> None:
    """For each name that a file of the integrations imports from transformers or timm, in a process of its own."""
    timm_peer.vision_transformer()
    names = set()
    for path in Path(posembed.integrations.__path__[0]).glob("[!_]*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            package = str(node.module).partition(".")[0] if isinstance(node, ast.ImportFrom) else ""
            if package in ("transformers", "timm"):
                versions = f"{package} {version(package)}, posembed {version('posembed')}"
                names |= {(node.module, each.name, path.stem, versions) for each in node.names}
    for package in ("transformers", "timm"):
        assert len({each[:2] for each in names if each[3].startswith(package)}) >= 3
    code = WITHOUT_A_NAME.format(tests=str(Path(__file__).parents[1]), names=sorted(names))
    status, printed = run_fresh(code, tmp_path)
    assert status == 0, printed


def test_a_missing_attribute_is_reported_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    vit = timm_peer.vision_transformer()
    from posembed.integrations.timm import replace_positions as replace

    versions = f"timm {version('timm')}, posembed {version('posembed')}"
    model = replace(timm_vit(), "alibi")
    for holder, name in ((model.blocks[0].attn, "q_norm"), (model, "grad_checkpointing"), (model, "pos_drop")):
        broken = copy.deepcopy(model)
        part = broken if holder is model else broken.blocks[0].attn
        delattr(part, name)
        with pytest.raises(AttributeError, match=name) as error:
            broken(torch.randn(1, 3, 32, 32))
        assert str(error.value).count(versions) == 1, name
    with monkeypatch.context() as changed:
        changed.delattr(vit.VisionTransformer, "_pos_embed")
        with pytest.raises(AttributeError, match="_pos_embed") as error:
            replace(timm_vit(), "alibi")
        assert versions in str(error.value)
    for name in ("is_activation_checkpointing", "is_gradient_checkpointing"):
        monkeypatch.delattr(hf.PreTrainedModel, name, raising=False)
    with pytest.raises(ArgumentError, match=f"transformers {version('transformers')}, posembed {version('posembed')}"):
        replace_positions(made.tiny("bert"), "rope")
