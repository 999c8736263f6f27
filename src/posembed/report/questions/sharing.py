"""The page of ``compare sharing``: exact match with one table and with two, by size, and all numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.sharing import ONE, TWO, SharingRow, SharingSpec, SharingSummary
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.pairs import PROBLEMS
from posembed.plots.charts import Line, dots_figure, ended_at, line_chart
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import (
    FAILED,
    OUTCOMES,
    QuestionPage,
    by_size,
    estimate_cell,
    trained_table,
    values_table,
)
from posembed.report.questions.accuracy import points
from posembed.report.words import (
    by_outcome,
    called,
    failures,
    interval,
    listed,
    measured,
    model_size,
    names_of,
    not_drawn,
    percent,
    signed,
)
from posembed.statistics import INTERVAL, Estimate


class SharingPage(QuestionPage[SharingSummary]):
    loss_unit = "per token of the targets"
    tables_note = "The rows of two-tables are those of the encoder, followed by those of the decoder."

    def about(self, spec: SharingSpec, summary: SharingSummary) -> str:
        sizes = "one" if spec.train_size == 1 else f"1 to {spec.train_size:,} {summary.unit}"
        return (
            f"Each run trains the same small encoder-decoder ({model_size(spec)}, on each side) for {spec.steps:,} "
            f"steps to {PROBLEMS[spec.problem].line}, {sizes} at a time. It is tested on pairs that "
            "training never draws. Only the positions of the encoder and of the decoder differ; "
            "cross-attention has none."
        )

    def paragraphs(self, summary: SharingSummary) -> list[str]:
        found = [(row, row.within) for row in best_first(summary) if row.within is not None]
        shares = listed([f"{measured(share, percent)} with {called(row.name)}" for row, share in found])
        lead = f"On held-out pairs of the sizes of training, the exact match in percent is {shares}." if found else ""
        differences = [
            (outcome(row.versus_reference), f"{called(row.name)} ({_difference(row.versus_reference)})")
            for row, _ in found
            if row.versus_reference is not None
        ]
        return [
            " ".join([lead, *failures(summary.rows)]),
            " ".join(by_outcome(called(summary.reference or ""), differences)),
            on_two_tables(summary),
            _past(summary),
        ]

    def main_table(self, summary: SharingSummary) -> Table:
        def within(row: SharingRow) -> Cell:
            return estimate_cell(row.within, percent, missing="not tested") if row.seeds else FAILED

        def significant(row: SharingRow) -> Cell:
            is_reference = row.name == summary.reference
            return Cell("the reference", kind="words") if is_reference else OUTCOMES[outcome(row.versus_reference)]

        versus: list[Column] = [
            (Cell("difference", rank=2), lambda row: estimate_cell(row.versus_reference, points, missing="")),
            (Cell("significant?", kind="words", rank=3), significant),
        ]
        several = len(summary.test_sizes) > 1
        return table_of(
            best_first(summary),
            f"Exact match in percent, {summary.problem}{f', by {summary.unit}' if several else ''}",
            f"The share of {summary.test_pairs:,} held-out pairs{' of each size' * several} whose target is written "
            "without a mistake. “Within” is the mean of the tested sizes up to the largest of training. The difference "
            f"is “within” minus that of {summary.reference}, in percentage points.",
            (Cell("within", rank=1), within),
            *(versus if any(row.versus_reference for row in summary.rows) else []),
            (Cell("parameters", note="of positions", rank=4), lambda row: f"{row.position_parameters:,}"),
            *by_size(
                summary.test_sizes if several else (),
                lambda row: row.exact_match,
                percent,
                trained=summary.train_size,
                rank=lambda size: 5 if size > summary.train_size else 6,
            ),
        )

    def tables(self, summary: SharingSummary) -> list[Table]:
        rows = [row for row in best_first(summary) if row.seeds]
        sizes, trained = summary.test_sizes, summary.train_size
        return [
            table_of(
                rows,
                "Single tokens of the targets",
                "The percentage of tokens predicted correctly, each from the correct tokens before it.",
                *by_size(sizes, lambda row: row.token_accuracy, percent, trained=trained),
            ),
            table_of(
                rows,
                "Loss on held-out pairs",
                "In nats per token of the targets; lower is better. The difference is the mean of the sizes up to "
                f"{trained:,} minus that of {summary.reference}.",
                *by_size(sizes, lambda row: row.loss, "{:.4f}".format, trained=trained),
                ("difference", lambda row: estimate_cell(row.loss_versus_reference, four, missing="")),
            ),
            trained_table(best_first(summary)),
        ]

    def figures(self, summary: SharingSummary) -> Iterable[Picture]:
        rows = [(row, row.within) for row in best_first(summary) if row.within is not None]
        if rows:
            yield picture(
                dots_figure(
                    [(row.name, scaled(share), f"{percent(share.value)}%") for row, share in rows],
                    title="exact match on held-out pairs of the sizes of training, percent",
                    below="right is better",
                ),
                name="within",
                described=" ".join(self.answer(summary)),
                caption=f"Dots are means and ticks are seeds. With several runs, bars are {INTERVAL}s.",
            )
        if len(summary.test_sizes) > 1:
            lines = [Line.of(row.name, row.exact_match, ends_at(row, summary)) for row in summary.rows]
            note = f"The dotted line marks the largest training size. With several runs, shaded bands are {INTERVAL}s."
            yield picture(
                line_chart(
                    lines,
                    names=[row.name for row in summary.rows],
                    title="targets written without a mistake, percent",
                    below=f"size, in {summary.unit}",
                    ticks=summary.test_sizes,
                    trained=summary.train_size,
                ),
                name="sizes",
                described=f"Exact match by number of {summary.unit}, for each arrangement.",
                caption=" ".join([note, *not_drawn(summary.rows)]),
            )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        return [
            values_table("Exact match", "As shares from 0 to 1.", results, lambda m: m.exact_match),
            values_table("Single tokens", "As shares from 0 to 1.", results, lambda m: m.token_accuracy),
            values_table("Loss", "In nats per token of the targets.", results, lambda m: m.loss),
        ]


def best_first(summary: SharingSummary) -> list[SharingRow]:
    """Sorts by the exact match within the training size, then by the loss; rows without either come last."""

    def key(row: SharingRow) -> tuple[bool, float, float]:
        losses = [loss.value for loss in row.loss.values() if loss is not None]
        return row.within is None, 0.0 if row.within is None else -row.within.value, min(losses, default=0.0)

    return sorted(summary.rows, key=key)


def outcome(difference: Estimate | None) -> str:
    """Returns "better" if a difference in exact match is significantly above 0, "worse" if significantly below, "not
    significant" if neither, or "unknown" without an interval."""
    side = None if difference is None else difference.side_of(0)
    return {None: "unknown", "above": "better", "below": "worse", "both": "not significant"}[side]


