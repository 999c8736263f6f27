"""One HTML page about one measurement of cost: the answer, the overheads, the numbers, the evidence."""

from __future__ import annotations

from pathlib import Path

from posembed.lab.cost.results import CostResult, load
from posembed.report.cost.figures import described, growth_figure, overhead_figure
from posembed.report.cost.tables import cost_tables
from posembed.report.cost.words import answer, machine, sizes_in_words
from posembed.report.drawing import styles
from posembed.report.page import Folded, Pairs, Picture, Section, picture, render_page, write_page

HOW_TO_READ = (
    "Of the time of a layer of attention without position, forward and backward. Alone: the encoding's own work. "
    "Added: the layer with it against the layer without; left of 0 it saves work. Bars are 95% intervals of the "
    "median."
)


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write cost.json of a folder as one self-contained HTML file, whole or not at all; returns its path.

    Raises:
        RunFolderError: the folder holds no cost.json that can be read.
        ArgumentError: the page cannot be written.
    """
    page = render(load(Path(folder)))
    return write_page(Path(folder) / "report.html" if out is None else Path(out), page, option="--out")


def render(result: CostResult) -> str:
    """The page as text: the same for the same result."""
    rounds = result.attention
    settings = tuple((name, _plain(value)) for name, value in vars(result.spec).items())
    sections = [
        Section("", (_overheads(result),)),
        Section("The numbers", tuple(cost_tables(result))),
        Section("Growth with length", _growth(result)),
        Section(
            "Evidence",
            (
                Folded("Settings", (Pairs(settings),)),
                Folded("Machine and versions", (Pairs(tuple(sorted(result.environment.items()))),)),
            ),
        ),
    ]
    return render_page(
        title="What does each position encoding cost?",
        about=(
            f"Measured on {machine(result)}, at {sizes_in_words(result)}: every encoding alone and in a layer of "
            f"attention, taking turns. Medians of {len(rounds.forward.values)} rounds forward and "
            f"{len(rounds.backward.values)} with backward, with their 95% intervals."
        ),
        answer=answer(result),
        sections=[section for section in sections if section.parts],
        styles=styles([row.encoding for row in result.rows]),
    )


def _overheads(result: CostResult) -> Picture:
    return picture(overhead_figure(result), name="overhead", described=described(result), caption=HOW_TO_READ)


def _growth(result: CostResult) -> tuple[Picture, ...]:
    if not any(row.writes.all for row in result.rows):
        return ()
    caption = "A cross marks the last length that was tried, where the next would not fit."
    described = "Time by length, a line an encoding."
    return (picture(growth_figure(result), name="growth", described=described, caption=caption),)


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
