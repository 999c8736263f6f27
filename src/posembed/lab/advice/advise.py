"""Needs and evidence -> one recommendation, with what it costs, what to mind, and the figures it rests on.

The rules: a fixed length takes a learned table, or RoPE where the table would be large; what must go further takes
a ring under a window, or scaled RoPE if far tokens must be found; a checkpoint keeps what it has. Runs of one's
own overrule them where their intervals tell two encodings apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posembed.lab.advice.choices import BY_NAME, CHOICES, Choice, ranked, share_of, too_large
from posembed.lab.advice.evidence import Study
from posembed.lab.advice.figures import Figures, best_rival, figures, study_of
from posembed.lab.advice.needs import Needs
from posembed.lab.advice.words import caveats, reason

OF_CHECKPOINT = ("keep", "resize")


@dataclass(frozen=True)
class Option:
    """A choice that was weighed."""

    name: str
    title: str
    parameters: int
    """Of position, new or there already."""
    share: float | None
    """Of the embeddings; None without a token table."""
    cannot: str | None
    """Why it cannot do what is needed; None where it can."""


@dataclass(frozen=True)
class Advice:
    """recommendation: the name of one of the options that can do what is needed."""

    recommendation: str
    title: str
    reasons: tuple[str, ...]
    options: tuple[Option, ...]
    caveats: tuple[str, ...]
    figures: tuple[Figures, ...]


def advise(needs: Needs, studies: Sequence[Study] = ()) -> Advice:
    """One recommendation that can do what is needed.

    Args:
        studies: what was measured; one's own first, then those of most seeds.
    """
    able = [BY_NAME[name] for name in ranked(needs) if BY_NAME[name].cannot(needs) is None]
    assert able, f"every need has a choice that can meet it: {needs}"
    chosen, notes = able[0], []
    reasons = [reason(chosen, needs)]
    measured = study_of(chosen, studies)
    rival = best_rival(measured, chosen, needs) if measured is not None else None
    if measured is not None and rival is not None:
        if measured.own and rival.apart:
            reasons = [f"in your own runs {rival.text}: their intervals do not meet", reason(rival.choice, needs)]
            chosen = rival.choice
        else:
            known = "their intervals do not meet" if rival.apart else "too few runs, or too alike, to tell apart"
            notes.append(
                f"measured otherwise, in {measured.title}: {rival.text} ({known}); compare them on your own text "
                "with posembed compare lengths"
            )
    if chosen.name == "rope" and (large := too_large(needs)) is not None:
        reasons.append(f"a learned table is not taken for granted: {large}")
    return Advice(
        recommendation=chosen.name,
        title=chosen.title(needs),
        reasons=tuple(reasons),
        options=tuple(_option(choice, needs) for choice in CHOICES if _weighed(choice, needs)),
        caveats=(*notes, *caveats(chosen, needs)),
        figures=tuple(figures(chosen, needs, studies)),
    )


def _option(choice: Choice, needs: Needs) -> Option:
    parameters = choice.parameters(needs)
    return Option(choice.name, choice.title(needs), parameters, share_of(needs, parameters), choice.cannot(needs))


def _weighed(choice: Choice, needs: Needs) -> bool:
    """Whether it is worth a line: not a choice of the other kind of positions, nor of a checkpoint without one."""
    if choice.name in OF_CHECKPOINT:
        return needs.checkpoint is not None
    return choice.name.startswith("learned-grid") == (needs.grid is not None)
