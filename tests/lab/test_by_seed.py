"""Few documents and few seeds tell little, and a share lies between 0 and 1."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from made_up_classes import finished
from posembed.lab.by_seed import FEWEST_ALIKE, BySeed, Correct, accuracy_difference
from posembed.lab.questions.classification import Text, TextSpec
from posembed.report.questions.accuracy import compared
from posembed.report.words import interval, percent
from posembed.statistics import estimate


def of(correct: Correct, seeds: int) -> BySeed[Correct]:
    specs = [
        TextSpec(question="text", encoding="a", seed=seed, data_sha256="", **Text.presets["default"])
        for seed in range(seeds)
    ]
    return BySeed([finished(spec, correct, None, 0) for spec in specs])


@settings(deadline=None, max_examples=60, derandomize=True)
@given(documents=st.integers(2, 12), examples=st.integers(1, 9), seeds=st.integers(2, 5))
def test_a_few_documents_that_agree_are_not_significant(documents: int, examples: int, seeds: int) -> None:
    all_right = Correct((examples,) * documents, (examples,) * documents)
    none_right = Correct((0,) * documents, (examples,) * documents)
    ours = of(all_right, seeds)
    ours.reference = of(none_right, seeds)
    found = accuracy_difference(ours, lambda correct: correct)
    assert found is not None
    assert found.significant == (documents >= FEWEST_ALIKE)
    [sentence] = compared({"a": found}, "b", "documents")
    assert ("unknown over documents" in sentence) == (documents < FEWEST_ALIKE)
    assert ("better than b" in sentence) == (documents >= FEWEST_ALIKE)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_the_interval_of_a_share_is_of_a_share(values: list[float]) -> None:
    ends = interval(estimate(values), percent).split("\N{EN DASH}")
    assert all(0 <= float(end) <= 100 for end in ends)
