"""The choices that advice ranks. Each carries what it costs, what it cannot do, why to take it and its caveats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from posembed.lab.advice.needs import LAYERS, Needs, shown

USUAL_LENGTH = 8192
"""Learned tables are usual up to this length; most rows of a longer table are seldom trained."""
AFFORDABLE_SHARE = 0.1
"""The share of the embeddings above which a learned table is not the default."""
FINE_TUNED_TO = 32
"""YaRN's paper (arXiv:2309.00071) fine-tunes to 32 times the training length."""
RESIZED_TO = 8
"""Longformer (arXiv:2004.05150) tiles a table to 8 times its length."""

WINDOW_REACH = "a token uses nothing beyond the windows' reach, however low the perplexity"
FURTHER = "sequences grow to {n.reach} after training at {n.length:,}"
FIXED = "no sequence is longer than the training length of {n.length:,}"

Verdict = Callable[[Needs], str | None]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One thing to do. Texts are templates that name the needs ``n``.

    of: what it applies to: "sequence", "grid" or "checkpoint".
    encoding: its name in the lab, which finds its measurements; None if the lab does not train it.
    parameters: its position parameters, new or existing.
    cannot: why it cannot do what is needed; None if it can. reason: why to take it, if it can.
    caveats: what to watch for. more: caveats that depend on the needs.
    """

    name: str
    of: str = "sequence"
    encoding: str | None = None
    title: str
    parameters: Callable[[Needs], int] = lambda needs: 0
    cannot: Verdict
    reason: str
    caveats: tuple[str, ...] = ()
    more: Callable[[Needs], list[str]] = lambda needs: []

    def warnings(self, needs: Needs) -> list[str]:
        """Returns the caveats, and says so if an existing checkpoint cannot take this choice."""
        notes = [*(caveat.format(n=needs) for caveat in self.caveats), *self.more(needs)]
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


def _on_sequence(falls_short: Verdict) -> Verdict:
    return lambda n: "it is for sequences, and these positions are a grid" if n.grid else falls_short(n)


def _not_far(why: str) -> Verdict:
    return _on_sequence(lambda n: why if n.far else None)


def _untrained(n: Needs) -> str | None:
    return None if n.fixed else f"beyond {n.length:,} tokens it meets untrained positions and gets worse"


def _keep(n: Needs) -> str | None:
    held = n.checkpoint
    if held is None:
        return "there is no checkpoint"
    if held.length is None:
        return _untrained(n)
    if held.grid is not None and n.largest_grid is not None:
        inside = all(rows >= wanted for rows, wanted in zip(held.grid, n.largest_grid, strict=True))
        return None if inside else f"its table ends at {shown(held.grid)}"
    return None if n.longest is not None and n.longest <= held.length else f"its table ends at {held.length:,}"


def _resize(n: Needs) -> str | None:
    if n.checkpoint is None or n.checkpoint.length is None:
        return "there is no checkpoint with a learned table"
    return None if n.longest is not None else "every table has a last row"


def _resize_caveats(n: Needs) -> list[str]:
    measure = " (posembed evaluate, on your own text)" if n.grid is None else ""
    notes = [f"new rows are only a start: fine-tune at the new length, and measure before and after{measure}"]
    held = n.checkpoint.length if n.checkpoint is not None else None
    if held and n.longest is not None and n.longest > RESIZED_TO * held:
        times = n.longest / held
        notes.append(f"{times:.0f} times its length is more than the {RESIZED_TO} times that Longformer shows")
    return notes


def _learned(n: Needs) -> str | None:
    if n.grid:
        return "one row per position does not know rows and columns; use a grid"
    return None if n.fixed else f"rows past {n.length:,} are never trained, and there is none past the last"


def _grid(n: Needs) -> str | None:
    return None if n.grid else "these positions are a sequence"


def _scaled_caveats(n: Needs) -> list[str]:
    notes = []
    if n.factor is None:
        notes.append("no factor reaches without limit: choose one, and feed longer text in chunks")
    elif n.factor > FINE_TUNED_TO:
        notes.append(f"a factor of {n.factor:.0f} is more than the {FINE_TUNED_TO} that YaRN's paper shows")
    if n.checkpoint is not None and n.checkpoint.length is None:
        notes.append("only if the checkpoint has RoPE: ALiBi and relative biases have nothing to scale")
    return notes


CHOICES = (
    Choice(
        name="keep",
        of="checkpoint",
        title="the checkpoint's positions as they are",
        cannot=_keep,
        reason="the checkpoint's positions reach {n.reach}, and all its weights were trained with them",
    ),
    Choice(
        name="resize",
        of="checkpoint",
        title="the checkpoint's table, resized to {n.reach}",
        parameters=lambda n: n.table,
        cannot=_resize,
        reason="the checkpoint was trained with its table: resize it to {n.reach} and keep all other weights",
        more=_resize_caveats,
    ),
    Choice(
        name="learned",
        encoding="learned",
        title="a learned table, {n.length:,} rows",
        parameters=lambda n: n.table,
        cannot=_learned,
        reason="the length is fixed at {n.length:,}, every row is trained, and {n.table:,} parameters are few compared "
        "with the token table",
        caveats=("position {n.length:,} (counted from 0) has no row until the table is resized",),
    ),
    Choice(
        name="learned-grid",
        of="grid",
        title="a learned table of the grid, {n.grid[0]} x {n.grid[1]}",
        parameters=lambda n: n.table,
        cannot=lambda n: _grid(n) or (None if n.fixed else "the grid grows"),
        reason="the grid is fixed at {n.reach}, and image models use one row per patch",
    ),
    Choice(
        name="learned-grid, re-gridded",
        of="grid",
        title="a learned table of the grid, resized for larger images",
        parameters=lambda n: n.table,
        cannot=_grid,
        reason="a table that was trained on the grid can be interpolated to {n.reach}",
        caveats=("fine-tune at the larger size; interpolate bicubic with antialiasing, as timm does",),
    ),
    Choice(
        name="rolling",
        encoding="rolling",
        title="learned rows in a ring under a causal window, for example {n.window} rows",
        parameters=lambda n: n.window * n.width,
        cannot=_not_far(WINDOW_REACH),
        reason=f"{FURTHER}; in a ring under a window every token meets only trained distances, and far tokens need not "
        "be retrieved",
        caveats=(
            f"the model's attention must apply the window (here {{n.window}} tokens, for {LAYERS} layers) in training "
            "and after, so that its reach through all layers stays within the training length",
            f"low perplexity does not prove reach: {WINDOW_REACH}",
        ),
    ),
    Choice(
        name="rope+window",
        encoding="rope+window",
        title="RoPE under a causal window",
        cannot=_not_far(WINDOW_REACH),
        reason=f"{FURTHER}, and under a window every distance is trained",
        caveats=(f"low perplexity does not prove reach: {WINDOW_REACH}",),
    ),
    Choice(
        name="rope",
        encoding="rope",
        title="RoPE",
        cannot=_on_sequence(_untrained),
        reason=f"{FIXED}, it has no parameters, and most new models use it",
    ),
    Choice(
        name="rope-scaled",
        encoding="rope-yarn",
        title="RoPE with scaled frequencies (YaRN{n.scaling})",
        cannot=_on_sequence(lambda n: "nothing longer is needed, so there is nothing to scale" if n.fixed else None),
        reason=f"{FURTHER} with all tokens in reach, which neither a window nor ALiBi gives, and plain RoPE gets worse "
        "past its training length",
        caveats=(
            "fine-tune at the longer length, and test with a passkey or copy task: low perplexity alone does not show "
            "that far tokens are found",
        ),
        more=_scaled_caveats,
    ),
    Choice(
        name="alibi",
        encoding="alibi",
        title="ALiBi",
        cannot=_not_far("its penalty on distance hides far tokens"),
        reason="it has no parameters, and its bias is defined for every distance",
        caveats=("its penalty hides far tokens: low perplexity does not show that they are found",),
    ),
    Choice(
        name="sinusoidal",
        encoding="sinusoidal",
        title="fixed sinusoids",
        cannot=_on_sequence(_untrained),
        reason=f"{FIXED}, and it has no parameters",
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


def too_large(needs: Needs) -> str | None:
    """Returns why a learned table of the longest length is not the default; None if it is."""
    rows = needs.longest or needs.length
    if rows > USUAL_LENGTH:
        return f"{rows:,} rows are more than the {USUAL_LENGTH:,} that are usual for learned tables"
    share = needs.share(needs.table)
    if share is not None and share > AFFORDABLE_SHARE:
        return f"its rows would be {share:.1%} of the embeddings, more than {AFFORDABLE_SHARE:.0%}"
    return None
