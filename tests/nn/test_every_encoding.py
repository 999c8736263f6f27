"""Every encoding of the registry in attention, encoders and decoders: all layouts give the same numbers."""

from __future__ import annotations

import copy
import math
import sys
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from encoding_names import ENDS, MIXED, is_usual
from posembed import LearnedPositionalEmbedding, PositionEncoding
from posembed.layers.base import Content
from posembed.nn import Attention, DecoderLayer, Positions, Sizes, encoding_by_name
from posembed.nn.encodings import ENCODINGS, names_for
from small_models import DIM, LENGTH, encoding_of, model_of, scrambled, tokens
from together import together
from tolerance import assert_close

sys.path.append(str(Path(__file__).parents[2] / "tools"))
from agreement import OUT, ROWS

HEADS, GRID, SIDES = 2, (3, 5), ("left", "right", "between")
SUFFIXED = ["rope+window", "alibi+window", "learned+logn", "rope-yarn+logn", "learned-averaged+window"]
DECODERS = [*names_for("decoder"), *SUFFIXED, *MIXED]
ENCODERS = names_for("encoder")


def turn_of(name: str) -> int:
    """The number of an encoding, by which it takes one of several sides."""
    return DECODERS.index(name) if name in DECODERS else ENCODERS.index(name.removeprefix("encoder "))


STRETCHED = ("rope-linear", "rope-ntk", "rope-yarn", "rope-llama3", "rope-longrope", "learned-interpolated")
"""Those that read a text in another way when it is longer."""


decoder = partial(model_of, heads=HEADS)


ON_SIDES = together(
    "name, side",
    list(product([*DECODERS, *(f"encoder {name}" for name in ENCODERS)], SIDES)),
    usual=lambda name, side: turn_of(name) % 3 == SIDES.index(side),
)


