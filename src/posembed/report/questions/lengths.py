"""The page of ``compare lengths``: the answer, perplexity by context length, the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from posembed.lab.questions.lengths import ByLength, LengthRow, LengthSpec, LengthSummary, base_length
from posembed.lab.runs.results import RunResult
from posembed.report.line_chart import Line, line_chart
from posembed.report.page import Cell, Picture, Row, Table, picture
from posembed.report.questions import QuestionPage, estimate_cell, trained_table, values_table
from posembed.report.questions.lengths_words import (
    HOLDS,
    REACHES,
    answer,
    best_first,
    last_position,
    reach,
    reach_in_words,
    verdict,
)
from posembed.report.words import capitalised, model_size, names_of, number, runs_per, signed
from posembed.statistics import INTERVAL

CUT = 4
"""The figure's axis ends at this many times the lowest perplexity, so that the encodings that hold stay apart."""


class LengthsPage(QuestionPage[LengthSummary]):
    def title(self, summary: LengthSummary) -> str:
        return f"How far does each position encoding carry past {summary.train_length:,} tokens?"

    def about(self, spec: LengthSpec, summary: LengthSummary) -> str:
        unit = "bytes" if spec.tokenizer == "bytes" else f"tokens of {spec.tokenizer}"
        return (
            f"The same small Transformer ({model_size(spec)}), trained on {spec.data} for {spec.steps:,} steps on "
            f"{spec.train_length:,} {unit} at a time, then tested with up to {max(spec.test_lengths):,}. Only the "
            f"position encoding differs. {capitalised(runs_per(summary.rows))}."
        )

    def answer(self, summary: LengthSummary) -> list[str]:
        return answer(summary)

    def notes(self, summary: LengthSummary) -> list[str]:
        trained, base = summary.train_length, base_length(summary)
        lines = super().notes(summary)
        if base is not None:
            lines.append(f"holds: past {trained:,}, never above {HOLDS:g} times its own perplexity at {base:,}.")
        lines.append(f"chunked: the same model and tokens, with the text fed in chunks of {trained:,}.")
        if summary.gaps:
            lines.append(
                "reaches back: the most tokens between a passage and its repetition at which the first still lowers "
                f"the loss of the second by {REACHES:g} nats per token or more."
            )
        return lines

    def main_table(self, summary: LengthSummary) -> Table:
        trained, longest = summary.train_length, max(summary.test_lengths)
        head = [Cell(f"past {trained:,}", kind="words", rank=2)]
        for length, cell in zip(summary.test_lengths, lengths(summary), strict=True):
            rank = 1 if length == longest else 3 if length == trained else 6
            head.append(Cell(cell.text, cell.note, rank=rank))
        head.append(Cell("chunked", note=f"by {trained:,}", rank=8))
        head.append(Cell("reaches back", kind="words", rank=4))

        def cells(row: LengthRow) -> tuple[Cell, ...]:
            found = verdict(row, summary)
            first = Cell(found.text, kind=found.kind)
            if not row.seeds:
                return (first, *[Cell("")] * (len(head) - 1))
            chunked = estimate_cell(row.chunked_same_tokens[longest])
            return (first, *by_length(row.same_tokens), chunked, Cell(reach_in_words(row, summary), kind="words"))

        return Table(
            "Perplexity of the same tokens, by tokens of context: lower is better",
            "The same held-out tokens, predicted with more and more context. Chunked: what the same model gives them "
            f"at {longest:,} tokens if the text is fed in chunks of {trained:,}.",
            tuple(head),
            tuple(Row(row.name, cells(row)) for row in best_first(summary)),
            first=self.first,
        )

    def tables(self, summary: LengthSummary) -> list[Table]:
        trained, longest, base = summary.train_length, max(summary.test_lengths), base_length(summary)
        rows = [row for row in best_first(summary) if row.seeds]
        reference = summary.reference
        with_bytes = [row for row in rows if any(row.bits_per_byte.values())]  # none if the tokenizer loses text

        def table(
            title: str,
            says: str,
            cells: Callable[[LengthRow], tuple[Cell, ...]],
            *,
            head: tuple[Cell, ...] | None = None,
            rows: Sequence[LengthRow] = rows,
        ) -> Table:
            shown = tuple(Row(row.name, cells(row)) for row in rows)
            return Table(title, says, lengths(summary) if head is None else head, shown, first=self.first)

        return [
            table(
                f"Compared with its own perplexity at {base or 0:,}",
                "Ratios of the perplexities above, paired by seed: 1 holds, more is worse.",
                lambda row: by_length(row.ratio),
                rows=[] if base is None else rows,
            ),
            table(
                f"Compared with {reference} at the same length",
                f"Ratios of the perplexities above, paired by seed: below 1 is better than {reference}. A difference "
                "is significant if its interval excludes 1.",
                lambda row: by_length(row.versus_reference, missing="not in both"),
                rows=[row for row in rows if row.name != reference],
            ),
            table(
                "Perplexity over whole windows",
                "The usual figure: all tokens in windows that do not overlap. It is lower with longer windows, since "
                f"fewer tokens have little context. Chunked: the windows of {longest:,} in chunks of {trained:,}.",
                lambda row: (*by_length(row.perplexity), estimate_cell(row.chunked[longest])),
                head=(*lengths(summary), Cell("chunked", note=f"by {trained:,}")),
            ),
            table(
                "Bits per byte over whole windows",
                "The same in bits per byte of text, which compares across tokenizers.",
                lambda row: by_length(row.bits_per_byte),
                rows=with_bytes,
            ),
            table(
                "Repeat probe: how far back text is used",
                "A passage, other text, the passage again: how much lower its loss is the second time, in nats per "
                f"token, by the tokens between. {REACHES:g} or more counts as used; near 0, the first is out of reach.",
                lambda row: (
                    Cell(reach_in_words(row, summary), kind="words"),
                    *by_length(row.repeat_gain, write=signed),
                ),
                head=(Cell("reaches back", kind="words"), *(Cell(f"{gap:,}") for gap in summary.gaps)),
                rows=rows if summary.gaps else [],
            ),
            trained_table(
                best_first(summary),
                self.first,
                {Cell("window"): lambda row: "none" if row.window is None else f"{row.window:,}"},
            ),
        ]

    def figures(self, summary: LengthSummary) -> Iterable[Picture]:
        lines = [
            Line(
                row.name,
                {length: value for length, value in row.same_tokens.items() if value is not None},
                last_position(row, summary),
            )
            for row in summary.rows
        ]
        figure = line_chart(
            lines,
            names=[row.name for row in summary.rows],
            title="perplexity of the same tokens (log scale; lower is better)",
            below="tokens of context (log scale)",
            ticks=summary.test_lengths,
            trained=summary.train_length,
            logarithmic=heights(lines),
        )
        yield picture(figure, name="lengths", described=" ".join(answer(summary)), caption=caption(summary, lines))

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        kinds: dict[str, Callable[[Any], dict[int, float | None]]] = {
            "Loss of the same tokens": lambda m: m.same_tokens,
            "Loss of the same tokens, chunked": lambda m: m.chunked_same_tokens,
            "Loss over whole windows": lambda m: m.nonoverlapping,
            "Loss over whole windows, chunked": lambda m: m.chunked,
            "Repeat gain, by tokens between": lambda m: m.repeat_gain,
        }
        return [values_table(title, "In nats per token.", results, read) for title, read in kinds.items()]


