"""LongRoPE's search, on made-up losses with a known best."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed import (
    ArgumentError,
    LinearScaling,
    LongRopeScaling,
    NTKScaling,
    RotaryEmbedding,
    YarnScaling,
    search_longrope_factors,
)
from posembed.lab.rotary_search import FURTHEST, INITIAL_TOKENS
from tolerance import assert_close

LENGTHS = {"original_length": 64, "length": 512}
BEST = (1.0, 1.1, 1.3, 1.8, 2.6, 4.0, 6.5, 9.0)


def distance(scaling: LongRopeScaling) -> float:
    """0 at BEST with 8 initial tokens."""
    factors = sum(abs(math.log(f / best)) for f, best in zip(scaling.long_factors, BEST, strict=True))
    return factors + 0.01 * abs(scaling.initial_tokens - 8)


def test_it_finds_the_best_of_a_made_up_loss() -> None:
    found = search_longrope_factors(distance, head_dim=16, budget=1500, **LENGTHS)
    assert found.loss == distance(found.scaling) < 0.15
    assert found.loss < 0.1 * min(found.starts.values())
    assert found.scaling.initial_tokens == 8


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.integers(1, 8), st.integers(3, 60), st.integers(0, 5), st.integers(65, 2000), st.integers(4, 12))
def test_what_every_search_promises(pairs: int, budget: int, seed: int, length: int, population: int) -> None:
    """Never worse than its starts, within the budget, in order and in range; nothing is evaluated twice."""
    seen: list[LongRopeScaling] = []

    def loss(scaling: LongRopeScaling) -> float:
        seen.append(scaling)
        return math.sin(13 * sum(scaling.long_factors) + scaling.initial_tokens)

    sizes = {"head_dim": 2 * pairs, "original_length": 64, "length": length, "population": population}
    found = search_longrope_factors(loss, budget=budget, seed=seed, attention_factor=1.0, **sizes)
    assert found.loss == min(map(loss, list(seen))) <= min(found.starts.values())
    seen = seen[: found.evaluations]
    assert len(set(seen)) == len(seen) == found.evaluations <= budget
    for scaling in seen:
        factors = scaling.long_factors
        assert list(factors) == sorted(factors)
        assert factors[0] >= 1
        assert factors[-1] <= FURTHEST * length / 64 * (1 + 1e-9)
        assert scaling.initial_tokens in INITIAL_TOKENS
        assert scaling.short_factors == (1.0,) * pairs
    seen = []
    assert search_longrope_factors(loss, budget=budget, seed=seed, attention_factor=1.0, **sizes) == found


def test_the_starts_are_the_scalings() -> None:
    seen: list[LongRopeScaling] = []
    search_longrope_factors(lambda s: len(seen.append(s) or []), head_dim=16, budget=3, **LENGTHS)  # type: ignore[func-returns-value,arg-type]
    ids = torch.arange(0, 512, 7)
    for given_, scaling in zip(seen, (LinearScaling(8.0), NTKScaling(8.0), YarnScaling(64, 8.0)), strict=True):
        ours, theirs = (RotaryEmbedding(16, scaling=s) for s in (given_, scaling))
        frequencies = torch.tensor([10000.0 ** (-j / 8) for j in range(8)])
        scaled = [r.scaling.scaled(frequencies, base=1e4, length=torch.tensor(512))[0] for r in (ours, theirs)]
        assert_close(*scaled)
        assert ours.cos_sin(ids)[0].shape == theirs.cos_sin(ids)[0].shape


def test_another_seed_searches_elsewhere() -> None:
    one, other = (search_longrope_factors(distance, head_dim=16, budget=60, seed=s, **LENGTHS) for s in (0, 1))
    assert one.scaling != other.scaling
    assert one.starts == other.starts


def test_a_loss_that_is_not_finite_is_the_worst() -> None:
    def loss(scaling: LongRopeScaling) -> float:
        return float("nan") if scaling.long_factors[0] > 1.5 else sum(scaling.long_factors)

    found = search_longrope_factors(loss, head_dim=16, budget=40, **LENGTHS)
    assert math.isfinite(found.loss)
    assert found.starts["linear"] == math.inf


def test_a_space_without_anything_new_ends_the_search() -> None:
    """One pair, and linear, NTK and YaRN factors of 1: hardly anything else is possible."""
    found = search_longrope_factors(lambda s: 1.0, head_dim=2, original_length=64, length=65, budget=50)
    assert 1 <= found.evaluations <= 50


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"length": 64}, "length must be above original_length=64"),
        ({"budget": 2}, "budget must be at least 3"),
        ({"population": 3}, "population at least 4"),
        ({"head_dim": 7}, "even"),
        ({"budget": 2.5}, "budget must be a whole number"),
        ({"original_length": 0}, "original_length must be at least 1"),
        ({"original_length": 1}, "at least 2; got 1"),
        *(({"base": base}, "base must be a number above 0") for base in (0, -5.0, math.nan, math.inf, "1")),
        ({"base": 1.0}, "a base above 1"),
        ({"seed": None}, "seed must be a whole number"),
        ({"loss": lambda s: None}, "loss must return a number for each scaling; got None"),
        ({"loss": lambda s: torch.ones(3)}, "loss must return a number"),
    ],
)
def test_bad_input(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        search_longrope_factors(**({"loss": distance, "head_dim": 16} | LENGTHS | wrong))  # type: ignore[arg-type]


def test_initial_tokens_keep_their_angles() -> None:
    scaling = LongRopeScaling((1.0,) * 4, (2.0, 3.0, 4.0, 5.0), 16, 4.0, attention_factor=1.0, initial_tokens=5)
    plain, scaled = RotaryEmbedding(8), RotaryEmbedding(8, scaling=scaling)
    without = RotaryEmbedding(8, scaling=LongRopeScaling((1.0,) * 4, (2.0, 3.0, 4.0, 5.0), 16, 4.0, 1.0))
    for ids in (torch.arange(40), torch.arange(40).flip(0)[None].expand(2, -1)):
        first = (ids < 5)[..., None] if ids.dim() == 1 else (ids < 5)[:, None, :, None]
        for ours, kept, other in zip(*(r.cos_sin(ids) for r in (scaled, plain, without)), strict=True):
            assert torch.equal(ours, torch.where(first, kept, other))
    with pytest.raises(ArgumentError, match="initial_tokens"):
        LongRopeScaling((1.0,), (2.0,), 16, 4.0, initial_tokens=-1)


@pytest.mark.parametrize("initial_tokens", [1, 100, 127, 128, 255, 256, 300, 70_000])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_initial_tokens_are_counted_in_every_type_of_ids(initial_tokens: int, dtype: torch.dtype) -> None:
    rope = RotaryEmbedding(4, scaling=LongRopeScaling((1.0,) * 2, (2.0, 3.0), 16, 4.0, initial_tokens=initial_tokens))
    ids = torch.arange(min(torch.iinfo(dtype).max + 1, 400))
    for ours, expected in zip(rope.cos_sin(ids.to(dtype)), rope.cos_sin(ids), strict=True):
        assert torch.equal(ours, expected)
