"""The page of ``compare lengths``: the answer, perplexity by context length, and all numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from posembed.lab.questions.lengths import LengthRow, LengthSpec, LengthSummary, base_length
from posembed.lab.runs.results import RunResult
from posembed.plots.by_length import heights, length_lines
from posembed.plots.charts import ended_at, line_chart
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import QuestionPage, by_size, estimate_cell, trained_table, values_table
from posembed.report.words import (
    called,
    failures,
    listed,
    measured,
    model_size,
    names_of,
    not_drawn,
    number,
    signed,
    up_to,
)
from posembed.statistics import INTERVAL

HOLDS = 1.02
"""An encoding holds if its same-token perplexity past the training length is never above this many times its perplexity
at the training length."""
REACHES = 0.05
"""A model used an earlier passage if the loss of the repetition is lower by at least this many nats per token (5% of
perplexity). Models that cannot reach the passage show gains of up to 0.02 by chance."""


class LengthsPage(QuestionPage[LengthSummary]):
    def about(self, spec: LengthSpec, summary: LengthSummary) -> str:
        model, more = f"the same small Transformer ({model_size(spec)})", ""
        if spec.model is not None:
            model = f"the same model, {spec.model} ({model_size(spec)}), {spec.model_start},"
            more = " Where its heads look is not shown, because only the lab's own model returns attention weights."
        return (
            f"Each run trains {model} on {spec.data} for {spec.steps:,} steps, in {spec.sequences_in_words} "
            f"(tokenizer: {spec.tokenizer}), and tests it with up to {max(spec.test_lengths):,} tokens. Only "
            f"the position encoding differs.{more}"
        )

    def paragraphs(self, summary: LengthSummary) -> list[str]:
        return [" ".join([*_past_training(summary), *failures(summary.rows)]), " ".join(_longest(summary))]

    def notes(self, summary: LengthSummary) -> list[str]:
        trained, base = summary.train_length, base_length(summary)
        lines = [f"chunked: the same model and tokens, with the text fed in chunks of {trained:,}."]
        if base is not None and max(summary.test_lengths) > trained:
            lines.append(f"holds: past {trained:,}, perplexity is never above {HOLDS:g} times its value at {base:,}.")
        if summary.gaps:
            lines.append(
                "reaches back: the largest number of tokens between a passage and its repetition at which the passage "
                f"still lowers the loss of the repetition by at least {REACHES:g} nats per token."
            )
        return lines

    def main_table(self, summary: LengthSummary) -> Table:
        trained, longest = summary.train_length, max(summary.test_lengths)

        return table_of(
            best_first(summary),
            "Perplexity of the same tokens, by context length (lower is better)",
            "The same held-out tokens are predicted with more and more context. Chunked: the perplexity of the same "
            f"model with {longest:,} tokens of text, fed in chunks of {trained:,}.",
            (Cell(f"past {trained:,}", kind="words", rank=2), lambda row: verdict(row, summary)),
            *by_size(
                summary.test_lengths,
                lambda row: row.same_tokens,
                trained=trained,
                rank=lambda length: 1 if length == longest else 3 if length == trained else 6,
            ),
            (
                Cell("chunked", note=f"by {trained:,}", rank=8),
                lambda row: estimate_cell(row.chunked_same_tokens[longest]) if row.seeds else Cell(""),
            ),
            reaches_back(summary, rank=4),
        )

    def tables(self, summary: LengthSummary) -> list[Table]:
        trained, longest, base = summary.train_length, max(summary.test_lengths), base_length(summary)
        rows, reference = [row for row in best_first(summary) if row.seeds], summary.reference

        columns = partial(by_size, summary.test_lengths, trained=trained)
        return [
            table_of(
                [] if base is None else rows,
                f"Compared with its own perplexity at {base or 0:,}",
                "Ratios of the perplexities above, paired by seed. A ratio above 1 is worse.",
                *columns(lambda row: row.ratio),
            ),
            table_of(
                [row for row in rows if row.name != reference],
                f"Compared with {reference} at the same length",
                f"Ratios of the perplexities above, paired by seed. A ratio below 1 is better than {reference}. A "
                "ratio is significant if its interval excludes 1.",
                *columns(lambda row: row.versus_reference, missing="not in both"),
            ),
            table_of(
                rows,
                "Perplexity over whole windows",
                "The usual measure: all tokens, in windows that do not overlap. Longer windows lower it, because fewer "
                f"tokens have little context. Chunked: the windows of {longest:,} tokens, fed in chunks of "
                f"{trained:,}.",
                *columns(lambda row: row.perplexity),
                (Cell("chunked", note=f"by {trained:,}"), lambda row: estimate_cell(row.chunked[longest])),
            ),
            table_of(
                [row for row in rows if any(row.bits_per_byte.values())],  # empty if the tokenizer loses text
                "Bits per byte over whole windows",
                "The same losses in bits per byte of text, which can be compared across tokenizers.",
                *columns(lambda row: row.bits_per_byte),
            ),
            table_of(
                rows if summary.gaps else [],
                "Repeat probe: how far back the model uses text",
                "The model reads a passage, other text, then the passage again. A column gives the number of tokens "
                "between the two. A value shows how much lower the loss is the second time, in nats per token. At "
                f"{REACHES:g} or more, the model used the first passage; near 0, it did not.",
                reaches_back(summary),
                *by_size(summary.gaps, lambda row: row.repeat_gain, signed),
            ),
            trained_table(
                best_first(summary),
                ("window", lambda row: "none" if row.window is None else f"{row.window:,}"),
            ),
        ]

    def figures(self, summary: LengthSummary) -> Iterable[Picture]:
        lines = length_lines(summary)
        low, high = heights(lines)
        caption = (
            "A flat line holds past the training length; a rising line gets worse. The axis ends at "
            f"{high:.3g}; if a line leaves it, the line's last value is next to its name. A low perplexity does not "
            "mean that the model uses distant text: see the repeat probe. With several runs per encoding, shaded bands "
            f"are {INTERVAL}s."
        )
        figure = line_chart(
            lines,
            names=[row.name for row in summary.rows],
            title="perplexity of the same tokens (log scale; lower is better)",
            below="tokens of context (log scale)",
            ticks=summary.test_lengths,
            trained=summary.train_length,
            logarithmic=(low, high),
        )
        described = " ".join(self.answer(summary))
        yield picture(
            figure, name="lengths", described=described, caption=" ".join([caption, *not_drawn(summary.rows)])
        )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        kinds: dict[str, Callable[[Any], dict[int, float | None]]] = {
            "Loss of the same tokens": lambda m: m.same_tokens,
            "Loss of the same tokens, chunked": lambda m: m.chunked_same_tokens,
            "Loss over whole windows": lambda m: m.nonoverlapping,
            "Loss over whole windows, chunked": lambda m: m.chunked,
            "Repeat gain, by tokens between": lambda m: m.repeat_gain,
        }
        return [values_table(title, "In nats per token.", results, read) for title, read in kinds.items()]


def verdict(row: LengthRow, summary: LengthSummary) -> Cell:
    """Returns a cell with the result of an encoding past its training length. The kind of the cell is "holds", "worse",
    "ends", "failed" or "untested"."""
    if not row.seeds:
        steps = re.findall(r"at step (\d+)", " ".join(row.failures))
        return Cell(f"failed at step {', '.join(dict.fromkeys(steps))}" if steps else "failed", kind="failed")
    end = last_position(row, summary)
    if end is not None:
        return Cell(f"ends at {end:,}", kind="ends")
    worst = worst_ratio(row, summary)
    if worst is None:
        return Cell("not tested", kind="untested")
    ratio, length = worst
    if ratio <= HOLDS:
        return Cell("holds", kind="holds")
    by = f"{(ratio - 1) * 100:.0f}%" if ratio < 1.995 else f"{times(ratio)} times"
    return Cell(f"{by} worse{_unless_longest(length, summary)}", kind="worse")


def last_position(row: LengthRow, summary: LengthSummary) -> int | None:
    return ended_at(row.same_tokens, summary.train_length) if row.seeds else None


def worst_ratio(row: LengthRow, summary: LengthSummary) -> tuple[float, int] | None:
    """Returns the highest ratio of a perplexity past the training length to the perplexity at ``base_length``, and the
    length at which it occurs. Returns None if there is no such ratio. NaN counts as infinite.
    """
    ratios = [
        (math.inf if math.isnan(ratio.value) else ratio.value, length)
        for length, ratio in row.ratio.items()
        if ratio is not None and length > summary.train_length
    ]
    return max(ratios, default=None)


def reach(row: LengthRow, summary: LengthSummary) -> int | None:
    """Returns the largest gap such that the model used the passage at all gaps up to it; None without one."""
    reached = None
    for gap in summary.gaps:
        gain = row.repeat_gain.get(gap)
        if gain is None or not gain.value >= REACHES:  # NaN is not a gain
            break
        reached = gap
    return reached


def reach_in_words(row: LengthRow, summary: LengthSummary) -> str:
    """Formats the reach, such as "64", "256+" or "under 32". Empty if nothing was measured."""
    return up_to(reach(row, summary), summary.gaps) if row.seeds and summary.gaps else ""


def reaches_back(summary: LengthSummary, rank: int = 0) -> Column:
    head = Cell("reaches back", kind="words", rank=rank)
    return head, lambda row: Cell(reach_in_words(row, summary), kind="words" if row.seeds else "")


def best_first(summary: LengthSummary) -> list[LengthRow]:
    """Sorts by same-token perplexity at the longest length. Encodings without positions there come next, then failed
    rows."""

    def key(row: LengthRow) -> tuple[bool, bool, float]:
        known = [value.value for value in row.same_tokens.values() if value is not None]
        last = known[-1] if known else math.inf
        return not row.seeds, last_position(row, summary) is not None, last if math.isfinite(last) else math.inf

    return sorted(summary.rows, key=key)


def times(ratio: float) -> str:
    """Formats a ratio for a sentence, with fewer decimals if it is larger: 1.34, 5.9, 21, 250."""
    if ratio < 1.995 or ratio >= 999.5:
        return number(ratio)
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def _unless_longest(length: int, summary: LengthSummary) -> str:
    return "" if length == max(summary.test_lengths) else f" at {length:,}"


def _rows(summary: LengthSummary, kind: str) -> list[LengthRow]:
    return [row for row in best_first(summary) if verdict(row, summary).kind == kind]


def _past_training(summary: LengthSummary) -> list[str]:
    trained, longest, base = summary.train_length, max(summary.test_lengths), base_length(summary)
    if not any(row.seeds for row in summary.rows):
        return []
    holding, ending = _rows(summary, "holds"), _rows(summary, "ends")
    ratios = [f"{number(ratio.value)} with {called(row.name)}" for row in holding if (ratio := row.ratio[longest])]
    worst = sorted((worst_ratio(row, summary) or (math.inf, longest), row.name) for row in _rows(summary, "worse"))
    ratios += [f"{times(ratio)} with {called(name)}" for (ratio, length), name in worst if length == longest]
    peaks = [
        f"With {called(name)}, the perplexity is highest at {length:,} tokens: {times(ratio)} times that at {base:,}."
        for (ratio, length), name in worst
        if length != longest
    ]
    names = names_of(holding) or "none of the encodings"
    sentences = [f"Past the training length of {trained:,} tokens, perplexity holds with {names}."]
    if base is None or longest <= trained:
        sentences = [
            f"No ratio shows what happens past the training length of {trained:,} tokens, because the test lengths do "
            "not lie on both sides of it."
        ]
    else:
        if ratios:
            sentences.append(
                f"From {base:,} to {longest:,} tokens of context, the perplexity of the same tokens is multiplied by "
                f"{listed(ratios)}."
            )
        sentences += peaks
    if ending:
        ends = listed([f"{called(row.name)} ({last_position(row, summary):,} tokens)" for row in ending])
        last = "its last position" if len(ending) == 1 else "their last positions"
        sentences.append(f"{ends} cannot be measured past {last}.")
    return sentences


def _longest(summary: LengthSummary) -> list[str]:
    """Compares the best encoding at the longest length with the reference, or the reference with the second best.

    Then gives the reach of the encodings that hold or, if none holds, of the encodings that get worse.
    """
    longest, sentences = max(summary.test_lengths), []
    known = [(row, value) for row in best_first(summary) if (value := row.same_tokens.get(longest)) is not None]
    if len(known) > 1:
        best, ours = known[0]
        rival, theirs = next((pair for pair in known[1:] if pair[0].name == summary.reference), known[1])
        sentences.append(
            f"The lowest perplexity at {longest:,} tokens is {measured(ours)}, with {called(best.name)}; with "
            f"{called(rival.name)} it is {number(theirs.value)}."
        )
        row = rival if best.name == summary.reference else best
        ratio = row.versus_reference.get(longest)
        if ratio is not None:
            sides = {None: "its significance is unknown", "both": "it is not significant"}
            pair, side = f"{called(row.name)} to {called(summary.reference or '')}", sides.get(ratio.side_of(1))
            sentences.append(f"The ratio of {pair} is {measured(ratio)}; {side or 'it is significant'}.")
    rows = _rows(summary, "holds") or _rows(summary, "worse")
    if rows and summary.gaps:
        names: dict[str, list[str]] = {}
        for row in rows:
            names.setdefault(reach_in_words(row, summary), []).append(called(row.name))
        reached = "; ".join(f"{reach} tokens for {listed(found)}" for reach, found in names.items())
        sentences.append(
            "A low perplexity does not mean that the model uses distant text. In the repeat probe, the reach is "
            f"{reached}."
        )
    return sentences


PAGE = LengthsPage()
