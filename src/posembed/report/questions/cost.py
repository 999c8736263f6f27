"""The page of ``compare cost``: the answer, the overheads, all numbers and the evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posembed.lab.cost.results import CostResult, CostRow, Passes, load, sizes_in_words
from posembed.lab.cost.sizes import KNOWN, Size
from posembed.plots.canvas import key_above
from posembed.plots.charts import Line, draw_interval, line_chart, rows_sheet
from posembed.plots.style import MUTED, PAPER, RULE, SERIES, TEXT, styles
from posembed.plots.ticks import fix_ticks
from posembed.report.evidence import evidence_section
from posembed.report.page import Cell, Column, Section, Table, picture, render_page, table_of
from posembed.report.questions import estimate_cell, no_reference
from posembed.report.words import MINUS, called, from_to, listed
from posembed.statistics import INTERVAL, Estimate

QUOTED_ATTENTION_MS = 12.3
QUOTED_MS = {"learned": 0.08, "sinusoidal": 0.10, "rope": 0.32, "alibi": 0.18}
"""Published times, in milliseconds, of attention and of each encoding at batch 32, length 512, width 768."""

FEW = 4
"""The answer lists up to this many encodings with their numbers. Of more, it names only the first and the last."""
LINEAR_TO = 1.0
"""The percentage up to which the axis is linear. It is logarithmic beyond, so that .1% and 100% are both readable."""
HOW_TO_READ = (
    "Times are relative to an attention layer without position, forward and backward. Alone: the time of the encoding "
    "itself. Overhead: the change in the layer's time with the encoding; left of 0, the layer is faster. Bars are "
    f"{INTERVAL}s of the median."
)


class CostPage:
    """The page of a cost measurement. It has the public methods of ``QuestionPage``."""

    def __init__(self, question: Any = None) -> None:
        self.question = question

    def answer(self, result: CostResult) -> list[str]:
        texts = [_time(result), _inside(result), _parameters(result), _growth(result)]
        return [text for text in texts if text]

    def main_tables(self, result: CostResult) -> list[Table]:
        tables = (*_tables_of_encodings(result), *_growth_tables(result), _published_table(result), _size_table(result))
        return [table for table in tables if table.rows]

    def notes(self, result: CostResult) -> list[str]:
        return [f"{self.about(result)} torch {result.environment['torch']}; {result.seconds:.0f} s."]

    def about(self, result: CostResult) -> str:
        """Describes in two sentences how the result was measured."""
        environment, rounds = result.environment, result.attention
        machine = environment["device"]
        if result.settings.device == "cpu":
            machine = f"{environment['processor']} (threads: {environment['threads']})"
        return (
            f"Measured on {machine}, at {sizes_in_words(result.settings)}: each encoding in turn, alone and in an "
            f"attention layer. Values are medians, with {INTERVAL}s, of {len(rounds.forward.values)} rounds forward "
            f"and {len(rounds.backward.values)} rounds forward and backward."
        )

    def from_folder(self, folder: Path, question: Any, reference: str | None) -> str:
        if reference is not None:
            raise no_reference(folder, question)
        return self.render(load(folder))

    def render(self, result: CostResult) -> str:
        rows = _with_position(result)
        shares = [f"{row.encoding} {percent(row.alone_share.backward.value)}" for row in cheapest_first(result)]
        overheads = picture(
            overhead_figure(result),
            name="overhead",
            described=f"Relative to the time of an attention layer, each encoding alone takes: {', '.join(shares)}.",
            caption=HOW_TO_READ,
        )
        sections = [Section("", (overheads,)), Section("The numbers", tuple(self.main_tables(result)))]
        if rows:
            growth = picture(
                growth_figure(result, rows),
                name="growth",
                described="Time by sequence length, with one line per encoding.",
                caption="A cross marks the last length tried, if the next would not fit in memory or time.",
            )
            sections.append(Section("Growth with length", (growth,)))
        sections.append(evidence_section(vars(result.settings), dict(sorted(result.environment.items())), ()))
        return render_page(
            title="What does each position encoding cost?",
            about=self.about(result),
            answer=self.answer(result),
            sections=sections,
            styles=styles([row.encoding for row in result.rows]),
        )


def _with_position(result: CostResult) -> list[CostRow]:
    """Returns the encodings that write something, cheapest first. “none” writes nothing; its time is only overhead."""
    return [row for row in cheapest_first(result) if row.writes.all]


def _with_numbers(rows: Sequence[CostRow], write: Callable[[CostRow], str]) -> str:
    """Returns "1.5% with alibi and 2.6% with rope", or "from 1.5% with alibi to 40% with t5" for more than FEW rows."""
    texts = [f"{write(row)} with {called(row.encoding)}" for row in rows]
    return listed(texts) if len(texts) <= FEW else f"from {from_to(texts)}"


def _time(result: CostResult) -> str:
    rows, layer = _with_position(result), milliseconds(result.attention.backward.value)
    if not rows:
        return ""
    shares = _with_numbers(rows, lambda row: percent(row.alone_share.backward.value))
    return (
        f"In training, relative to an attention layer of {layer} ms ({sizes_in_words(result.settings)}), the encoding "
        f"alone takes {shares}."
    )


def _inside(result: CostResult) -> str:
    """Groups the encodings by their effect on the time of the layer: slower, faster, or not significant."""
    leads = {
        "above": "the encoding adds",
        "below": "the encoding changes the time by",
        "both": "the overhead is not significant:",
    }
    rows = sorted(_with_position(result), key=lambda row: row.overhead.backward.value)
    parts = []
    for side, lead in leads.items():
        group = [row for row in rows if row.overhead.backward.side_of(0) == side]
        if group:
            parts.append(f"{lead} {_with_numbers(group, lambda row: percent(row.overhead.backward.value))}")
    why = "A bias (H, L, L) costs time because it replaces the causal mask; a window saves time."
    return f"In the layer, {'; '.join(parts)}. {why}" if parts else ""


def _parameters(result: CostResult) -> str:
    size = yours(result)
    others = [row for row in _with_position(result) if row.parameters != size.table]
    others.sort(key=lambda row: row.parameters)
    text = (
        f"A learned table of {size.rows:,} x {size.width:,} has {size.table:,} parameters: "
        f"{percent(size.share_of_embeddings)} of the embeddings with {size.vocabulary:,} tokens, "
        f"{percent(size.share_of_model)} of a {size.layers:,}-layer model."
    )
    if others:
        text += f" The parameter count of the others is {_with_numbers(others, lambda row: f'{row.parameters:,}')}."
    return text


def _growth(result: CostResult) -> str:
    rows = [row for row in _with_position(result) if row.growth.time_exponent is not None]
    rows.sort(key=lambda row: row.growth.time_exponent or 0.0)
    powers = _with_numbers(rows, lambda row: f"{row.growth.time_exponent or 0.0:.1f}")
    stopped = sorted((row for row in rows if row.growth.stopped), key=lambda row: max(row.growth.lengths))
    ends = _with_numbers(stopped, lambda row: f"{max(row.growth.lengths):,}")
    sentences = [
        f"The time of the encoding grows with the length to the power of {powers}." if rows else "",
        f"To save memory or time, no sequences longer than these (in tokens) were tried: {ends}." if stopped else "",
    ]
    return " ".join(sentences).strip()


def overhead_figure(result: CostResult) -> Figure:
    """Draws each encoding's time alone and its overhead in the layer, forward and backward, relative to attention."""
    rows = cheapest_first(result)
    title, below = "forward and backward (logarithmic from 1% on)", "% of the time of an attention layer"
    figure, axes = rows_sheet([row.encoding for row in rows], title=title, below=below, each=24, top=62)
    _percent_axis(axes, rows)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    series: tuple[tuple[str, Callable[[CostRow], Estimate], float, str, str], ...] = (
        ("alone", lambda row: row.alone_share.backward, -0.14, "o", SERIES[0]),
        ("overhead in the layer", lambda row: row.overhead.backward, 0.14, "s", SERIES[1]),
    )
    heights, drawn = range(len(rows)), []
    for label, read, lower, marker, colour in series:
        for height in heights:
            axes.axhline(height, color=RULE, linewidth=0.5, zorder=0)
            found = read(rows[height])
            draw_interval(axes, found, height + lower, factor=100, color=colour, linewidth=2.2, alpha=0.5)
        how: dict[str, Any] = {"marker": marker, "markersize": 6, "markeredgecolor": PAPER, "linestyle": "none"}
        means = [100 * read(row).value for row in rows]
        places = [height + lower for height in heights]
        drawn += [(label, line) for line in axes.plot(means, places, color=colour, zorder=3, **how)]
    quoted = [(100 * (quoted_share(row.encoding) or math.nan), height) for height, row in enumerate(rows)]
    how = {"marker": "|", "markersize": 14, "markeredgewidth": 1.6, "linestyle": "none"}
    drawn += [("published", line) for line in axes.plot(*zip(*quoted, strict=True), color=MUTED, zorder=2, **how)]
    key_above(axes, drawn, fontsize=TEXT)
    return figure


