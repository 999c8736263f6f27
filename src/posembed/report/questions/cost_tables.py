"""The numbers of a measurement of cost as tables, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from posembed.lab.cost.results import CostResult, CostRow, Passes
from posembed.lab.cost.sizes import KNOWN, Size
from posembed.report.page import Cell, Row, Table
from posembed.report.questions.cost_words import (
    QUOTED_ATTENTION_MS,
    QUOTED_MS,
    between,
    cheapest_first,
    in_bytes,
    milliseconds,
    once_a_forward,
    percent,
    quoted_share,
    sizes_in_words,
    yours,
)
from posembed.statistics import Estimate

NOT_TRIED = Cell("not tried", kind="muted")

T = TypeVar("T")
Column = tuple[str | Cell, Callable[[T], str | Cell]]
"""The head, and the cell of a row."""


def cost_tables(result: CostResult) -> list[Table]:
    """Returns every table that has rows."""
    tables = [time_table(result), inside_table(result), parameter_table(result), memory_table(result)]
    tables += [quoted_table(result), growth_table(result), size_table([yours(result), *KNOWN]), length_table(result)]
    return [table for table in tables if table.rows]


def _table(title: str, says: str, rows: Sequence[T], name: Callable[[T], str], *columns: Column[T]) -> Table:
    """Returns a table with one line per row."""

    def as_cell(value: str | Cell) -> Cell:
        return value if isinstance(value, Cell) else Cell(value)

    lines = tuple(Row(name(row), tuple(as_cell(write(row)) for _, write in columns)) for row in rows)
    return Table(title, says, tuple(as_cell(head) for head, _ in columns), lines)


def _of_rows(result: CostResult, title: str, says: str, *columns: Column[CostRow]) -> Table:
    return _table(title, says, cheapest_first(result), lambda row: row.encoding, *columns)


def time_table(result: CostResult) -> Table:
    layers, plain = result.settings.layers, result.attention

    def in_model(row: CostRow) -> str:
        share = row.alone_share.backward.value
        return percent(share / layers if once_a_forward(row) else share)

    return _of_rows(
        result,
        "Time of the encoding alone",
        f"At {sizes_in_words(result)}, compared with an attention layer without position: "
        f"{milliseconds(plain.forward.value)} ms forward, {milliseconds(plain.backward.value)} ms with backward. An "
        "encoding at the input or as a bias is computed once for all layers.",
        *_times(lambda row: row.alone, lambda row: row.alone_share, "of attention"),
        (f"of {layers:,} layers", in_model),
    )


def inside_table(result: CostResult) -> Table:
    return _of_rows(
        result,
        "Overhead in the layer",
        "The whole layer with the encoding compared with the layer without: a bias keeps attention off its fastest "
        "path, a window saves work. An interval that contains 0 is not significant; “none” shows the noise.",
        *_times(lambda row: row.attention, lambda row: row.overhead, "overhead"),
    )


def _times(
    times: Callable[[CostRow], Passes], shares: Callable[[CostRow], Passes], share: str
) -> Iterator[Column[CostRow]]:
    """Yields milliseconds and their share, forward and with backward."""
    yield "forward, ms", lambda row: milliseconds(times(row).forward.value)
    yield share, lambda row: _share(shares(row).forward)
    yield "with backward, ms", lambda row: milliseconds(times(row).backward.value)
    yield share, lambda row: _share(shares(row).backward)


def parameter_table(result: CostResult) -> Table:
    settings = result.settings

    def places(row: CostRow) -> Cell:
        named = {"input": row.writes.input, "queries and keys": row.writes.queries_keys, "scores": row.writes.scores}
        return Cell(", ".join(name for name, size in named.items() if size) or "nowhere", kind="words")

    return _of_rows(
        result,
        "Parameters",
        f"Share: of the position and token parameters ({settings.vocabulary:,} x {settings.width:,} for tokens).",
        ("parameters", lambda row: f"{row.parameters:,}"),
        ("share", lambda row: percent(row.share_of_embeddings)),
        ("window", lambda row: "none" if row.window is None else f"{row.window:,}"),
        (Cell("enters at", kind="words"), places),
    )


def memory_table(result: CostResult) -> Table:
    return _of_rows(
        result,
        "Memory",
        "The encoding alone. By formula: what it hands to the model, 4 B L D bytes at the input, 8 B L D at queries "
        "and keys, 4 H L L as a bias. Measured: the peak of all tensors that it creates.",
        ("by formula", lambda row: in_bytes(row.writes.all)),
        ("peak forward", lambda row: in_bytes(row.peak_forward)),
        ("times the formula", lambda row: f"{row.peak_forward / row.writes.all:.1f}" if row.writes.all else ""),
        ("with backward", lambda row: in_bytes(row.peak_backward)),
    )


def growth_table(result: CostResult) -> Table:
    heads = f"{result.growth_heads:,} head{'s' * (result.growth_heads != 1)}"
    return _of_rows(
        result,
        "Growth with length",
        f"The encoding alone, forward, one sequence, width {result.growth_width}, {heads}. Exponents are fitted by "
        "least squares on the logarithms, from 2,048 tokens on: 1 is linear, 2 quadratic. A length that would not fit "
        "in memory or time, predicted from the two before, was not tried.",
        ("exponent of time", lambda row: _exponent(row.growth.time_exponent)),
        ("of memory", lambda row: _exponent(row.growth.memory_exponent)),
        ("longest tried", lambda row: f"{max(row.growth.lengths):,}"),
        (Cell("why not longer", kind="words"), lambda row: Cell(row.growth.stopped or "", kind="words")),
    )


def length_table(result: CostResult) -> Table:
    def at(length: int) -> Column[CostRow]:
        def cell(row: CostRow) -> Cell:
            growth = row.growth
            if length not in growth.lengths:
                return NOT_TRIED
            place = growth.lengths.index(length)
            return Cell(milliseconds(growth.seconds[place]), note=in_bytes(growth.peak[place]))

        return Cell(f"{length:,}", rank=1), cell

    lengths = sorted({length for row in result.rows for length in row.growth.lengths})
    says = "Milliseconds of the encoding alone, forward, one sequence; below them its peak memory."
    return _of_rows(result, "Time and memory by length", says, *map(at, lengths))


def quoted_table(result: CostResult) -> Table:
    return _table(
        "Compared with published figures",
        f"Published: relative to {QUOTED_ATTENTION_MS} ms of attention at batch 32, length 512, width 768, on unnamed "
        "hardware. Shares depend on the machine: attention is mostly arithmetic, an encoding mostly memory traffic, "
        "so its share is larger where memory is slow compared with arithmetic.",
        [row for row in cheapest_first(result) if row.encoding in QUOTED_MS],
        lambda row: row.encoding,
        ("published", lambda row: percent(quoted_share(row.encoding))),
        ("ours, forward", lambda row: _share(row.alone_share.forward)),
        (
            "times as much",
            lambda row: f"{row.alone_share.forward.value / share:.1f}" if (share := quoted_share(row.encoding)) else "",
        ),
        ("ours, overhead in the layer", lambda row: _share(row.overhead.forward)),
    )


def size_table(sizes: Sequence[Size]) -> Table:
    return _table(
        "Position tables of known models",
        "Rows times width. Of the embeddings: of position and token rows together. Of the model: of all parameters "
        "of the Transformer, without heads, poolers and patch projections.",
        sizes,
        lambda size: size.name,
        ("rows", lambda size: f"{size.rows:,}"),
        ("width", lambda size: f"{size.width:,}"),
        ("parameters", lambda size: f"{size.table:,}"),
        (
            "of the embeddings",
            lambda size: "" if size.share_of_embeddings is None else f"{size.share_of_embeddings:.2%}",
        ),
        ("of the model", lambda size: "" if size.share_of_model is None else f"{size.share_of_model:.2%}"),
    )


def _share(value: Estimate) -> Cell:
    return Cell(percent(value.value), note=between(value))


def _exponent(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
