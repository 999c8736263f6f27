"""Growth with length: doublings, what is not tried, exponents."""

from __future__ import annotations

import pytest
import torch

from posembed.lab.cost import measure
from posembed.lab.cost.measure import CALLS, FIT_FROM, MOST_BYTES, Growth, Point, doublings, grow, too_much
from posembed.lab.cost.places import Shape
from posembed.layers.alibi import Alibi
from posembed.layers.base import PositionEncoding
from posembed.layers.learned import LearnedPositionalEmbedding


def build(name: str, shape: Shape) -> PositionEncoding:
    if name == "alibi":
        return Alibi(shape.heads)
    return LearnedPositionalEmbedding(max_len=shape.length, dim=shape.width, dropout=0.0)


def test_lengths_double_and_never_pass_the_longest() -> None:
    assert doublings(512, 131_072) == (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
    assert doublings(512, 1500) == (512, 1024)


def test_the_next_length_is_foreseen_from_the_last_two() -> None:
    tiny = [Point(512, 1e-3, 1000), Point(1024, 4e-3, 4000)]
    assert too_much(tiny[:1], 1024, seconds=0.0) is None  # nothing to judge by
    assert too_much(tiny, 2048, seconds=1.0) is None
    assert "s, more than its share of" in (too_much(tiny, 2048, seconds=CALLS * 0.015) or "")
    big = [Point(512, 1e-3, MOST_BYTES // 8), Point(1024, 1e-3, MOST_BYTES // 2)]
    assert "would need about 4 GiB, more than 2" in (too_much(big, 2048, seconds=1.0) or "")


def test_exponents_are_those_of_long_texts() -> None:
    growth = Growth([Point(n, max(n, FIT_FROM), n**2) for n in doublings(512, 16_384)])
    assert growth.exponent("seconds") == pytest.approx(1)
    assert growth.exponent("peak") == pytest.approx(2)
    assert (growth.exponent("seconds", 512) or 1) < 0.9


def lengths(growth: Growth) -> list[int]:
    return [point.length for point in growth.points]


def test_memory_grows_as_it_must() -> None:
    shares: list[float] = []
    found = grow(("learned", "alibi"), build, longest=2048, device=torch.device("cpu"), progress=shares.append)
    assert shares == [1 / 3, 2 / 3, 1.0]
    assert lengths(found["learned"]) == lengths(found["alibi"]) == [512, 1024, 2048]
    assert abs((found["learned"].exponent("peak") or 0) - 1) < 0.01
    assert abs((found["alibi"].exponent("peak") or 0) - 2) < 0.01
    assert found["alibi"].stopped is None


def test_what_would_not_fit_is_not_tried_and_said(monkeypatch) -> None:
    monkeypatch.setattr(measure, "MOST_BYTES", 20_000_000)  # of the bias and its distances at 1,024 tokens
    found = grow(("learned", "alibi"), build, longest=2048, device=torch.device("cpu"))
    assert lengths(found["alibi"]) == [512, 1024]
    assert (found["alibi"].stopped or "").startswith("2,048 tokens would need")
    assert found["alibi"].exponent("seconds") is None
    assert found["learned"].stopped is None
