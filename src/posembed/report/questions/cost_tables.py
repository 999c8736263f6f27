"""The numbers of a measurement of cost as tables, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from posembed.lab.cost.results import CostResult, CostRow, Passes
from posembed.lab.cost.sizes import KNOWN, Size
from posembed.report.page import Cell, Column, Table, table_of
from posembed.report.questions import estimate_cell
from posembed.report.words import MINUS

QUOTED_ATTENTION_MS = 12.3
QUOTED_MS = {"learned": 0.08, "sinusoidal": 0.10, "rope": 0.32, "alibi": 0.18}
"""Published milliseconds of attention, and of each encoding, at batch 32, length 512, width 768."""


def percent(share: float | None) -> str:
    """Writes two figures: .0065 as ".65%", -.12 as "−12%"."""
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


def sizes_in_words(result: CostResult) -> str:
    settings = result.settings
    return f"batch {settings.batch:,}, length {settings.length:,}, width {settings.width:,}, heads {settings.heads:,}"


def cheapest_first(result: CostResult) -> list[CostRow]:
    return sorted(result.rows, key=lambda row: row.alone_share.backward.value)


def quoted_share(encoding: str) -> float | None:
    return QUOTED_MS[encoding] / QUOTED_ATTENTION_MS if encoding in QUOTED_MS else None


def yours(result: CostResult) -> Size:
    """Returns a learned table at the measured sizes."""
    settings = result.settings
    return Size("these sizes", settings.length, settings.width, settings.vocabulary, settings.layers)


def cost_tables(result: CostResult) -> list[Table]:
    """Returns every table that has rows."""
    tables = (*_tables_of_encodings(result), *_growth_tables(result), _published_table(result), _size_table(result))
    return [table for table in tables if table.rows]


def _of_rows(result: CostResult, title: str, says: str, *columns: Column) -> Table:
    return table_of(cheapest_first(result), title, says, *columns, name=lambda row: row.encoding)


def _tables_of_encodings(result: CostResult) -> Iterator[Table]:
    """Yields the time alone, the overhead, the parameters and the memory."""
    settings, plain = result.settings, result.attention

    def in_model(row: CostRow) -> str:
        share = row.alone_share.backward.value
        return percent(share if row.writes.queries_keys else share / settings.layers)

    def enters_at(row: CostRow) -> Cell:
        named = {"input": row.writes.input, "queries and keys": row.writes.queries_keys, "scores": row.writes.scores}
        return Cell(", ".join(name for name, size in named.items() if size) or "nowhere", kind="words")

    yield _of_rows(
        result,
        "Time of the encoding alone",
        f"At {sizes_in_words(result)}, compared with an attention layer without position: "
        f"{milliseconds(plain.forward.value)} ms forward, {milliseconds(plain.backward.value)} ms with backward. Last "
        f"column: compared with the attention of a model (layers: {settings.layers:,}). An encoding at the input or as "
        "a bias is computed once for all layers.",
        *_times(lambda row: row.alone, lambda row: row.alone_share, "of attention"),
        ("of all layers", in_model),
    )
    yield _of_rows(
        result,
        "Overhead in the layer",
        "The whole layer with the encoding compared with the layer without: a bias keeps attention off its fastest "
        "path, a window saves work. An interval that contains 0 is not significant; “none” shows the noise.",
        *_times(lambda row: row.attention, lambda row: row.overhead, "overhead"),
    )
    yield _of_rows(
        result,
        "Parameters",
        f"Share: of the position and token parameters ({settings.vocabulary:,} x {settings.width:,} for tokens).",
        ("parameters", lambda row: f"{row.parameters:,}"),
        ("share", lambda row: percent(row.share_of_embeddings)),
        ("window", lambda row: "none" if row.window is None else f"{row.window:,}"),
        (Cell("enters at", kind="words"), enters_at),
    )
    yield _of_rows(
        result,
        "Memory",
        "The encoding alone. By formula: what it hands to the model, 4 B L D bytes at the input, 8 B L D at queries "
        "and keys, 4 H L L as a bias. Measured: the peak of all tensors that it creates.",
        ("by formula", lambda row: in_bytes(row.writes.all)),
        ("peak forward", lambda row: in_bytes(row.peak_forward)),
        ("times the formula", lambda row: f"{row.peak_forward / row.writes.all:.1f}" if row.writes.all else ""),
        ("with backward", lambda row: in_bytes(row.peak_backward)),
    )


def _known(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def _times(times: Callable[[CostRow], Passes], shares: Callable[[CostRow], Passes], share: str) -> Iterator[Column]:
    """Yields milliseconds and their share, forward and with backward."""
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
        f"The encoding alone, forward, one sequence, width {result.growth_width}, heads {result.growth_heads}. "
        "Exponents are fitted by least squares on the logarithms, from 2,048 tokens on: 1 is linear, 2 quadratic. A "
        "length that would not fit in memory or time, predicted from the two before, was not tried.",
        ("exponent of time", lambda row: _known(row.growth.time_exponent, ".2f")),
        ("of memory", lambda row: _known(row.growth.memory_exponent, ".2f")),
        ("longest tried", lambda row: f"{max(row.growth.lengths):,}"),
        (Cell("why not longer", kind="words"), lambda row: Cell(row.growth.stopped or "", kind="words")),
    )
    lengths = sorted({length for row in result.rows for length in row.growth.lengths})
    says = "Milliseconds of the encoding alone, forward, one sequence; below them its peak memory."
    yield _of_rows(result, "Time and memory by length", says, *map(at, lengths))


def _published_table(result: CostResult) -> Table:
    return table_of(
        [row for row in cheapest_first(result) if row.encoding in QUOTED_MS],
        "Compared with published figures",
        f"Published: relative to {QUOTED_ATTENTION_MS} ms of attention at batch 32, length 512, width 768, on unnamed "
        "hardware. Shares depend on the machine: attention is mostly arithmetic, an encoding mostly memory traffic, "
        "so its share is larger where memory is slow compared with arithmetic.",
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
        "Rows times width. Of the embeddings: of position and token rows together. Of the model: of all parameters "
        "of the Transformer, without heads, poolers and patch projections.",
        ("rows", lambda size: f"{size.rows:,}"),
        ("width", lambda size: f"{size.width:,}"),
        ("parameters", lambda size: f"{size.table:,}"),
        ("of the embeddings", lambda size: _known(size.share_of_embeddings, ".2%")),
        ("of the model", lambda size: _known(size.share_of_model, ".2%")),
        first="model",
    )
