"""What the runs of any question say together: which there are, their means, their differences, and what is refused."""

from __future__ import annotations

import dataclasses
import math

import pytest

from asked import runs_of, summarise
from made_up import MADE
from posembed.errors import ArgumentError
from posembed.lab.questions.problems import SOLVED
from posembed.measure.metrics import Metric
from posembed.measure.summary import reached
from together import together
from tolerance import assert_close


@together("name", MADE)
def test_runs_of_a_seed_stand_together_and_differ_in_what_is_compared_alone(name: str) -> None:
    made = MADE[name](1)
    one, other, *_ = dict.fromkeys(each.spec.compared for each in made)
    values = list(dict.fromkeys(each.spec.varied for each in made))
    specs = runs_of(made[0].spec, [other, one, other], 2, values)
    expected = [(seed, value, compared) for seed in (0, 1) for value in values for compared in (other, one)]
    assert [(spec.seed, spec.varied, spec.compared) for spec in specs] == expected
    assert len({spec.key() for spec in specs}) == len({spec.name for spec in specs}) == len(specs)
    assert len({str(spec.shared_settings()) for spec in specs}) == 1


def same_scale(metric: Metric, value: float) -> float:
    """A value whose mean and differences are taken: a logarithm where they are compared by their ratio."""
    return math.log(value) if metric.kind == "times" else value


@together("name", MADE)
def test_means_are_over_seeds_and_differences_paired_by_seed(name: str) -> None:
    found = summarise(MADE[name](3)[:-1])  # one name lacks a seed
    runs = {(run.name, run.seed): run for run in found.frame.runs}
    compared = 0
    for metric in found.metrics:
        for x in found.xs(metric):
            values = {at: run.value(metric.name, x) for at, run in runs.items() if (metric.name, x) in run.found}
            for own in found.names:
                ours = {seed: value for (each, seed), value in values.items() if each == own}
                mean = found.mean(metric, own, x)
                assert (mean is None) == (not ours or None in ours.values())
                if mean is not None:
                    expected = math.fsum(ours.values()) / len(ours)
                    assert_close(mean.value, math.exp(expected) if metric.kind == "log" else expected)
                reference, versus = found.reference_of(own), found.versus(metric, own, x)
                theirs = {seed: value for (each, seed), value in values.items() if each == reference}
                shared = [s for s in ours.keys() & theirs.keys() if None not in (ours[s], theirs[s])]
                if versus is None:
                    assert reference is None or not shared or metric.kind == "times"
                    continue
                assert own != found.reference
                gained = [same_scale(metric, ours[s]) - same_scale(metric, theirs[s]) for s in sorted(shared)]
                ends = [math.exp(each) for each in gained] if metric.ratio else gained
                assert_close(versus.over_seeds.values, ends, scale=1.0)
                compared += 1
    assert (compared > 0) == (found.reference is not None)


@together("name", MADE)
def test_runs_that_failed_are_named_and_count_nowhere(name: str) -> None:
    results = MADE[name](2)
    lost = next(each for each in results if each.spec.compared != results[0].spec.compared)
    failed = dataclasses.replace(lost, measurements=None, failure="the loss was nan")
    found = summarise([failed if each is lost else each for each in results])
    row, runs = found.row(lost.spec.compared), [each for each in results if each.spec.compared == lost.spec.compared]
    assert (row.succeeded, row.failures) == (len(runs) - 1, (f"{lost.spec.case}: the loss was nan",))
    if found.reference is not None:
        with pytest.raises(ArgumentError, match=r"the reference 'nope' was not run; the finished runs are "):
            summarise(results, reference="nope")
    assert summarise(results).reference == found.reference


def test_nothing_is_not_summarised() -> None:
    with pytest.raises(ArgumentError, match="nothing to summarise"):
        summarise([])


@together(
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
