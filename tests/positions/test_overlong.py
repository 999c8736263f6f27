"""What a caller may choose to do with more tokens than the table has rows."""

from __future__ import annotations

import pytest
import torch

from posembed.errors import ArgumentError
from posembed.positions import keep_head_and_tail, sliding

tokens = torch.arange(10).repeat(2, 1)


def test_which_tokens_are_kept() -> None:
    assert keep_head_and_tail(tokens, 4, head=1)[1].tolist() == [0, 7, 8, 9]
    assert keep_head_and_tail(tokens, 4, head=4)[1].tolist() == [0, 1, 2, 3]
    assert keep_head_and_tail(tokens, 4, head=0)[1].tolist() == [6, 7, 8, 9]


@pytest.mark.parametrize("max_len", [10, 11, 99])
def test_what_fits_is_kept_whole(max_len: int) -> None:
    assert torch.equal(keep_head_and_tail(tokens, max_len, head=3), tokens)


def test_rows_of_width_are_kept_as_the_tokens_are() -> None:
    x = torch.randn(2, 10, 3)
    ids = keep_head_and_tail(tokens, 6, head=2)[0]
    assert torch.equal(keep_head_and_tail(x, 6, head=2), x[:, ids])


def test_a_stream_stays_at_the_last_position() -> None:
    stream = [sliding(1, offset, 4).item() for offset in range(7)]
    assert stream == [0, 1, 2, 3, 3, 3, 3]
    assert sliding(3, 2, 4).tolist() == [1, 2, 3]
    assert sliding(2, torch.tensor([0, 2, 9], dtype=torch.uint8), 4).tolist() == [[0, 1], [2, 3], [2, 3]]
    assert sliding(2, torch.tensor([250], dtype=torch.uint8), 1000).tolist() == [[250, 251]]


bad = [
    (lambda: keep_head_and_tail(tokens, 0, head=0), "max_len: expected a whole number of at least 1; got 0"),
    (lambda: keep_head_and_tail(tokens, 4, head=5), "head must be 0 .. max_len = 4; got 5"),
    (lambda: keep_head_and_tail(tokens, 4, head=-1), "got -1"),
    (lambda: sliding(5, 0, 4), "5 tokens do not fit in a window of 4; feed at most 4 at once"),
    (lambda: sliding(1, -1, 4), "got -1"),
    (lambda: sliding(1, torch.tensor([-1]), 4), "got -1"),
]


@pytest.mark.parametrize(("call", "message"), bad)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
