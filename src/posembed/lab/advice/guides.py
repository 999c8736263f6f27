"""The decision tree of common guides to position encodings. Advice says where its measurements disagree with them."""

from __future__ import annotations

from posembed.lab.advice.needs import Needs

USUAL_LENGTH = 8192
"""The longest table that guides recommend, in rows."""
AFFORDABLE_SHARE = 0.1
"""A table with more than this share of the position and token parameters counts as too large; guides give no number."""


def guides_say(needs: Needs) -> tuple[tuple[str, ...], str] | None:
    """Returns the encodings that guides recommend for texts, and their rule in a sentence; None for images."""
    if needs.grid is not None:
        return None
    if needs.longest is None or needs.longest > USUAL_LENGTH:
        return (
            "alibi",
            "fire",
            "rope-longrope",
        ), f"ALiBi, FIRE or LongRoPE above {USUAL_LENGTH:,} tokens or without a limit"
    if not needs.fixed:
        return ("rope", "alibi", "rope-yarn"), "RoPE, ALiBi or YaRN if an input is ever longer than in training"
    share = needs.share(needs.table)
    scarce = needs.max_parameters is not None and needs.table > needs.max_parameters
    if scarce or (share is not None and share > AFFORDABLE_SHARE):
        return ("sinusoidal", "rope"), "sinusoids or RoPE if a learned table costs too many parameters"
    return ("learned",), f"a learned table for a fixed length of at most {USUAL_LENGTH:,} tokens"
