"""Packed sequences, grouped heads and the options of a layer, for every encoding of the registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from encoding_names import ENDS, MIXED, is_usual
from posembed.errors import ArgumentError
from posembed.layers import PolarEmbedding
from posembed.nn import Attention, Decoder, DecoderLayer, Encoder, EncoderLayer, Positions, Sizes, encoding_by_name
from posembed.nn import positions as module
from posembed.nn.encodings import names_for
from small_models import DIM, model_of, scrambled, tokens
from together import together
from tolerance import assert_close, assert_same

HEADS = 4
DECODERS = [*names_for("decoder"), "rope+window", "learned-averaged+window", "rope-yarn+logn", *MIXED]
NAMES = [*DECODERS, *(f"encoder {name}" for name in names_for("encoder"))]


def longest(name: str) -> int:
    return 16 if name.split()[-1] in ENDS else 21  # beyond the training length where there is no last row


@together(
    "name, way",
    list(product(NAMES, ["in turn", "masked"])),
    usual=lambda name, way: is_usual(name) and (NAMES.index(name) % 3 == 0) == (way == "masked"),
)
def test_packed_is_alone(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In values and gradients: on a CPU text after text, and under a mask, as where a graph is recorded."""
    if way == "masked":
        monkeypatch.setattr(module, "is_being_recorded", lambda: True)
    model = model_of(name)
    n = longest(name)
    rows = [[n - 8, 1, 7], [n]]
    x = tokens(2, n).requires_grad_()
    segment_ids = torch.tensor([[7] * (n - 8) + [0] + [7] * 7, [3] * n], dtype=torch.uint8)
    packed = model(x, segment_ids=segment_ids)
    alone = torch.stack(
        [torch.cat([model(part[None])[0] for part in row.split(lengths)]) for row, lengths in zip(x, rows, strict=True)]
    )
    assert_close(packed, alone)
    inputs = [x, *model.parameters()]
    ours, theirs = (torch.autograd.grad(y.square().sum(), inputs, allow_unused=True) for y in (packed, alone))
    for one, other in zip(ours, theirs, strict=True):
        if one is not None or other is not None:
            dtype = torch.float32 if "pope" in name else None  # of the gradients of its angles
            assert_close(one, other, depth=2, scale=theirs, dtype=dtype)


@torch.no_grad()
@together("name", NAMES)
def test_cu_seqlens_are_segment_ids(name: str) -> None:
    model = model_of(name)
    x = tokens(12)
    cu_seqlens = torch.tensor([0, 5, 6, 12], dtype=torch.int32)
    segment_ids = torch.tensor([0] * 5 + [1] + [2] * 6)
    y = model(x, cu_seqlens=cu_seqlens)
    assert y.shape == x.shape
    assert_same(model(x[None], cu_seqlens=cu_seqlens)[0], y)
    assert_same(model(x[None], segment_ids=segment_ids)[0], y)


@torch.no_grad()
@pytest.mark.parametrize("name", ["learned", "t5", "rope", "rope-ntk", "learned-averaged", "bipe-rope", "encoder t5"])
def test_packed_sequences_at_given_positions(name: str) -> None:
    model = model_of(name)
    x, ids = tokens(1, 9), torch.tensor([3, 5, 6, 10, 0, 1, 1, 2, 7])
    y = model(x, ids, segment_ids=torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2, 2]]))
    for part in (slice(0, 4), slice(4, 9)):
        assert_close(y[:, part], model(x[:, part], ids[part]))


@torch.no_grad()
def test_the_weights_of_packed_sequences_stay_in_their_sequence() -> None:
    layer = scrambled(Attention(dim=DIM, heads=HEADS, encoding="t5"))
    assert isinstance(layer, Attention)
    assert layer.encoding is not None
    x, ids = tokens(1, 9), torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2, 2]])
    weights = layer.weights(x, positions=Positions(layer.encoding, x, segment_ids=ids))
    assert torch.equal((weights > 0)[0, 0], (ids == ids.T) & torch.ones(9, 9).tril().bool())
    values = layer.queries_keys_values(x)[..., -DIM:].unflatten(-1, (HEADS, -1)).transpose(1, 2)
    y = layer.output((weights @ values).transpose(1, 2).flatten(2))
    assert_close(y, layer(x, segment_ids=ids))


