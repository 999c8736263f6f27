"""Positions drawn for training: what each sampler may give, how often, and that a seed decides it."""

from __future__ import annotations

import math

import pytest
import torch

from posembed.errors import ArgumentError
from posembed.positions import abacus, coupled, randomized, shifted, skipped
from together import together

TOKENS = {character: index for index, character in enumerate("0123456789+=$")}
DIGITS = torch.arange(10)


def written(*texts: str) -> torch.Tensor:
    return torch.tensor([[TOKENS[character] for character in text] for text in texts])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


drawn = [
    lambda generator: shifted(3, 7, max_shift=50, generator=generator),
    lambda generator: randomized(3, 7, max_len=50, generator=generator),
    lambda generator: skipped(3, 7, max_len=50, chunks=3, generator=generator),
    lambda generator: abacus(written("$12+3=42"), DIGITS, max_shift=99, generator=generator),
    lambda generator: coupled(written("$12+3=42"), DIGITS, TOKENS["="], max_start=99, generator=generator),
]


@pytest.mark.parametrize("draw", drawn)
def test_a_seed_decides_the_draw(draw) -> None:
    assert torch.equal(draw(seeded(3)), draw(seeded(3)))
    assert any(not torch.equal(draw(seeded(3)), draw(seeded(seed))) for seed in (4, 5, 6))
    ours = draw(seeded(3))
    torch.manual_seed(3)
    assert torch.equal(ours, draw(None)), "without a generator, torch's own"


def test_shifted_is_consecutive_from_a_uniform_start() -> None:
    ids = shifted(4000, 5, max_shift=3, generator=seeded())
    assert (ids.diff(dim=1) == 1).all()
    counts = ids[:, 0].bincount()
    assert counts.shape == (4,)
    assert (counts - 1000).abs().max() < 5 * math.sqrt(4000 * 0.25 * 0.75)
    assert shifted(2, 5, max_shift=0).tolist() == [[0, 1, 2, 3, 4]] * 2


def test_randomized_is_a_uniform_choice_in_order() -> None:
    ids = randomized(4000, 3, max_len=6, generator=seeded())
    assert (ids.diff(dim=1) > 0).all()
    assert ids.min() == 0
    assert ids.max() == 5
    assert (ids.flatten().bincount() - 2000).abs().max() < 5 * math.sqrt(4000 * 0.5 * 0.5)
    assert randomized(2, 5, max_len=5).tolist() == [[0, 1, 2, 3, 4]] * 2


def test_skipped_is_consecutive_within_chunks() -> None:
    ids = skipped(4000, 8, max_len=32, chunks=3, generator=seeded())
    steps = ids.diff(dim=1)
    assert (steps >= 1).all()
    assert ((steps > 1).sum(dim=1) <= 2).all()
    assert (ids[:, 0] == 0).all(), "u_0 = 0"
    assert ids.max() == 31
    assert torch.unique(ids).tolist() == list(range(32)), "every position of the longer table is met"
    assert skipped(2, 5, max_len=20, chunks=1).tolist() == [[0, 1, 2, 3, 4]] * 2
    assert skipped(2, 5, max_len=5, chunks=2).tolist() == [[0, 1, 2, 3, 4]] * 2


def test_skip_of_two_chunks_is_uniform() -> None:
    last = skipped(4000, 8, max_len=12, chunks=2, generator=seeded())[:, -1]
    assert (last - 7).bincount().shape == (5,)
    assert ((last - 7).bincount() - 800).abs().max() < 5 * math.sqrt(4000 * 0.2 * 0.8)


def test_abacus_counts_within_each_number() -> None:
    assert abacus(written("$12+345=678"), DIGITS).tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3]]
    assert abacus(written("12", "1+", "++"), DIGITS).tolist() == [[1, 2], [1, 0], [0, 0]]


def test_abacus_moves_a_batch_by_one_shift() -> None:
    tokens = written("$12+345=678", "1+2=3$$$$$$")
    places = abacus(tokens, DIGITS)
    shifts = set()
    for seed in range(50):
        ids = abacus(tokens, DIGITS, max_shift=3, generator=seeded(seed))
        moved = (ids - places)[places > 0].unique().tolist()
        assert len(moved) == 1
        assert (ids[places == 0] == 0).all()
        shifts |= set(moved)
    assert shifts == {0, 1, 2, 3}


def test_coupled_gives_one_significance_one_id() -> None:
    tokens = written("$653+49=207$")
    assert coupled(tokens, DIGITS, TOKENS["="]).tolist() == [[0, 4, 3, 2, 1, 3, 2, 1, 2, 3, 4, 0]]


def test_coupled_starts_at_random_in_each_sequence() -> None:
    tokens = written("$653+49=207$").expand(400, -1)
    plain = coupled(tokens, DIGITS, TOKENS["="])
    ids = coupled(tokens, DIGITS, TOKENS["="], max_start=4, generator=seeded())
    assert (ids[plain == 0] == 0).all()
    moved = torch.where(plain > 0, ids - plain, -1).max(dim=1).values
    assert moved.unique().tolist() == [0, 1, 2, 3]
    assert torch.equal(ids, torch.where(plain > 0, plain + moved[:, None], 0))


def test_coupled_knows_an_answer_digit_before_the_next_is_written() -> None:
    whole = coupled(written("$65+49=411"), DIGITS, TOKENS["="])
    for length in range(7, 10):
        assert torch.equal(coupled(written("$65+49=411"[:length]), DIGITS, TOKENS["="]), whole[:, :length])


@pytest.mark.parametrize("length", [0, 1])
def test_short_sequences(length: int) -> None:
    assert shifted(2, length, max_shift=3).shape == (2, length)
    assert randomized(2, length, max_len=3).shape == (2, length)
    assert skipped(2, length, max_len=3, chunks=1).shape == (2, length)
    assert abacus(torch.zeros(2, length, dtype=torch.int64), DIGITS).shape == (2, length)
    assert coupled(torch.zeros(2, length, dtype=torch.int64), DIGITS, TOKENS["="]).shape == (2, length)


bad = [
    (lambda: shifted(2, 5, max_shift=-1), "max_shift: expected a whole number of at least 0; got -1"),
    (lambda: randomized(2, 5, max_len=4), "5 tokens need 5 different positions; max_len=4 has fewer"),
    (lambda: skipped(2, 5, max_len=4), "max_len=4 has fewer"),
    (lambda: skipped(2, 5, max_len=9, chunks=6), "chunks must be 1 .. length = 5; got 6"),
    (lambda: skipped(2, 5, max_len=9, chunks=0), "got 0"),
    (lambda: abacus(torch.tensor([[0.5]]), DIGITS), "token_ids: expected a tensor of integers .*; got .*long"),
    (lambda: abacus(written("1"), DIGITS, max_shift=-1), "max_shift: expected a whole number of at least 0; got -1"),
    (lambda: coupled(written("1"), DIGITS, 11, max_start=0), "max_start: expected a whole number of at least 1; got 0"),
]


@together(("call", "message"), bad)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