def growth_figure(result: CostResult, rows: Sequence[CostRow]) -> Figure:
    """Draws milliseconds by length on logarithmic axes: one line per encoding, with a cross where it was stopped."""
    lines = []
    for row in rows:
        times = [Estimate(1000 * seconds) for seconds in row.growth.seconds]
        points = dict(zip(row.growth.lengths, times, strict=True))
        lines.append(Line(row.encoding, points, max(points) if row.growth.stopped else None))
    every = [time.value for line in lines for time in line.points.values()]
    lengths = max((row.growth.lengths for row in rows), key=len)
    return line_chart(
        lines,
        names=[row.encoding for row in result.rows],
        title="milliseconds, alone, forward (log scale)",
        below="tokens (log scale)",
        ticks=lengths[:: -2 if len(lengths) > 4 else -1],
        logarithmic=(min(every) / 1.5, max(every) * 1.5),
        past_end="not tried past",
    )


def _percent_axis(axes: Axes, rows: Sequence[CostRow]) -> None:
    found = [value for row in rows for value in (row.alone_share.backward, row.overhead.backward)]
    ends = [100 * end for value in found for end in (value.value, value.low, value.high) if end is not None]
    low, high = min(0.0, *ends), max(*ends, LINEAR_TO)
    axes.set_xscale("symlog", linthresh=LINEAR_TO, linscale=0.6)
    axes.set_xlim(low * 1.6 if low < -0.2 else -0.3, high * 1.6)
    ticks = [sign * tick for sign in (-1, 1) for tick in (1.0, 10.0, 100.0, 1000.0, 10_000.0)]
    fix_ticks(axes.xaxis, sorted([0.0, *(tick for tick in ticks if low * 1.6 <= tick <= high * 1.6)]))
    axes.grid(axis="x", color=RULE, linewidth=0.5)