def padded(x: Tensor, side: str) -> tuple[Tensor, Tensor]:
    """Three sequences of 12, 7 and 1 tokens padded to 12 with noise, and their mask: (3, 12, D), (3, 12)."""
    rows, masks = [], []
    for text, length in zip(x, (12, 7, 1), strict=True):
        kept = torch.zeros(12, dtype=torch.long)
        where = {"left": range(12 - length, 12), "right": range(length), "between": range(0, 12, max(1, 12 // length))}
        kept[list(where[side])[:length]] = 1
        row = 9 * torch.randn(12, DIM, dtype=torch.float64)
        row[kept.bool()] = text[:length]
        rows.append(row)
        masks.append(kept)
    return torch.stack(rows), torch.stack(masks)


def test_every_encoding_has_a_row_in_the_page_that_compares_it_with_its_authors_code() -> None:
    assert {name for row in ROWS for name in row.names} == ENCODINGS.keys()
    lines = [line for line in OUT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert [line.split(" | ")[0] for line in lines] == [f"| {', '.join(row.names)}" for row in ROWS]


@torch.no_grad()
@ON_SIDES
def test_padded_is_unpadded(name: str, side: str) -> None:
    model = decoder(name)
    x = tokens(3, 12)
    together, mask = padded(x, side)
    y = model(together, mask=mask)
    assert y.isfinite().all()
    for row, length in enumerate((12, 7, 1)):
        assert_close(y[row, mask[row].bool()], model(x[row : row + 1, :length])[0])


@torch.no_grad()
@together("name", DECODERS, usual=is_usual)
def test_token_by_token_with_a_cache_is_the_whole_text(name: str) -> None:
    """And so are a long prompt, then single tokens, then several; past the training length as well."""
    model = decoder(name)
    length = LENGTH if name.split("+")[0] in (*ENDS, *STRETCHED) else 30
    x = tokens(2, length)
    whole = model(x)
    for steps in ([1] * length, [7, 1, 1, 3, length - 12]):
        cache = model.new_cache(2, 30)
        parts = [model(part, cache=cache) for part in x.split(steps, dim=1)]
        assert_close(torch.cat(parts, dim=1), whole)
        assert cache.length == length


@torch.no_grad()
@pytest.mark.parametrize("name", STRETCHED)
def test_a_text_of_known_length_is_decoded_as_it_is_read(name: str) -> None:
    model = decoder(name)
    x = tokens(2, 30)
    cache = model.new_cache(2, 30)
    parts = [model(part, cache=cache, text_length=30) for part in x.split([20, 1, 9], dim=1)]
    assert_close(torch.cat(parts, dim=1), model(x))


@torch.no_grad()
@together(
    "name, side",
    list(product(DECODERS, SIDES)),
    usual=lambda name, side: is_usual(name) and (turn_of(name) + 1) % 3 == SIDES.index(side),
)
def test_padded_prompts_continue_as_unpadded_ones(name: str, side: str) -> None:
    model = decoder(name)
    x = tokens(3, 16)
    together, mask = padded(x[:, :12], side)
    cache = model.new_cache(3, 16)
    model(together, mask=mask, cache=cache)
    last = torch.cat([model(x[:, i : i + 1], cache=cache) for i in range(12, 16)], dim=1)
    for row, length in enumerate((12, 7, 1)):
        alone = torch.cat((x[row, :length], x[row, 12:]))
        assert_close(last[row], model(alone[None])[0, length:])


def definition(layer: Attention, encoding: PositionEncoding, x: Tensor) -> Tensor:
    """One layer of attention written out in float64, head by head and query by query, from the encoding's places."""
    length, width = x.size(1), DIM // HEADS
    ids = torch.arange(length)
    x = encoding.at_input(x, ids)
    q_rows, k_rows, v_rows = layer.queries_keys_values.weight.split(DIM)
    q, k, v = x @ q_rows.T, x @ k_rows.T, x @ v_rows.T
    both = torch.cat((q_rows, k_rows))
    added = encoding.before_queries_keys(lambda rows: rows @ both.T, ids)
    if added is not None:
        q, k = q + added[..., :DIM], k + added[..., DIM:]
    q, k, v = (t.unflatten(-1, (HEADS, width)).transpose(1, 2) for t in (q, k, v))
    q, k = encoding.at_queries_keys(q, k, ids, ids)
    bias = encoding.in_layer(lambda rows: rows @ both.T).at_scores(ids, ids)
    ends = [
        (0 if encoding.window is None else max(0, i - encoding.window + 1), i + 1 if layer.causal else length)
        for i in range(length)
    ]
    if encoding.log_length is not None:
        longer = [math.log(max(last - first, encoding.log_length)) for first, last in ends]
        q = q * torch.tensor(longer, dtype=q.dtype)[:, None] / math.log(encoding.log_length)
    seen = torch.tensor([[first <= j < last for j in range(length)] for first, last in ends])
    q, k, of_content = encoding.at_content(q, k, Content(encoding.of_tokens(x), ids, ids, lambda: seen, lambda: None))
    bias = bias if of_content is None else of_content
    out = torch.zeros_like(v)
    for i, (first, last) in enumerate(ends):
        query = q[:, :, i]
        scores = (k[:, :, first:last] @ query.unsqueeze(-1)).squeeze(-1) / math.sqrt(q.size(-1) or 1)
        if bias is not None:
            scores = scores + bias[..., i, first:last].double()
        out[:, :, i] = (scores.softmax(-1).unsqueeze(-1) * v[:, :, first:last]).sum(-2)
    return out.transpose(1, 2).flatten(2) @ layer.output.weight.T


@together(
    "name",
    [*(name for name in DECODERS if name not in MIXED), *(f"encoder {name}" for name in ENCODERS)],
    usual=is_usual,  # tests/matrix has the formula of each layer
)
def test_attention_is_its_definition(name: str) -> None:
    """Rows, rotation, bias, window and log-length scale, in values and gradients."""
    encoding = encoding_of(name, heads=HEADS)
    layer = scrambled(Attention(dim=DIM, heads=HEADS, encoding=encoding, causal=not name.startswith("encoder")))
    length = LENGTH if name.split("+")[0].split()[-1] in ENDS else 23
    x = tokens(2, length).requires_grad_()
    weights = torch.randn(2, length, DIM, dtype=torch.float64)
    inputs = [x, *layer.parameters()]
    ours, theirs = layer(x), definition(layer, encoding, x)
    dtype = None if encoding.log_length is None else torch.float32  # what the factor is computed in
    assert_close(ours, theirs, dtype=dtype)
    gradients = [torch.autograd.grad((y * weights).sum(), inputs, allow_unused=True) for y in (ours, theirs)]
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other, depth=2, scale=gradients[1], dtype=dtype)


@torch.no_grad()
@pytest.mark.parametrize("name", ["rope+window", "alibi+window", "rolling", "learned-averaged+window"])
def test_a_window_is_a_mask(name: str) -> None:
    """At 30 tokens a window of 3 is computed in blocks; as a mask it gives the same weights."""
    layer = decoder(name, layers=1)
    assert layer.encoding is not None
    layer.encoding.window = 3
    x = tokens(2, 30)
    attention = layer.layers[0].attention
    weights = attention.weights(x, positions=Positions(layer.encoding, x))
    distance = torch.arange(30).unsqueeze(1) - torch.arange(30)
    assert torch.equal(weights > 0, ((distance >= 0) & (distance < 3)).expand_as(weights))
    assert_close(weights.sum(-1), torch.ones(2, HEADS, 30, dtype=torch.float64))


@together("name", DECODERS)
def test_the_table_is_trained_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = decoder(name)
    assert model.encoding is not None
    x = tokens(2, 12)
    y = model(x)
    y.square().sum().backward()
    table = model.encoding.table()
    ends = ("encoding.weight", "distinct.0.weight")
    assert (table is not None) == any(key.endswith(ends) for key in model.state_dict())
    if table is not None:
        assert table.size(1) == getattr(model.encoding, "position_dim", DIM)
        rows = next(p.grad for n, p in model.encoding.named_parameters() if n.endswith("weight"))
        assert rows is not None
        assert rows.any()
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, tmp_path / "a.safetensors")
    torch.manual_seed(7)
    fresh = decoder(name)
    fresh.load_state_dict(load_file(tmp_path / "a.safetensors"))
    assert torch.equal(fresh(x), y)


def image_encoding(name: str) -> PositionEncoding:
    encoding = encoding_by_name(name, Sizes(dim=DIM, heads=HEADS, max_len=LENGTH, causal=False, grid=GRID))
    for parameter in encoding.parameters():
        parameter.data.normal_()
    return encoding.eval()


def rows_of(encoding: PositionEncoding, count: int) -> Tensor:
    return encoding.at_input(torch.zeros(1, count, DIM), torch.arange(count))[0]


@pytest.mark.parametrize("name", names_for("images"))
def test_another_grid(name: str) -> None:
    """There and back on the same grid changes nothing; on another it keeps the class token's row and the table."""
    encoding = image_encoding(name)
    before = rows_of(encoding, 16)
    state = copy.deepcopy(encoding.state_dict())
    assert encoding.on_grid(GRID) is encoding
    other = encoding.on_grid((6, 4))
    assert torch.equal(rows_of(other, 25)[0], before[0])
    assert all(torch.equal(encoding.state_dict()[key], value) for key, value in state.items())
    assert torch.equal(rows_of(encoding, 16), before)
    table, resized = encoding.table(), other.table()
    assert (table is None) == (resized is None) == (not state or name == "rope-mixed")
    if table is not None and resized is not None:
        assert_close(table, before)
        assert_close(resized, rows_of(other, 25))
    assert not other.training
    assert torch.equal(rows_of(other.train().on_grid((2, 2)).eval(), 5)[0], before[0])
    assert bool(ENCODINGS[name].regridded)


@pytest.mark.parametrize("name", names_for("images"))
def test_a_shared_encoding_on_another_grid_trains_this_one(name: str) -> None:
    """The gradient is that of the whole computation: a step against it lowers the loss as far as it promises."""
    encoding = image_encoding(name).double()
    q, k, x = torch.randn(1, 2, 25, 8).double(), torch.randn(1, 2, 25, 8).double(), torch.randn(1, 25, DIM).double()

    def loss(shared: bool) -> Tensor:
        there, ids = encoding.on_grid((6, 4), shared=shared), torch.arange(25)
        turned_q, turned_k = there.at_queries_keys(q, k, ids, ids)
        scores = turned_q @ turned_k.mT
        bias = there.at_scores(ids, ids)
        scores = scores if bias is None else scores + bias
        return scores.softmax(-1)[..., 0].sum() + there.at_input(x, ids).sin().sum()

    state = copy.deepcopy(encoding.state_dict())
    assert torch.equal(loss(shared=True), loss(shared=False))
    assert encoding.on_grid(GRID, shared=True) is encoding
    before = loss(shared=True)
    if not state:
        return
    before.backward()
    gradients = [parameter.grad for parameter in encoding.parameters()]
    assert all(gradient is not None and gradient.any() for gradient in gradients)
    assert all(torch.equal(encoding.state_dict()[key], value) for key, value in state.items())
    step = 1e-4
    with torch.no_grad():
        for parameter, gradient in zip(encoding.parameters(), gradients, strict=True):
            parameter -= step * gradient
        promised = step * sum(gradient.square().sum() for gradient in gradients if gradient is not None)
        assert (before - loss(shared=False)).item() == pytest.approx(float(promised), rel=0.02)


@together("name", [name for name in names_for("decoder") if name not in names_for("images")])
def test_sequences_have_no_grid_but_tables_are_resized_as_a_line(name: str) -> None:
    encoding = encoding_of(name, heads=HEADS)
    table = encoding.table()
    other = encoding.on_grid((4, 6))
    if isinstance(encoding, LearnedPositionalEmbedding):
        assert table is not None
        assert other.table().shape == (25, DIM)  # type: ignore[union-attr]
        assert type(other) is type(encoding)
    else:
        assert other is encoding


@torch.no_grad()
@pytest.mark.parametrize("name", ["learned", "rope", "t5"])
def test_a_real_size(name: str) -> None:
    """Batch 5 x 512 x 256 in float32: padded, and with a cache."""
    encoding = encoding_by_name(name, Sizes(dim=256, heads=4, max_len=512))
    layer = DecoderLayer(dim=256, heads=4, encoding=encoding).eval()
    x = torch.randn(5, 512, 256)
    y = layer(x)
    mask = torch.ones(5, 512)
    mask[:4, :200] = 0
    moved = torch.cat((x[:4, 312:], x[:4, :312]), dim=1)  # the first 312 tokens, after padding
    assert_close(layer(torch.cat((moved, x[4:])), mask=mask)[:4, 200:], y[:4, :312])
    assert_close(layer(torch.cat((moved, x[4:])), mask=mask)[4:], y[4:])
    cache = layer.new_cache(5, 512)
    parts = [layer(part, cache=cache) for part in x.split([500, 1, 1, 10], dim=1)]
    assert_close(torch.cat(parts, dim=1), y)
