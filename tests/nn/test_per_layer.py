"""Models whose layers have different encodings: each layer reads as if the model had its encoding alone."""

from __future__ import annotations

import copy
import pickle
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import posembed
from posembed import LearnedPositionalEmbedding, PositionEncoding, RotaryEmbedding
from posembed.errors import ArgumentError
from posembed.layers import (
    Alibi,
    Fox,
    NoPosition,
    SampledPositionalEmbedding,
    T5Bias,
)
from posembed.nn import Attention, Decoder, Encoder, Memory, PerLayer, Positions, Sizes, encoding_by_name
from posembed.nn.encodings import split_mixture
from together import together
from tolerance import assert_close, assert_same

DIM, HEADS, LENGTH = 16, 4, 30
NAMES = [
    "rope+window/rope+window/none",
    "fox/t5/cable+window",
    "rope+logn/none+logn+window/alibi",
    "learned-averaged/path",
]


def model_of(name: str, layers: int = 3, **options: Any) -> Decoder:
    sizes = Sizes(dim=DIM, heads=HEADS, max_len=8, window=5, layers=layers)
    model = Decoder(dim=DIM, heads=HEADS, layers=layers, encoding=encoding_by_name(name, sizes), **options).double()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.eval()


def each_alone(model: Decoder, x: Tensor, **tokens: Any) -> Tensor:
    """Layer by layer, each with Positions of its own encoding alone."""
    assert isinstance(model.encoding, PerLayer)
    for i, layer in enumerate(model.layers):
        x = layer(x, positions=Positions(model.encoding.in_place(i), x, **tokens))
    return model.norm(x)


