"""The HTML page of one measurement of cost: the answer, the overheads, the numbers, the evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from posembed.lab.cost.results import CostResult, load
from posembed.report.drawing import styles
from posembed.report.page import Folded, Pairs, Section, Table, picture, render_page
from posembed.report.questions import FolderPage, no_reference
from posembed.report.questions.cost_figures import growth_figure, overhead_figure
from posembed.report.questions.cost_tables import cost_tables
from posembed.report.questions.cost_words import answer, cheapest_first, machine, percent, sizes_in_words
from posembed.statistics import INTERVAL

HOW_TO_READ = (
    "Relative to the time of an attention layer without position, forward and backward. Alone: the encoding's own "
    "work. Overhead: the layer with it compared with the layer without; left of 0 it saves work. Bars are "
    f"{INTERVAL}s of the median."
)


class CostPage(FolderPage[CostResult]):
    def answer(self, summary: CostResult) -> list[str]:
        return answer(summary)

    def main_tables(self, summary: CostResult) -> list[Table]:
        return cost_tables(summary)

    def notes(self, summary: CostResult) -> list[str]:
        return [f"{about(summary)} torch {summary.environment['torch']}; {summary.seconds:.0f} s."]

    def from_folder(self, folder: Path, question: Any, reference: str | None) -> str:
        if reference is not None:
            raise no_reference(folder, question)
        return render(load(folder))


def render(result: CostResult) -> str:
    """Returns the page as text. The same result gives the same page."""
    return render_page(
        title="What does each position encoding cost?",
        about=about(result),
        answer=answer(result),
        sections=sections(result),
        styles=styles([row.encoding for row in result.rows]),
    )


def about(result: CostResult) -> str:
    """Returns how the result was measured, in two sentences."""
    rounds = result.attention
    return (
        f"Measured on {machine(result)}, at {sizes_in_words(result)}: every encoding alone and in an attention layer, "
        f"taking turns. Medians of {len(rounds.forward.values)} rounds forward and {len(rounds.backward.values)} with "
        f"backward, with their {INTERVAL}s."
    )


def sections(result: CostResult) -> list[Section]:
    """Returns the figures, the tables and the evidence."""
    shares = [f"{row.encoding} {percent(row.alone_share.backward.value)}" for row in cheapest_first(result)]
    overheads = picture(
        overhead_figure(result),
        name="overhead",
        described=f"Relative to the time of an attention layer, each encoding alone takes: {', '.join(shares)}.",
        caption=HOW_TO_READ,
    )
    found = [Section("", (overheads,)), Section("The numbers", tuple(cost_tables(result)))]
    if any(row.writes.all for row in result.rows):
        growth = picture(
            growth_figure(result),
            name="growth",
            described="Time by length, one line per encoding.",
            caption="A cross marks the last length that was tried, where the next would not fit.",
        )
        found.append(Section("Growth with length", (growth,)))
    settings = tuple((name, _plain(value)) for name, value in vars(result.settings).items())
    evidence = (
        Folded("Settings", (Pairs(settings),)),
        Folded("Machine and versions", (Pairs(tuple(sorted(result.environment.items()))),)),
    )
    return [*found, Section("Evidence", evidence)]


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


PAGE = CostPage()
