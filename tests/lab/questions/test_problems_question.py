"""What the runs of a problem say together."""

from __future__ import annotations

import dataclasses

import pytest

from asked import runs_of, shared, summarise
from made_up_problems import result, runs
from posembed.errors import ArgumentError
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.problems import ProblemSpec, solves
from posembed.lab.runs.results import result_from_json
from posembed.report.questions.problems import PAGE, ends_at, percent
from posembed.report.words import interval, up_to
from posembed.statistics import estimate
from tolerance import assert_close


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
    assert solves(shares) == size


def test_the_summary_is_arithmetic_over_seeds() -> None:
    summary = summarise(
        [
            result("coupled", (1.0, 1.0, 0.98)),
            result("learned", (1.0, 0.6, None)),
            result("coupled", (1.0, 0.96, 0.90), seed=1),
            result("rope", None, failure="the loss was nan at step 9 of 700"),
        ]
    )
    coupled, learned, rope = summary.rows
    assert (summary.problem, summary.unit, summary.train_size) == ("addition", "digits", 10)
    assert coupled.seeds == (0, 1)
    assert coupled.exact_match[30] == estimate([0.98, 0.90])
    assert_close(coupled.exact_match[30].value, 0.94)
    assert (coupled.solves, coupled.solves_by_seed) == (10, (30, 10))
    assert (learned.solves, learned.exact_match[30]) == (5, None)
    assert (rope.seeds, rope.solves, rope.failures) == ((), None, ("seed 0: the loss was nan at step 9 of 700",))
    with pytest.raises(ArgumentError, match="no run is finished"):
        summarise([])


def test_a_result_survives_its_line_of_json() -> None:
    made = result("abacus", (1.0, 0.5, None))
    assert result_from_json(made.to_json(), ProblemSpec) == made


def test_the_answer_says_who_goes_how_far() -> None:
    found, rule, certainty = PAGE.answer(summarise(runs(2)))
    assert "with coupled. The largest size solved is 30+ with coupled" in found
    assert "(exact match 98.5%, 92\N{EN DASH}100" in found
    for part in ("5 with rope", "5 with alibi", "under 5 with “none”", "learned has no positions past 10."):
        assert part in found
    assert "2 of 2 with sinusoidal (seed 0: the loss was nan)" in found
    assert "95%" in rule
    assert "2 runs per encoding" in certainty


def test_a_single_run_and_runs_that_differ_are_reported() -> None:
    alone = PAGE.answer(summarise([result("none", (0.0, 0.0, 0.0))]))
    assert "with none of the encodings" in alone[0]
    assert "there are no intervals" in alone[-1]
    apart = [result("rope", (1.0, 1.0, 0.97)), result("rope", (1.0, 0.1, 0.0), seed=1)]
    assert "by seed: rope 30 and 5" in PAGE.answer(summarise(apart))[-2]
    within = dataclasses.replace(summarise([result("rope", (1.0, 1.0, 1.0))]), test_sizes=(5, 10))
    assert PAGE.answer(within)[0].startswith("No size past the 10 digits of training was tested")


def test_numbers_in_words() -> None:
    summary = summarise(runs(2))
    words = {row.name: up_to(row.solves, summary.test_sizes) for row in summary.rows if row.seeds}
    assert words == {
        "learned": "10", "rope": "5", "alibi": "5", "none": "under 5", "coupled": "30+",
    }  # fmt: skip
    assert {row.name: ends_at(row, summary) for row in summary.rows}["learned"] == 10
    shares = (0.0, 0.0001, 0.005, 0.47, 0.985, 0.9849, 0.9996, 1.0)
    assert [percent(share) for share in shares] == ["0", "<0.1", "0.5", "47", "98.5", "98", ">99.9", "100"]
    assert interval(estimate([1.0, 0.9]), percent) == "31\N{EN DASH}100"
