"""The questions of the lab as tests ask them: settings without data, runs, summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunResult
from posembed.lab.runs.spec import TrainingSpec
from posembed.settings import Count, Names, converted, take


def shared(name: str, preset: str | None = None, **given: Any) -> Any:
    """Returns the settings that the runs of a question share. For "lengths" and "inits", give small text as data."""
    question = QUESTIONS[name]
    chosen = take(question.Choice, given) | take(question.Spec, given) | given
    return question.prepare(question.settings(preset, chosen))[1]


def runs_of(
    settings: TrainingSpec, names: Sequence[str], seeds: int, values: Sequence[str] = (), **reading: Any
) -> list[Any]:
    """Returns the runs that a question makes of these settings, checked."""
    question = QUESTIONS[settings.question]
    converted(question.compared, names, Names)
    converted("seeds", seeds, Count)
    question.check(names, question.ReadingType(**reading))
    return question.specs(settings, names, seeds, values)


def summarise(results: Sequence[RunResult[Any, Any]], **reading: Any) -> Any:
    """Returns the summary of results, of whatever question they are. Empty results count as lengths."""
    question = QUESTIONS[results[0].spec.question if results else "lengths"]
    return question.summarise(results, question.ReadingType(**reading))


def means(plain: dict[str, Any], metric: str) -> dict[tuple[str, int | None], Any]:
    """Returns the means of a metric in what --json printed, by name and x."""
    return {(each["run"], each["x"]): each["mean"] for each in plain["estimates"] if each["metric"] == metric}
