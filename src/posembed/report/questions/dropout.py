"""The page of ``compare dropout``: the answer, both losses and the gap between them by dropout rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.amounts import amount_in_words
from posembed.lab.questions.dropout import DropoutRow, DropoutSpec, DropoutSummary
from posembed.lab.runs.results import RunResult
from posembed.plots.charts import dots_figure
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, QuestionPage, estimate_cell
from posembed.report.questions.data_efficiency import losses_table, times_read
from posembed.report.words import (
    by_outcome,
    capitalised,
    failures,
    listed,
    loss_number,
    model_size,
    outcome,
    signed,
)
from posembed.statistics import INTERVAL, Estimate

FIRST = "dropout"
VERSUS = {
    "held-out loss": "versus_reference",
    "training loss": "training_versus_reference",
    "gap": "gap_versus_reference",
}


class DropoutPage(QuestionPage[DropoutSummary]):
    of_each = "rate"
    tables_note = "Each table has the name of its dropout rate."

    def about(self, spec: DropoutSpec, summary: DropoutSummary) -> str:
        tokens = summary.train_tokens
        often = "" if tokens is None else f", which it reads {times_read(summary.tokens_read / tokens)}"
        return (
            f"Each run trains the same small Transformer ({model_size(spec)}) on {amount_in_words(spec.amount)} of "
            f"{spec.data}{often}, in {spec.steps:,} steps with {spec.sequences_in_words} (tokenizer: "
            f"{spec.tokenizer}). Only the dropout after the sum of tokens and positions differs; the dropout elsewhere "
            f"is {spec.dropout:g}. Both losses are measured without dropout, on equally many tokens."
        )

    def paragraphs(self, summary: DropoutSummary) -> list[str]:
        rows = measured_rows(summary)
        failed = failures([dataclasses.replace(row, name=f"dropout {row.name}") for row in summary.rows])
        if not rows:
            return [" ".join(failed)]
        best, lowest = rows[0]
        has = "a held-out loss of" if len(rows) == 1 else "the lowest held-out loss,"
        first = f"Dropout {best.name} has {has} {loss_number(lowest.value)} nats."
        held_out = [first, *compared(summary, "versus_reference"), *failed]
        return [" ".join(held_out), " ".join(gaps(summary))]

    def main_table(self, summary: DropoutSummary) -> Table:
        def losses(row: DropoutRow, loss: Estimate | None) -> Cell:
            return estimate_cell(loss, loss_number) if row.seeds else FAILED

        columns: list[Column] = [
            (Cell("held-out loss", rank=1), lambda row: losses(row, row.held_out)),
            (Cell("training loss", rank=3), lambda row: losses(row, row.training)),
            (Cell("gap", rank=2), lambda row: losses(row, row.gap)),
        ]
        if any(row.versus_reference for row in summary.rows):
            head = Cell(f"minus {summary.reference}", note="held-out loss", rank=4)
            columns.append((head, lambda row: estimate_cell(row.versus_reference, signed, missing="")))
        return table_of(
            summary.rows,
            "Losses in nats per token, by dropout after the sum of tokens and positions",
            "Gap: the held-out loss minus the training loss, both in eval mode. Differences are paired by seed.",
            *columns,
            first=FIRST,
        )

    def tables(self, summary: DropoutSummary) -> list[Table]:
        versus: list[Column] = [
            (head, lambda row, field=field: estimate_cell(getattr(row, field), signed, missing=""))  # type: ignore[misc]
            for head, field in VERSUS.items()
        ]
        return [
            table_of(
                [row for row in summary.rows if row.versus_reference is not None],
                f"Compared with dropout {summary.reference}",
                "Differences, paired by seed. A difference is significant if its interval excludes 0.",
                *versus,
                first=FIRST,
            ),
        ]

    def figures(self, summary: DropoutSummary) -> Iterable[Picture]:
        rows = [row for row, _ in sorted(measured_rows(summary), key=lambda pair: float(pair[0].name))]
        if not rows:
            return
        how = f"Dots are means and ticks are seeds. With several runs per rate, bars are {INTERVAL}s."
        for name, title, of in (
            ("held-out", "held-out loss, nats per token", lambda row: row.held_out),
            ("gap", "held-out loss minus training loss, nats per token", lambda row: row.gap),
        ):
            found = [(f"dropout {row.name}", of(row), loss_number(of(row).value)) for row in rows]
            yield picture(
                dots_figure(
                    found, title=title, below="left is better" if name == "held-out" else "left is a smaller gap"
                ),
                name=name,
                described=" ".join(self.answer(summary)),
                caption=how,
            )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        return [losses_table(results)]


def measured_rows(summary: DropoutSummary) -> list[tuple[DropoutRow, Estimate]]:
    """Returns the rows that have a held-out loss, and the loss, from the lowest."""
    rows = [(row, row.held_out) for row in summary.rows if row.held_out is not None]
    return sorted(rows, key=lambda pair: pair[1].value if math.isfinite(pair[1].value) else math.inf)


def compared(summary: DropoutSummary, field: str) -> list[str]:
    """Returns sentences that compare the rates with the reference by a difference in this field."""
    found = [
        (outcome(difference), f"dropout {row.name} ({signed(difference.value)})")
        for row, _ in measured_rows(summary)
        if (difference := getattr(row, field)) is not None
    ]
    return [capitalised(sentence) for sentence in by_outcome(f"dropout {summary.reference}", found)]


def gaps(summary: DropoutSummary) -> list[str]:
    """Says what the gap is with each rate, and where it differs significantly from the reference's."""
    known = [(row.name, row.gap, row.gap_versus_reference) for row, _ in measured_rows(summary) if row.gap is not None]
    known.sort(key=lambda gap: float(gap[0]))
    texts = [f"{loss_number(gap.value)} with dropout {name}" for name, gap, _ in known]
    sentences = [f"The held-out loss minus the training loss is {listed(texts)}."]
    sides: dict[str | None, list[str]] = {}
    for name, _, difference in known:
        if difference is not None:
            sides.setdefault(difference.side_of(0), []).append(f"dropout {name}")
    words = {
        "below": "This gap is significantly smaller with {} than with {}.",
        "above": "This gap is significantly larger with {} than with {}.",
        "both": "The gap with {} does not differ significantly from that with {}.",
    }
    reference = f"dropout {summary.reference}"
    return sentences + [text.format(listed(sides[side]), reference) for side, text in words.items() if side in sides]


PAGE = DropoutPage()
