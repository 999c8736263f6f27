"""The page of a comparison of one table with two: what it claims, and every number."""

from __future__ import annotations

import dataclasses

import pytest

from asked import summarise
from made_up_sharing import result, runs
from posembed.report.questions.sharing import PAGE, best_first
from posembed.report.words import MINUS


def told(one: list[float], two: list[float]) -> str:
    """The answer for runs whose exact match at every size is this, by seed."""
    names = {"one-table": one, "two-tables": two}
    results = [result(name, (share,) * 3, seed=seed) for name, of in names.items() for seed, share in enumerate(of)]
    return " ".join(PAGE.answer(summarise(results)))


@pytest.mark.parametrize(
    ("one", "two", "claim"),
    [
        ([0.5, 0.52, 0.51], [0.8, 0.83, 0.82], "significantly more targets without a mistake. These runs contradict"),
        ([0.8, 0.83, 0.82], [0.5, 0.52, 0.51], "significantly fewer targets without a mistake. These runs agree"),
        ([0.8, 0.83, 0.82], [0.8, 0.82, 0.83], "by no significant amount, so parameters are all that"),
        ([0.8], [0.9], "these runs cannot tell what it gains"),
        ([1.0, 1.0], [0.998, 0.998], "these runs cannot tell what it gains"),
        ([0.1, 0.7, 0.3], [0.4, 1.0, 0.6], "these runs cannot tell what it gains"),
        ([1.0] * 2, [1.0] * 2, "these runs cannot tell what it gains"),
        ([0.1 * n for n in range(6)], [0.1 * n + 0.3 for n in range(6)], "significantly more targets"),
    ],
)
def test_the_claim_is_judged_by_the_interval(one: list[float], two: list[float], claim: str) -> None:
    answer = told(one, two)
    assert claim in answer
    assert "adds 1,408 parameters (0.6% of the model)" in answer
    assert ("significantly" in answer.replace("not significantly", "")) == ("significantly" in claim)


def test_another_reference_says_nothing_of_the_claim() -> None:
    assert "Guides call" not in " ".join(PAGE.answer(summarise(runs(2), reference="sinusoidal")))


def test_the_answer_ranks_what_was_measured_and_says_where_rows_are_missing() -> None:
    summary = summarise(runs(6))  # enough seeds for an interval though they are all alike
    assert [row.name for row in best_first(summary)][:2] == ["one-table", "two-tables"]
    answer = " ".join(PAGE.answer(summary))
    assert "of the sizes of training, the exact match in percent is 94.0" in answer
    assert "At 3 clauses, past training, the exact match is 20.0% with sinusoidal and 0.0% with “none”." in answer
    assert "At that size one-table, two-tables and encoder-table have no row for some positions." in answer
    assert "6 of 6 with decoder-table (seed 0: the loss was nan)" in answer
    table = PAGE.main_table(summary)
    cells = {row.name: [cell.text for cell in row.cells] for row in table.rows}
    assert cells["one-table"] == ["94.0", "", "the reference", "2,560", "98.0", "90.0", "no position"]
    assert cells["none"][:3] == ["5.0", f"{MINUS}89.0", "worse"]
    assert cells["decoder-table"][0] == "failed"


@pytest.mark.parametrize(("names", "verb"), [(["one-table"], "has"), (["one-table", "two-tables"], "have")])
def test_tables_without_rows_past_training_are_named_without_others_too(names: list[str], verb: str) -> None:
    answer = " ".join(PAGE.answer(summarise([result(name, (0.5, 0.5, None)) for name in names])))
    assert f"At 3 clauses, past training, {' and '.join(names)} {verb} no row for some positions." in answer


def test_one_size_needs_no_columns_by_size_and_no_lines() -> None:
    results = [
        dataclasses.replace(each, spec=dataclasses.replace(each.spec, train_size=1, test_sizes=(1,)))
        for each in runs(2)
    ]
    summary = summarise(results)
    assert [head.text for head in PAGE.main_table(summary).head] == [
        "within", "difference", "significant?", "parameters",
    ]  # fmt: skip
    assert len(list(PAGE.figures(summary))) == 1
    assert "past training" not in " ".join(PAGE.answer(summary))
