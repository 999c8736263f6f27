"""What is special about ``compare lengths``: which encodings hold past the training length, and which reach back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from posembed.lab.found import Found, Row
from posembed.lab.tasks.text_specs import REPEAT_GAIN, SAME_TOKENS
from posembed.measure.summary import reached
from posembed.plots.charts import ended_at
from posembed.report.page import Cell, Column
from posembed.report.questions import QuestionPage
from posembed.report.words import called, listed, names_of, number, up_to

HOLDS = 1.02
"""An encoding holds if its same-token perplexity past the training length is never above this many times its perplexity
at the training length."""
REACHES = 0.05
"""A model used an earlier passage if the loss of the repetition is lower by at least this many nats per token (5% of
perplexity). Models that cannot reach the passage show gains of up to 0.02 by chance."""


class Page(QuestionPage):
    def columns(self, found: Found) -> Iterator[Column]:
        yield Cell(f"past {found.spec.train_length:,}", kind="words", rank=2), lambda row: verdict(found, row)
        if found.xs(REPEAT_GAIN):
            yield Cell("reaches back", kind="words", rank=4), lambda row: reach_in_words(found, row)

    def remarks(self, found: Found) -> Iterator[str]:
        trained, rows = found.spec.train_length, [found.row(name) for name in found.best_first(SAME_TOKENS, found.x)]
        by_kind = {
            kind: [row for row in rows if verdict(found, row).kind == kind] for kind in ("holds", "worse", "ends")
        }
        if any(worst_ratio(found, row) for row in rows):
            holding = names_of(by_kind["holds"]) or "none of the encodings"
            yield f"Past the training length of {trained:,} tokens, perplexity holds with {holding}."
            yield f"To hold, it must never be above {HOLDS:g} times its value at {base_of(found):,}."
        if ends := [f"{called(row.name)} ({last_position(found, row):,} tokens)" for row in by_kind["ends"]]:
            yield f"{listed(ends)} cannot be measured past {'its' if len(ends) == 1 else 'their'} last position."
        for row in by_kind["worse"]:
            worst = worst_ratio(found, row)
            if worst is not None and worst[1] != found.x:
                times = f"{number(worst[0])} times that at {base_of(found):,}"
                yield f"With {called(row.name)}, the perplexity is highest at {worst[1]:,} tokens: {times}."
        if (reaching := by_kind["holds"] or by_kind["worse"]) and found.xs(REPEAT_GAIN):
            reached = [f"{reach_in_words(found, row)} tokens for {called(row.name)}" for row in reaching]
            yield (
                "A low perplexity does not mean that the model uses distant text. In the repeat probe, the reach is "
                f"{listed(reached)}: the longest distance at which a passage lowers the loss of its repetition by at "
                f"least {REACHES:g} nats per token."
            )


def verdict(found: Found, row: Row) -> Cell:
    """Returns a cell with the result of an encoding past its training length. The kind of the cell is "holds", "worse",
    "ends", "failed" or "untested"."""
    if not row.seeds:
        steps = re.findall(r"at step (\d+)", " ".join(row.failures))
        return Cell(f"failed at step {', '.join(dict.fromkeys(steps))}" if steps else "failed", kind="failed")
    if (end := last_position(found, row)) is not None:
        return Cell(f"ends at {end:,}", kind="ends")
    worst = worst_ratio(found, row)
    if worst is None:
        return Cell("not tested", kind="untested")
    ratio, length = worst
    if ratio <= HOLDS:
        return Cell("holds", kind="holds")
    by = f"{(ratio - 1) * 100:.0f}% worse" if ratio < 1.995 else f"{number(ratio)} times worse"
    return Cell(by + ("" if length == found.x else f" at {length:,}"), kind="worse")


def last_position(found: Found, row: Row) -> int | None:
    values = {x: value for x, value in found.by_x(SAME_TOKENS, row.name).items() if x is not None}
    return ended_at(values, found.spec.train_length) if row.seeds else None


def base_of(found: Found) -> int | None:
    return None if found.axis is None else found.axis.base


def worst_ratio(found: Found, row: Row) -> tuple[float, int] | None:
    """Returns the highest ratio of a perplexity past the training length to the perplexity at the base length, and
    where it occurs; None if there is none. NaN counts as infinite."""
    base, trained = base_of(found), found.spec.train_length
    past = [x for x in found.xs(SAME_TOKENS) if x is not None and x > trained] if base is not None else []
    ratios = [(each.value, x) for x in past if (each := found.against(SAME_TOKENS, row.name, x, base))]
    return max(((math.inf if math.isnan(ratio) else ratio, x) for ratio, x in ratios), default=None)


def reach(found: Found, row: Row) -> int | None:
    """Returns the largest gap in tokens up to which the model used the passage at every gap; None if there is none."""
    gains = {gap: None if gain is None else gain.value for gap, gain in found.by_x(REPEAT_GAIN, row.name).items()}
    return reached(gains, REACHES)


def reach_in_words(found: Found, row: Row) -> str:
    """Formats the reach, such as "64", "256+" or "under 32". Empty if nothing was measured."""
    return up_to(reach(found, row), [gap for gap in found.xs(REPEAT_GAIN) if gap is not None]) if row.seeds else ""