@torch.no_grad()
@together("name", NAMES)
def test_texts_without_tokens(name: str) -> None:
    """Whole, packed, and at the start of a cache."""
    model, empty = model_of(name), tokens(2, 0)
    assert model(empty).shape == (2, 0, DIM)
    assert model(empty, segment_ids=torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, DIM)
    assert model(empty[0], cu_seqlens=torch.tensor([0])).shape == (0, DIM)
    assert model(tokens(0, 3)).shape == (0, 3, DIM)
    if isinstance(model, Decoder):
        x, cache = tokens(2, 5), model.new_cache(2, 5)
        steps = torch.cat([model(part, cache=cache) for part in (empty, x[:, :3], empty, x[:, 3:])], dim=1)
        assert_close(steps, model(x))


@torch.no_grad()
@together("name", NAMES)
def test_what_is_not_a_number_stays_in_its_text(name: str) -> None:
    """Its text becomes NaN, as a scaler of gradients expects, and no row of a table is looked up by it."""
    model, x = model_of(name), tokens(2, 9)
    expected = model(x)
    x[0, 4] = torch.nan
    y = model(x)
    assert y[0, 4:].isnan().all()
    assert_close(y[1], expected[1])


def repeated(weight: Tensor, kv_heads: int) -> Tensor:
    """The rows (kv_heads d, D) of W_k or W_v, each head's for every query head of its group: (D, D)."""
    return weight.unflatten(0, (kv_heads, -1)).repeat_interleave(HEADS // kv_heads, dim=0).flatten(0, 1)


def ungrouped(grouped: Encoder | Decoder, name: str, kv_heads: int) -> Encoder | Decoder:
    """The same model with as many key heads as query heads."""
    model = model_of(name)
    state = grouped.state_dict()
    for key in state:
        if key.endswith("queries_keys_values.weight"):
            q, k, v = state[key].split([DIM, kv_heads * 4, kv_heads * 4])
            state[key] = torch.cat((q, repeated(k, kv_heads), repeated(v, kv_heads)))
        if key.endswith(("direction_weight", "mixing_weight", "strength_weight", "strength_bias")):
            state[key] = (
                state[key].unflatten(0, (kv_heads, -1)).repeat_interleave(HEADS // kv_heads, dim=0).flatten(0, 1)
            )
    if isinstance(model.encoding, PolarEmbedding):
        state["encoding.delta"] = state["encoding.delta"].repeat_interleave(HEADS // kv_heads, dim=0)
    model.load_state_dict(state)
    return model


@torch.no_grad()
@together(
    "name, kv_heads",
    list(product(NAMES, [1, 2])),
    usual=lambda name, kv_heads: is_usual(name) and NAMES.index(name) % 2 == kv_heads % 2,
)
def test_grouped_heads_are_repeated_heads(name: str, kv_heads: int) -> None:
    grouped = model_of(name, kv_heads=kv_heads)
    full = ungrouped(grouped, name, kv_heads)
    x, mask = tokens(2, 12), torch.ones(2, 12)
    mask[1, :5] = 0
    assert_close(grouped(x), full(x))
    assert_close(grouped(x, mask=mask), full(x, mask=mask))
    if isinstance(grouped, Decoder):
        for first in (None, mask[:, :7]):
            cache = grouped.new_cache(2, 12)
            assert cache.keys.size(2) == kv_heads
            steps = [grouped(x[:, :7], cache=cache, mask=first)]
            steps += [grouped(x[:, i : i + 1], cache=cache) for i in range(7, 12)]
            whole = full(x) if first is None else full(x, mask=mask)
            assert_close(torch.cat(steps, dim=1), whole)


OPTIONS: list[dict[str, object]] = [
    {"norm": "post"},
    {"feed_forward": "swiglu", "kv_heads": 2},
    {"norm": "post", "feed_forward": "swiglu", "hidden": 20, "kv_heads": 2, "checkpoint_activations": True},
]


@torch.no_grad()
@together("options", OPTIONS)
@together("name", ["learned", "rope", "t5", "pope", "rolling", "learned-averaged", "encoder alibi"])
def test_every_option_in_every_layout(name: str, options: dict[str, object]) -> None:
    model = model_of(name, **options)
    x = tokens(2, 12)
    y = model(x)
    mask = torch.ones(2, 12)
    mask[:, :5] = 0
    shifted = torch.cat((x[:, 7:], x[:, :7]), dim=1)
    assert_close(model(shifted, mask=mask)[:, 5:], model(x[:, :7]))
    packed = torch.cat((x[:1], x[1:]), dim=1)
    segments = torch.tensor([[0] * 12 + [1] * 12])
    assert_close(model(packed, segment_ids=segments), y.flatten(0, 1)[None])
    if isinstance(model, Decoder):
        cache = model.new_cache(2, 12)
        steps = [model(part, cache=cache) for part in x.split([4, 1, 1, 6], dim=1)]
        assert_close(torch.cat(steps, dim=1), y)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_layer_of_torch(norm: str) -> None:
    """With the same weights, nn.TransformerEncoderLayer gives the same values and gradients."""
    layer = scrambled(EncoderLayer(dim=DIM, heads=HEADS, encoding="none", norm=norm, hidden=24))  # type: ignore[arg-type]
    peer = nn.TransformerEncoderLayer(
        DIM, HEADS, 24, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    names = {
        "attention.queries_keys_values.weight": "self_attn.in_proj_weight",
        "attention.output": "self_attn.out_proj",
        "attention_norm": "norm1",
        "mlp_norm": "norm2",
        "mlp.0": "linear1",
        "mlp.2": "linear2",
    }
    state = {key: torch.zeros_like(value) for key, value in peer.state_dict().items()}
    for key, value in layer.state_dict().items():
        ours = next(name for name in names if key.startswith(name))
        state[key.replace(ours, names[ours])] = value
    peer.load_state_dict(state)
    x = tokens(3, 7).requires_grad_()
    y, theirs = layer(x), peer(x)
    assert_close(y, theirs)
    assert_close(*(torch.autograd.grad(out.square().sum(), x)[0] for out in (y, theirs)))


def test_swiglu_is_its_equation() -> None:
    layer = scrambled(DecoderLayer(dim=DIM, heads=HEADS, encoding="none", feed_forward="swiglu"))
    x = tokens(2, 5)
    gate, value = layer.mlp[0].weight.chunk(2)  # type: ignore[index, union-attr]
    assert gate.shape == (48, DIM)  # 8/3 of 16, rounded up to a multiple of 8
    by_hand = (nn.functional.silu(x @ gate.T) * (x @ value.T)) @ layer.mlp[2].weight.T  # type: ignore[index, union-attr]
    assert_close(layer.mlp(x), by_hand)  # type: ignore[operator]
    parameters = {kind: sum(p.numel() for p in EncoderLayer(dim=768, heads=12, feed_forward=kind).mlp.parameters())
                  for kind in ("gelu", "swiglu")}  # type: ignore[arg-type]  # fmt: skip
    assert parameters["swiglu"] == pytest.approx(parameters["gelu"], rel=0.01)


def saved_bytes(model: nn.Module, x: Tensor, seed: int) -> tuple[int, list[Tensor]]:
    """What a forward pass keeps for the backward pass; and its gradients."""
    kept: list[int] = []
    torch.manual_seed(seed)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        y = model(x)
    gradients = torch.autograd.grad(y.square().sum(), [x, *model.parameters()], allow_unused=True)
    return sum(kept), [y, *(g for g in gradients if g is not None)]


@pytest.mark.parametrize("name", ["learned", "t5", "fire", "pope", "learned-averaged", "encoder rope"])
def test_checkpointing_keeps_less_and_changes_nothing(name: str) -> None:
    """Not even the elements that dropout drops."""
    model = model_of(name, dropout=0.3).train()
    x = tokens(2, 12).requires_grad_()
    model.checkpoint_activations = False
    kept, plain = saved_bytes(model, x, seed=3)
    model.checkpoint_activations = True
    kept_by_checkpoint, again = saved_bytes(model, x, seed=3)
    assert kept_by_checkpoint < kept / 2
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)


def call(kind: type[nn.Module] = Decoder, *, x: Tensor = torch.zeros(2, 6, DIM), **arguments: object) -> object:  # noqa: B008
    sizes = {"layers": 1} if kind in (Decoder, Encoder) else {}
    return kind(dim=DIM, heads=HEADS, encoding="rope", **sizes)(x, **arguments)


SEGMENTS = torch.zeros(2, 6, dtype=torch.int64)
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Attention(dim=DIM, heads=HEADS, kv_heads=3), "kv_heads must divide heads=4, .*; got 3"),
    (
        lambda: Attention(dim=DIM, heads=HEADS, kv_heads=2, encoding=PolarEmbedding(head_dim=4, heads=4)),
        "has kv_heads=2; build one of them",
    ),
    (
        lambda: encoding_by_name("alibi", Sizes(dim=DIM)),
        r"needs heads, .* pass heads=\.\.\. in Sizes to encoding_by_name, or choose an",
    ),
    (lambda: encoding_by_name("rope", Sizes(dim=DIM)), "needs heads"),
    (lambda: EncoderLayer(dim=DIM, heads=HEADS, norm="Post"), "norm: expected one of pre, post; got 'Post'"),  # type: ignore[arg-type]
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=1, feed_forward="relu"), "one of gelu, swiglu; got 'relu'"),  # type: ignore[arg-type]
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=1).new_cache(2, -1), "max_len: expected .* at least 1; got -1"),
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=1).new_cache(0, 5), "batch: expected a whole .* at least 1; got 0"),
    (lambda: call(mask=torch.ones(2, 5)), r"mask must be \(B, L\)=\(2, 6\), .*; got \(2, 5\). Pass"),
    (lambda: call(mask=[1] * 6), r"mask must be a tensor \(B, L\)=\(2, 6\).*got \[1, 1"),
    (lambda: call(segment_ids=SEGMENTS[:, 1:]), r"segment_ids must be \(L,\)=\(6,\) or .*; got \(2, 5\)"),
    (lambda: call(segment_ids=SEGMENTS.bool()), "segment_ids must be integers"),
    (lambda: call(segment_ids=SEGMENTS, mask=torch.ones(2, 6)), "give padding at the end a segment of its own"),
    (lambda: call(segment_ids=SEGMENTS, offset=2), "have no padding, offset or cache"),
    (lambda: call(segment_ids=SEGMENTS, cu_seqlens=torch.tensor([0, 6])), "give one of them"),
    (lambda: call(cu_seqlens=torch.tensor([0, 6])), r"got a batch of 2. Pass segment_ids \(B, L\)=\(2, 6\)"),
    (
        lambda: call(x=torch.zeros(6, DIM), cu_seqlens=torch.tensor([0, 5])),
        "to the length of the packed input, 6; got 0 to 5",
    ),
]


