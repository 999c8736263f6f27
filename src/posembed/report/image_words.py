"""The answer about images, in sentences made from the numbers."""

from __future__ import annotations

from posembed.lab.questions.images import ImageRow, ImageSummary
from posembed.report.accuracy_words import capitalised, compared, percent, points, runs_in_words
from posembed.report.words import called, interval, listed

IMAGES = "images"


def best_first(summary: ImageSummary) -> list[ImageRow]:
    """By accuracy at the size trained on, then at the farthest; the failed last."""
    sizes = (summary.train_size, summary.farthest)
    return sorted(summary.rows, key=lambda row: [-row.accuracy[n].mean if row.accuracy else 1.0 for n in sizes])


def grid_in_words(summary: ImageSummary, size: int) -> str:
    """ "4 x 4 patches"."""
    side = size // summary.patch
    return f"{side}\N{NO-BREAK SPACE}x\N{NO-BREAK SPACE}{side}\N{NO-BREAK SPACE}patches"


def answer(summary: ImageSummary) -> list[str]:
    """Two paragraphs: the grid trained on; the grid farthest from it."""
    sizes = dict.fromkeys((summary.train_size, summary.farthest))
    paragraphs = [_at(summary, size) for size in sizes]
    paragraphs[-1] += "".join(f" {failure}" for row in summary.rows for failure in _failures(row))
    return [text.strip() for text in paragraphs if text.strip()]


def _at(summary: ImageSummary, size: int) -> str:
    rows = [row for row in best_first(summary) if row.accuracy]
    rows.sort(key=lambda row: -row.accuracy[size].mean)
    if not rows:
        return ""
    if size == summary.train_size:
        where = f"On the grid that it was trained on, {grid_in_words(summary, size)}, a small ViT tells"
    else:
        where = (
            f"With the same images drawn at {size} x {size} pixels, {grid_in_words(summary, size)}, and the table "
            "resized, it tells"
        )
    shares = listed([f"{percent(row.accuracy[size].mean)}% with {called(row.encoding)}" for row in rows])
    runs = f", {runs_in_words([row.seeds for row in rows])}" if size == summary.train_size else ""
    held_out = f" of {summary.examples:,} held-out images{runs}" if size == summary.train_size else ""
    return f"{where} {shares}{held_out}. {_differences(summary, rows, size)}"


def _differences(summary: ImageSummary, rows: list[ImageRow], size: int) -> str:
    """learned-2d first, in full; the others in short."""
    there = [(row, row.difference[size]) for row in rows if size in row.difference]
    same = [row for row, of in there if is_same(row, size)]
    others = [(row, of) for row, of in there if row not in same]
    others.sort(key=lambda pair: pair[0].encoding != "learned-2d")
    sentences = [
        f"{capitalised(called(row.encoding))} gives the same answers as {called(summary.reference)}, image by "
        "image: until the grid changes they are one model."
        for row in same
    ]
    if others:
        row, of = others[0]
        sentences.append(capitalised(compared(row.encoding, of, summary.reference, IMAGES)))
    for told, said in ((True, ""), (False, " cannot be told from it")):
        group = [
            f"{called(row.encoding)} {points(of.over_seeds.mean)} ({interval(of.over_seeds, points)})"
            if interval(of.over_seeds, points)
            else f"{called(row.encoding)} {points(of.over_seeds.mean)}"
            for row, of in others[1:]
            if of.told is told
        ]
        if group:
            sentences.append(
                f"Against {called(summary.reference)}: {listed(group)}."
                if told
                else f"{capitalised(listed(group))}{said}."
            )
    return " ".join(sentences)


def is_same(row: ImageRow, size: int) -> bool:
    """Whether every run of an encoding told what the reference's told: no seed and no image differs."""
    difference = row.difference.get(size)
    if difference is None:
        return False
    ends = (difference.over_documents.low, difference.over_documents.high)
    return set(difference.over_seeds.values) == {0.0} and ends == (0.0, 0.0)


def _failures(row: ImageRow) -> list[str]:
    if not row.failures:
        return []
    what = "A run" if row.seeds else "Training"
    return [
        f"{what} with {called(row.encoding)} failed{' and is left out' * bool(row.seeds)} ({row.failures[0]})."
    ]
