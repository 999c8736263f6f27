"""What a table starts with."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

from posembed.errors import ArgumentError
from posembed.tables.fill import SCALED, initial_rows, initial_table, root_mean_square, sinusoidal_table
from posembed.tables.layout import TableLayout
from tolerance import assert_close

LENGTH, DIM = 300, 64


def oracle(position: int, dim: int, base: float) -> np.ndarray:
    """One row of Vaswani et al., section 3.5, as it is written there."""
    angles = [position / base ** (2 * i / dim) for i in range(dim // 2)]
    return np.array([f(angle) for angle in angles for f in (math.sin, math.cos)])


@pytest.mark.parametrize("base", [10000.0, 100.0])
@pytest.mark.parametrize("dim", [2, 6, 64])
def test_interleaved_is_the_papers(dim: int, base: float) -> None:
    table = sinusoidal_table(5000, dim, base=base)
    assert table.dtype == torch.float32
    for position in (0, 1, 255, 256, 257, 4999):
        exact = torch.from_numpy(oracle(position, dim, base)).float()
        assert_close(table[position], exact)


@pytest.mark.parametrize("dim", [4, 10, 64])
def test_halves_are_fairseqs(dim: int) -> None:
    theirs = M2M100SinusoidalPositionalEmbedding.get_embedding(40, dim)
    assert_close(sinusoidal_table(40, dim, interleaved=False), theirs)


def test_scaled_sinusoids_have_the_scale_asked_for() -> None:
    table = initial_table("sinusoidal", LENGTH, DIM, std=0.05)
    assert_close(table.square().mean().sqrt(), torch.tensor(0.05))
    assert_close(table / table.norm(dim=1)[:, None], sinusoidal_table(LENGTH, DIM) / math.sqrt(32))


def test_random_fills_have_their_distribution() -> None:
    torch.manual_seed(0)
    values = initial_table("normal", LENGTH, DIM, std=0.02)
    assert abs(values.std() / 0.02 - 1) < 0.03
    assert values.abs().max() > 3 * 0.02, "a normal has tails"

    values = initial_table("truncated_normal", LENGTH, DIM, std=0.02)
    assert values.abs().max() <= 2 * 0.02
    assert abs(values.std() / (0.02 * 0.8796) - 1) < 0.03, "the standard deviation of N(0, 1) cut at 2"

    values = initial_table("xavier", LENGTH, DIM)
    bound = math.sqrt(6 / (LENGTH + DIM))
    assert 0.99 * bound < values.abs().max() <= bound
    assert abs(values.std() / (bound / math.sqrt(3)) - 1) < 0.03

    assert not initial_table("zero", LENGTH, DIM).any()


def test_sinusoids_are_the_formula_unless_they_are_scaled() -> None:
    assert torch.equal(initial_table("sinusoidal", LENGTH, DIM), sinusoidal_table(LENGTH, DIM))


@pytest.mark.parametrize("init", ["xavier", "zero"])
def test_what_has_no_scale_refuses_one(init: str) -> None:
    with pytest.raises(ArgumentError, match=f"normal, truncated_normal, sinusoidal .*; leave it out for '{init}'"):
        initial_table(init, LENGTH, DIM, std=0.02)


@pytest.mark.parametrize("init", ["normal", "truncated_normal", "xavier", "sinusoidal", "zero"])
def test_names(init: str) -> None:
    torch.manual_seed(0)
    std = 0.1 if init in SCALED else None
    table = initial_table(init, LENGTH, DIM, std=std)
    assert table.shape == (LENGTH, DIM)
    torch.manual_seed(0)
    assert torch.equal(table, initial_table(init, LENGTH, DIM, std=std))

    rows = initial_rows(init, TableLayout.OPT, LENGTH, DIM)
    assert rows.shape == (LENGTH + 2, DIM)
    assert not rows[:2].any(), "no position reads the reserved rows"
    assert rows[2:].any() == (init != "zero")


def test_sinusoids_count_from_the_first_row_that_is_not_reserved() -> None:
    rows = initial_rows("sinusoidal", TableLayout.roberta(pad_id=3), LENGTH, DIM)
    assert torch.equal(rows[4:], initial_table("sinusoidal", LENGTH, DIM))


def test_a_given_table_is_taken_as_it_is() -> None:
    table = torch.randn(LENGTH + 2, DIM)
    assert torch.equal(initial_rows(table, TableLayout.OPT, LENGTH, DIM), table)


broken = torch.zeros(LENGTH, DIM)
broken[7, 3] = float("nan")
bad = [
    (lambda: sinusoidal_table(4, 5), "come in pairs: dim must be even; got 5"),
    (lambda: sinusoidal_table(4, 0), "dim: expected a whole number of at least 1; got 0"),
    (lambda: initial_table("uniform", 4, 4), "unknown init 'uniform'; choose from normal, .*, zero, or a tensor"),
    (
        lambda: initial_rows(torch.zeros(LENGTH, DIM), TableLayout.OPT, LENGTH, DIM),
        r"must be \(302, 64\) floats, for 300 positions in TableLayout\(reserved=2, .*; got \(300, 64\)",
    ),
    (
        lambda: initial_rows(torch.zeros(LENGTH, DIM, dtype=torch.int64), TableLayout(), LENGTH, DIM),
        "got .* of torch.int64",
    ),
    (lambda: initial_rows(broken, TableLayout(), LENGTH, DIM), "must be finite; got nan in row 7"),
]


@pytest.mark.parametrize(("call", "message"), bad)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_root_mean_square() -> None:
    assert_close(root_mean_square(torch.tensor([3.0, 4.0], dtype=torch.bfloat16)), 12.5**0.5, dtype=torch.float32)
