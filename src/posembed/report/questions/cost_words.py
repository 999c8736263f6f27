"""The answer of a measurement of cost in sentences, and how its numbers are written; for the page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from posembed.lab.cost.results import CostResult, CostRow
from posembed.lab.cost.sizes import Size
from posembed.report.words import called, counted, listed
from posembed.statistics import Estimate

MINUS = "\N{MINUS SIGN}"
CHEAP = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of attention's time. The answer names the lowest one that the cheapest encoding is below."""
FEW = 4
"""The answer lists up to this many encodings by name; the tables list all."""
QUOTED_ATTENTION_MS = 12.3
QUOTED_MS = {"learned": 0.08, "sinusoidal": 0.10, "rope": 0.32, "alibi": 0.18}
"""Published milliseconds of attention, and of each encoding, at batch 32, length 512, width 768."""


def answer(result: CostResult) -> list[str]:
    """Returns what encodings cost: time alone and inside the layer, parameters, growth."""
    texts = [_time(result), _inside(result), _parameters(result), _growth(result)]
    return [text for text in texts if text]


def cheapest_first(result: CostResult) -> list[CostRow]:
    return sorted(result.rows, key=lambda row: row.alone_share.backward.value)


def quoted_share(encoding: str) -> float | None:
    return QUOTED_MS[encoding] / QUOTED_ATTENTION_MS if encoding in QUOTED_MS else None


def yours(result: CostResult) -> Size:
    """Returns a learned table at the measured sizes."""
    settings = result.settings
    return Size("these sizes", settings.length, settings.width, settings.vocabulary, settings.layers)


def sizes_in_words(result: CostResult) -> str:
    settings = result.settings
    heads = counted(settings.heads, "head")
    return f"batch {settings.batch:,}, length {settings.length:,}, width {settings.width:,}, {heads}"


def machine(result: CostResult) -> str:
    """ "AMD EPYC, 2 threads", or the name of the GPU."""
    environment = result.environment
    if result.settings.device != "cpu":
        return environment["device"]
    return f"{environment['processor']}, {counted(int(environment['threads']), 'thread')}"


def percent(share: float | None) -> str:
    """Writes two figures: .0065 as ".65%", -.12 as "−12%"."""
    if share is None:
        return ""
    value = 100 * share
    if abs(value) < 0.005:
        return "0%"
    text = f"{abs(value):.2f}".lstrip("0") if abs(value) < 0.995 else f"{abs(value):.1f}"
    text = f"{abs(value):,.0f}" if abs(value) >= 9.95 else text
    return f"{MINUS if value < 0 else ''}{text}%"


def between(value: Estimate) -> str:
    """Writes the interval of a share; empty if there is none."""
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
    """Returns whether it works only before the first layer, so that more layers make its share smaller."""
    return not row.writes.queries_keys


def _names(rows: Sequence[CostRow]) -> str:
    return listed([called(row.encoding) for row in rows])


def _with_verb(rows: Sequence[CostRow], verb: str) -> str:
    """ "rope adds", "rope and alibi add"."""
    return f"{_names(rows)} {verb}{'s' * (len(rows) == 1)}"


def _range(texts: Sequence[str]) -> str:
    """ "3.0%", or "3.0% to 25%" from the first text to the last."""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def _with_position(result: CostResult) -> list[CostRow]:
    """Returns the encodings that do something; “none” shows the cost of measuring."""
    return [row for row in cheapest_first(result) if row.writes.all]


def _time(result: CostResult) -> str:
    rows = _with_position(result)
    if not rows:
        return ""
    shares = [row.alone_share.backward.value for row in rows]
    layer = milliseconds(result.attention.backward.value)
    lead = f"In training, compared with an attention layer of {layer} ms ({sizes_in_words(result)}),"
    limit = next((x for x in CHEAP if shares[0] < x), None)
    cheap = [row for row, share in zip(rows, shares, strict=True) if limit is not None and share < limit]
    dear = [(called(row.encoding), percent(share)) for row, share in zip(rows, shares, strict=True)][len(cheap) :]
    if len(dear) <= FEW:
        others = listed([f"{name} {share}" for name, share in dear])
    else:
        others = f"the others from {' to '.join(f'{share} ({name})' for name, share in (dear[0], dear[-1]))}"
    if limit is None:
        return f"{lead} even the cheapest takes more time: {others}."
    return f"{lead} {_with_verb(cheap, 'take')} less than {limit:.0%} of its time{f'; {others}' if dear else ''}."


def _inside(result: CostResult) -> str:
    """Says which encodings add time and which save it, each with the likely reason, and which are not significant."""
    rows = sorted(_with_position(result), key=lambda row: row.overhead.backward.value)
    saving, adding, unclear = (
        [row for row in rows if row.overhead.backward.side_of(0) == side] for side in ("below", "above", "both")
    )
    parts = []
    for bias, why in ((False, ""), (True, ", because a bias (H, L, L) replaces the causal mask")):
        group = [row for row in adding if bool(row.writes.scores) == bias]
        if group:
            shares = _range([percent(row.overhead.backward.value) for row in group])
            parts.append(f"{_with_verb(group, 'add')} {shares}{why}")
    if saving:
        shares = _range([percent(-row.overhead.backward.value) for row in saving[::-1]])
        why = ", by a window" if all(row.window for row in saving) else ""
        parts.append(f"{_with_verb(saving, 'save')} {shares}{why}")
    if unclear and len(saving) + len(adding) + len(unclear) == len(rows):
        of = _names(unclear) if len(unclear) <= FEW or not parts else "the others"
        parts.append(f"the overhead of {of} is not significant")
    return f"In the layer, {'; '.join(parts)}." if parts else ""


def _parameters(result: CostResult) -> str:
    size, rows = yours(result), _with_position(result)
    nothing = [row for row in rows if not row.parameters]
    others = [row for row in result.rows if row.parameters not in (0, size.table)]
    text = (
        f"A learned table of {size.rows:,} x {size.width:,} has {size.table:,} parameters: "
        f"{percent(size.share_of_embeddings)} of the embeddings with {size.vocabulary:,} tokens, "
        f"{percent(size.share_of_model)} of a model of {size.layers:,} layers."
    )
    if len(others) > FEW:
        text += f" The other learned encodings have at most {max(row.parameters for row in others):,}."
    elif others:
        text += f" In comparison, {listed([f'{called(row.encoding)} has {row.parameters:,}' for row in others])}."
    if nothing:
        text += f" {len(nothing)} of {len(rows)} encodings have none."
    return text


def _growth(result: CostResult) -> str:
    rows = [row for row in _with_position(result) if row.growth.time_exponent is not None]
    rows.sort(key=lambda row: row.growth.time_exponent or 0.0)
    through = [row for row in rows if row.growth.stopped is None]
    stopped = [row for row in rows if row.growth.stopped is not None]
    parts = []
    if through:
        them = _names(through) if len(through) <= FEW else f"{len(through)} encodings"
        reached = max(through[0].growth.lengths)
        parts.append(f"Up to {reached:,} tokens, the time of {them} grows as length to the {_powers(through)}.")
    if stopped:
        ends = sorted(max(row.growth.lengths) for row in stopped)
        parts.append(
            f"The time of {_names(stopped)} grows as length to the {_powers(stopped)}; the next doubling after "
            f"{_range([f'{end:,}' for end in ends])} tokens was not tried, for memory or time."
        )
    return " ".join(parts)


def _powers(rows: Sequence[CostRow]) -> str:
    return f"power {_range([f'{row.growth.time_exponent or 0.0:.1f}' for row in rows])}"