@together(
    "name, tokens, recomputed",
    list(product(NAMES, ["whole", "padded", "packed"], [False, True])),
    usual=lambda name, tokens, recomputed: (NAMES.index(name) + len(tokens)) % 2 == recomputed,
)
def test_each_layer_reads_with_its_own(name: str, tokens: str, recomputed: bool) -> None:
    """In values and gradients; with activations that are computed again, too."""
    model = model_of(name, checkpoint_activations=recomputed).train()
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64).requires_grad_()
    given: dict[str, Any] = {
        "whole": {},
        "padded": {"mask": torch.arange(LENGTH) >= torch.tensor([[0], [7]])},
        "packed": {"segment_ids": torch.arange(LENGTH).expand(2, -1) // 11},
    }[tokens]
    inputs = [x, *model.parameters()]
    ours, theirs = model(x, **given), each_alone(model, x, **given)
    assert_close(ours, theirs)
    gradients = [torch.autograd.grad(y.square().sum(), inputs) for y in (ours, theirs)]
    assert_close(*gradients, depth=2, scale=gradients[1])


@torch.no_grad()
@together("name", NAMES)
def test_layers_of_your_own(name: str) -> None:
    """With a cache that they fill in their order."""
    model = model_of(name)
    x, cache, parts = torch.randn(2, LENGTH, DIM, dtype=torch.float64), model.new_cache(2, LENGTH), []
    for part in x.split([7, 1, 1, LENGTH - 9], dim=1):
        positions, y = Positions(model.encoding, part, cache=cache), part
        for i, layer in enumerate(model.layers):
            y = layer(y, positions=positions.of_layer(i))
        positions.commit()
        parts.append(model.norm(y))
    assert_close(torch.cat(parts, dim=1), model(x))


@torch.no_grad()
@pytest.mark.parametrize("encoding", [RotaryEmbedding(DIM // HEADS), Fox(dim=DIM, heads=HEADS)], ids=repr)
def test_an_encoding_that_is_compiled_alone(encoding: PositionEncoding) -> None:
    model = Decoder(dim=DIM, heads=HEADS, layers=2, encoding=encoding).eval()
    y = model(X)
    model.encoding = torch.compile(encoding, backend="eager")
    assert_same(model(X), y)


def test_one_with_more_entries_than_layers_is_refused_whenever_it_comes() -> None:
    model = Decoder(dim=DIM, heads=HEADS, layers=2)
    model.encoding = PerLayer([NoPosition(), NoPosition(), Alibi(HEADS)])
    for call in (lambda: model(X), lambda: model(X, positions=Positions(model.encoding, X))):
        with pytest.raises(ArgumentError, match="layers=2"):
            call()


def test_layers_share_what_can_be_shared() -> None:
    model = Decoder(dim=DIM, heads=HEADS, layers=6, encoding="t5/fox/rope")
    t5, fox, rope, *again = (model.encoding.in_place(i) for i in range(6))
    assert again[0] is t5
    assert again[2] is rope
    assert isinstance(fox, Fox)
    assert isinstance(again[1], Fox)
    assert again[1] is not fox
    assert sum("bucket_weight" in key for key in model.state_dict()) == 1
    shared = Decoder(dim=DIM, heads=HEADS, layers=3, encoding=Fox(dim=DIM, heads=HEADS))
    assert sum(p.numel() for p in shared.encoding.parameters()) == HEADS * (DIM + 1)


def test_lists_names_and_objects_are_the_same() -> None:
    for encoding in ("rope/rope/none", ["rope", "rope", "none"], ["rope/rope", NoPosition()], ("rope", "rope", "none")):
        model = Decoder(dim=DIM, heads=HEADS, layers=5, encoding=encoding)
        kinds = [type(model.encoding.in_place(i)) for i in range(5)]
        assert kinds == [RotaryEmbedding, RotaryEmbedding, NoPosition, RotaryEmbedding, RotaryEmbedding]
    assert type(Decoder(dim=DIM, heads=HEADS, layers=4, encoding=["rope", "rope"]).encoding) is RotaryEmbedding
    assert type(Decoder(dim=DIM, heads=HEADS, layers=1, encoding="fox").encoding) is Fox
    assert posembed.encoding("alibi/none", dim=DIM, heads=HEADS, layers=3).order == (0, 1, 0)
    assert split_mixture("rope+window/none") == [("rope", {"+window"}), ("none", frozenset())]


@torch.no_grad()
def test_rows_are_added_once() -> None:
    """Whichever layer has the table, as the input comes before all layers."""
    table = LearnedPositionalEmbedding(max_len=LENGTH, dim=DIM, dropout=0.0)
    x = torch.randn(2, LENGTH, DIM)
    for order in (["none", table], [table, "none", table], [table]):
        mixed = Decoder(dim=DIM, heads=HEADS, layers=3, encoding=order).eval()
        plain = Decoder(dim=DIM, heads=HEADS, layers=3, encoding=table).eval()
        plain.layers.load_state_dict(mixed.layers.state_dict())
        assert_same(mixed(x), plain(x))
        assert mixed.encoding.table() is table.weight
    sampled = SampledPositionalEmbedding(max_len=90, dim=DIM, sampler="randomized")
    ids = PerLayer([NoPosition(), sampled]).training_positions(2, 9, torch.Generator())
    assert ids.shape == (2, 9)
    assert ids.max() > 9
    assert PerLayer([NoPosition(), table]).training_positions(2, 9, torch.Generator()).tolist() == list(range(9))


class Penalised(PositionEncoding):
    def auxiliary_loss(self, length: int, generator: torch.Generator) -> Tensor | None:
        return torch.rand((), generator=generator) + length


def test_auxiliary_losses_are_added() -> None:
    """Each once, however many layers share it."""
    first, second, generator = Penalised(), Penalised(), torch.Generator().manual_seed(0)
    one, two = torch.rand(2, generator=generator.manual_seed(0)) + 9
    for order, expected in (([first], one), ([first, NoPosition(), first], one), ([second, first], one + two)):
        assert PerLayer(order).auxiliary_loss(9, generator.manual_seed(0)) == expected
    assert PerLayer([NoPosition(), RotaryEmbedding(16)]).auxiliary_loss(9, generator) is None


def test_copies_and_state_dicts() -> None:
    model = model_of("fox/rope/learned-averaged")
    x = torch.randn(2, 9, DIM, dtype=torch.float64)
    other = model_of("fox/rope/learned-averaged")
    other.load_state_dict(model.state_dict())
    for twin in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(twin(x), model(x))
        assert repr(twin.encoding) == repr(model.encoding)
    assert model.encoding.on_grid((2, 4)) is model.encoding


def test_images_are_mixed_too() -> None:
    grid = posembed.encoding("learned-2d", dim=DIM, grid=(3, 5), causal=False)
    encoder = Encoder(dim=DIM, heads=HEADS, layers=2, encoding=[grid, Alibi(HEADS)])
    assert encoder(torch.randn(2, 16, DIM)).shape == (2, 16, DIM)
    with pytest.raises(ArgumentError, match="must have 16 tokens"):
        encoder(torch.randn(2, 15, DIM))
    encoder.encoding = encoder.encoding.on_grid((2, 2))
    assert encoder(torch.randn(2, 5, DIM)).shape == (2, 5, DIM)


X = torch.randn(1, 5, DIM)
REFUSED = [
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=2, encoding="rope/rope/none"), "at most one encoding for each of"),
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=1, encoding=PerLayer([NoPosition(), Alibi(HEADS)])), "layers=1"),
    (lambda: Attention(dim=DIM, heads=HEADS, encoding="rope/none"), "layers=1"),
    (lambda: Encoder(dim=DIM, heads=HEADS, layers=2, encoding="t5/fox"), "for a decoder|for causal models|both"),
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=2, encoding=[NoPosition(), Alibi(3)]), "built for heads=3"),
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=2, encoding=["rope", "rolling"]), "needs window"),
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=3, encoding="rope//none"), "unknown encoding ''"),
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=2, encoding=[NoPosition()], max_len=4), "already built"),
    (lambda: PerLayer([]), "one encoding per layer"),
    (lambda: PerLayer([PerLayer([NoPosition()])]), "none a PerLayer"),
    (lambda: PerLayer([SampledPositionalEmbedding(max_len=9, dim=4, sampler="shifted") for _ in "ab"]), "at most one"),
    (lambda: Attention(dim=DIM, heads=HEADS)(X, positions=Positions(PerLayer([NoPosition(), T5Bias(HEADS)]), X)),
     r"positions.of_layer\(i\)"),
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=2, cross_attention=True, cross_encoding=PerLayer([NoPosition()])),
     "cross_encoding must be one"),
    (lambda: Decoder(dim=DIM, heads=HEADS, layers=1, encoding="none", cross_attention=True)(
        X, positions=Positions(NoPosition(), X, memory=Memory(X, encoding=Fox(dim=DIM, heads=HEADS)))),
     "causal models"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


@torch.no_grad()
def test_a_cache_of_another_encoding_is_refused() -> None:
    """The gates of its tokens are unknown."""
    model = Decoder(dim=DIM, heads=HEADS, layers=2, encoding="rope").eval()
    cache = model.new_cache(1, 9)
    model(X, cache=cache)
    model.encoding = Fox(dim=DIM, heads=HEADS)
    with pytest.raises(ArgumentError, match="read with another encoding"):
        model(X[:, :1], cache=cache)
    cache = model.new_cache(1, 9)
    first = model(X, cache=cache)
    cache.length = 2  # forgets the last three
    assert_close(model(X[:, 2:], cache=cache), first[:, 2:])
    with torch.enable_grad(), pytest.raises(ArgumentError, match="a cache holds no gradients"):
        model(X, cache=model.new_cache(1, 9))


def test_an_encoding_of_ones_own() -> None:
    """One class that depends on content, written from the base class's page: attention that ignores short keys."""

    class Lengths(PositionEncoding):
        def of_tokens(self, x: Tensor) -> Tensor:
            return x.norm(dim=-1, keepdim=True)

        def at_content(self, q, k, content):  # type: ignore[no-untyped-def]
            return q, k, content.of_tokens.mT[:, None].expand(-1, q.size(1), q.size(2), -1)

    layer = Attention(dim=DIM, heads=HEADS, encoding=Lengths()).eval()
    x = torch.randn(2, 9, DIM)
    weights = layer.weights(x, positions=Positions(layer.encoding, x))
    q, k, _ = layer.queries_keys_values(x).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2).chunk(3, dim=1)
    scores = q @ k.mT / 2 + x.norm(dim=-1)[:, None, None]
    assert_close(weights, scores.masked_fill(~torch.ones(9, 9).tril().bool(), float("-inf")).softmax(-1))
