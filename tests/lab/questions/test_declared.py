"""What questions.json and metrics.json declare is read: no name in them is misspelt or left over."""

from __future__ import annotations

from posembed.lab.cost.results import METRICS
from posembed.lab.metrics import GROUPS
from posembed.lab.question import DECLARED, TrainedQuestion
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.classification import OfTexts
from posembed.lab.questions.problems import Problem, StateTracking

SHARED = {"problems": Problem, "state-tracking": StateTracking, "labelled texts": OfTexts}
"""The entries of several questions."""


def test_each_entry_is_of_a_question_and_each_value_is_an_attribute() -> None:
    for name, declared in DECLARED.items():
        kind = SHARED.get(name) or type(QUESTIONS[name])
        known = {each for base in kind.__mro__ for each in (*getattr(base, "__annotations__", ()), *vars(base))}
        assert declared.keys() <= known, (name, declared.keys() - known)
    for name, kind in SHARED.items():
        assert kind.trains == DECLARED[name]["trains"]


def test_each_metric_is_of_a_question_or_of_cost() -> None:
    questions = [question for question in QUESTIONS.values() if isinstance(question, TrainedQuestion)]
    used = {metric.name for question in questions for metric in question.metrics} | METRICS.keys()
    declared = {name.format(steps=10) for group in GROUPS.values() for name in group.keys() - {"*"}}
    assert declared <= used, declared - used


def test_a_training_loss_has_the_unit_of_what_is_predicted() -> None:
    units = {
        "by-task": "per predicted token",
        "sharing": "per token of the targets",
        "text": "per example",
        "tags": "per label",
        "spans": "per label",
        "images": "per image",
    }
    questions = [question for question in QUESTIONS.values() if isinstance(question, TrainedQuestion)]
    usual = ["per token of the answers" if isinstance(each, Problem) else "per token" for each in questions]
    expected = [units.get(each.name, unit) for each, unit in zip(questions, usual, strict=True)]
    assert [each.loss_unit for each in questions] == expected
    assert {each.name: each.usual_seeds for each in questions if each.usual_seeds != 1} == {"by-task": 3}