@together(("refused", "message"), REFUSED)
def test_what_is_refused(refused: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        refused()


@torch.no_grad()
def test_a_cache_of_another_model_or_dtype_is_refused() -> None:
    decoder = Decoder(dim=DIM, heads=HEADS, layers=2, encoding="rope", kv_heads=2)
    x = torch.zeros(2, 3, DIM)
    others = {
        "layers=1, key heads=2 and head_dim=4; got 2 key heads of width 4 in layer number 2": partial(
            Decoder(dim=DIM, heads=HEADS, layers=1, kv_heads=2).new_cache
        ),
        "key heads=4 and head_dim=4; got 2 key heads": Decoder(dim=DIM, heads=HEADS, layers=2).new_cache,
        r"holds torch.float16, and the model computes torch.float32; .*dtype=torch.float32": partial(
            decoder.new_cache, dtype=torch.float16
        ),
    }
    for message, new_cache in others.items():
        with pytest.raises(ArgumentError, match=message):
            decoder(x, cache=new_cache(2, 5))
    full = decoder.new_cache(2, 5)
    decoder(x, cache=full)
    with pytest.raises(ArgumentError, match=r"holds max_len=5 tokens; it has read 3, and x has 3 more.*at least 6"):
        decoder(x, cache=full)
    assert full.length == 3
    with torch.autocast("cpu", torch.bfloat16):
        decoder(x, cache=decoder.new_cache(2, 5))


@torch.no_grad()
@together("name", DECODERS, usual=is_usual)
def test_a_cache_in_every_mode(name: str) -> None:
    """Read partly under inference_mode; and one of float32 under autocast."""
    model, x = model_of(name).float(), tokens(2, 9).float()
    y, cache = model(x), model.new_cache(2, 9)
    with torch.inference_mode():
        first = model(x[:, :4], cache=cache)
    assert_close(torch.cat((first, model(x[:, 4:], cache=cache)), dim=1), y, depth=4)
    with torch.autocast("cpu", torch.bfloat16):
        whole, cache = model(x), model.new_cache(2, 9)
        steps = torch.cat([model(part, cache=cache) for part in x.split(4, dim=1)], dim=1)
    assert_close(steps.float(), whole.float(), depth=4, dtype=torch.bfloat16)
