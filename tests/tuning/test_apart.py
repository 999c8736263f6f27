"""What is measured on is never trained on, as a copy with a few changes either."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from posembed.tuning.apart import COPY, MOST, RUN, Candidates, runs, set_apart

texts = st.lists(st.text("aBb \u00e4\U0001f600\ud800", max_size=3 * RUN), min_size=1, max_size=6)


def runs_by_definition(text: str) -> set[str]:
    plain = "".join(text.casefold().split())
    return {plain[at : at + RUN] for at in range(len(plain) - RUN + 1)}


def copies_by_definition(one: str, other: str) -> bool:
    sides = [runs_by_definition(text) for text in (one, other)]
    common = len(sides[0] & sides[1])
    return common > 0 and common >= COPY * min(map(len, sides))


@given(texts)
def test_near_copies_share_a_quarter_of_the_runs_of_the_shorter_text(found: list[str]) -> None:
    found += [text + found[0] for text in found]
    candidates = Candidates([runs(each) for each in found])
    for text in found:
        expected = [copies_by_definition(text, other) for other in found]
        assert candidates.copied_by(runs(text)).tolist() == expected
        held = runs_by_definition(text)
        most = any(len(held & runs_by_definition(other)) > MOST * len(held) for other in found[:2])
        assert Candidates([runs(each) for each in found[:2]]).make_up(runs(text)) == most


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 4), st.integers(0, 2**32))
def test_nothing_that_is_trained_on_is_like_what_is_measured_on(
    total: int, number: int, fewest: int, seed: int
) -> None:
    pairs = torch.rand(total, total, generator=torch.Generator().manual_seed(seed)) < 0.2
    alike = pairs | pairs.T
    measured, trained = set_apart(total, number, fewest, lambda at: alike[at])
    assert not set(measured) & set(trained)
    assert not alike[measured][:, [*trained]].any()
    assert not alike[measured][:, measured].triu(diagonal=1).any()
    left_out = set(range(total)) - {*measured, *trained}
    assert all(alike[measured, each].any() for each in left_out)
    if trained:
        assert len(measured) >= fewest
        assert len(measured) + len(left_out) >= number
