"""What is advised for many needs, word for word: reasons, caveats and sources, or why nothing is.

After a change that you mean, run ``python tests/lab/advice/test_golden_advice.py`` and look at the difference.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from posembed.errors import ArgumentError
from posembed.lab.advice.advise import Advice, advise, recommend
from posembed.lab.advice.evidence import MEASURES, Study, published_studies
from posembed.lab.advice.given import needs_of
from posembed.lab.advice.needs import Existing
from posembed.words import CAUSAL, MASKED, SENTENCES

GOLDEN = Path(__file__).with_name("advice.txt")
HELD = [
    *(Existing(512, width=384, kind=kind) for kind in (SENTENCES, CAUSAL, MASKED, "")),
    Existing(512, width=384, kind=SENTENCES, fed=256),
    Existing(512, trained=64, findings=("rows 7 to 9 were never trained",)),
    Existing(None, source="llama"),
]
IMAGES = Existing(196, (14, 14), source="vit", trained=64)
CONTRADICTIONS: list[dict[str, Any]] = [
    {"length": 512, "longest": 256},
    {"length": 0},
    {"length": 8, "width": 100, "heads": 12},
    {"length": 8, "width": 0},
    {"length": 8, "heads": 0},
    {"length": 8, "vocabulary": -1},
    {"length": 8, "max_parameters": -1},
    {"length": 193, "grid": (14, 14)},
    {"grid": (0, 3)},
    {"grid": (14,)},
    {"grid": (14, 14), "encoder": True},
    {"length": 196, "grid": (14, 14), "longest_grid": (10, 28)},
    {"length": 196, "grid": (14, 14), "longest_grid": (28, 10)},
    {"grid": (14, 14), "longest": "none"},
    {"length": 196, "longest_grid": (14, 14)},
    {"grid": (14, 14), "longest_grid": (0, 20)},
    {"grid": (14, 14), "checkpoint": Existing(196)},
    *({"grid": (14, 14), "checkpoint": Existing(rows)} for rows in (195, 197, 198, 199)),
    {"length": 196, "checkpoint": IMAGES},
    {"longest": 64},
    {"longest": 64, "checkpoint": IMAGES},
    {"longest": 64, "checkpoint": Existing(None, source="llama")},
    {"length": 8, "width": 96, "checkpoint": HELD[0]},
    {"length": 64, "longest": 128, "encoder": True, "checkpoint": Existing(None)},
    {"grid": (4, 4), "longest_grid": (8, 8), "checkpoint": Existing(None)},
    {"length": 64, "longest": 128, "width": 3, "heads": 3, "checkpoint": Existing(None)},
    {"length": True},
    {"length": 512, "longest": 1.5},
    {"length": 512, "longest": "far"},
    {"length": 512, "far": "no"},
    {"length": 512, "max_parameters": math.nan},
    {"length": 512, "width": 10**9},
    {"length": 10**13},
    {"length": 512, "table": 0},
    {"length": 512, "table": 512, "checkpoint": "x"},
    {"length": 512, "runs": 3},
    {"length": 512, "checkpoint": ""},
    {"length": 512, "wide": 3},
    {},
]


def asked() -> Iterator[dict[str, Any]]:
    yield from CONTRADICTIONS
    for longest, far, encoder, most in product(
        (512, 1024, 4096, 20_480, "none"), (False, True), (False, True), (None, 0)
    ):
        yield {"length": 512, "longest": longest, "far": far, "encoder": encoder, "max_parameters": most}
    yield from ({"length": 4, "width": 3, "heads": 3}, {"length": 16_384}, {"length": 4096, "vocabulary": 256})
    for wider, most in product((0, 2, 14), (None, 0, 30_000)):
        yield {"grid": (7, 7), "longest_grid": (7 + wider, 7 + wider), "max_parameters": most}
    for held, longest, far in product(HELD, (300, 512, 513, 2048, 8192, "none"), (False, True)):
        yield {"checkpoint": held, "longest": longest, "far": far} | ({"length": 256} if held.length is None else {})
    for most in (2048 * 768 - 1, 2048 * 768):
        yield {"length": 512, "longest": 2048, "table": 512, "max_parameters": most}
    yield {"grid": (14, 14), "checkpoint": IMAGES}
    yield from ({"grid": (14, 14), "longest_grid": side, "checkpoint": IMAGES} for side in ((24, 24), (196, 196)))


def own(steps: int | None = None, **perplexities: tuple[float, ...]) -> Study:
    """The user's own runs, trained at 512: one perplexity per seed, the same at every length."""
    mean = MEASURES["perplexity"].mean
    rows = {name: dict.fromkeys((512, 4096), mean(values)) for name, values in perplexities.items()}
    return Study("a study", "runs/mine", 512, rows, own=True, steps=steps)


OWN = [
    own(rolling=(5.0, 5.1, 5.05), alibi=(4.0, 4.1, 4.05)),
    own(rolling=(5.0, 4.0, 4.5), alibi=(4.0, 5.0, 4.4)),
    own(rolling=(4.0,), alibi=(4.2,)),
    own(rope=(3.0, 3.1), alibi=(4.0, 4.1)),
    own(learned=(3.0, 3.1)),
    own(**dict.fromkeys(("rolling", "learned-averaged"), (5.0, 5.2, 5.1))),
    own(**dict.fromkeys(("rolling", "learned-averaged", "t5"), (5.0, 5.2, 5.1))),
    *(own(steps, rolling=(5.0, 5.1), alibi=(4.0, 4.1)) for steps in (20, 499, 500)),
]
MORE: list[dict[str, Any]] = [{"longest": 4096}, {"longest": 4096, "far": True}, {"encoder": True}]


def written(advice: Advice) -> list[str]:
    lines = [f"{advice.recommendation}: {advice.title}; {advice.measure} at {advice.measured_at}"]
    lines += [f"{head}: {line}" for head, found in advice.sections().items() for line in found]
    why: dict[str, list[str]] = {}
    for each in advice.options:
        why.setdefault(each.cannot or "meets the needs", []).append(each.name)
    return [*lines, *(f"Options: {', '.join(names)}: {reason}" for reason, names in why.items())]


def text() -> str:
    found = []
    everything: list[tuple[dict[str, Any], list[Study]]] = [(needs, []) for needs in asked()]
    everything += [({"length": 512} | more, [study]) for study in OWN for more in MORE]
    for needs, studies in everything:
        shown = {name: dataclasses.asdict(v) if isinstance(v, Existing) else v for name, v in needs.items()}
        rows = [f"{name} x {len(by_length[512].values)}" for study in studies for name, by_length in study.rows.items()]
        found += ["", f"# {shown} {', '.join(rows)}".rstrip()]
        try:
            own_first = [*studies, *published_studies()]
            found += written(recommend(needs_of(**needs), own_first) if studies else advise(**needs))
        except ArgumentError as error:
            found.append(f"refused: {error}")
    return "\n".join(found) + "\n"


def test_it_is_advised_as_it_was() -> None:
    assert text() == GOLDEN.read_text(encoding="utf-8")


if __name__ == "__main__":
    GOLDEN.write_text(text(), encoding="utf-8")