def percent(share: float | None) -> str:
    """Formats a share with two significant digits: .0065 as ".65%", -.12 as "−12%"."""
    if share is None:
        return ""
    value = abs(100 * share)
    if value < 0.005:
        return "0%"
    text = f"{value:.2f}".lstrip("0") if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
    return f"{MINUS if share < 0 else ''}{text}%"


def milliseconds(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:.3f}" if value < 0.995 else f"{value:.2f}" if value < 99.5 else f"{value:,.0f}"


def in_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1023.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.5 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} GiB"


def cheapest_first(result: CostResult) -> list[CostRow]:
    return sorted(result.rows, key=lambda row: row.alone_share.backward.value)


def quoted_share(encoding: str) -> float | None:
    return QUOTED_MS[encoding] / QUOTED_ATTENTION_MS if encoding in QUOTED_MS else None


def yours(result: CostResult) -> Size:
    """Returns the size of a learned table at the measured length and width."""
    settings = result.settings
    return Size("these sizes", settings.length, settings.width, settings.vocabulary, settings.layers)


def _of_rows(result: CostResult, title: str, says: str, *columns: Column) -> Table:
    return table_of(cheapest_first(result), title, says, *columns, name=lambda row: row.encoding)


def _tables_of_encodings(result: CostResult) -> Iterator[Table]:
    settings, plain = result.settings, result.attention

    def in_model(row: CostRow) -> str:
        share = row.alone_share.backward.value
        return percent(share if row.writes.queries_keys else share / settings.layers)

    def enters_at(row: CostRow) -> str:
        named = {"input": row.writes.input, "queries and keys": row.writes.queries_keys, "scores": row.writes.scores}
        return ", ".join(name for name, size in named.items() if size) or "nowhere"

    yield _of_rows(
        result,
        "Time of the encoding alone",
        f"At {sizes_in_words(result.settings)}, compared with an attention layer without position: "
        f"{milliseconds(plain.forward.value)} ms forward, {milliseconds(plain.backward.value)} ms with backward. The "
        f"last column is relative to the attention of a whole model (layers: {settings.layers:,}): an encoding at the "
        "input or as a bias is computed once for all layers.",
        *_times(lambda row: row.alone, lambda row: row.alone_share, "of attention"),
        ("of all layers", in_model),
    )
    yield _of_rows(
        result,
        "Overhead in the layer",
        "The whole layer with the encoding, compared with the layer without it. A bias prevents attention from using "
        "its fastest path; a window saves time. An overhead is not significant if its interval contains 0; “none” "
        "shows the noise.",
        *_times(lambda row: row.attention, lambda row: row.overhead, "overhead"),
    )
    yield _of_rows(
        result,
        "Parameters",
        f"The share is of all position and token parameters ({settings.vocabulary:,} x {settings.width:,} for tokens).",
        ("parameters", lambda row: f"{row.parameters:,}"),
        ("share", lambda row: percent(row.share_of_embeddings)),
        ("window", lambda row: "none" if row.window is None else f"{row.window:,}"),
        (Cell("enters at", kind="words"), enters_at),
    )
    yield _of_rows(
        result,
        "Memory",
        "Memory of the encoding alone. By formula: the size of its output, which is 4 B L D bytes at the input, "
        "8 B L D at queries and keys, and 4 H L L as a bias. Peak: the measured maximum of all tensors it creates.",
        ("by formula", lambda row: in_bytes(row.writes.all)),
        ("peak forward", lambda row: in_bytes(row.peak_forward)),
        ("times the formula", lambda row: f"{row.peak_forward / row.writes.all:.1f}" if row.writes.all else ""),
        ("with backward", lambda row: in_bytes(row.peak_backward)),
    )


