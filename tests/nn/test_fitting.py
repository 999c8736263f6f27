"""Encodings, positions and sizes that do not fit a model are refused, whichever way they reach it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from posembed import Alibi
from posembed.errors import ArgumentError
from posembed.layers import NoPosition, T5Bias
from posembed.layers.images.grid import ImageEncoding
from posembed.nn import Attention, Decoder, Encoder, Positions, Sizes, encoding_by_name
from posembed.nn.encodings import ENCODINGS, names_for
from together import together
from tolerance import assert_close

DIM, HEADS, GRID = 16, 4, (3, 5)
WITH_HEADS = ["alibi", "t5", "kerple-log", "kerple-power", "fire", "learned-averaged", "pope", "rope"]
X = torch.randn(2, 6, DIM)


def refused_in_every_way(kind: type[Encoder] | type[Decoder], encoding: Any, message: str) -> None:
    """As an argument, exchanged later, and in Positions of the caller's own."""
    with pytest.raises(ArgumentError, match=message):
        kind(dim=DIM, heads=HEADS, layers=1, encoding=encoding)
    model = kind(dim=DIM, heads=HEADS, layers=1, encoding="none")
    model.encoding = encoding
    with pytest.raises(ArgumentError, match=message):
        model(X)
    with pytest.raises(ArgumentError, match=message):
        model(X, positions=Positions(encoding, X, causal=kind is Decoder))


@together("heads", [1, 2, 8])
@together("name", WITH_HEADS)
def test_an_encoding_of_other_heads(name: str, heads: int) -> None:
    """Those of a single head would broadcast to all of them."""
    encoding = encoding_by_name(name, Sizes(dim=DIM, heads=heads, max_len=16, window=4))
    refused_in_every_way(Decoder, encoding, "build one of them with the other's size")


@pytest.mark.parametrize("name", ["rope+window", "rolling", "fire", "learned-averaged", "t5"])
def test_an_encoding_for_decoders_in_an_encoder(name: str) -> None:
    encoding = encoding_by_name(name, Sizes(dim=DIM, heads=HEADS, max_len=16, window=4))
    refused_in_every_way(Encoder, encoding, "an encoder attends in both directions")
    Decoder(dim=DIM, heads=HEADS, layers=1, encoding=encoding)(X)


def test_a_bias_of_both_directions_fits_both() -> None:
    for kind in (Encoder, Decoder):
        kind(dim=DIM, heads=HEADS, layers=1, encoding=T5Bias(HEADS))(X)


@pytest.mark.parametrize("wrong", [Alibi, nn.Embedding(4, DIM), ["rope"], 3], ids=str)
def test_what_is_no_encoding(wrong: Any) -> None:
    refused = pytest.raises(ArgumentError, match=r"encoding.* a PositionEncoding, such as RotaryEmbedding")
    with refused:
        Attention(dim=DIM, heads=HEADS, encoding=wrong)
    with refused:
        Positions(wrong, X)


WRONG_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"positions": torch.arange(6)}, "positions must be posembed.nn.Positions.*; got a Tensor. Pass numbers as pos"),
    ({"positions": 0}, "got a int. Pass numbers as position_ids"),
    ({"cache": True}, r"cache must come from new_cache\(batch, max_len\); got a bool"),
    ({"cache": (X, X)}, "cache must come from new_cache.*; got a tuple"),
    ({"x": None}, r"x must be \(B, L, D=16\); got NoneType"),
    ({"x": X.numpy()}, r"x must be \(B, L, D=16\); got ndarray"),
    ({"x": X.tolist(), "cu_seqlens": torch.tensor([0, 6])}, r"x must be \(B, L, D=16\); got list"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG_CALLS, ids=[message for _, message in WRONG_CALLS])
def test_arguments_of_other_kinds(wrong: dict[str, Any], message: str) -> None:
    model = Decoder(dim=DIM, heads=HEADS, layers=1, encoding="rope")
    with pytest.raises(ArgumentError, match=message):
        model(**{"x": X, **wrong})


def test_positions_of_other_tokens() -> None:
    """A mask of one row would broadcast to the batch."""
    model = Decoder(dim=DIM, heads=HEADS, layers=1)
    mask = torch.tensor([[0, 1, 1, 1, 1, 1]])
    for other in (X[:1], X[:, :5], torch.cat((X, X))):
        positions = Positions(NoPosition(), other, mask=mask if len(other) == 1 else None)
        with pytest.raises(ArgumentError, match=r"are for x \(B, L\)=.*; got \(2, 6\). Make new ones"):
            model(X, positions=positions)


