"""The numbers of a page as tables of text: what to print where; how it looks is the page's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from posembed.lab.measure import Measurements
from posembed.lab.questions.lengths import ByLength, LengthResult, LengthRow, LengthSummary, base_length
from posembed.report.lengths.words import REACHES, best_first, reach_in_words, verdict
from posembed.report.page import Cell, Row, Table
from posembed.report.words import interval, number
from posembed.statistics import Estimate

NO_POSITION = "no position"


def result_tables(summary: LengthSummary) -> list[Table]:
    """Everything measured, one table a question; in each, the best at the longest length comes first."""
    tables = [_same_tokens(summary), _own_ratios(summary), _reference_ratios(summary), _whole_windows(summary)]
    tables += [_bits_per_byte(summary), _repeat_probe(summary), _what_was_trained(summary)]
    return [replace(table, first="encoding") for table in tables if table.rows]


def _same_tokens(summary: LengthSummary) -> Table:
    trained, longest = summary.train_length, max(summary.test_lengths)

    def cells(row: LengthRow) -> tuple[Cell, ...]:
        found = verdict(row, summary)
        first = Cell(found.text, kind=found.kind)
        if not row.seeds:
            return (first, *[Cell("")] * (len(summary.test_lengths) + 1))
        return (first, *_by_length(row.same_tokens), _cell(row.chopped_same_tokens[longest]))

    return Table(
        "Perplexity of the same tokens",
        "The same held-out tokens, predicted with more and more context: lower is better. Chopped is what the "
        f"same model gives them at {longest:,} tokens if the text is fed in pieces of {trained:,}.",
        (Cell(f"past {trained:,}", kind="words"), *_lengths(summary), _chopped(summary)),
        tuple(Row(row.encoding, cells(row)) for row in best_first(summary)),
    )


def _own_ratios(summary: LengthSummary) -> Table:
    base = base_length(summary)
    return Table(
        f"Against its own perplexity at {base:,}" if base is not None else "",
        "Ratios of the perplexities above, paired by seed: 1 holds, more is worse.",
        _lengths(summary),
        tuple(Row(row.encoding, _by_length(row.ratio)) for row in _measured(summary) if base is not None),
    )


def _reference_ratios(summary: LengthSummary) -> Table:
    reference = summary.reference
    return Table(
        f"Against {reference} at the same length",
        f"Ratios of the perplexities above, paired by seed: below 1 is better than {reference}. An interval that "
        "holds 1 tells nothing apart.",
        _lengths(summary),
        tuple(
            Row(row.encoding, _by_length(row.versus_reference, missing="not in both"))
            for row in _measured(summary)
            if reference is not None
        ),
    )


def _whole_windows(summary: LengthSummary) -> Table:
    trained, longest = summary.train_length, max(summary.test_lengths)
    return Table(
        "Perplexity over whole windows",
        "Of all tokens in windows that do not overlap, the usual figure. Longer windows flatter it: fewer of "
        f"their tokens have little context. Chopped: the windows of {longest:,} in pieces of {trained:,}.",
        (*_lengths(summary), _chopped(summary)),
        tuple(
            Row(row.encoding, (*_by_length(row.perplexity), _cell(row.chopped[longest]))) for row in _measured(summary)
        ),
    )


def _bits_per_byte(summary: LengthSummary) -> Table:
    known = [row for row in _measured(summary) if any(row.bits_per_byte.values())]  # none if the tokenizer loses text
    return Table(
        "Bits per byte over whole windows",
        "The same as bits a byte of text, which compares across tokenizers.",
        _lengths(summary),
        tuple(Row(row.encoding, _by_length(row.bits_per_byte)) for row in known),
    )


def _repeat_probe(summary: LengthSummary) -> Table:
    return Table(
        "Repeat probe: what is reached",
        "A passage, other text, the passage again: how much lower its loss is the second time, in nats a token, "
        f"by the tokens between. {REACHES:g} or more counts as used; near 0, it is out of reach.",
        (Cell("reaches back", kind="words"), *(Cell(f"{gap:,}") for gap in summary.gaps)),
        tuple(
            Row(
                row.encoding,
                (Cell(reach_in_words(row, summary), kind="words"), *_by_length(row.repeat_gain, write=_gain)),
            )
            for row in _measured(summary)
        ),
    )


def _what_was_trained(summary: LengthSummary) -> Table:
    return Table(
        "What was trained",
        "The same model but for its position encoding. A window is how many tokens a token attends to, itself "
        "included; without one it attends to all before it.",
        (Cell("parameters"), Cell("of position"), Cell("window"), Cell("runs")),
        tuple(
            Row(
                row.encoding,
                (
                    Cell(f"{row.parameters:,}"),
                    Cell(f"{row.position_parameters:,}"),
                    Cell("none" if row.window is None else f"{row.window:,}"),
                    Cell(f"{len(row.seeds)}", note=f"{len(row.failures)} failed" if row.failures else ""),
                ),
            )
            for row in best_first(summary)
        ),
    )


def raw_tables(results: Sequence[LengthResult]) -> list[Table]:
    """Every value of every run, as it was measured."""
    measured = [(r.spec.name, r.measurements) for r in results if r.measurements is not None]
    if not measured:
        return []
    return [
        _raw("Loss of the same tokens", measured, lambda m: m.same_tokens),
        _raw("Loss of the same tokens, chopped", measured, lambda m: m.chopped_same_tokens),
        _raw("Loss over whole windows", measured, lambda m: m.nonoverlapping),
        _raw("Loss over whole windows, chopped", measured, lambda m: m.chopped),
        _raw("Repeat gain, by tokens between", measured, lambda m: m.repeat_gain),
    ]


def _raw(
    title: str,
    measured: Sequence[tuple[str, Measurements]],
    read: Callable[[Measurements], dict[int, float] | dict[int, float | None]],
) -> Table:
    return Table(
        title,
        "In nats a token.",
        tuple(Cell(f"{key:,}") for key in read(measured[0][1])),
        tuple(
            Row(
                name,
                tuple(
                    Cell(NO_POSITION, kind="muted") if value is None else Cell(f"{value:.5f}")
                    for value in read(measurements).values()
                ),
            )
            for name, measurements in measured
        ),
        first="run",
    )


def _measured(summary: LengthSummary) -> list[LengthRow]:
    return [row for row in best_first(summary) if row.seeds]


def _lengths(summary: LengthSummary) -> tuple[Cell, ...]:
    trained = summary.train_length
    return tuple(Cell(f"{n:,}", note="trained" if n == trained else "") for n in summary.test_lengths)


def _chopped(summary: LengthSummary) -> Cell:
    return Cell(f"chopped at\N{NO-BREAK SPACE}{summary.train_length:,}")


def _by_length(
    estimates: ByLength, *, write: Callable[[float], str] = number, missing: str = NO_POSITION
) -> tuple[Cell, ...]:
    return tuple(_cell(estimate, write=write, missing=missing) for estimate in estimates.values())


def _cell(estimate: Estimate | None, *, write: Callable[[float], str] = number, missing: str = NO_POSITION) -> Cell:
    if estimate is None:
        return Cell(missing, kind="muted")
    return Cell(write(estimate.mean), note=interval(estimate, write))


def _gain(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
