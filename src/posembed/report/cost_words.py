"""What a measurement of cost says, in sentences made from its numbers; shared by the page and the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posembed.lab.cost.results import CostResult, CostRow
from posembed.lab.cost.sizes import Size
from posembed.lab.cost.turns import Spread
from posembed.report.words import called, listed

MINUS = "\N{MINUS SIGN}"
CHEAP = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of attention's time. Encodings are said to take less than the lowest that the cheapest is below."""

QUOTED_ATTENTION_MS = 12.3
QUOTED_MS = {"learned": 0.08, "sinusoidal": 0.10, "rope": 0.32, "alibi": 0.18}
"""A table that circulates, of batch 32, length 512, width 768: attention, and each encoding beside it."""


def answer(result: CostResult) -> list[str]:
    """Time alone and inside the layer; parameters; growth."""
    texts = [_time(result), _inside(result), _parameters(result), _growth(result)]
    return [text for text in texts if text]


def cheapest_first(result: CostResult) -> list[CostRow]:
    return sorted(result.rows, key=lambda row: row.alone_share.backward.median)


def quoted_share(encoding: str) -> float | None:
    return QUOTED_MS[encoding] / QUOTED_ATTENTION_MS if encoding in QUOTED_MS else None


def yours(result: CostResult) -> Size:
    """A learned table at the sizes that were measured."""
    spec = result.spec
    return Size("these sizes", spec.length, spec.width, spec.vocabulary, spec.layers)


def sizes_in_words(result: CostResult) -> str:
    spec = result.spec
    return f"batch {spec.batch:,}, length {spec.length:,}, width {spec.width:,}, {spec.heads:,} heads"


def machine(result: CostResult) -> str:
    """ "AMD EPYC, 2 threads"; a GPU by its name."""
    environment = result.environment
    if result.spec.device != "cpu":
        return environment["device"]
    threads = environment["threads"]
    return f"{environment['processor']}, {threads} thread{'s' * (threads != '1')}"


def percent(share: float | None) -> str:
    """.0065 -> ".65%", -.12 -> "−12%"; two figures."""
    if share is None:
        return ""
    value = 100 * share
    if abs(value) < 0.005:
        return "0%"
    text = f"{abs(value):.2f}".lstrip("0") if abs(value) < 0.995 else f"{abs(value):.1f}"
    text = f"{abs(value):,.0f}" if abs(value) >= 9.95 else text
    return f"{MINUS if value < 0 else ''}{text}%"


def between(value: Spread) -> str:
    """The 95 % interval of a share; empty where none is known."""
    if value.low is None or value.high is None:
        return ""
    low, high = percent(value.low), percent(value.high)
    signed = low.startswith(MINUS) or high.startswith(MINUS)
    return f"{low} to {high}" if signed else f"{low.removesuffix('%')}\N{EN DASH}{high}"


def milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.3f}" if value < 0.995 else f"{value:.2f}" if value < 99.5 else f"{value:,.0f}"


def in_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1023.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def once_a_forward(row: CostRow) -> bool:
    """It works before the first layer alone, so the more layers, the smaller its share."""
    return not row.writes.queries_keys


def _names(rows: Sequence[CostRow]) -> str:
    return listed([called(row.encoding) for row in rows])


def _with_position(result: CostResult) -> list[CostRow]:
    """Those that do something; “none” shows what the measuring itself takes."""
    return [row for row in cheapest_first(result) if row.writes.all]


def _time(result: CostResult) -> str:
    rows = _with_position(result)
    if not rows:
        return ""
    layer = milliseconds(result.attention.backward.median)
    lead = f"In training, beside a layer of attention of {layer} ms ({sizes_in_words(result)}),"
    limit = next((x for x in CHEAP if rows[0].alone_share.backward.median < x), math.inf)
    cheap = [row for row in rows if row.alone_share.backward.median < limit]
    dear = [f"{called(row.encoding)} {percent(row.alone_share.backward.median)}" for row in rows[len(cheap) :]]
    if limit == math.inf:
        return f"{lead} the cheapest takes more than all of its time: {listed(dear)}."
    takes = f"{_names(cheap)} {'take' if len(cheap) > 1 else 'takes'} less than {limit:.0%} of its time"
    return f"{lead} {takes}{'; ' if dear else ''}{listed(dear) if dear else ''}."


def _inside(result: CostResult) -> str:
    """What cannot be told from nothing, what adds, what saves, and the likely reason."""
    rows = _with_position(result)
    saving = [row for row in rows if row.overhead.backward.high is not None and row.overhead.backward.high < 0]
    adding = [row for row in rows if row.overhead.backward.low is not None and row.overhead.backward.low > 0]
    parts = []
    for row in sorted(adding, key=lambda row: row.overhead.backward.median):
        why = ", since a bias (H, L, L) takes the place of a causal mask" if row.writes.scores else ""
        parts.append(f"{called(row.encoding)} adds {percent(row.overhead.backward.median)}{why}")
    for row in saving:
        why = ", by its window" if row.window else ""
        parts.append(f"{called(row.encoding)} saves {percent(-row.overhead.backward.median)}{why}")
    untold = [row for row in rows if row not in adding and row not in saving]
    if untold and all(row.overhead.backward.low is not None for row in untold):
        parts.append(f"what {_names(untold)} {'add' if len(untold) > 1 else 'adds'} cannot be told from nothing")
    return f"Put into the layer, {'; '.join(parts)}." if parts else ""


def _parameters(result: CostResult) -> str:
    size = yours(result)
    learned = [row for row in result.rows if row.parameters]
    nothing = [row for row in _with_position(result) if not row.parameters]
    share, of_model = percent(size.share_of_embeddings), percent(size.share_of_model)
    text = (
        f"A learned table of {size.rows:,} x {size.width:,} holds {size.table:,} parameters: {share} of the "
        f"embeddings with {size.vocabulary:,} tokens, {of_model} of a model of {size.layers:,} layers."
    )
    others = [row for row in learned if row.parameters != size.table]
    if others:
        text += f" With {listed([f'{called(row.encoding)} it is {row.parameters:,}' for row in others])}."
    if nothing:
        text += f" With {_names(nothing)} there are none."
    return text


def _growth(result: CostResult) -> str:
    rows = [row for row in _with_position(result) if row.growth.time_exponent is not None]
    through = [row for row in rows if row.growth.stopped is None]
    parts = []
    if through:
        exponents = sorted(row.growth.time_exponent or 0.0 for row in through)
        low, high = f"{exponents[0]:.1f}", f"{exponents[-1]:.1f}"
        powers = low if low == high else f"{low} to {high}"
        reached = max(through[0].growth.lengths)
        parts.append(
            f"Followed to {reached:,} tokens, the time of {_names(through)} grows as length to the power {powers}."
        )
    for row in rows:
        if row.growth.stopped is not None:
            parts.append(
                f"That of {called(row.encoding)} grows as length to the power {row.growth.time_exponent:.1f}; it "
                f"was followed to {max(row.growth.lengths):,} ({row.growth.stopped})."
            )
    return " ".join(parts)