def scaled(share: Estimate) -> Estimate:
    """Converts a share to percent."""
    low, high = (None if end is None else 100 * min(max(end, 0.0), 1.0) for end in (share.low, share.high))
    return Estimate(100 * share.value, low, high, tuple(100 * value for value in share.values))


def four(difference: float) -> str:
    return signed(difference, 4)


def ends_at(row: SharingRow, summary: SharingSummary) -> int | None:
    return ended_at(row.exact_match, summary.train_size) if row.seeds else None


def _difference(difference: Estimate) -> str:
    known = interval(difference, points)
    return f"{points(difference.value)} points" + (f", interval {known}" if known else "")


def on_two_tables(summary: SharingSummary) -> str:
    """Returns what the runs say of the claim that a second table is a mistake; empty unless both were compared."""
    rows = {row.name: row for row in summary.rows}
    two = rows.get(TWO)
    if summary.reference != ONE or two is None or two.versus_reference is None:
        return ""
    more = two.position_parameters - rows[ONE].position_parameters
    cost = f"The second table adds {more:,} parameters ({more / rows[ONE].parameters:.1%} of the model)"
    found = {
        "better": "and writes significantly more targets without a mistake. These runs contradict the claim.",
        "worse": "and writes significantly fewer targets without a mistake. These runs agree with the claim.",
        "not significant": "and changes the exact match by no significant amount, so parameters are all that it "
        "certainly adds.",
        "unknown": "and these runs cannot tell what it gains.",
    }[outcome(two.versus_reference)]
    loss = two.loss_versus_reference
    known = interval(loss, four)
    of_loss = f" Its loss minus that of {ONE} is {four(loss.value)} nats per token ({known})." if loss and known else ""
    return f"Guides call two tables a mistake where one could be shared. {cost} {found}{of_loss}"


def _past(summary: SharingSummary) -> str:
    longest = max(summary.test_sizes)
    if longest <= summary.train_size:
        return ""
    last = [(row, row.exact_match[longest]) for row in best_first(summary) if row.seeds]
    able = [f"{percent(share.value)}% with {called(row.name)}" for row, share in last if share is not None]
    unable = [row for row, share in last if share is None]
    sentences = [f"At {longest:,} {summary.unit}, past training, the exact match is {listed(able)}."] if able else []
    if unable:
        verb = "has" if len(unable) == 1 else "have"
        where = "At that size" if able else f"At {longest:,} {summary.unit}, past training,"
        sentences.append(f"{where} {names_of(unable)} {verb} no row for some positions.")
    return " ".join(sentences)


PAGE = SharingPage()
