"""The choices that advice ranks. Each carries what it costs, what it cannot do, why to take it and its caveats."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posembed.lab.advice.needs import Needs, shown

USUAL_LENGTH = 8192
"""Learned tables are usual up to this length; most rows of a longer table are seldom trained."""
AFFORDABLE_SHARE = 0.1
"""The share of the embeddings above which a learned table is not the default."""
FINE_TUNED_TO = 32
"""YaRN's paper (arXiv:2309.00071) fine-tunes to 32 times the training length."""
RESIZED_TO = 8
"""Longformer (arXiv:2004.05150) tiles a table to 8 times its length."""
LAYERS = 12
"""The depth of the model for which windows are suggested."""

WINDOW_REACH = "a token uses nothing beyond the windows' reach, however low the perplexity"

OfNeeds = Callable[[Needs], Any]


def window_of(needs: Needs) -> int:
    """Returns the lab's window for 12 layers at the training length; at least 2."""
    from posembed.lab.runs.spec import default_window

    return max(default_window(LAYERS, needs.length), 2)


def table_parameters(needs: Needs) -> int:
    """Returns the parameters of a learned table of the longest length, or of the training length without a limit."""
    return (needs.longest or needs.length) * needs.width


def too_large(needs: Needs) -> str | None:
    """Returns why a learned table of the longest length is not the default; None if it is."""
    assert needs.longest is not None
    if needs.longest > USUAL_LENGTH:
        return f"{needs.longest:,} rows are more than the {USUAL_LENGTH:,} that are usual for learned tables"
    share = needs.share(table_parameters(needs))
    if share is not None and share > AFFORDABLE_SHARE:
        return f"its rows would be {share:.1%} of the embeddings, more than {AFFORDABLE_SHARE:.0%}"
    return None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One thing to do. Every function takes the needs.

    encoding: its name in the lab, which finds its measurements; None if the lab does not train it.
    parameters: its position parameters, new or existing.
    cannot: why it cannot do what is needed; None if it can.
    reason: why to take it, if it can. caveats: what to watch for; empty strings are left out.
    of: what it applies to.
    """

    name: str
    encoding: str | None = None
    of: str = "sequence"
    title: OfNeeds
    parameters: OfNeeds = lambda needs: 0
    cannot: OfNeeds
    reason: OfNeeds
    caveats: OfNeeds = lambda needs: ()

    def warnings(self, needs: Needs) -> list[str]:
        """Returns the caveats, and says so if an existing checkpoint cannot take this choice."""
        notes = [note for note in self.caveats(needs) if note]
        held = needs.checkpoint
        if held is not None and held.length is not None and self.of != "checkpoint":
            notes.append(
                f"the checkpoint's table ends at {held.length:,}, so this means training from scratch; the alternative "
                f"is to feed it text in chunks of {held.length:,}"
            )
        return notes

    def is_relevant(self, needs: Needs) -> bool:
        """Returns whether it is worth a line for a grid or a sequence, with or without a checkpoint."""
        if self.of == "checkpoint":
            return needs.checkpoint is not None
        return (self.of == "grid") == (needs.grid is not None)


def further(needs: Needs) -> str:
    return f"sequences grow to {needs.reach} after training at {needs.length:,}"


def fixed(needs: Needs) -> str:
    return f"no sequence is longer than the training length of {needs.length:,}"


def untrained_beyond(needs: Needs) -> str | None:
    return None if needs.fixed else f"beyond {needs.length:,} tokens it meets untrained positions and gets worse"


def not_far(why: str) -> OfNeeds:
    return lambda needs: why if needs.far else None


def on_sequence(falls_short: OfNeeds) -> OfNeeds:
    return lambda n: "it is for sequences, and these positions are a grid" if n.grid else falls_short(n)


def _keep_cannot(needs: Needs) -> str | None:
    held = needs.checkpoint
    if held is None:
        return "there is no checkpoint"
    if held.length is None:
        return untrained_beyond(needs)
    if held.grid is not None and needs.largest_grid is not None:
        inside = all(rows >= wanted for rows, wanted in zip(held.grid, needs.largest_grid, strict=True))
        return None if inside else f"its table ends at {shown(held.grid)}"
    inside = needs.longest is not None and needs.longest <= held.length
    return None if inside else f"its table ends at {held.length:,}"


def _resize_cannot(needs: Needs) -> str | None:
    if needs.checkpoint is None or needs.checkpoint.length is None:
        return "there is no checkpoint with a learned table"
    return None if needs.longest is not None else "every table has a last row"


def _resize_caveats(needs: Needs) -> list[str]:
    measure = " (posembed evaluate, on your own text)" if needs.grid is None else ""
    notes = [f"new rows are only a start: fine-tune at the new length, and measure before and after{measure}"]
    held = needs.checkpoint
    if held is not None and held.length and needs.longest is not None and needs.longest > RESIZED_TO * held.length:
        times = needs.longest / held.length
        notes.append(f"{times:.0f} times its length is more than the {RESIZED_TO} times that Longformer shows")
    return notes


def _learned_cannot(needs: Needs) -> str | None:
    if needs.grid:
        return "one row per position does not know rows and columns; use a grid"
    if needs.longest is None or not needs.fixed:
        return f"rows past {needs.length:,} are never trained, and there is none past the last"
    return None


def _scaled_caveats(needs: Needs) -> list[str]:
    notes = [
        "fine-tune at the longer length, and test with a passkey or copy task: low perplexity alone does not show "
        "that far tokens are found"
    ]
    if needs.factor is None:
        notes.append("no factor reaches without limit: choose one, and feed longer text in chunks")
    elif needs.factor > FINE_TUNED_TO:
        notes.append(f"a factor of {needs.factor:.0f} is more than the {FINE_TUNED_TO} that YaRN's paper shows")
    if needs.checkpoint is not None and needs.checkpoint.length is None:
        notes.append("only if the checkpoint has RoPE: ALiBi and relative biases have nothing to scale")
    return notes


CHOICES = (
    Choice(
        name="keep",
        of="checkpoint",
        title=lambda n: "the checkpoint's positions as they are",
        cannot=_keep_cannot,
        reason=lambda n: f"the checkpoint's positions reach {n.reach}, and all its weights were trained with them",
    ),
    Choice(
        name="resize",
        of="checkpoint",
        title=lambda n: f"the checkpoint's table, resized to {n.reach}{'' if n.grid else ' positions'}",
        parameters=table_parameters,
        cannot=_resize_cannot,
        reason=lambda n: f"the checkpoint was trained with its table: resize it to {n.reach}, keep all other weights",
        caveats=_resize_caveats,
    ),
    Choice(
        name="learned",
        encoding="learned",
        title=lambda n: f"a learned table, {n.length:,} rows",
        parameters=table_parameters,
        cannot=_learned_cannot,
        reason=lambda n: (
            f"the length is fixed at {n.length:,}, every row is trained, and {table_parameters(n):,} "
            "parameters are few compared with the token table"
        ),
        caveats=lambda n: [f"position {n.length:,} (counted from 0) has no row until the table is resized"],
    ),
    Choice(
        name="learned-grid",
        of="grid",
        title=lambda n: f"a learned table of the grid, {shown(n.grid) if n.grid else ''}",
        parameters=table_parameters,
        cannot=lambda n: None if n.grid and n.fixed else "the grid grows" if n.grid else "the positions are a sequence",
        reason=lambda n: f"the grid is fixed at {n.reach}, and image models use one row per patch",
    ),
    Choice(
        name="learned-grid, re-gridded",
        of="grid",
        title=lambda n: "a learned table of the grid, resized for larger images",
        parameters=table_parameters,
        cannot=lambda n: None if n.grid else "the positions are a sequence",
        reason=lambda n: f"a table that was trained on the grid can be interpolated to {n.reach}",
        caveats=lambda n: ["fine-tune at the larger size; interpolate bicubic with antialiasing, as timm does"],
    ),
    Choice(
        name="rolling",
        encoding="rolling",
        title=lambda n: f"learned rows in a ring under a causal window, for example {window_of(n)} rows",
        parameters=lambda n: window_of(n) * n.width,
        cannot=on_sequence(not_far(WINDOW_REACH)),
        reason=lambda n: (
            f"{further(n)}; in a ring under a window every token meets only trained distances, and far "
            "tokens need not be retrieved"
        ),
        caveats=lambda n: [
            f"the model's attention must apply the window (here {window_of(n)} tokens, for {LAYERS} layers) in "
            "training and after, so that its reach through all layers stays within the training length",
            f"low perplexity does not prove reach: {WINDOW_REACH}",
        ],
    ),
    Choice(
        name="rope+window",
        encoding="rope+window",
        title=lambda n: "RoPE under a causal window",
        cannot=on_sequence(not_far(WINDOW_REACH)),
        reason=lambda n: f"{further(n)}, and under a window every distance is trained",
        caveats=lambda n: [f"low perplexity does not prove reach: {WINDOW_REACH}"],
    ),
    Choice(
        name="rope",
        encoding="rope",
        title=lambda n: "RoPE",
        cannot=on_sequence(untrained_beyond),
        reason=lambda n: f"{fixed(n)}, it has no parameters, and most new models use it",
    ),
    Choice(
        name="rope-scaled",
        encoding="rope-yarn",
        title=lambda n: (
            "RoPE with scaled frequencies (YaRN"
            + ("" if n.factor is None else f", factor {math.ceil(100 * n.factor) / 100:g}")
            + ")"
        ),
        cannot=on_sequence(lambda n: "nothing longer is needed, so there is nothing to scale" if n.fixed else None),
        reason=lambda n: (
            f"{further(n)} with all tokens in reach, which neither a window nor ALiBi gives, and plain "
            "RoPE gets worse past its training length"
        ),
        caveats=_scaled_caveats,
    ),
    Choice(
        name="alibi",
        encoding="alibi",
        title=lambda n: "ALiBi",
        cannot=on_sequence(not_far("its penalty on distance hides far tokens")),
        reason=lambda n: (
            f"{fixed(n)}, and it has no parameters"
            if n.fixed
            else f"{further(n)}, and its bias is defined for every distance"
        ),
        caveats=lambda n: ["its penalty hides far tokens: low perplexity does not show that they are found"],
    ),
    Choice(
        name="sinusoidal",
        encoding="sinusoidal",
        title=lambda n: "fixed sinusoids",
        cannot=on_sequence(untrained_beyond),
        reason=lambda n: f"{fixed(n)}, and it has no parameters",
    ),
)
BY_NAME = {choice.name: choice for choice in CHOICES}


def ranked(needs: Needs) -> list[Choice]:
    """Returns the choices in order of preference: advice takes the first that can do what is needed."""
    held = needs.checkpoint
    if needs.grid is not None:
        names = ["learned-grid", "learned-grid, re-gridded"]
    elif held is not None and held.length is None:
        return [BY_NAME["keep"], BY_NAME["rope-scaled"]]
    elif not needs.fixed:
        names = ["rolling", "rope-scaled"]
    else:
        names = ["learned", "rope"] if too_large(needs) is None else ["rope"]
    return [BY_NAME[name] for name in (["keep", "resize"] if held is not None else []) + names]
