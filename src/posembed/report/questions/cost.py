"""What is special about ``compare cost``: it trains nothing, and adds published times and known tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from posembed.lab.cost.results import METRICS, OVERHEAD, PLAIN, CostSummary, load
from posembed.lab.cost.sizes import KNOWN, Size
from posembed.plots.charts import dots_figure
from posembed.report import answers
from posembed.report.evidence import evidence_section
from posembed.report.page import Picture, Section, Table, picture, table_of
from posembed.report.questions import QuestionPage, no_reference
from posembed.report.words import by_outcome, called, interval
from posembed.words import part

QUOTED_ATTENTION_MS = 12.3
QUOTED_MS = {"learned": 0.08, "sinusoidal": 0.10, "rope": 0.32, "alibi": 0.18}
"""Published times, in milliseconds, of attention and of each encoding at batch 32, length 512, width 768."""
OUTCOME = {"below": "better", "above": "worse", "both": "not significant", None: "unknown"}
"""What the side of an overhead's interval means."""


class Page(QuestionPage):
    def summary(self, folder: Path, reference: str | None) -> CostSummary:
        if reference is not None:
            raise no_reference(folder, self.question)
        return CostSummary(load(folder))

    def answer(self, summary: CostSummary) -> list[str]:
        size = yours(summary)
        known = {name: found for name in summary.writing if (found := summary.mean(OVERHEAD, name)) is not None}
        overheads = [
            (OUTCOME[found.side_of(0)], f"{called(name)} ({', '.join(filter(None, words))})")
            for name, found in known.items()
            for words in [(part(found.value), interval(found, part))]
        ]
        overhead = " ".join(by_outcome(PLAIN, overheads))
        stopped = "; ".join(f"{called(name)} ({reason})" for name, reason in summary.result.stopped.items())
        return [
            *(text for text in answers.paragraphs(summary) if text),
            *([f"In training, by the overhead in the layer: {overhead}"] if overhead else []),
            f"A learned table of {size.rows:,} x {size.width:,} has {size.table:,} parameters: "
            f"{part(size.share_of_embeddings or 0)} of the embeddings with {size.vocabulary:,} tokens, "
            f"{part(size.share_of_model or 0)} of a {size.layers:,}-layer model.",
            *([f"To save memory or time, no longer sequences were tried with {stopped}."] if stopped else []),
        ]

    def notes(self, summary: CostSummary) -> list[str]:
        return [f"{summary.about()} torch {summary.result.environment['torch']}; {summary.result.seconds:.0f} s."]

    def main_tables(self, summary: CostSummary) -> list[Table]:
        return [*answers.tables(summary), *(table for table in (published(summary), known(summary)) if table.rows)]

    def tables(self, summary: CostSummary) -> list[Table]:
        return []

    def figures(self, summary: CostSummary) -> Iterator[Picture]:
        described = " ".join(self.answer(summary))
        yield from answers.figures(summary, described)
        rows = [
            (name, found, part(found.value))
            for name in summary.best_first(OVERHEAD)
            if (found := summary.mean(OVERHEAD, name))
        ]
        caption = f"{summary.dots} Left of 0, the layer is faster."
        figure = dots_figure(rows, title=answers.titled(summary, OVERHEAD), below="", marked=0.0)
        yield picture(figure, name="overhead", described=described, caption=caption)

    def sections(self, folder: Path, summary: CostSummary) -> list[Section]:
        result = summary.result
        return [evidence_section(vars(result.settings), dict(sorted(result.environment.items())), ())]


def yours(summary: CostSummary) -> Size:
    """Returns the size of a learned table at the measured length and width."""
    settings = summary.result.settings
    return Size("these sizes", settings.length, settings.width, settings.vocabulary, settings.layers)


def published(summary: CostSummary) -> Table:
    share, overhead = METRICS["share of attention, forward"], METRICS["overhead, forward"]

    def times(name: str) -> str:
        ours = summary.mean(share, name)
        return "" if ours is None else f"{ours.value * QUOTED_ATTENTION_MS / QUOTED_MS[name]:.1f}"

    return table_of(
        [name for name in summary.best_first(share) if name in QUOTED_MS],
        "Compared with published figures",
        f"Published shares are relative to {QUOTED_ATTENTION_MS} ms of attention at batch 32, length 512, width 768, "
        "on unnamed hardware. Shares depend on the machine: attention is mostly arithmetic and an encoding mostly "
        "memory traffic, so its share is larger on machines with slow memory.",
        ("published", lambda name: part(QUOTED_MS[name] / QUOTED_ATTENTION_MS)),
        ("ours, forward", lambda name: answers.mean_cell(summary.mean(share, name), share)),
        ("times as much", times),
        ("ours, overhead in the layer", lambda name: answers.mean_cell(summary.mean(overhead, name), overhead)),
        name=str,
    )


def known(summary: CostSummary) -> Table:
    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.2%}"

    return table_of(
        [yours(summary), *KNOWN],
        "Position tables of known models",
        "Parameters: rows times width. Of the embeddings: the share of the position and token parameters. Of the "
        "model: the share of all Transformer parameters, excluding heads, poolers and patch projections.",
        ("rows", lambda size: f"{size.rows:,}"),
        ("width", lambda size: f"{size.width:,}"),
        ("parameters", lambda size: f"{size.table:,}"),
        ("of the embeddings", lambda size: share(size.share_of_embeddings)),
        ("of the model", lambda size: share(size.share_of_model)),
        first="model",
    )
