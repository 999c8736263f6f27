"""The numbers of a measurement of cost as tables of text, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from posembed.lab.cost.places import Writes
from posembed.lab.cost.results import CostResult, CostRow
from posembed.lab.cost.sizes import KNOWN, Size
from posembed.report.cost.words import (
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
from posembed.report.page import Cell, Row, Table
from posembed.statistics import Estimate

NOT_TRIED = "not tried"


def cost_tables(result: CostResult) -> list[Table]:
    tables = [time_table(result), inside_table(result), parameter_table(result), memory_table(result)]
    tables += [quoted_table(result), growth_table(result), not_tried_table(result)]
    tables.append(size_table([yours(result), *KNOWN]))
    return [table for table in tables if table.rows]


def time_table(result: CostResult) -> Table:
    layers = result.spec.layers
    forward, backward = (milliseconds(spread.value) for spread in (result.attention.forward, result.attention.backward))

    def cells(row: CostRow) -> tuple[Cell, ...]:
        share = row.alone_share.backward.value
        in_model = share / layers if once_a_forward(row) else share
        return (
            Cell(milliseconds(row.alone.forward.value)),
            _share(row.alone_share.forward),
            Cell(milliseconds(row.alone.backward.value)),
            _share(row.alone_share.backward),
            Cell(percent(in_model)),
        )

    return Table(
        "Time of the encoding alone",
        f"At {sizes_in_words(result)}, beside a layer of attention without position: {forward} ms forward, "
        f"{backward} ms with backward. What enters at the input or as a bias is computed once for all layers.",
        (
            Cell("forward, ms"),
            Cell("of attention"),
            Cell("with backward, ms"),
            Cell("of attention"),
            Cell(f"of {layers:,} layers"),
        ),
        tuple(Row(row.encoding, cells(row)) for row in cheapest_first(result)),
    )


def inside_table(result: CostResult) -> Table:
    return Table(
        "What it adds to the layer",
        "The whole layer with the encoding in it against the layer without: a bias keeps attention off its "
        "fastest path, a window saves work. An interval that holds 0 tells nothing apart; “none” shows the noise.",
        (
            Cell("forward, ms"),
            Cell("added"),
            Cell("with backward, ms"),
            Cell("added"),
        ),
        tuple(
            Row(
                row.encoding,
                (
                    Cell(milliseconds(row.attention.forward.value)),
                    _share(row.overhead.forward),
                    Cell(milliseconds(row.attention.backward.value)),
                    _share(row.overhead.backward),
                ),
            )
            for row in cheapest_first(result)
        ),
    )


def parameter_table(result: CostResult) -> Table:
    return Table(
        "Parameters",
        f"Share: of the encoding's and the token table's ({result.spec.vocabulary:,} x {result.spec.width:,}).",
        (Cell("parameters"), Cell("share"), Cell("window"), Cell("enters at", kind="words")),
        tuple(
            Row(
                row.encoding,
                (
                    Cell(f"{row.parameters:,}"),
                    Cell(percent(row.share_of_embeddings)),
                    Cell("none" if row.window is None else f"{row.window:,}"),
                    Cell(", ".join(_places(row.writes)) or "nowhere", kind="words"),
                ),
            )
            for row in cheapest_first(result)
        ),
    )


def memory_table(result: CostResult) -> Table:
    def cells(row: CostRow) -> tuple[Cell, ...]:
        least = row.writes.all
        return (
            Cell(in_bytes(least)),
            Cell(in_bytes(row.peak_forward)),
            Cell(f"{row.peak_forward / least:.1f}" if least else ""),
            Cell(in_bytes(row.peak_backward)),
        )

    return Table(
        "Memory",
        "Of the encoding alone. By formula: what it hands to the model, 4 B L D bytes at the input, 8 B L D at "
        "queries and keys, 4 H L L as a bias. Measured: the peak of all tensors made on the way.",
        (Cell("by formula"), Cell("peak forward"), Cell("times the formula"), Cell("with backward")),
        tuple(Row(row.encoding, cells(row)) for row in cheapest_first(result)),
    )


def growth_table(result: CostResult) -> Table:
    lengths = sorted({length for row in result.rows for length in row.growth.lengths})

    def cells(row: CostRow) -> tuple[Cell, ...]:
        at = dict(zip(row.growth.lengths, zip(row.growth.seconds, row.growth.peak, strict=True), strict=True))
        times = (
            Cell(milliseconds(at[length][0]), note=in_bytes(at[length][1]))
            if length in at
            else Cell(NOT_TRIED, kind="muted")
            for length in lengths
        )
        return (_exponent(row.growth.time_exponent), _exponent(row.growth.memory_exponent), *times)

    return Table(
        "Growth with length",
        f"The encoding alone, forward, one sequence, width {result.growth_width}, {_heads(result.growth_heads)}: "
        "milliseconds, and below them memory at the peak. Exponents by least squares on the logarithms, from "
        "2,048 tokens on: 1 is linear, 2 quadratic. What would not fit in memory or time was not tried.",
        (Cell("exponent, time"), Cell("memory"), *(Cell(f"{length:,}") for length in lengths)),
        tuple(Row(row.encoding, cells(row)) for row in cheapest_first(result)),
    )


def not_tried_table(result: CostResult) -> Table:
    stopped = [row for row in cheapest_first(result) if row.growth.stopped is not None]
    return Table(
        "Why longer texts were not tried",
        "Foreseen from the last two lengths.",
        (Cell("the next length", kind="words"),),
        tuple(Row(row.encoding, (Cell(row.growth.stopped or "", kind="words"),)) for row in stopped),
    )


def quoted_table(result: CostResult) -> Table:
    rows = [row for row in cheapest_first(result) if row.encoding in QUOTED_MS]
    return Table(
        "Beside figures often quoted",
        f"Quoted: of {QUOTED_ATTENTION_MS} ms of attention at batch 32, length 512, width 768, on hardware that "
        "is not named. Shares move with the machine: attention is mostly arithmetic, an encoding mostly memory "
        "traffic, so it is a larger share where memory is slow beside arithmetic.",
        (Cell("quoted"), Cell("ours, forward"), Cell("times as much"), Cell("ours, added to the layer")),
        tuple(
            Row(
                row.encoding,
                (
                    Cell(percent(quoted_share(row.encoding))),
                    _share(row.alone_share.forward),
                    Cell(_times(row.alone_share.forward.value, quoted_share(row.encoding))),
                    _share(row.overhead.forward),
                ),
            )
            for row in rows
        ),
    )


def size_table(sizes: Sequence[Size]) -> Table:
    return Table(
        "Position tables of known models",
        "Rows times width. Of the embeddings: of position and token rows together. Of the model: of all "
        "parameters of the Transformer, heads, poolers and patch projections left out.",
        (Cell("rows"), Cell("width"), Cell("parameters"), Cell("of the embeddings"), Cell("of the model")),
        tuple(
            Row(
                size.name,
                (
                    Cell(f"{size.rows:,}"),
                    Cell(f"{size.width:,}"),
                    Cell(f"{size.table:,}"),
                    Cell("" if size.share_of_embeddings is None else f"{size.share_of_embeddings:.2%}"),
                    Cell("" if size.share_of_model is None else f"{size.share_of_model:.2%}"),
                ),
            )
            for size in sizes
        ),
    )


def _heads(number: int) -> str:
    return f"{number:,} head{'s' * (number != 1)}"


def _share(value: Estimate) -> Cell:
    return Cell(percent(value.value), note=between(value))


def _times(ours: float, quoted: float | None) -> str:
    return "" if not quoted else f"{ours / quoted:.1f}"


def _exponent(value: float | None) -> Cell:
    return Cell("" if value is None else f"{value:.2f}")


def _places(writes: Writes) -> list[str]:
    named = {"input": writes.input, "queries and keys": writes.queries_keys, "scores": writes.scores}
    return [name for name, size in named.items() if size]
