"""What a measurement of cost says, in sentences made from its numbers; shared by the page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from posembed.lab.cost.results import CostResult, CostRow
from posembed.lab.cost.sizes import Size
from posembed.report.words import called, listed
from posembed.statistics import Estimate

MINUS = "\N{MINUS SIGN}"
CHEAP = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Shares of attention's time. Encodings are said to take less than the lowest that the cheapest is below."""

FEW = 4
"""More than so many are not named one by one where the tables do."""

QUOTED_ATTENTION_MS = 12.3
QUOTED_MS = {"learned": 0.08, "sinusoidal": 0.10, "rope": 0.32, "alibi": 0.18}
"""A table that circulates, of batch 32, length 512, width 768: attention, and each encoding beside it."""


def answer(result: CostResult) -> list[str]:
    """Time alone and inside the layer; parameters; growth."""
    texts = [_time(result), _inside(result), _parameters(result), _growth(result)]
    return [text for text in texts if text]


def cheapest_first(result: CostResult) -> list[CostRow]:
    return sorted(result.rows, key=lambda row: row.alone_share.backward.value)


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


def between(value: Estimate) -> str:
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


def _verb(rows: Sequence[CostRow], one: str, many: str) -> str:
    return many if len(rows) > 1 else one


def _range(texts: Sequence[str]) -> str:
    """ "3.0%", "3.0% to 25%", of texts in their order."""
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def _with_position(result: CostResult) -> list[CostRow]:
    """Those that do something; “none” shows what the measuring itself takes."""
    return [row for row in cheapest_first(result) if row.writes.all]


def _time(result: CostResult) -> str:
    rows = _with_position(result)
    if not rows:
        return ""
    layer = milliseconds(result.attention.backward.value)
    lead = f"In training, beside a layer of attention of {layer} ms ({sizes_in_words(result)}),"
    limit = next((x for x in CHEAP if rows[0].alone_share.backward.value < x), None)
    cheap = [row for row in rows if limit is not None and row.alone_share.backward.value < limit]
    dear = rows[len(cheap) :]
    shares = [f"{called(row.encoding)} {percent(row.alone_share.backward.value)}" for row in dear]
    others = listed(shares) if len(dear) <= FEW else f"the others from {_from_to(dear)}"
    if limit is None:
        return f"{lead} the cheapest takes more than all of its time: {others}."
    takes = f"{_names(cheap)} {_verb(cheap, 'takes', 'take')} less than {limit:.0%} of its time"
    return f"{lead} {takes}{f'; {others}' if dear else ''}."


def _from_to(rows: Sequence[CostRow]) -> str:
    ends = [f"{percent(row.alone_share.backward.value)} ({called(row.encoding)})" for row in (rows[0], rows[-1])]
    return " to ".join(ends)


def _inside(result: CostResult) -> str:
    """What adds, what saves, each with the likely reason, and what cannot be told from nothing."""
    rows = sorted(_with_position(result), key=lambda row: row.overhead.backward.value)
    saving = [row for row in rows if (high := row.overhead.backward.high) is not None and high < 0]
    adding = [row for row in rows if (low := row.overhead.backward.low) is not None and low > 0]
    untold = [row for row in rows if row not in adding and row not in saving]
    plain, biased = ([row for row in adding if bool(row.writes.scores) == bias] for bias in (False, True))
    parts = []
    for group, why in (
        (plain, ""),
        (biased, ", since a bias (H, L, L) takes the place of a causal mask"),
    ):
        if group:
            shares = _range([percent(row.overhead.backward.value) for row in group])
            parts.append(f"{_names(group)} {_verb(group, 'adds', 'add')} {shares}{why}")
    if saving:
        shares = _range([percent(-row.overhead.backward.value) for row in saving[::-1]])
        why = ", by a window" if all(row.window for row in saving) else ""
        parts.append(f"{_names(saving)} {_verb(saving, 'saves', 'save')} {shares}{why}")
    if untold and all(row.overhead.backward.low is not None for row in untold):
        them = _names(untold) if len(untold) <= FEW or not parts else "the others"
        verb = "add" if len(untold) > 1 else "adds"
        parts.append(f"what {them} {verb} cannot be told from nothing")
    return f"Put into the layer, {'; '.join(parts)}." if parts else ""


def _parameters(result: CostResult) -> str:
    size = yours(result)
    nothing = [row for row in _with_position(result) if not row.parameters]
    others = [row for row in result.rows if row.parameters not in (0, size.table)]
    share, of_model = percent(size.share_of_embeddings), percent(size.share_of_model)
    text = (
        f"A learned table of {size.rows:,} x {size.width:,} holds {size.table:,} parameters: {share} of the "
        f"embeddings with {size.vocabulary:,} tokens, {of_model} of a model of {size.layers:,} layers."
    )
    if others:
        most = max(others, key=lambda row: row.parameters)
        counts = [f"{called(row.encoding)} {row.parameters:,}" for row in others]
        told = listed(counts) if len(counts) <= FEW else f"the others that learn at most {most.parameters:,}"
        text += f" Beside it, {told}."
    if nothing:
        text += f" {len(nothing)} of {len(_with_position(result))} encodings hold none."
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
        parts.append(f"Followed to {reached:,} tokens, the time of {them} grows as length to the {_powers(through)}.")
    if stopped:
        ends = sorted(max(row.growth.lengths) for row in stopped)
        parts.append(
            f"That of {_names(stopped)} grows as length to the {_powers(stopped)}; the next doubling after "
            f"{_range([f'{end:,}' for end in ends])} tokens was not tried, for memory or time."
        )
    return " ".join(parts)


def _powers(rows: Sequence[CostRow]) -> str:
    return f"power {_range([f'{row.growth.time_exponent or 0.0:.1f}' for row in rows])}"
