"""Turns a user's needs and measured studies into one recommendation, with its costs, caveats and measurements.

For a fixed length, the rules recommend a learned table, or RoPE if the table would be large. For growing lengths, they
recommend a rolling table under a window, or scaled RoPE if far tokens must be retrieved. For a checkpoint, they
recommend its own positions, resized or scaled if necessary. A user's own runs overrule the rules if they show a
better encoding and the 95% intervals do not overlap.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posembed.lab.advice.evidence import Study, published_studies, study_of_folder
from posembed.lab.advice.needs import Needs, needs_of
from posembed.statistics import Estimate

USUAL_LENGTH = 8192
"""Learned tables are usual up to this length; most rows of a longer table are seldom trained."""
AFFORDABLE_SHARE = 0.1
"""The share of the embeddings above which a learned table is not the default."""
FINE_TUNED_TO = 32
"""YaRN's paper (arXiv:2309.00071) fine-tunes to 32 times the training length."""
RESIZED_TO = 8
"""Longformer (arXiv:2004.05150) tiles a table to 8 times its length."""

CONDITIONS: dict[str, Callable[[Needs], bool]] = {
    "always": lambda n: True,
    "a grid": lambda n: n.grid is not None,
    "a sequence": lambda n: n.grid is None,
    "far tokens": lambda n: n.far,
    "fixed lengths": lambda n: n.fixed,
    "growing lengths": lambda n: not n.fixed,
    "no limit": lambda n: n.longest is None,
    "no checkpoint": lambda n: n.checkpoint is None,
    "no checkpoint with a table": lambda n: not n.has_table,
    "a checkpoint without a table": lambda n: n.checkpoint is not None and not n.has_table,
    "a checkpoint without a table, and growing lengths": lambda n: not n.has_table and not n.fixed,
    "past the checkpoint's table": lambda n: n.has_table and not n.inside_table,
    "beyond Longformer": lambda n: n.stretch > RESIZED_TO,
    "beyond YaRN": lambda n: n.factor is not None and n.factor > FINE_TUNED_TO,
}
"""The conditions that choices.json may use."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A possible recommendation. Its texts are templates, which are formatted with the needs as ``n``.

    of: the kind of needs that it applies to: "sequence", "grid" or "checkpoint".
    encoding: its name in the lab and in the studies; None if the lab does not train it.
    rows: the number of its position rows, new or existing: "table" (one per position), "window" (one per token of the
        window) or None (no rows).
    reason: the reason to choose it if it meets the needs.
    unless: pairs (a condition under which it does not meet the needs, the reason). caveats: pairs (condition, caveat).
    """

    name: str
    of: str = "sequence"
    encoding: str | None = None
    title: str
    rows: str | None = None
    reason: str
    unless: Sequence[tuple[str, str]]
    caveats: Sequence[tuple[str, str]] = ()

    def parameters(self, needs: Needs) -> int:
        return {"table": needs.table, "window": needs.window * needs.width, None: 0}[self.rows]

    def cannot(self, needs: Needs) -> str | None:
        """Returns the reason why the choice does not meet the needs; None if it does."""
        return next(iter(texts_for(self.unless, needs)), None)

    def warnings(self, needs: Needs) -> list[str]:
        """Returns the caveats, including one if this choice would discard the table of an existing checkpoint."""
        notes = texts_for(self.caveats, needs)
        if needs.checkpoint is not None and needs.has_table and self.of != "checkpoint":
            held = f"{needs.checkpoint.length:,}"
            notes.append(
                f"the checkpoint's table ends at {held}, so this means training from scratch; the alternative is to "
                f"feed the checkpoint text in chunks of {held}"
            )
        return notes

    def is_relevant(self, needs: Needs) -> bool:
        """Returns whether the choice applies to the kind of needs: a grid, a sequence or a checkpoint."""
        if self.of == "checkpoint":
            return needs.checkpoint is not None
        return (self.of == "grid") == (needs.grid is not None)


def texts_for(pairs: Sequence[tuple[str, str]], needs: Needs) -> list[str]:
    """Returns the formatted texts whose condition holds."""
    return [text.format(n=needs) for condition, text in pairs if CONDITIONS[condition](needs)]


