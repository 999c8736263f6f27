"""The learned table: one set of numbers however the tokens lie, and no position without a row."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers.models.bart.modeling_bart import BartLearnedPositionalEmbedding
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding

from posembed import LearnedPositionalEmbedding, PositionEncoding, positions
from posembed.errors import PositionError
from posembed.tables import PADDING, TableLayout
from tolerance import assert_close

MAX_LEN, DIM = 24, 6
LAYOUTS = [TableLayout.BERT, TableLayout.OPT, TableLayout.roberta(pad_id=3), TableLayout(reserved=3, pad_row=0)]


def layer_of(layout: TableLayout = TableLayout(), **options) -> LearnedPositionalEmbedding:  # noqa: B008
    torch.manual_seed(0)
    return LearnedPositionalEmbedding(max_len=MAX_LEN, dim=DIM, layout=layout, std=1.0, **options).eval()


def expected(layer: LearnedPositionalEmbedding, x: Tensor, ids: list[list[int]]) -> Tensor:
    """x + P, row by row; PADDING reads the pad row."""
    front, pad = layer.layout.front, layer.layout.pad_row
    rows = [[layer.weight[pad if i == PADDING else front + i] for i in row] for row in ids]
    return torch.stack([torch.stack([x[b, t] + row for t, row in enumerate(r)]) for b, r in enumerate(rows)])


# One set of numbers


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_each_token_gets_the_row_of_its_position(layout: TableLayout) -> None:
    layer = layer_of(layout)
    x = torch.randn(2, 5, DIM)
    assert torch.equal(layer(x), expected(layer, x, [[0, 1, 2, 3, 4]] * 2))
    assert torch.equal(layer(x, offset=19), expected(layer, x, [[19, 20, 21, 22, 23]] * 2))
    starts = torch.tensor([3, 0])
    assert torch.equal(layer(x, offset=starts), expected(layer, x, [[3, 4, 5, 6, 7], [0, 1, 2, 3, 4]]))
    assert torch.equal(layer(x, offset=torch.tensor(3)), layer(x, offset=3))
    ids = [[23, 0, 7, 7, 1], [2, 3, 5, 0, 0]]
    assert torch.equal(layer(x, torch.tensor(ids)), expected(layer, x, ids))
    assert torch.equal(layer(x, torch.tensor(ids[0])), expected(layer, x, [ids[0]] * 2))
    assert torch.equal(layer(x, torch.tensor(ids[:1])), expected(layer, x, [ids[0]] * 2))
    assert torch.equal(layer.at_input(x, torch.tensor(ids)), layer(x, torch.tensor(ids)))
    assert isinstance(layer, PositionEncoding)


def test_gradients_of_repeated_positions_add_up() -> None:
    layer = layer_of()
    ids = torch.randint(0, 5, (4, 9))
    upstream = torch.randn(4, 9, DIM)
    layer(torch.randn(4, 9, DIM), ids).backward(upstream)
    exact = torch.zeros(MAX_LEN, DIM, dtype=torch.float64)
    exact.index_add_(0, ids.flatten(), upstream.flatten(0, 1).double())
    assert_close(layer.weight.grad.double(), exact, dtype=torch.float32)


def test_consecutive_positions_never_gather() -> None:
    def operations(node) -> set[str]:
        if node is None:
            return set()
        return {type(node).__name__}.union(*(operations(earlier) for earlier, _ in node.next_functions))

    layer = layer_of()
    x = torch.randn(2, 5, DIM)
    sum_of_copy = {"AddBackward0", "CloneBackward0", "SliceBackward0", "AccumulateGrad"}
    assert operations(layer(x, offset=3).grad_fn) == sum_of_copy
    assert "EmbeddingBackward0" in operations(layer(x, torch.arange(5)).grad_fn)


def test_integer_input_gives_the_rows_alone() -> None:
    layer = layer_of(TableLayout.OPT, dropout=0.9).train()
    tokens = torch.randint(0, 100, (2, 5))
    for options in ({}, {"offset": 7}, {"offset": torch.tensor([1, 2])}, {"position_ids": torch.arange(5)}):
        rows = layer(tokens, **options)
        assert rows.shape == (2, 5, DIM)
        assert torch.equal(rows, layer.eval()(torch.zeros(2, 5, DIM), **options))
        layer.train()


def test_rows_of_any_shape() -> None:
    layer = layer_of(dropout=0.9).train()
    for shape in ((), (5,), (2, 5), (2, 3, 5)):
        ids = torch.randint(0, MAX_LEN, shape)
        assert torch.equal(layer.rows(ids), layer.weight[ids])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_loses_no_position(dtype: torch.dtype) -> None:
    layer = LearnedPositionalEmbedding(max_len=600, dim=1, dropout=0, init=torch.arange(600.0)[:, None] * 2**-20).to(
        dtype
    )
    ids = torch.arange(600)
    x = torch.zeros(1, 600, 1, dtype=dtype)
    for out in (layer(x), layer(x, ids), layer(x, offset=torch.tensor([0]))):
        assert out.dtype == dtype
        assert torch.equal(out[0], layer.weight)


def test_mixed_precision_follows_pytorchs_promotion() -> None:
    layer = layer_of()
    x = torch.randn(2, 3, DIM, dtype=torch.bfloat16)
    for ids in (None, torch.arange(6).view(2, 3)):
        assert layer(x, ids).dtype == torch.float32
        assert layer.to(torch.bfloat16)(x.float(), ids).dtype == torch.float32
        layer.float()


def test_padding_reads_its_row_and_trains_nothing() -> None:
    layer = layer_of(TableLayout.roberta(pad_id=1))
    ids = torch.tensor([[0, 1, PADDING], [PADDING, 0, 1]])
    x = torch.randn(2, 3, DIM)
    out = layer(x, ids)
    assert torch.equal(out, expected(layer, x, ids.tolist()))
    out.sum().backward()
    assert layer.weight.grad[2:4].all()
    assert not layer.weight.grad[:2].any()


@pytest.mark.parametrize(
    ("peer", "feed"), [(OPTLearnedPositionalEmbedding, "mask"), (BartLearnedPositionalEmbedding, "tokens")]
)
def test_the_same_rows_as_transformers(peer: type[nn.Embedding], feed: str) -> None:
    theirs = peer(MAX_LEN, DIM)
    layer = LearnedPositionalEmbedding(max_len=MAX_LEN, dim=DIM, layout=TableLayout.OPT, init=theirs.weight.detach())
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]])
    if feed == "mask":
        assert torch.equal(layer.rows(positions.from_mask(mask, padding=PADDING)), theirs(mask))
    else:
        assert torch.equal(layer(mask, offset=3), theirs(mask, 3).expand(3, -1, -1))


@pytest.mark.parametrize("init", ["normal", "truncated_normal", "xavier", "sinusoidal", "zero"])
def test_initial_values(init: str) -> None:
    torch.manual_seed(0)
    layer = LearnedPositionalEmbedding(max_len=200, dim=64, init=init, layout=TableLayout.OPT)
    assert not layer.weight[:2].any()
    scale = layer.weight[2:].square().mean().sqrt().item()
    others = {"xavier": (2 / (200 + 64)) ** 0.5, "zero": 0.0, "truncated_normal": 0.0176, "sinusoidal": 0.5**0.5}
    assert scale == pytest.approx(others.get(init, 0.02), rel=0.03)
    torch.manual_seed(0)
    again = copy.deepcopy(layer)
    again.weight.data.fill_(7)
    again.reset_parameters()
    assert torch.equal(again.weight, layer.weight)


# No position without a row


MESSAGE = (
    "position 512 has no row: {}this table holds positions 0 to 511 (max_len=512). Shorten the input, lengthen "
    "the table (posembed.resize_table, posembed resize), or use an encoding without an end "
    "(RollingPositionalEmbedding, Alibi)."
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_error_of_every_way_in(layout: TableLayout) -> None:
    layer = LearnedPositionalEmbedding(max_len=512, dim=4, layout=layout)
    x, token = torch.zeros(1, 513, 4), torch.zeros(2, 1, 4)
    some = x[:, :100]
    reaching = "100 tokens from offset 413 reach it, and "
    ways = {
        "513 tokens from offset 0 reach it, and ": [lambda: layer(x), lambda: layer(x.long()[..., 0])],
        reaching: [
            lambda: layer(some, offset=413),
            lambda: layer(some.expand(2, -1, -1), offset=torch.tensor([3, 413])),
            lambda: torch.compile(layer, backend="eager")(some, offset=torch.tensor(413)),
        ],
        "": [
            lambda: layer(some, torch.arange(100).flip(0) * 2 + 314),
            lambda: layer(token, offset=512),
            lambda: layer(token, offset=torch.tensor(512)),
            lambda: layer(token, offset=torch.tensor([3, 512])),
            lambda: layer(token, torch.tensor([512])),
            lambda: layer(token, torch.tensor([[3], [512]], dtype=torch.int16)),
            lambda: layer.at_input(token, torch.tensor([512])),
            lambda: layer.rows(torch.tensor(512)),
        ],
    }
    for reached, calls in ways.items():
        for call in calls:
            with pytest.raises(PositionError) as caught:
                call()
            assert str(caught.value) == MESSAGE.format(reached)
    layer(token, offset=511)


def test_unchecked_ids_are_read_as_they_are() -> None:
    layer = layer_of(check_ids=False)
    assert torch.equal(layer.rows(torch.tensor([3])), layer.weight[3:4])
    with pytest.raises(IndexError, match="index out of range in self"):
        layer.rows(torch.tensor([MAX_LEN]))
    with pytest.raises(PositionError):
        layer(torch.zeros(1, MAX_LEN + 1, DIM))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_no_tokens_are_no_error(layout: TableLayout) -> None:
    layer = layer_of(layout).train()
    assert layer(torch.zeros(2, 0, DIM)).shape == (2, 0, DIM)
    assert layer(torch.zeros(0, 3, DIM)).shape == (0, 3, DIM)
    for offset in (MAX_LEN, MAX_LEN + 9):
        assert layer(torch.zeros(2, 0, DIM), offset=offset).shape == (2, 0, DIM)
    assert layer(torch.zeros(2, 0, DIM), torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, DIM)
    assert layer(torch.zeros(2, 0, DIM), offset=torch.tensor([1, 2])).shape == (2, 0, DIM)
    assert layer(torch.zeros(2, 0, dtype=torch.int64)).shape == (2, 0, DIM)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_survives_the_error() -> None:
    layer = layer_of().cuda()
    x = torch.randn(2, 3, DIM, device="cuda")
    ways = [
        lambda call: call(torch.zeros(1, MAX_LEN + 1, DIM, device="cuda")),
        lambda call: call(x, torch.tensor([0, MAX_LEN, 1], device="cuda")),
        lambda call: call(x, offset=torch.tensor([0, MAX_LEN - 2], device="cuda")),
    ]
    for call in (layer, torch.compile(layer), torch.compile(layer, mode="reduce-overhead")):
        for way in ways:
            with pytest.raises(PositionError, match=f"position {MAX_LEN}"):
                way(call)
            assert torch.equal(call(x, torch.arange(3, device="cuda")), x + layer.weight[:3])
            torch.cuda.synchronize()


# As a module


def test_a_table_of_another_length_is_refused_with_the_remedy() -> None:
    model = nn.ModuleDict({"positions": LearnedPositionalEmbedding(max_len=8, dim=DIM, layout=TableLayout.OPT)})
    longer = nn.ModuleDict({"positions": LearnedPositionalEmbedding(max_len=9, dim=DIM, layout=TableLayout.OPT)})
    message = (
        r"positions.weight is \(11, 6\), and this layer holds \(10, 6\): 8 positions in "
        r"TableLayout\(reserved=2, pad_row=1\). .* posembed.resize_table\(table, length=8\), or build the layer"
    )
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=message):
            model.load_state_dict(longer.state_dict(), strict=strict)


def test_a_missing_weight_names_the_call_that_finds_the_table() -> None:
    with pytest.raises(RuntimeError, match=r'Missing key.*"weight: if the table has another name, from_state_dict'):
        layer_of().load_state_dict({})
