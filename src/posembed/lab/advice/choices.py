"""What could be done, what each costs, and whether it can do what is needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from posembed.lab.advice.needs import Held, Needs, shown
from posembed.lab.runs.spec import default_window

LEARNED_UP_TO = 8192
"""Tables are usual to this length; longer ones hold rows that training seldom reaches."""
AFFORDABLE_SHARE = 0.1
"""Of the embeddings: a table above it is not taken for granted."""
WINDOW_REACH = "under a window nothing beyond its reach is used, whatever the perplexity"


@dataclass(frozen=True)
class Choice:
    """One thing to do.

    encoding: its name in the lab, by which figures are found; None where the lab has none.
    parameters: of position, by the needs. cannot: why it cannot do what is needed, None where it can.
    """

    name: str
    title: Callable[[Needs], str]
    encoding: str | None
    parameters: Callable[[Needs], int]
    cannot: Callable[[Needs], str | None]


def _nothing(needs: Needs) -> int:
    return 0


def _rows(needs: Needs) -> int:
    assert needs.longest is not None
    return needs.longest * needs.width


def _table_or_none(needs: Needs) -> int:
    return _rows(needs) if needs.longest is not None else needs.train_length * needs.width


def window_of(needs: Needs, layers: int = 12) -> int:
    """The lab's window for so many layers; at least 2."""
    return max(default_window(layers, needs.train_length), 2)


def _needs_sequence(needs: Needs) -> str | None:
    return "it is for a sequence, and these positions are a grid" if needs.grid else None


def _keeps_to_training(needs: Needs) -> str | None:
    if needs.fixed:
        return None
    return f"past {needs.train_length:,} tokens it meets positions that it never trained on, and gets worse"


def _reaches_far(needs: Needs, why: str) -> str | None:
    return why if needs.fetch_far else None


def _keep(needs: Needs) -> str | None:
    held = needs.checkpoint
    if held is None:
        return "there is no checkpoint"
    if held.length is None:
        return _keeps_to_training(needs)
    if held.grid is not None and needs.largest_grid is not None:
        inside = all(there >= wanted for there, wanted in zip(held.grid, needs.largest_grid, strict=True))
        return None if inside else f"its table ends at {shown(held.grid)}"
    if needs.longest is None or needs.longest > held.length:
        return f"its table ends at {held.length:,}"
    return None


def _resize(needs: Needs) -> str | None:
    if needs.checkpoint is None or needs.checkpoint.length is None:
        return "there is no checkpoint with a learned table"
    return None if needs.longest is not None else "a table has a last row, however long it is made"


def _learned(needs: Needs) -> str | None:
    if needs.grid:
        return "a row for each place knows nothing of rows and columns; use a grid"
    if needs.longest is None or not needs.fixed:
        return f"rows past {needs.train_length:,} are never trained, and past its last row there is none"
    return None


def _on_sequence(*reasons: Callable[[Needs], str | None]) -> Callable[[Needs], str | None]:
    """The first reason why not, a grid being one."""
    return lambda needs: next((why for test in (_needs_sequence, *reasons) if (why := test(needs))), None)


CHOICES = (
    Choice("keep", lambda n: "the positions that the checkpoint has, as they are", None, _nothing, _keep),
    Choice(
        "resize",
        lambda n: f"the checkpoint's table, made longer ({_target(n)})",
        None,
        _table_or_none,
        _resize,
    ),
    Choice("learned", lambda n: f"a learned table, {n.train_length:,} rows", "learned", _table_or_none, _learned),
    Choice(
        "learned-grid",
        lambda n: f"a learned table of the grid, {shown(n.grid) if n.grid else ''}",
        None,
        _table_or_none,
        lambda n: None if n.grid and n.fixed else "the grid grows" if n.grid else "these positions are a sequence",
    ),
    Choice(
        "learned-grid, re-gridded",
        lambda n: "a learned table of the grid, resized where images are larger",
        None,
        _table_or_none,
        lambda n: None if n.grid else "these positions are a sequence",
    ),
    Choice(
        "rolling",
        lambda n: f"learned rows in a ring under a causal window, say {window_of(n)} rows",
        "rolling",
        lambda n: window_of(n) * n.width,
        _on_sequence(lambda n: _reaches_far(n, WINDOW_REACH)),
    ),
    Choice(
        "rope+window",
        lambda n: "RoPE under a causal window",
        "rope+window",
        _nothing,
        _on_sequence(lambda n: _reaches_far(n, WINDOW_REACH)),
    ),
    Choice("rope", lambda n: "RoPE", "rope", _nothing, _on_sequence(_keeps_to_training)),
    Choice(
        "rope-scaled",
        lambda n: f"RoPE with its frequencies scaled (YaRN{_factor(n)})",
        "rope-yarn",
        _nothing,
        _on_sequence(lambda n: None if not n.fixed else "nothing longer is needed, so there is nothing to scale"),
    ),
    Choice(
        "alibi",
        lambda n: "ALiBi",
        "alibi",
        _nothing,
        _on_sequence(lambda n: _reaches_far(n, "its penalty on distance hides what is far")),
    ),
    Choice("sinusoidal", lambda n: "fixed sinusoids", "sinusoidal", _nothing, _on_sequence(_keeps_to_training)),
)
BY_NAME = {choice.name: choice for choice in CHOICES}


def ranked(needs: Needs) -> list[str]:
    """The order in which to take the choices: the first that can do what is needed is recommended."""
    held: Held | None = needs.checkpoint
    of_checkpoint = ["keep", "resize"] if held is not None else []
    if needs.grid is not None:
        return [*of_checkpoint, "learned-grid", "learned-grid, re-gridded"]
    if held is not None and held.length is None:
        return ["keep", "rope-scaled"]
    if not needs.fixed:
        return [*of_checkpoint, "rolling", "rope-scaled"]
    if too_large(needs) is None:
        return [*of_checkpoint, "learned", "rope"]
    return [*of_checkpoint, "rope"]


def too_large(needs: Needs) -> str | None:
    """Why a learned table of the longest length is not taken for granted, if it is not."""
    assert needs.longest is not None
    if needs.longest > LEARNED_UP_TO:
        return f"{needs.longest:,} rows are more than the {LEARNED_UP_TO:,} that learned tables are usual to"
    share = share_of(needs, _rows(needs))
    if share is not None and share > AFFORDABLE_SHARE:
        return f"its rows would be {share:.1%} of the embeddings, more than {AFFORDABLE_SHARE:.0%}"
    return None


def share_of(needs: Needs, parameters: int) -> float | None:
    """Of the position and token parameters together; None without a token table."""
    return parameters / (parameters + needs.vocabulary * needs.width) if needs.vocabulary else None


def factor_of(needs: Needs) -> float | None:
    """How many times longer than in training; None where there is no limit."""
    return None if needs.longest is None else needs.longest / needs.train_length


def _factor(needs: Needs) -> str:
    factor = factor_of(needs)
    return "" if factor is None else f", factor {math.ceil(100 * factor) / 100:g}"


def _target(needs: Needs) -> str:
    if needs.largest_grid is not None:
        return shown(needs.largest_grid)
    return f"{needs.longest:,} positions" if needs.longest is not None else "never long enough"
