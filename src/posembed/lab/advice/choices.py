"""The choices that advice ranks, from choices.json: what each costs, what it cannot do, why to take it, its caveats."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posembed.lab.advice.needs import Needs

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
"""What choices.json may ask of the needs."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One thing to do. Texts are templates that name the needs ``n``.

    of: what it applies to: "sequence", "grid" or "checkpoint".
    encoding: its name in the lab, which finds its measurements; None if the lab does not train it.
    rows: the rows of its position parameters, new or existing: those of the "table", of the "window", or none.
    reason: why to take it, if it can do what is needed.
    unless: pairs of a condition under which it cannot, and why. caveats: pairs of a condition and what to watch for.
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
        """Returns why it cannot do what is needed; None if it can."""
        return next(iter(texts_for(self.unless, needs)), None)

    def warnings(self, needs: Needs) -> list[str]:
        """Returns the caveats, and says so if an existing checkpoint cannot take this choice."""
        notes = texts_for(self.caveats, needs)
        if needs.checkpoint is not None and needs.has_table and self.of != "checkpoint":
            held = f"{needs.checkpoint.length:,}"
            notes.append(
                f"the checkpoint's table ends at {held}, so this means training from scratch; the alternative is to "
                f"feed it text in chunks of {held}"
            )
        return notes

    def is_relevant(self, needs: Needs) -> bool:
        """Returns whether it is worth a line for a grid or a sequence, with or without a checkpoint."""
        if self.of == "checkpoint":
            return needs.checkpoint is not None
        return (self.of == "grid") == (needs.grid is not None)


def texts_for(pairs: Sequence[tuple[str, str]], needs: Needs) -> list[str]:
    """Returns the texts whose condition holds."""
    return [text.format(n=needs) for condition, text in pairs if CONDITIONS[condition](needs)]


CHOICES = [Choice(**choice) for choice in json.loads(Path(__file__).with_name("choices.json").read_text("utf-8"))]
BY_NAME = {choice.name: choice for choice in CHOICES}


def ranked(needs: Needs) -> list[Choice]:
    """Returns the choices in order of preference: advice takes the first that can do what is needed."""
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
    """Returns why a learned table of the longest length is not the default; None if it is."""
    rows = needs.longest or needs.length
    if rows > USUAL_LENGTH:
        return f"{rows:,} rows are more than the {USUAL_LENGTH:,} that are usual for learned tables"
    share = needs.share(needs.table)
    if share is not None and share > AFFORDABLE_SHARE:
        return f"its rows would be {share:.1%} of the embeddings, more than {AFFORDABLE_SHARE:.0%}"
    return None
