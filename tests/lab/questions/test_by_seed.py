"""Few documents and few seeds tell little, and a share lies between 0 and 1."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from posembed.lab.questions.accuracy import FEWEST_ALIKE, Told, difference
from posembed.report.accuracy_words import accuracy, compared

from posembed.statistics import estimate


@settings(deadline=None, max_examples=60, derandomize=True)
@given(documents=st.integers(2, 12), examples=st.integers(1, 9), seeds=st.integers(2, 5))
def test_a_difference_is_not_told_by_a_few_documents_that_agree(documents: int, examples: int, seeds: int) -> None:
    all_right = Told((examples,) * documents, (examples,) * documents)
    none_right = Told((0,) * documents, (examples,) * documents)
    found = difference(dict.fromkeys(range(seeds), all_right), dict.fromkeys(range(seeds), none_right))
    assert found is not None
    assert found.told == (documents >= FEWEST_ALIKE)
    assert ("unknown over documents" in compared("a", found, "b", "documents")) == (documents < FEWEST_ALIKE)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_the_interval_of_a_share_is_of_a_share(values: list[float]) -> None:
    ends = accuracy(estimate(values)).partition("(")[2].rstrip(")").replace("\N{EN DASH}", " to ").split(" to ")
    assert all(0 <= float(end) <= 100 for end in ends)
