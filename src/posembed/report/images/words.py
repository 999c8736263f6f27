"""The answer about images, in sentences made from the numbers."""

from __future__ import annotations

from posembed.lab.questions.images import ImageRow, ImageSummary
from posembed.report.accuracy_words import compared, in_short, percent
from posembed.report.words import called, capitalised, listed, runs_of_each

IMAGES = "images"
TWINS = {"learned-1d", "learned-2d"}
"""One row a patch from the same start: the same model until the grid changes."""
TOLD_FIRST = ("learned-2d", "none")


def best_first(summary: ImageSummary) -> list[ImageRow]:
    """By accuracy at the size trained on, then at the farthest; the failed last."""
    sizes = (summary.train_size, summary.farthest)
    return sorted(summary.rows, key=lambda row: [-row.accuracy[n].mean if row.accuracy else 1.0 for n in sizes])


def grid_in_words(summary: ImageSummary, size: int) -> str:
    """ "4 x 4 patches"."""
    side = size // summary.patch
    return f"{side}\N{NO-BREAK SPACE}x\N{NO-BREAK SPACE}{side} patches"


def answer(summary: ImageSummary) -> list[str]:
    """Two paragraphs: the grid trained on; the grid farthest from it."""
    sizes = dict.fromkeys((summary.train_size, summary.farthest))
    paragraphs = [f"{_shares(summary, size)} {_differences(summary, size)}".strip() for size in sizes]
    paragraphs[-1] += "".join(f" {failure}" for row in summary.rows for failure in _failures(row))
    return [text.strip() for text in paragraphs if text.strip()]


def are_twins(row: ImageRow, summary: ImageSummary, size: int) -> bool:
    """Whether a difference is of one model from itself."""
    if size != summary.train_size or {row.encoding, summary.reference} != TWINS or size not in row.difference:
        return False
    return set(row.difference[size].over_seeds.values) == {0.0}


def _shares(summary: ImageSummary, size: int) -> str:
    rows = sorted((row for row in summary.rows if row.accuracy), key=lambda row: -row.accuracy[size].mean)
    if not rows:
        return ""
    first, *rest = rows
    held_out = f" of {summary.examples:,} held-out images" if size == summary.train_size else ""
    shares = [f"{percent(first.accuracy[size].mean)}%{held_out} with {called(first.encoding)}"]
    shares += [f"{percent(row.accuracy[size].mean)}% with {called(row.encoding)}" for row in rest]
    if size == summary.train_size:
        runs = runs_of_each(rows)
        where = f"On the grid that it was trained on, {grid_in_words(summary, size)}, a small ViT tells"
        return f"{where} {listed(shares)} ({runs})."
    return (
        f"On the same images drawn at {size} x {size} pixels, a grid of {grid_in_words(summary, size)}, with "
        f"nothing trained again and the tables resized, it tells {listed(shares)}."
    )


def _differences(summary: ImageSummary, size: int) -> str:
    """Of 2-D and of none in full, of the others in short."""
    there = [row for row in best_first(summary) if size in row.difference]
    in_full = [row for name in TOLD_FIRST for row in there if row.encoding == name]
    sentences = []
    for row in in_full:
        if are_twins(row, summary, size):
            sentences.append(
                f"{capitalised(called(row.encoding))} and {called(summary.reference)} are one model until the "
                "grid changes, and gave the same answers."
            )
        else:
            sentences.append(capitalised(compared(row.encoding, row.difference[size], summary.reference, IMAGES)))
    others = {row.encoding: row.difference[size] for row in there if row not in in_full}
    if others:
        sentences += in_short(others, summary.reference)
    return " ".join(sentences)


def _failures(row: ImageRow) -> list[str]:
    if not row.failures:
        return []
    what = "A run" if row.seeds else "Training"
    return [f"{what} with {called(row.encoding)} failed{' and is left out' * bool(row.seeds)} ({row.failures[0]})."]