GRIDS = [
    name
    for name in names_for("images")
    if isinstance(encoding_by_name(name, Sizes(dim=DIM, heads=HEADS, grid=GRID)), ImageEncoding)
]


def image_encoder(name: str, grid: tuple[int, int] = GRID) -> Encoder:
    sizes = Sizes(dim=DIM, heads=HEADS, grid=grid, causal=False)
    return Encoder(dim=DIM, heads=HEADS, layers=1, encoding=encoding_by_name(name, sizes)).eval()


@torch.no_grad()
@pytest.mark.parametrize("name", GRIDS)
def test_images_of_another_grid_are_never_read_as_part_of_this_one(name: str) -> None:
    """Alone, padded and packed; part of an image is read with position_ids, and in a decoder."""
    assert len(GRIDS) == 6
    model, x, n = image_encoder(name), torch.randn(2, 20, DIM), 16
    whole = model(x[:, :n])
    for length in (1, n - 1, n + 1):
        with pytest.raises(ArgumentError, match=rf"must have 16 tokens, as the encoding's grid says; got {length}\."):
            model(x[:, :length])
        mask = (torch.arange(20) < length).expand(2, -1)
        with pytest.raises(ArgumentError, match=f"got {length}"):
            model(x, mask=mask)
        with pytest.raises(ArgumentError, match="must have 16 tokens"):
            model(x, segment_ids=(~mask).long())
    mask = torch.arange(20) >= torch.tensor([[4], [4]])
    padded = torch.cat((x[:, n:], x[:, :n]), dim=1)
    assert_close(model(padded, mask=mask)[:, 4:], whole)
    packed = x[:, :n].flatten(0, 1)
    assert_close(model(packed, cu_seqlens=torch.tensor([0, 16, 32])), whole.flatten(0, 1))
    assert model(x[:, :3], torch.tensor([0, 7, 9])).shape == (2, 3, DIM)
    assert model(x[:, :3], offset=5).shape == (2, 3, DIM)
    assert model.encoding is not None
    model.encoding = model.encoding.on_grid((1, 2))
    assert model(x[:, :3]).shape == (2, 3, DIM)
    decoder = Decoder(dim=DIM, heads=HEADS, layers=1, encoding=image_encoder(name).encoding).eval()
    assert_close(decoder(x[:, :7]), decoder(x[:, :n])[:, :7])


@torch.no_grad()
def test_a_compiled_image_encoder_checks_too() -> None:
    torch.compiler.reset()
    model, x = image_encoder("learned-2d"), torch.randn(2, 18, DIM)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    mask = torch.arange(18) >= torch.tensor([[2], [2]])
    assert_close(compiled(x, mask=mask), model(x, mask=mask))
    with pytest.raises(ArgumentError, match="must have 16 tokens"):
        compiled(x, mask=~mask)


WRONG_SIZES: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: wrong}, f"{name}: expected a whole number of at least 1; got {wrong}")
        for name in ("dim", "heads", "kv_heads", "max_len", "longest", "window", "ring")
        for wrong in (0, -3, 2.5)
    ),
    ({"dropout": 2}, "dropout: expected a number of at least 0 and at most 1"),
    ({"grid": (0, 4)}, "grid: expected a pair, each a whole number of at least 1; got"),
    ({"kv_heads": 3}, "kv_heads must divide heads=4; got 3"),
]


@together(("wrong", "message"), WRONG_SIZES)
def test_sizes_that_no_model_has(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Sizes(**{"dim": DIM, "heads": HEADS, **wrong})


@together("name", ENCODINGS)
def test_an_encoding_never_has_a_part_of_a_head(name: str) -> None:
    """It is refused where a head's width matters, and the encoding does not depend on the heads elsewhere."""
    grid = GRID if "images" in ENCODINGS[name].uses else None
    sizes = Sizes(dim=DIM, heads=3, max_len=16, window=4, grid=grid, causal=grid is None)
    if name.startswith(("rope", "p-rope", "hope", "bipe-rope", "pope", "learned-averaged", "tupe", "cope", "path")):
        with pytest.raises(ArgumentError, match="dim must be a multiple of heads"):
            encoding_by_name(name, sizes)
    else:
        assert not hasattr(encoding_by_name(name, sizes), "head_dim")
