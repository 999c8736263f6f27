"""Every question of the lab. Add one line to add one."""

from __future__ import annotations

from typing import Any

from posembed.lab.question import Question
from posembed.lab.questions.images import Images
from posembed.lab.questions.inits import Inits
from posembed.lab.questions.lengths import Lengths
from posembed.lab.questions.problems import PROBLEMS, Problem
from posembed.lab.questions.text import Text

EVERY: list[Question[Any, Any, Any]] = [Lengths(), Inits(), *map(Problem, PROBLEMS), Text(), Images()]
QUESTIONS = {question.name: question for question in EVERY}
