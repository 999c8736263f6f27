"""All questions of the lab. To add a question, add it to ``EVERY``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from posembed.errors import RunFolderError
from posembed.lab.cost.results import CostSettings
from posembed.lab.question import Question
from posembed.lab.questions.amounts import DataEfficiency, Dropout
from posembed.lab.questions.classification import Images, Spans, Tags, Text
from posembed.lab.questions.lengths import Lengths
from posembed.lab.questions.problems import PROBLEMS, Problem, Sharing, StateTracking
from posembed.lab.questions.rows import Rows
from posembed.lab.questions.tables import ByTask, Inits
from posembed.measure.jobs import read_settings
from posembed.settings import Settings, option


class Cost(Question):
    """The question of what encodings cost, measured on this machine without training. Its result is in cost.json."""

    name = "cost"

    @property
    def kinds(self) -> tuple[type[Settings], ...]:
        return self.Choice, CostSettings

    def chosen(self) -> Iterable[tuple[str, Any, Any]]:
        told = "The folder for cost.json, which posembed report reads. The same command does not measure again."
        yield "out", Path, option(told, default=Path("runs/cost"))


EVERY: list[Question] = [
    Lengths(),
    Inits(),
    ByTask(),
    Rows(),
    DataEfficiency(),
    Dropout(),
    Sharing(),
    *(StateTracking(name) if PROBLEMS[name].tails else Problem(name) for name in PROBLEMS),
    Text(),
    Tags(),
    Spans(),
    Images(),
    Cost(),
]
QUESTIONS = {question.name: question for question in EVERY}


def question_of(folder: Path) -> Question:
    """Returns the question that a folder of ``posembed compare`` answers. Raises RunFolderError for other folders."""
    name = read_settings(folder)["question"]
    if name not in QUESTIONS:
        raise RunFolderError(
            f"{folder} holds results of the question {name!r}, which this version does not know; another version "
            "wrote it"
        )
    return QUESTIONS[name]