CHOICES = [Choice(**choice) for choice in json.loads(Path(__file__).with_name("choices.json").read_text("utf-8"))]
BY_NAME = {choice.name: choice for choice in CHOICES}
TRAINED = {choice.encoding for choice in CHOICES if choice.encoding is not None}


@dataclass(frozen=True)
class Option:
    """A choice that was considered. ``cannot``: the reason why it does not meet the needs; None if it does."""

    name: str
    title: str
    parameters: int
    """Position parameters, new or existing."""
    share: float | None
    """The share of these parameters in the embeddings; None without a token table."""
    cannot: str | None


@dataclass(frozen=True)
class Figures:
    """The perplexities of one study, one line per encoding. Do not compare figures of different studies."""

    title: str
    source: str
    lines: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Advice:
    """One recommendation with its reasons. recommendation: the name of an option that meets the needs."""

    needs: Needs
    recommendation: str
    title: str
    reasons: tuple[str, ...]
    options: tuple[Option, ...]
    caveats: tuple[str, ...]
    figures: tuple[Figures, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return dataclasses.asdict(self)

    def sections(self) -> dict[str, list[str]]:
        """Returns the lines of text by heading, without the recommendation itself."""
        options = []
        for option in self.options:
            share = f", {option.share:.2%} of the embeddings" if option.share else ""
            verdict = "" if option.cannot is None else f"; no: {option.cannot}"
            options.append(f"{option.name}: {option.parameters:,}{share}{verdict}")
        found = {"Why": self.reasons, "Position parameters of each option": options, "Watch for": self.caveats}
        found |= {f"Measured: {study.title} ({study.source})": study.lines for study in self.figures}
        return {heading: list(lines) for heading, lines in found.items() if lines}

    def __repr__(self) -> str:
        parts = [f"{self.recommendation}: {self.title}"]
        parts += ["\n  ".join([heading, *lines]) for heading, lines in self.sections().items()]
        return "\n\n".join(parts)


def advise(*, runs: str | Path | None = None, **chosen: Any) -> Advice:
    """Recommends one encoding, as ``posembed advise`` does.

    Args:
        runs: a run folder of ``posembed compare lengths``, used as evidence in addition to the published measurements.
        chosen: the fields of ``Needs``: ``length`` or ``grid``, ``longest`` ("none" for no limit), ``longest_grid``,
            ``width``, ``heads``, ``vocabulary``, ``far``, ``checkpoint``.

    Raises:
        ArgumentError: the needs contradict each other, or the folder has no finished run.
        RunFolderError: the folder is not a run folder of ``posembed compare lengths``, or is damaged.

    >>> advise(length=512, longest=4096, far=True).recommendation
    'rope-scaled'
    """
    own = [] if runs is None else [study_of_folder(Path(runs))]
    return recommend(needs_of(**chosen), [*own, *published_studies()])


def recommend(needs: Needs, studies: Sequence[Study] = ()) -> Advice:
    """Recommends one option that meets the needs. studies: the evidence, most trusted first."""
    chosen = next(choice for choice in ranked(needs) if choice.cannot(needs) is None)
    reasons, notes = [chosen.reason.format(n=needs)], []
    study = next((study for study in studies if study.row(chosen.encoding)), None)
    rival = None if study is None else best_rival(study, chosen, needs)
    if study is not None and rival is not None:
        better, apart, text = rival
        if study.own and apart:
            chosen = better
            reasons = [f"in your own runs {text}: their intervals do not overlap", chosen.reason.format(n=needs)]
        else:
            known = "their intervals do not overlap" if apart else "their intervals overlap or are unknown"
            notes.append(
                f"a study disagrees ({study.title}): {text} ({known}); compare them on your own text with "
                "posembed compare lengths"
            )
    if chosen.name == "rope" and (large := too_large(needs)) is not None:
        reasons.append(f"a learned table is not the default here: {large}")
    findings = needs.checkpoint.findings if needs.checkpoint is not None else ()
    notes += [*(f"the checkpoint's table: {finding}" for finding in findings), *chosen.warnings(needs)]
    options = []
    for choice in CHOICES:
        if choice.is_relevant(needs):
            count = choice.parameters(needs)
            title = choice.title.format(n=needs)
            options.append(Option(choice.name, title, count, needs.share(count), choice.cannot(needs)))
    return Advice(
        needs=needs,
        recommendation=chosen.name,
        title=chosen.title.format(n=needs),
        reasons=tuple(reasons),
        options=tuple(options),
        caveats=(*notes, "data and tuning matter more than this choice"),
        figures=tuple(figures(study, needs, studies)),
    )


def figures(study: Study | None, needs: Needs, studies: Sequence[Study]) -> list[Figures]:
    """Returns figures of the user's own studies. Without them, uses ``study`` and the study with the most encodings."""
    if needs.grid is not None or not studies:
        return []
    broadest = max(studies, key=lambda study: len([row for row in study.rows if row.encoding in TRAINED]))
    first = study or studies[0]
    usual = [first] if first is broadest else [first, broadest]
    found = []
    for each in [study for study in studies if study.own] or usual:
        lines = []
        for row in (row for row in each.rows if row.encoding in TRAINED):
            window = "" if row.window is None else f", window {row.window:,}"
            at = [
                f"{written(row.by_length[n]) if n in row.by_length else 'not measured'} at {n:,}"
                for n in dict.fromkeys((each.train_length, each.longest))
            ]
            lines.append(f"{row.encoding}{window}: {', '.join(at)} (runs: {row.seeds})")
        found.append(Figures(f"{each.title}: perplexity of the same tokens", each.source, tuple(lines)))
    return found


def best_rival(study: Study, chosen: Choice, needs: Needs) -> tuple[Choice, bool, str] | None:
    """Finds a choice that meets the needs and has a lower perplexity than ``chosen`` in the study, if there is one.

    Returns that choice, whether the 95% intervals of both are disjoint, and both perplexities in words. Prefers
    disjoint intervals, then the lowest perplexity. Compares at the training length if the needs are limited to it, or
    else at the longest length of the study.
    """
    length = study.train_length if needs.fixed else study.longest
    ours = study.perplexity(chosen.encoding, length)
    if ours is None:
        return None
    better = []
    for choice in CHOICES:
        value = study.perplexity(choice.encoding, length)
        if value is not None and value.value < ours.value and choice.cannot(needs) is None:
            apart = value.high is not None and ours.low is not None and value.high < ours.low
            better.append((choice, apart, value))
    if not better:
        return None
    choice, apart, value = min(better, key=lambda rival: (not rival[1], rival[2].value))
    theirs = f"{choice.encoding} has a perplexity of {written(value)} at {length:,} tokens"
    return choice, apart, f"{theirs} and {chosen.encoding} of {written(ours)}"


def written(value: Estimate | None) -> str:
    if value is None:
        return "no position"
    interval = "" if value.low is None or value.high is None else f" ({value.low:.2f} to {value.high:.2f})"
    return f"{value.value:.2f}{interval}"


def ranked(needs: Needs) -> list[Choice]:
    """Returns the choices in order of preference. The first that meets the needs is recommended."""
    names = ["keep", "resize"] if needs.checkpoint is not None else []
    if needs.grid is not None:
        names += ["learned-grid", "learned-grid, re-gridded"]
    elif needs.checkpoint is not None and not needs.has_table:
        names = ["keep", "rope-scaled"]
    elif not needs.fixed:
        names += ["rolling", "rope-scaled"]
    else:
        names += ["learned", "rope"] if too_large(needs) is None else ["rope"]
    return [BY_NAME[name] for name in names]


def too_large(needs: Needs) -> str | None:
    """Returns the reason why a learned table of the longest length is too large as the default; None if it is not."""
    rows = needs.longest or needs.length
    if rows > USUAL_LENGTH:
        return f"{rows:,} rows are more than the {USUAL_LENGTH:,} that are usual for learned tables"
    share = needs.share(needs.table)
    if share is not None and share > AFFORDABLE_SHARE:
        return f"its rows would be {share:.1%} of the embeddings, more than {AFFORDABLE_SHARE:.0%}"
    return None