def lengths(summary: LengthSummary) -> tuple[Cell, ...]:
    trained = summary.train_length
    return tuple(Cell(f"{n:,}", note="trained" if n == trained else "") for n in summary.test_lengths)


def by_length(
    estimates: ByLength, *, write: Callable[[float], str] = number, missing: str = "no position"
) -> tuple[Cell, ...]:
    return tuple(estimate_cell(estimate, write, missing=missing) for estimate in estimates.values())


def heights(lines: Sequence[Line]) -> tuple[float, float]:
    """Returns the ends of the axis: around all means, a factor of 1.3 at least, cut at about CUT times the lowest."""
    there = [e.value for line in lines for e in line.points.values() if math.isfinite(e.value)] or [1.0]
    lowest = min(there)
    highest = min(max(*there, 1.3 * lowest), CUT * lowest)
    room = (highest / lowest) ** 0.08
    top = highest * room if highest < CUT * lowest else float(f"{highest:.2g}")
    ends = {line.end for line in lines} - {None}
    return lowest / room ** (1 + len(ends)), top  # the notes on who ends stand below the lines


def caption(summary: LengthSummary, lines: Sequence[Line]) -> str:
    sentences = ["A flat line holds past the training length; a rising one gets worse."]
    if any(len(row.seeds) > 1 for row in summary.rows):
        sentences.append(f"Shaded: {INTERVAL}s.")
    top = heights(lines)[1]
    if any(not e.value <= top for line in lines for e in line.points.values()):
        sentences.append(f"The axis ends at {top:g}; the last value of a line that leaves it is next to its name.")
    failed = [row for row in summary.rows if not row.seeds]
    if failed:
        sentences.append(f"Not drawn, since training failed: {names_of(failed)}.")
    holding = [row for row in summary.rows if verdict(row, summary).kind == "holds"]
    if summary.gaps and holding and all((reach(row, summary) or 0) <= summary.train_length for row in holding):
        sentences.append("A low perplexity does not mean that far text is used: see the repeat probe.")
    return " ".join(sentences)


PAGE = LengthsPage()
