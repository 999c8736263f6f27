"""Results of classified texts and images as runs would give them, made up."""

from __future__ import annotations

import random

from made_up_runs import made_up
from posembed.lab.metrics import Measured, by_item, by_x
from posembed.lab.questions.classification import Images, Text
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.classification_specs import ACCURACY, LOSS, MACRO_F1, ImageSpec, TextSpec
from posembed.measure.frame import Value

DOCUMENTS, PIECES = 60, 10
TEXT_ACCURACY = {"learned": 0.712, "sinusoidal": 0.71, "t5": 0.78, "none": 0.6}
IMAGE_ACCURACY = {
    "learned-1d": (0.95, 0.12, 0.13),
    "learned-2d": (0.95, 0.72, 0.7),
    "factorized": (0.96, 0.78, 0.75),
    "sinusoidal": (0.93, 0.2, 0.15),
    "none": (0.45, 0.3, 0.31),
}
SIZES = (8, 10, 12)
IMAGES = 400
LOSSES = [(step, 2.4 * 0.99**step) for step in range(3, 300, 3)]


def drawn(share: float, count: int, seed: int) -> list[bool]:
    """The same examples are the hard ones for all; the seed moves a few of them."""
    hard = random.Random(0)
    moved = random.Random(seed + 1)
    return [hard.random() + 0.05 * moved.gauss(0, 1) < share for _ in range(count)]


def text_run(encoding: str, seed: int = 0, *, failure: str | None = None, even: bool = False) -> RunResult:
    spec = TextSpec(question="text", encoding=encoding, seed=seed, data_sha256="0" * 64, **Text.presets["default"])
    right = drawn(TEXT_ACCURACY.get(encoding, 0.7), DOCUMENTS * PIECES, seed)
    classes = {"asyncio": 300, "email": 300} if even else {"asyncio": 350, "email": 170, "tkinter": 80}
    by_document = [sum(right[i : i + PIECES]) for i in range(0, len(right), PIECES)]
    measured = Measured(
        (
            *by_item(ACCURACY, by_document, [PIECES] * DOCUMENTS),
            *by_x({MACRO_F1: {None: sum(right) / len(right) - 0.02}, LOSS: {None: 0.9}}),
        ),
        {f"examples of {len(classes)} classes": len(right), "documents": DOCUMENTS},
        classes,
    )
    return made_up(spec, LOSSES, measured, failure=failure, position_parameters=8192 if encoding == "learned" else 0)


def text_runs(seeds: int = 3, names: tuple[str, ...] = tuple(TEXT_ACCURACY)) -> list[RunResult]:
    return [text_run(name, seed) for seed in range(seeds) for name in names]


def image_run(encoding: str, seed: int = 0, *, failure: str | None = None) -> RunResult:
    settings = Images.presets["default"] | {
        "test_sizes": SIZES,
        "train_size": 8,
        "train_length": 17,
        "data_sha256": "0" * 64,
    }
    spec = ImageSpec(question="images", encoding=encoding, seed=seed, **settings)
    shares = dict(zip(SIZES, IMAGE_ACCURACY.get(encoding, (0.9, 0.5, 0.5)), strict=True))
    right = [
        Value(ACCURACY.name, int(one), n, item)
        for n, share in shares.items()
        for item, one in enumerate(drawn(share, IMAGES, seed))
    ]
    measured = Measured((*right, *by_x({LOSS: dict.fromkeys(SIZES, 0.4)})), {"images": IMAGES})
    rows = 544 if encoding.startswith("learned") else 0
    return made_up(spec, LOSSES, measured, failure=failure, position_parameters=rows)


def image_runs(seeds: int = 3, names: tuple[str, ...] = tuple(IMAGE_ACCURACY)) -> list[RunResult]:
    return [image_run(name, seed) for seed in range(seeds) for name in names]
