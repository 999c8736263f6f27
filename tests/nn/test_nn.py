"""What users get from posembed.nn beyond the numbers: names, refusals, caches that survive errors, initial values."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import posembed
from posembed import Alibi, LearnedPositionalEmbedding, RollingPositionalEmbedding
from posembed.errors import ArgumentError, PositionError
from posembed.nn import (
    ENCODINGS,
    Attention,
    Decoder,
    DecoderLayer,
    Encoder,
    Positions,
    Sizes,
    encoding_by_name,
    gpt2_init_,
)
from posembed.nn.encodings import names_for, split_name
from together import together
from tolerance import assert_close, assert_same

X = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["learned", "rope", "alibi", "none"])
def test_one_encoding_alone_or_shared_by_layers(name: str) -> None:
    """A layer with its own encoding is the layer that is handed Positions, and a stack is its layers and its norm."""
    layer = DecoderLayer(dim=8, heads=2, encoding=name, max_len=6, dropout=0.5).eval()
    assert layer.encoding is not None
    positions = Positions(layer.encoding, X)
    assert_same(layer(X), layer(positions.at_input(X), positions=positions))
    stack = Decoder(dim=8, heads=2, layers=2, encoding=layer.encoding).eval()
    y = positions.at_input(X)
    for one in stack.layers:
        y = one(y, positions=positions)
    assert_same(stack(X), stack.norm(y))
    assert sum(key.endswith("encoding.weight") for key in stack.state_dict()) == (name == "learned")


def test_names_know_their_sizes() -> None:
    assert isinstance(Decoder(dim=8, heads=2, layers=1, encoding="alibi").encoding, Alibi)
    t5 = Encoder(dim=8, heads=2, layers=1, encoding="t5").encoding
    assert isinstance(t5, posembed.layers.T5Bias)
    assert t5.bidirectional
    windowed = encoding_by_name("rope+window+logn", Sizes(dim=8, heads=2, max_len=16, window=4))
    assert (windowed.window, windowed.log_length) == (4, 16)
    for name, entry in ENCODINGS.items():
        assert entry.line
        assert entry.paper
        assert entry.uses
        assert ("images" in entry.uses) == bool(entry.regridded), name
    assert set(names_for("decoder")) | set(names_for("images")) == set(ENCODINGS)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: Attention(dim=10, heads=4), "width 10 is not divisible by 4 heads; try a width of 8"),
    (lambda: Decoder(dim=8, heads=2, layers=0), "layers: expected a whole number of at least 1"),
    (lambda: Attention(dim=8, heads=2)(X), "this Attention has no encoding"),
    (lambda: Attention(dim=8, heads=2, encoding="roap"), r"unknown encoding 'roap' \(did you mean rope\?\); "),
    (lambda: Attention(dim=8, heads=2, encoding="learned"), "needs max_len"),
    (lambda: Attention(dim=8, heads=2, encoding="rolling"), r"needs window, .*window=\.\.\. in Sizes"),
    (lambda: encoding_by_name("learned-2d", Sizes(dim=8, heads=2)), "places the patches of an image in a grid"),
    (lambda: split_name("rope+window", "encoder"), "needs a causal window"),
    (lambda: split_name("fire", "encoder"), "is for a decoder"),
    (lambda: split_name("alibi", "images"), "patches of an image form a grid; choose from sinusoidal"),
    (lambda: Attention(dim=8, heads=2, encoding=Alibi(4)),
     "Alibi is built for heads=4, and this attention has heads=2"),
    (lambda: Attention(dim=8, heads=2, encoding=posembed.RotaryEmbedding(8)), "built for head_dim=8"),
    (lambda: Attention(dim=8, heads=2, encoding=Alibi(2), max_len=9), "max_len=9 is for encodings by name"),
    (lambda: Encoder(dim=8, heads=2, layers=1, encoding=RollingPositionalEmbedding(window=4, dim=8)),
     "needs a causal window of 4 tokens"),
    (lambda: Attention(dim=8, heads=2, encoding="rope")(X[0]), r"x must be \(B, L, D=8\)"),
    (lambda: Attention(dim=8, heads=2, encoding="rope")(X, torch.arange(5)), "position_ids must be"),
    (lambda: Attention(dim=8, heads=2, encoding="rope")(X, mask=torch.ones(2, 5)), r"mask must be \(B, L\)=\(2, 6\)"),
    (lambda: Attention(dim=8, heads=2, encoding="rope")(X, mask=torch.zeros(2, 6)), "only padding"),
    (lambda: Attention(dim=8, heads=2, encoding="rope")(X, mask=torch.full((2, 6), -9.0)), "1 for tokens"),
    (lambda: Attention(dim=8, heads=2)(X, torch.arange(6), positions=Positions(Alibi(2), X)),
     "positions hold the position_ids"),
    (lambda: Attention(dim=8, heads=2, causal=False)(X, positions=Positions(Alibi(2), X)),
     "causal=False and the positions"),
    (lambda: Encoder(dim=8, heads=2, layers=1, encoding="rope").new_cache(2, 9), "a cache needs causal attention"),
    (lambda: decoded(X, offset=1), "omit offset"),
    (lambda: decoded(torch.randn(2, 10, 8)), r"holds max_len=9 tokens; it has read 0, and x has 10 more"),
    (lambda: decoded(torch.randn(3, 2, 8)), r"2 sequences, and x has 3; make one with new_cache\(batch=3, max_len=9\)"),
]  # fmt: skip


def decoded(x: Tensor, **others: object) -> Tensor:
    decoder = Decoder(dim=8, heads=2, layers=1, encoding="rope")
    with torch.no_grad():
        return decoder(x, cache=decoder.new_cache(2, 9), **others)


@together(("call", "message"), REFUSED)
def test_what_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_cache_holds_no_gradients() -> None:
    decoder = Decoder(dim=8, heads=2, layers=1, encoding="rope")
    with pytest.raises(ArgumentError, match=r"torch.no_grad\(\)"):
        decoder(X, cache=decoder.new_cache(2, 9))


@torch.no_grad()
def test_a_step_that_fails_leaves_the_cache_as_it_was() -> None:
    decoder = Decoder(
        dim=8, heads=2, layers=2, encoding=LearnedPositionalEmbedding(max_len=8, dim=8, dropout=0.0)
    ).eval()
    cache = decoder.new_cache(2, 20)
    decoder(X, cache=cache)
    with pytest.raises(PositionError, match="position 8 has no row"):
        decoder(X[:, :3], cache=cache)
    with pytest.raises(ArgumentError):
        decoder(X[:, :3], cache=cache, mask=torch.ones(2, 4))
    assert cache.length == 6
    whole = decoder(torch.cat((X, X[:, :2]), dim=1))
    assert_close(decoder(X[:, :2], cache=cache), whole[:, 6:])


@torch.no_grad()
def test_explicit_ids_with_a_cache() -> None:
    """Ids that are not consecutive, shared by the batch in one step and not in the next."""
    decoder = Decoder(dim=8, heads=2, layers=2, encoding="t5").eval()
    ids = torch.tensor([[0, 2, 3, 7, 8, 20], [0, 2, 3, 9, 10, 11]])
    cache = decoder.new_cache(2, 6)
    parts = [decoder(X[:, :3], ids[0, :3], cache=cache), decoder(X[:, 3:], ids[:, 3:], cache=cache)]
    assert_close(torch.cat(parts, dim=1), decoder(X, ids))


def test_initial_values_are_gpt2_s() -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"tokens": torch.nn.Embedding(50, 64), "body": Decoder(dim=64, heads=2, layers=8)})
    gpt2_init_(model)
    scales = {name: p.std().item() for name, p in model.named_parameters() if p.dim() > 1}
    for name, std in scales.items():
        residual = name.endswith(("output.weight", "mlp.2.weight"))
        assert std == pytest.approx(0.02 / math.sqrt(16) if residual else 0.02, rel=0.1), name
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))


def test_one_place_calls_the_methods_of_an_encoding() -> None:
    """A new place touches the base class, nn/positions.py and its form for models of other libraries."""
    source = Path(posembed.__file__).parent
    calls = (".before_queries_keys(", ".at_queries_keys(", ".at_scores(", ".score_mod(")
    callers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if any(call in path.read_text(encoding="utf-8") for call in calls)
    }
    assert {name for name in callers if not name.startswith("layers/")} == {
        "nn/positions.py",
        "nn/attend.py",  # FlexAttention's form of a bias
        "integrations/forward_pass.py",
    }
