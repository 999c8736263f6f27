"""Which rows hold positions, for the known layouts and for any."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.errors import ArgumentError
from posembed.tables.layout import PADDING, TableLayout
from together import together

few = settings(max_examples=25, deadline=None, derandomize=True)
counts = st.integers(0, 4)


def test_usable_lengths_of_known_models() -> None:
    assert TableLayout.BERT.length(512) == 512
    assert TableLayout.GPT2.length(1024) == 1024
    assert TableLayout.WHISPER.length(448) == 448
    assert TableLayout.CLIP_TEXT.length(77) == 77
    assert TableLayout.roberta(pad_id=1).length(514) == 512
    assert TableLayout.roberta(pad_id=3).length(514) == 510
    assert TableLayout.BART.length(1026) == 1024
    assert TableLayout.OPT.length(2050) == 2048
    assert TableLayout.VIT.on_grid(14, 14).length(197) == 196
    assert TableLayout.CLIP_VISION.on_grid(7, 7).length(50) == 49
    assert TableLayout.DEIT.on_grid(14, 14).length(198) == 196


@few
@given(reserved=counts, prefix=counts, tail=counts, length=st.integers(1, 9))
def test_rows_and_length_are_inverse_and_split_partitions(reserved: int, prefix: int, tail: int, length: int) -> None:
    layout = TableLayout(reserved=reserved, prefix=prefix, tail=tail)
    rows = layout.rows(length)
    assert layout.length(rows) == length
    table = torch.arange(rows)[:, None]
    front, positions, behind = layout.split(table)
    assert torch.equal(torch.cat((front, positions, behind)), table)
    assert torch.equal(positions.flatten(), layout.rows_of(torch.arange(length)))
    assert (front.shape[0], behind.shape[0]) == (reserved + prefix, tail)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_rows_of_small_integers_do_not_overflow(dtype: torch.dtype) -> None:
    rows = TableLayout(reserved=100).rows_of(torch.tensor([[0, 127]], dtype=dtype))
    assert rows.tolist() == [[100, 227]]


def test_padding_reads_the_pad_row_wherever_it_is() -> None:
    ids = torch.tensor([PADDING, 0, 1])
    assert TableLayout.roberta(pad_id=1).rows_of(ids).tolist() == [1, 2, 3]
    assert TableLayout(reserved=4, pad_row=0).rows_of(ids).tolist() == [0, 4, 5]


def test_split_is_a_view() -> None:
    table = torch.zeros(5, 2)
    TableLayout.OPT.split(table)[1].fill_(1)
    assert table.sum() == 6


def test_a_layout_is_a_value() -> None:
    assert TableLayout.roberta(pad_id=1) == TableLayout.OPT == TableLayout(reserved=2, pad_row=1)
    assert pickle.loads(pickle.dumps(TableLayout.DEIT)) == TableLayout.DEIT
    assert len({TableLayout.BERT, TableLayout.GPT2, TableLayout()}) == 1
    with pytest.raises(FrozenInstanceError):
        TableLayout.BERT.reserved = 3


def test_str_is_the_call_that_makes_it() -> None:
    layout = TableLayout.DEIT.on_grid(3, 5)
    assert str(layout) == "TableLayout(prefix=2, grid=(3, 5))"
    assert str(TableLayout()) == "TableLayout()"
    assert eval(str(layout)) == layout


bad = [
    (lambda: TableLayout(reserved=-1), "reserved: expected a whole number of at least 0; got -1"),
    (lambda: TableLayout(reserved=1.5), "reserved: expected a whole number of at least 0; got 1.5"),
    (lambda: TableLayout(grid=(2.0, 2)), r"grid: expected a pair, each a whole number of at least 1; got \(2.0, 2\)"),
    (lambda: TableLayout.roberta(pad_id=None), "pad_id: expected a whole number of at least 0; got None"),
    (lambda: TableLayout(prefix=-1), "prefix: expected a whole number of at least 0"),
    (lambda: TableLayout(tail=-2), "tail: expected a whole number of at least 0; got -2"),
    (lambda: TableLayout(pad_row=0), "pad_row must be one of the 0 reserved rows; got 0. Raise reserved"),
    (lambda: TableLayout(reserved=2, pad_row=2), "pad_row must be one of the 2 reserved rows; got 2"),
    (lambda: TableLayout(grid=(3, 0)), r"grid: expected a pair, each a whole number of at least 1; got \(3, 0\)"),
    (lambda: TableLayout(grid=(3,)), r"got \(3,\)"),
    (lambda: TableLayout.roberta(pad_id=-1), "pad_id: expected a whole number of at least 0; got -1"),
    (lambda: TableLayout.OPT.length(2), "no row left for a position: 2 reserved, 0 prefix and 0 tail"),
    (lambda: TableLayout.VIT.on_grid(3, 5).length(10), "a grid of 3 x 5 holds 15 positions; got a length of 9"),
    (lambda: replace(TableLayout.VIT, grid=(2, 2)).rows(5), "holds 4 positions; got a length of 5"),
]


@together(("call", "message"), bad)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
