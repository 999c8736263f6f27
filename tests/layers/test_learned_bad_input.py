"""What LearnedPositionalEmbedding refuses: what was expected, what came, what to do."""

from __future__ import annotations

import pytest
import torch

from posembed import LearnedPositionalEmbedding
from posembed.errors import ArgumentError, PositionError
from posembed.tables import TableLayout
from together import together

layer = LearnedPositionalEmbedding(max_len=8, dim=4, dropout=0)
x = torch.zeros(2, 3, 4)
not_finite = torch.zeros(8, 4)
not_finite[5, 1] = float("nan")

bad = [
    # Construction
    (
        lambda: LearnedPositionalEmbedding(max_len=8, dim=4, init="uniform"),
        "unknown init 'uniform'; choose from normal, .*, or a tensor",
    ),
    (lambda: LearnedPositionalEmbedding(max_len=8, dim=4, init="zero", std=1.0), "leave it out for 'zero'"),
    (lambda: LearnedPositionalEmbedding(max_len=8, dim=4, init=x[0], std=1.0), "leave it out for a given table"),
    (lambda: LearnedPositionalEmbedding(max_len=8, dim=5, init="sinusoidal"), "dim must be even; got 5"),
    (lambda: LearnedPositionalEmbedding(max_len=8, dim=4, init=not_finite), "must be finite; got nan in row 5"),
    (
        lambda: LearnedPositionalEmbedding(max_len=8, dim=4, init=torch.zeros(9, 4)),
        r"must be \(8, 4\) floats.*got \(9, 4\)",
    ),
    (
        lambda: LearnedPositionalEmbedding(max_len=8, dim=4, layout=TableLayout.VIT),
        r"no prefix, tail or grid; got TableLayout\(prefix=1\). Use LearnedGridEmbedding",
    ),
    (
        lambda: LearnedPositionalEmbedding(max_len=8, dim=4, init=torch.zeros(8, 4)).reset_parameters(),
        "load_state_dict",
    ),
    # Input
    (lambda: layer(torch.zeros(3, 4)), r"x must be \(B, L, D=4\); got \(3, 4\)"),
    (lambda: layer(torch.zeros(2, 3, 5)), r"x must be \(B, L, D=4\); got \(2, 3, 5\)"),
    (lambda: layer(torch.zeros(2, 3, 4, dtype=torch.int64)), r"integer x must be \(B, L\); got \(2, 3, 4\)"),
    (lambda: layer(torch.zeros(3, dtype=torch.int64)), r"integer x must be \(B, L\); got \(3,\)"),
    (
        lambda: layer(torch.zeros(2, 3, dtype=torch.bool)),
        r"x, unless it is \(B, L, D\) floats, must be integers; got torch.bool",
    ),
    # Ids
    (lambda: layer(x, torch.arange(3.0)), r"position_ids must be integers; got torch.float32. .*\.long\(\)"),
    (lambda: layer(x, torch.ones(2, 3, dtype=torch.bool)), "position_ids must be integers; got torch.bool"),
    (lambda: layer(x, torch.arange(4)), r"\(L,\)=\(3,\) or \(B, L\)=\(2, 3\) for this input; got \(4,\)"),
    (lambda: layer(x, torch.zeros(3, 3, dtype=torch.int64)), r"got \(3, 3\)"),
    (lambda: layer(x, torch.zeros(3, 2, dtype=torch.int64)), r"got \(3, 2\)"),
    (lambda: layer(x, torch.zeros(1, 2, 3, dtype=torch.int64)), r"got \(1, 2, 3\)"),
    (lambda: layer(x, torch.tensor(1)), r"got \(\)"),
    (lambda: layer(x, torch.arange(3), offset=2), "position_ids or offset, not both: add the offset to the ids"),
    (lambda: layer(x, torch.arange(3), offset=torch.tensor([1, 2])), "not both"),
    # Offsets
    (lambda: layer(x, offset=-1), "offset counts the tokens that came before: 0, 1, 2, ...; got -1"),
    (lambda: layer(x, offset=torch.tensor([2, -3])), "got -3"),
    (lambda: layer(x, offset=1.5), "got 1.5"),
    (lambda: layer(x, offset=torch.tensor([1.0, 2.0])), "offset must be integers; got torch.float32"),
    (lambda: layer(x, offset=torch.tensor([1, 2, 3])), r"\(B,\)=\(2,\) for this input; got \(3,\)"),
    (lambda: layer(x, offset=torch.ones(2, 1, dtype=torch.int64)), r"offset must be a number or \(B,\)"),
]


@together(("call", "message"), bad)
def test_refused(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_negative_ids_are_positions_without_a_row() -> None:
    with pytest.raises(PositionError, match="position -1 has no row: this table holds positions 0 to 7"):
        layer(x, torch.tensor([0, -1, 2]))


def test_unchecked_ids_still_have_to_be_integers() -> None:
    unchecked = LearnedPositionalEmbedding(max_len=8, dim=4, check_ids=False)
    with pytest.raises(ArgumentError, match="position_ids must be integers"):
        unchecked.rows(torch.tensor([0.5]))
