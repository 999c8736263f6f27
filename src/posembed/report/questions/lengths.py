"""The page of ``compare lengths``: the answer, perplexity by context length, the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from posembed.lab.questions.lengths import ByLength, LengthRow, LengthSpec, LengthSummary, base_length
from posembed.lab.runs.results import RunResult
from posembed.report.line_chart import Line, line_chart
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import NO_POSITION, QuestionPage, by_size, estimate_cell, trained_table, values_table
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
from posembed.report.words import capitalised, model_size, not_drawn, repeated, runs_per, signed
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

        def became(row: LengthRow) -> Cell:
            found = verdict(row, summary)
            return Cell(found.text, kind=found.kind)

        def chunked(row: LengthRow) -> Cell:
            return estimate_cell(row.chunked_same_tokens[longest]) if row.seeds else Cell("")

        return table_of(
            best_first(summary),
            "Perplexity of the same tokens, by tokens of context: lower is better",
            "The same held-out tokens, predicted with more and more context. Chunked: what the same model gives them "
            f"at {longest:,} tokens if the text is fed in chunks of {trained:,}.",
            (Cell(f"past {trained:,}", kind="words", rank=2), became),
            *by_size(
                summary.test_lengths,
                lambda row: row.same_tokens,
                trained=trained,
                rank=lambda length: 1 if length == longest else 3 if length == trained else 6,
            ),
            (Cell("chunked", note=f"by {trained:,}", rank=8), chunked),
            reaches_back(summary, rank=4),
            first=self.first,
        )

    def tables(self, summary: LengthSummary) -> list[Table]:
        trained, longest, base = summary.train_length, max(summary.test_lengths), base_length(summary)
        rows, reference = [row for row in best_first(summary) if row.seeds], summary.reference

        def table(
            title: str,
            says: str,
            values: Callable[[Any], ByLength],
            *more: Column,
            among: Sequence[LengthRow] = rows,
            missing: str = NO_POSITION,
        ) -> Table:
            columns = by_size(summary.test_lengths, values, trained=trained, missing=missing)
            return table_of(among, title, says, *columns, *more, first=self.first)

        return [
            table(
                f"Compared with its own perplexity at {base or 0:,}",
                "Ratios of the perplexities above, paired by seed: 1 holds, more is worse.",
                lambda row: row.ratio,
                among=[] if base is None else rows,
            ),
            table(
                f"Compared with {reference} at the same length",
                f"Ratios of the perplexities above, paired by seed: below 1 is better than {reference}. A difference "
                "is significant if its interval excludes 1.",
                lambda row: row.versus_reference,
                among=[row for row in rows if row.name != reference],
                missing="not in both",
            ),
            table(
                "Perplexity over whole windows",
                "The usual figure: all tokens in windows that do not overlap. It is lower with longer windows, since "
                f"fewer tokens have little context. Chunked: the windows of {longest:,} in chunks of {trained:,}.",
                lambda row: row.perplexity,
                (Cell("chunked", note=f"by {trained:,}"), lambda row: estimate_cell(row.chunked[longest])),
            ),
            table(
                "Bits per byte over whole windows",
                "The same in bits per byte of text, which compares across tokenizers.",
                lambda row: row.bits_per_byte,
                among=[row for row in rows if any(row.bits_per_byte.values())],  # none if the tokenizer loses text
            ),
            table_of(
                rows if summary.gaps else [],
                "Repeat probe: how far back text is used",
                "A passage, other text, the passage again: how much lower its loss is the second time, in nats per "
                f"token, by the tokens between. {REACHES:g} or more counts as used; near 0, the first is out of reach.",
                reaches_back(summary),
                *by_size(summary.gaps, lambda row: row.repeat_gain, signed),
                first=self.first,
            ),
            trained_table(
                best_first(summary),
                self.first,
                ("window", lambda row: "none" if row.window is None else f"{row.window:,}"),
            ),
        ]

    def figures(self, summary: LengthSummary) -> Iterable[Picture]:
        lines = [Line.of(row.name, row.same_tokens, last_position(row, summary)) for row in summary.rows]
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


def reaches_back(summary: LengthSummary, rank: int = 0) -> Column:
    head = Cell("reaches back", kind="words", rank=rank)
    return head, lambda row: Cell(reach_in_words(row, summary), kind="words" if row.seeds else "")


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
    if repeated(summary.rows):
        sentences.append(f"Shaded: {INTERVAL}s.")
    top = heights(lines)[1]
    if any(not e.value <= top for line in lines for e in line.points.values()):
        sentences.append(f"The axis ends at {top:g}; the last value of a line that leaves it is next to its name.")
    sentences += not_drawn(summary.rows)
    holding = [row for row in summary.rows if verdict(row, summary).kind == "holds"]
    if summary.gaps and holding and all((reach(row, summary) or 0) <= summary.train_length for row in holding):
        sentences.append("A low perplexity does not mean that far text is used: see the repeat probe.")
    return " ".join(sentences)


PAGE = LengthsPage()
