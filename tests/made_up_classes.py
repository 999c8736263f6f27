"""Results of classified texts and images, labelled words and answered questions as runs would give them, made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from made_up_runs import made_up
from posembed.lab.metrics import Measured, by_item, by_x
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.classification_specs import ACCURACY, ENTITY_F1, EXACT, F1, LOSS, MACRO_F1, TOKEN_ACCURACY
from posembed.measure.frame import Value

DOCUMENTS, PIECES, EACH = 60, 10, 8
TEXT_ACCURACY = {"learned": 0.712, "sinusoidal": 0.71, "t5": 0.78, "none": 0.6}
IMAGE_ACCURACY = {
    "learned-1d": (0.95, 0.12, 0.13),
    "learned-2d": (0.95, 0.72, 0.7),
    "factorized": (0.96, 0.78, 0.75),
    "sinusoidal": (0.93, 0.2, 0.15),
    "none": (0.45, 0.3, 0.31),
}
WORDS = {"learned": 0.93, "sinusoidal": 0.85, "rope": 0.95, "none": 0.4}
"""The share of words, and nearly that of questions, that are right."""
SIZES = (8, 10, 12)
IMAGES = 400


def drawn(share: float, count: int, seed: int) -> list[bool]:
    """The same examples are the hard ones for all; the seed moves a few of them."""
    hard = random.Random(0)
    moved = random.Random(seed + 1)
    return [hard.random() + 0.05 * moved.gauss(0, 1) < share for _ in range(count)]


def by_document(share: float, each: int, seed: int) -> list[int]:
    right = drawn(share, DOCUMENTS * each, seed)
    return [sum(right[i : i + each]) for i in range(0, len(right), each)]


def text_measured(encoding: str, seed: int) -> Measured:
    right = by_document(TEXT_ACCURACY[encoding], PIECES, seed)
    examples = DOCUMENTS * PIECES
    values = by_x({MACRO_F1: {None: sum(right) / examples - 0.02}, LOSS: {None: 0.9}})
    return Measured(
        (*by_item(ACCURACY, right, [PIECES] * DOCUMENTS), *values),
        {"examples of 3 classes": examples, "documents": DOCUMENTS},
        {"asyncio": 350, "email": 170, "tkinter": 80},
    )


def image_measured(encoding: str, seed: int) -> Measured:
    right = [
        Value(ACCURACY.name, int(one), n, item)
        for n, share in zip(SIZES, IMAGE_ACCURACY[encoding], strict=True)
        for item, one in enumerate(drawn(share, IMAGES, seed))
    ]
    return Measured((*right, *by_x({LOSS: dict.fromkeys(SIZES, 0.4)})), {"images": IMAGES})


def tag_measured(encoding: str, seed: int) -> Measured:
    found = by_document(WORDS[encoding], EACH, seed)
    marked = [(count + EACH + 1) // 2 + EACH for count in found]
    values = (
        *by_item(ENTITY_F1, [2 * count for count in found], marked),
        *by_item(TOKEN_ACCURACY, [count + EACH for count in found], [2 * EACH] * DOCUMENTS),
        Value(LOSS.name, 0.2),
    )
    sizes = {"words": 2 * EACH * DOCUMENTS, "entities": EACH * DOCUMENTS, "documents": DOCUMENTS}
    return Measured(values, sizes, {"B-PER": 300, "I-PER": 180, "O": 480})


def span_measured(encoding: str, seed: int) -> Measured:
    exact = by_document(WORDS[encoding] - 0.1, EACH, seed)
    questions = [EACH] * DOCUMENTS
    values = (
        *by_item(F1, [(count + EACH) / 2 for count in exact], questions),
        *by_item(EXACT, exact, questions),
        Value(LOSS.name, 0.6),
    )
    return Measured(values, {"questions": sum(questions), "documents": DOCUMENTS})


def runs(
    name: str, names: Sequence[str], measured: Callable[[str, int], Measured], rows: int, seeds: int, **own: Any
) -> list[RunResult]:
    """rows: the parameters of a learned table. own: settings besides those of the preset."""
    question: Any = QUESTIONS[name]
    settings = {"question": name, "data_sha256": "0" * 64, **question.presets["default"], **own}
    return [
        made_up(
            question.Spec(encoding=encoding, seed=seed, **settings),
            [(step, 2.4 * 0.99**step) for step in range(3, 300, 3)],
            measured(encoding, seed),
            position_parameters=rows if encoding.startswith("learned") else 0,
        )
        for seed in range(seeds)
        for encoding in names
    ]


text_runs = partial(runs, "text", tuple(TEXT_ACCURACY), text_measured, 8192)
tag_runs = partial(runs, "tags", tuple(WORDS), tag_measured, 2048)
span_runs = partial(runs, "spans", tuple(WORDS), span_measured, 3072)
image_runs = partial(
    runs, "images", tuple(IMAGE_ACCURACY), image_measured, 544, test_sizes=SIZES, train_size=8, train_length=17
)
