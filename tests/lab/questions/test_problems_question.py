"""What the runs of a problem say together."""

from __future__ import annotations

import dataclasses

import pytest

from asked import runs_of, shared, summarise
from made_up_problems import result
from posembed.errors import ArgumentError
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.problems import SOLVED
from posembed.lab.tasks.problems_specs import EXACT
from posembed.measure.summary import reached
from posembed.statistics import estimate


def test_runs_of_a_seed_stand_together_and_doubles_are_one() -> None:
    asked = runs_of(shared("addition"), ["rope", "coupled", "rope"], 2)
    names = [(spec.encoding, spec.seed) for spec in asked]
    assert names == [("rope", 0), ("coupled", 0), ("rope", 1), ("coupled", 1)]
    assert QUESTIONS["addition"].usual[-2:] == ("abacus", "coupled")
    assert QUESTIONS["parity"].usual == ("learned", "sinusoidal", "rope", "alibi")


@pytest.mark.parametrize(
    ("shares", "size"),
    [
        ({5: 1.0, 10: 0.95, 20: 0.94}, 10),
        ({5: 1.0, 10: 0.5, 20: 1.0}, 5),  # a size solved by chance past one that is not
        ({5: 0.9, 10: 1.0}, None),
        ({5: 1.0, 10: None}, 5),
        ({20: 1.0, 5: 1.0, 10: 0.0}, 5),  # in whatever order
        ({}, None),
    ],
)
def test_solves_is_the_largest_size_with_all_smaller_ones(shares: dict[int, float | None], size: int | None) -> None:
    assert reached(shares, SOLVED) == size


def test_the_summary_is_arithmetic_over_seeds() -> None:
    summary = summarise(
        [
            result("coupled", (1.0, 1.0, 0.98)),
            result("learned", (1.0, 0.6, None)),
            result("coupled", (1.0, 0.96, 0.90), seed=1),
            result("rope", None, failure="the loss was nan at step 9 of 700"),
        ]
    )
    coupled, _learned, rope = summary.rows
    assert (summary.axis.name, summary.axis.trained) == ("digits", 10)
    assert coupled.seeds == (0, 1)
    expected = estimate([0.98, 0.90])
    assert summary.mean(EXACT, "coupled", 30) == dataclasses.replace(expected, high=1.0)  # a share ends at 1
    assert summary.mean(EXACT, "learned", 30) is None
    assert (rope.seeds, rope.failures) == ((), ("seed 0: the loss was nan at step 9 of 700",))
    columns = summary.question.columns(summary)
    assert columns["solves"] == {"coupled": "10", "learned": "5", "rope": "under 5"}
    assert columns["solved by seed"]["coupled"] == "30+, 10"
    with pytest.raises(ArgumentError, match="no run is finished"):
        summarise([])
