"""What was measured of the choices: the figures behind advice, and where they speak against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posembed.lab.advice.choices import CHOICES, Choice
from posembed.lab.advice.evidence import Interval, Measured, Study
from posembed.lab.advice.needs import Needs


@dataclass(frozen=True)
class Figures:
    """Encodings trained alike; from one study to another, perplexities do not compare."""

    title: str
    source: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Rival:
    """A choice that could do it too, and did better than the one recommended, in a study."""

    choice: Choice
    apart: bool
    """Their 95 % intervals do not meet."""
    text: str


def study_of(choice: Choice, studies: Sequence[Study]) -> Study | None:
    """The first that has the choice."""
    return next((study for study in studies if choice.encoding and study.row(choice.encoding)), None)


def figures(chosen: Choice, needs: Needs, studies: Sequence[Study]) -> list[Figures]:
    """A person's own study, if there is one; else the first that has the choice, and that of most encodings."""
    weighed = {choice.encoding for choice in CHOICES if choice.encoding is not None}
    if needs.grid is not None or not studies:
        return []
    own = [study for study in studies if study.own]
    broadest = max(studies, key=lambda study: len([row for row in study.rows if row.encoding in weighed]))
    shown = own or list(dict.fromkeys((study_of(chosen, studies) or studies[0], broadest)))
    return [
        Figures(
            f"{study.title}: perplexity of the same tokens",
            study.source,
            tuple(_line(study, row) for row in study.rows if row.encoding in weighed),
        )
        for study in shown
    ]


def best_rival(study: Study, chosen: Choice, needs: Needs) -> Rival | None:
    """The best choice that did better in a study than the chosen one: of those whose intervals do not meet its,
    if there are any. At the training length where nothing longer is needed, else at the longest of the study."""
    ours = _measured(study, chosen, needs)
    if ours is None:
        return None
    better = [
        (not _apart(value, ours), value.mean, value, choice)
        for choice in CHOICES
        if choice.encoding is not None and choice.cannot(needs) is None
        if (value := _measured(study, choice, needs)) is not None and value.mean < ours.mean
    ]
    if not better:
        return None
    meets, _, value, choice = min(better, key=lambda found: found[:2])
    text = (
        f"{choice.encoding} has a perplexity of {_written(value)} at {_length(study, needs):,} tokens and "
        f"{chosen.encoding} of {_written(ours)}"
    )
    return Rival(choice, not meets, text)


def _apart(lower: Interval, higher: Interval) -> bool:
    return lower.high is not None and higher.low is not None and lower.high < higher.low


def _line(study: Study, row: Measured) -> str:
    ends = dict.fromkeys((study.train_length, study.longest))
    measured = dict(row.by_length)
    parts = [f"{_written(measured[length]) if length in measured else 'not measured'} at {length:,}" for length in ends]
    window = "" if row.window is None else f", window {row.window:,}"
    return f"{row.encoding}{window}: {', '.join(parts)} ({row.seeds} run{'s' * (row.seeds > 1)})"


def _measured(study: Study, choice: Choice, needs: Needs) -> Interval | None:
    row = study.row(choice.encoding) if choice.encoding is not None else None
    return None if row is None else row.at(_length(study, needs))


def _length(study: Study, needs: Needs) -> int:
    return study.train_length if needs.fixed else study.longest


def _written(value: Interval | None) -> str:
    if value is None:
        return "no position"
    interval = "" if value.low is None or value.high is None else f" ({value.low:.2f} to {value.high:.2f})"
    return f"{value.mean:.2f}{interval}"