def _known(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _times(times: Callable[[CostRow], Passes], shares: Callable[[CostRow], Passes], share: str) -> Iterator[Column]:
    yield "forward, ms", lambda row: milliseconds(times(row).forward.value)
    yield share, lambda row: estimate_cell(shares(row).forward, percent)
    yield "with backward, ms", lambda row: milliseconds(times(row).backward.value)
    yield share, lambda row: estimate_cell(shares(row).backward, percent)


def _growth_tables(result: CostResult) -> Iterator[Table]:
    def at(length: int) -> Column:
        def cell(row: CostRow) -> Cell:
            growth = row.growth
            if length not in growth.lengths:
                return Cell("not tried", kind="muted")
            index = growth.lengths.index(length)
            return Cell(milliseconds(growth.seconds[index]), note=in_bytes(growth.peak[index]))

        return Cell(f"{length:,}", rank=1), cell

    yield _of_rows(
        result,
        "Growth with length",
        f"The encoding alone, forward, for one sequence (width: {result.growth_width}, heads: {result.growth_heads}). "
        "Exponents are fitted by least squares on the logarithms, from 2,048 tokens on: 1 is linear, 2 quadratic. A "
        "length was not tried if it would not fit in memory or time, as predicted from the two lengths before it.",
        ("exponent of time", lambda row: _known(row.growth.time_exponent, ".2f")),
        ("of memory", lambda row: _known(row.growth.memory_exponent, ".2f")),
        ("longest tried", lambda row: f"{max(row.growth.lengths):,}"),
        (Cell("why not longer", kind="words"), lambda row: row.growth.stopped or ""),
    )
    lengths = sorted({length for row in result.rows for length in row.growth.lengths})
    says = "Milliseconds of the encoding alone, forward, for one sequence. Its peak memory is below each time."
    yield _of_rows(result, "Time and memory by length", says, *map(at, lengths))


def _published_table(result: CostResult) -> Table:
    return table_of(
        [row for row in cheapest_first(result) if row.encoding in QUOTED_MS],
        "Compared with published figures",
        f"Published shares are relative to {QUOTED_ATTENTION_MS} ms of attention at batch 32, length 512, width 768, "
        "on unnamed hardware. Shares depend on the machine: attention is mostly arithmetic and an encoding mostly "
        "memory traffic, so its share is larger on machines with slow memory.",
        ("published", lambda row: percent(quoted_share(row.encoding))),
        ("ours, forward", lambda row: estimate_cell(row.alone_share.forward, percent)),
        ("times as much", lambda row: f"{row.alone_share.forward.value / (quoted_share(row.encoding) or 1):.1f}"),
        ("ours, overhead in the layer", lambda row: estimate_cell(row.overhead.forward, percent)),
        name=lambda row: row.encoding,
    )


def _size_table(result: CostResult) -> Table:
    return table_of(
        [yours(result), *KNOWN],
        "Position tables of known models",
        "Parameters: rows times width. Of the embeddings: the share of the position and token parameters. Of the "
        "model: the share of all Transformer parameters, excluding heads, poolers and patch projections.",
        ("rows", lambda size: f"{size.rows:,}"),
        ("width", lambda size: f"{size.width:,}"),
        ("parameters", lambda size: f"{size.table:,}"),
        ("of the embeddings", lambda size: _known(size.share_of_embeddings, ".2%")),
        ("of the model", lambda size: _known(size.share_of_model, ".2%")),
        first="model",
    )


PAGE, Page = CostPage(), CostPage
