"""The page of ``compare tasks images``: the answer, accuracy by grid, and all numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from posembed.lab.questions.classification import ImageRow, ImageSpec, ImageSummary
from posembed.lab.runs.results import RunResult
from posembed.nn.encodings import ENCODINGS
from posembed.plots.charts import Line, line_chart
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, QuestionPage, by_size, trained_table, values_table
from posembed.report.questions.accuracy import SIGNIFICANT, accuracies, compared, difference_cell
from posembed.report.words import capitalised, failures, model_size, not_drawn, percent
from posembed.statistics import INTERVAL

TWINS = {"learned-1d", "learned-2d"}
"""Encodings with one row per patch and the same initial values: they are the same model until the grid changes."""


class ImagesPage(QuestionPage[ImageSummary]):
    loss_unit = "per image"
    tables_note = "Row 0 belongs to the class token, if there is one; the patches follow row by row."

    def about(self, spec: ImageSpec, summary: ImageSummary) -> str:
        return (
            f"Each run trains a small ViT ({model_size(spec)}) on {spec.data} for {spec.steps:,} steps, with "
            f"{spec.batch} images per batch. Each image has {spec.train_size} x {spec.train_size} pixels and is "
            f"divided into a grid of {grid_of(summary, spec.train_size)} patches. Only the position encoding differs. "
            f"Each model is tested on {summary.examples:,} held-out images, at that size and resized bilinearly to "
            "other sizes. Patches keep their size in pixels, so their number changes."
        )

    def paragraphs(self, summary: ImageSummary) -> list[str]:
        far = summary.farthest
        places = {summary.train_size: f"On the training grid of {grid_of(summary, summary.train_size)} patches"}
        if far != summary.train_size:
            places[far] = (
                f"With the images resized to {far} x {far} pixels, the tables resized to {grid_of(summary, far)} "
                "patches and no further training"
            )
        paragraphs, rule = [], ""
        for size, where in places.items():
            found = [(row.name, row.accuracy[size]) for row in summary.rows if row.accuracy]
            shares = accuracies(f"{summary.examples:,} held-out images", found)
            same, versus = differences(summary, size)
            rule = SIGNIFICANT if versus else rule
            paragraphs.append(" ".join([f"{where}, {shares}" if found else "", *same, *versus]))
        return [*paragraphs[:-1], " ".join(filter(None, [paragraphs[-1], rule, *failures(summary.rows)]))]

    def main_table(self, summary: ImageSummary) -> Table:
        ends, far = (summary.train_size, summary.farthest), summary.farthest

        def minus_reference(row: ImageRow) -> Cell:
            return difference_cell(row.difference[far]) if far in row.difference else Cell("")

        return table_of(
            best_first(summary),
            "Accuracy in percent, by image size (side in pixels) and patch grid",
            f"On {summary.examples:,} held-out images.",
            *by_size(
                summary.test_sizes,
                lambda row: row.accuracy,
                percent,
                trained=summary.train_size,
                rank=lambda size: 1 if size in ends else 3,
                note=lambda size: grid_of(summary, size),
                failed=FAILED,
            ),
            (Cell(f"at {far:,}, minus {summary.reference}", rank=2), minus_reference),
        )

    def tables(self, summary: ImageSummary) -> list[Table]:
        rows = best_first(summary)

        def minus_reference(size: int) -> Column:
            def cell(row: ImageRow) -> Cell:
                twins = are_twins(row, summary, size)
                return Cell("the same", kind="muted") if twins else difference_cell(row.difference[size])

            trained = ", trained" if size == summary.train_size else ""
            return Cell(f"{size:,}", note=grid_of(summary, size) + trained), cell

        return [
            table_of(
                [row for row in rows if row.difference],
                f"Difference from {summary.reference}, in percentage points",
                f"Paired by seed and by image. Below each difference is the wider of its {INTERVAL}s over seeds and "
                "over images. A difference is green or red if it is significant: neither interval contains 0.",
                *map(minus_reference, summary.test_sizes),
            ),
            trained_table(
                rows,
                (Cell("what it is", kind="words"), lambda row: ENCODINGS[row.name].line),
                (Cell("on another grid", kind="words"), lambda row: ENCODINGS[row.name].regridded),
            ),
        ]

    def figures(self, summary: ImageSummary) -> Iterable[Picture]:
        caption = (
            "The dotted line marks the training size. At other sizes, tables are resized to the new grid without "
            f"further training. With several runs per encoding, shaded bands are {INTERVAL}s."
        )
        yield picture(
            line_chart(
                [Line(row.name, row.accuracy) for row in summary.rows],
                names=[row.name for row in summary.rows],
                title="accuracy on held-out images, percent",
                below="side of the images in pixels",
                ticks=summary.test_sizes,
                trained=summary.train_size,
            ),
            name="accuracy",
            described=" ".join(self.answer(summary)),
            caption=" ".join([caption, *not_drawn(summary.rows)]),
        )

    def values(self, results: Sequence[RunResult[Any, Any]]) -> list[Table]:
        return [
            values_table(
                "Held-out images classified correctly",
                "",
                results,
                lambda m: m.right,
                lambda right: f"{right.count('1'):,}",
            ),
            values_table("Loss on held-out images", "In nats.", results, lambda m: m.loss),
        ]


def grid_of(summary: ImageSummary, size: int) -> str:
    side = size // summary.patch
    return f"{side} x {side}"


def best_first(summary: ImageSummary) -> list[ImageRow]:
    """Sorts by accuracy at the training size, then at the test size farthest from it. Failed rows come last."""
    sizes = (summary.train_size, summary.farthest)
    return sorted(summary.rows, key=lambda row: [-row.accuracy[n].value if row.accuracy else 1.0 for n in sizes])


def are_twins(row: ImageRow, summary: ImageSummary, size: int) -> bool:
    if size != summary.train_size or {row.name, summary.reference} != TWINS or size not in row.difference:
        return False
    return set(row.difference[size].over_seeds.values) == {0.0}


def differences(summary: ImageSummary, size: int) -> tuple[list[str], list[str]]:
    """Returns sentences on the encodings that are the reference itself, and on those that are compared with it."""
    found = {row.name: row.difference[size] for row in best_first(summary) if size in row.difference}
    same, reference = [], summary.reference or ""
    for row in summary.rows:
        if are_twins(row, summary, size):
            del found[row.name]
            twins = f"{capitalised(row.name)} and {reference}"
            same.append(f"{twins} are the same model until the grid changes, so their accuracies are equal.")
    return same, compared(found, reference, "images")


PAGE = ImagesPage()
