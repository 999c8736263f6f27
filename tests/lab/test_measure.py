from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from posembed.errors import DataError, PositionError
from posembed.lab import measure
from posembed.lab.tasks.text_specs import CHUNKED_SAME, CHUNKED_WHOLE, REPEAT_GAIN, SAME_TOKENS, WHOLE_WINDOWS
from posembed.measure.metrics import Metric
from tolerance import assert_close


def context(ids: Tensor) -> Tensor:
    """A "loss" that is how many tokens stand before each one: it tells exactly what was fed."""
    return torch.arange(1, ids.size(1), dtype=torch.float64).expand(len(ids), -1)


def test_a_loss_in_nats_per_token_becomes_bits_per_byte() -> None:
    assert measure.bits_per_byte(6 * math.log(2), 3.0) == 2.0
    assert measure.bits_per_byte(None, 3.0) is None


def test_windows_are_spread_and_do_not_overlap() -> None:
    text = torch.arange(1000)
    rows = measure.windows(text, 30, 120)
    assert rows.shape == (4, 31)
    starts = rows[:, 0]
    assert (starts.diff() >= 30).all()
    assert starts[-1] > 700
    assert torch.equal(rows, starts.unsqueeze(1) + torch.arange(31))
    assert measure.windows(text, 30, 10**9).shape == (33, 31)


def test_each_number_is_over_the_tokens_it_says() -> None:
    measured = measure.everything(
        context, torch.arange(5000), train_length=8, test_lengths=(4, 8, 20, 40), tokens=400, held_out_bytes=None
    )
    assert measured[WHOLE_WINDOWS] == {4: 2.5, 8: 4.5, 20: 10.5, 40: 20.5}
    # The last 4 tokens (half the training length), after the window's last c.
    assert measured[SAME_TOKENS] == {4: 2.5, 8: 6.5, 20: 18.5, 40: 38.5}
    # 20 tokens in pieces of 8 are 8, 8 and 4.
    assert measured[CHUNKED_WHOLE] == {4: 2.5, 8: 4.5, 20: pytest.approx((4.5 * 16 + 2.5 * 4) / 20), 40: 4.5}
    assert measured[CHUNKED_SAME] == {4: 2.5, 8: 6.5, 20: 2.5, 40: 6.5}


def test_the_same_tokens_are_the_same_at_every_length() -> None:
    seen = []

    def record(ids: Tensor) -> Tensor:
        seen.append(ids[:, -4:])
        return ids[:, 1:].double()

    longest = measure.windows(torch.arange(900), 40, 400)
    for length in (4, 8, 40):
        measure.mean_or_none(record, longest[:, -length - 1 :], slice(-4, None))
    assert all(torch.equal(rows, seen[0]) for rows in seen)


@pytest.mark.parametrize("lengths", [(8, 16, 64), (4, 8, 20, 40), (5, 7, 33)])
def test_nothing_is_fed_twice(lengths: tuple[int, ...]) -> None:
    fed = []

    def record(ids: Tensor) -> Tensor:
        fed.append(ids.numpy().tobytes() + bytes(ids.shape))
        return context(ids)

    def measured(loss: measure.LossOfTokens) -> dict[Metric, dict[int, float | None]]:
        text = torch.arange(5000)
        return measure.everything(loss, text, train_length=8, test_lengths=lengths, tokens=400, held_out_bytes=None)

    measured(record)
    assert len(set(fed)) == len(fed)


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_the_last_tokens_in_chunks(total: int, length: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, total))
    rows = torch.randint(99, (3, total + 1))
    pieces = measure.in_chunks(context, rows, length)
    assert torch.equal(measure.last_tokens_in_chunks(context, rows, length, count), pieces[:, -count:])
    # Token t of a piece has t tokens before it, itself not counted.
    assert pieces[0].tolist() == [context_of % length + 1 for context_of in range(total)]


def test_no_position_is_none_and_other_lengths_stay() -> None:
    def ends_at_10(ids: Tensor) -> Tensor:
        if ids.size(1) - 1 > 10:
            raise PositionError("position 10 has no row")
        return context(ids)

    measured = measure.everything(
        ends_at_10, torch.arange(5000), train_length=8, test_lengths=(8, 16), tokens=400, held_out_bytes=None
    )
    assert measured[WHOLE_WINDOWS] == {8: 4.5, 16: None}
    assert measured[SAME_TOKENS] == {8: 6.5, 16: None}
    assert measured[CHUNKED_WHOLE][16] == 4.5
    assert measured[REPEAT_GAIN] == {4: 0.0, 8: None, 16: None, 32: None}


@pytest.mark.parametrize("gap", [1, 5, 64])
def test_the_probe_finds_what_reaches_and_only_that(gap: int) -> None:
    def copies_from(reach: int) -> measure.LossOfTokens:
        """Loss 0 for a token whose predecessor stood at most ``reach`` before with the same follower, else 2."""

        def loss(ids: Tensor) -> Tensor:
            losses = torch.full((len(ids), ids.size(1) - 1), 2.0, dtype=torch.float64)
            for t in range(1, ids.size(1)):
                for s in range(max(1, t - reach), t):
                    same = (ids[:, s] == ids[:, t]) & (ids[:, s - 1] == ids[:, t - 1])
                    losses[same, t - 1] = 0.0
            return losses

        return loss

    text = torch.randperm(3000)  # no token comes twice
    assert measure.repeat_gain(copies_from(gap + 6), text, gap, 6) == 2.0
    assert measure.repeat_gain(copies_from(gap + 5), text, gap, 6) == 0.0


def test_too_little_text_says_how_much_is_needed() -> None:
    with pytest.raises(DataError, match=r"100 tokens.*up to 4,096.*need 4,097"):
        measure.check(torch.arange(100), train_length=64, test_lengths=(64, 4096))
    measure.check(torch.arange(4097), train_length=64, test_lengths=(64, 4096))


def test_losses_are_those_of_cross_entropy_whatever_the_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.randn(9, 9)
    model = torch.nn.Embedding.from_pretrained(table)
    ids = torch.randint(9, (7, 5))
    whole = measure.losses(model, ids[:, :-1], ids[:, 1:], torch.device("cpu"))
    monkeypatch.setattr(measure, "TOKENS_AT_ONCE", 10)
    assert torch.equal(measure.losses(model, ids[:, :-1], ids[:, 1:], torch.device("cpu")), whole)
    expected = -table.double().log_softmax(-1)[ids[:, :-1], ids[:, 1:]]
    assert_close(whole, expected, dtype=torch.float32)
