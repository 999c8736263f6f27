"""Question: what becomes of a model whose positions are removed after training?

    python benchmarks/dropped_positions.py    # about half an hour on one core

Gelberg et al. 2025 (DroPE, arXiv:2512.12167) train with RoPE, remove it, and train for a few more steps at the same
length; the model then reads longer texts as one that never had positions, and learns faster than that one. This does
the same with a learned table: all models train for as many steps, and the positions leave for the last quarter or
tenth of them. Trains the unfinished runs in runs/dropped-positions, then writes
benchmarks/results/dropped-positions.md. You can stop it at any time; it continues where it stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from learned_full_attention import Study, describe
from torch import Tensor

from posembed.cli.console import Bar
from posembed.comparison import prepare
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.layers.rotary import RotaryEmbedding
from posembed.nn.encodings import ENCODINGS, Entry

STEPS = 300
SHARES = {"quarter": 0.25, "tenth": 0.1}
"""How much of the training follows without positions."""


class _Dropped:
    """An encoding that does nothing after ``kept`` training steps. The count is a buffer, so a resumed run has it."""

    steps: Tensor

    def __init__(self, kept: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.kept = kept
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))  # type: ignore[attr-defined]

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        self.steps += 1  # a training step draws its positions once
        return super().training_positions(batch, length, generator)  # type: ignore[misc]

    @property
    def has_left(self) -> bool:
        return int(self.steps) > self.kept


class DroppedTable(_Dropped, LearnedPositionalEmbedding):
    def at_input(self, x: Tensor, position_ids: Tensor, **kwargs: Any) -> Tensor:
        return x if self.has_left else super().at_input(x, position_ids, **kwargs)


class DroppedRotation(_Dropped, RotaryEmbedding):
    def at_queries_keys(self, q: Tensor, k: Tensor, *positions: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return (q, k) if self.has_left else super().at_queries_keys(q, k, *positions, **kwargs)


def dropped_table(kept: int) -> Entry:
    return Entry(lambda s: DroppedTable(kept, max_len=s.length, dim=s.dim), f"learned for {kept} steps", "posembed")


def dropped_rotation(kept: int) -> Entry:
    return Entry(lambda s: DroppedRotation(kept, head_dim=s.head_dim), f"rope for {kept} steps", "arXiv:2512.12167")


for share, size in SHARES.items():
    kept = round(STEPS * (1 - size))
    ENCODINGS[f"learned, dropped for the last {share}"] = dropped_table(kept)
    ENCODINGS[f"rope, dropped for the last {share}"] = dropped_rotation(kept)
DROPPED = [name for name in ENCODINGS if "dropped" in name]
STUDY = Study(
    "Positions that leave",
    ("learned", "rope", "none", *DROPPED),
    3,
    {"steps": STEPS, "warmup": 30, "test_tokens": 16_384},
)


def main() -> None:
    out = Path("runs") / "dropped-positions"
    runs = {"encodings": STUDY.encodings, "seeds": STUDY.seeds, "out": out, "device": "cpu"}
    prepared = prepare("lengths", {**runs, "preset": "quick", "data": "stdlib", **STUDY.settings})
    with Bar() as bar:
        prepared.run(bar.update)
    results = RunFolder(out, LengthSpec).results()
    lines = ["# Positions that are removed after training", "", "    python benchmarks/dropped_positions.py", ""]
    lines += describe(STUDY, QUESTIONS["lengths"].summarise(results), results)
    page = Path(__file__).parent / "results" / "dropped-positions.md"
    page.write_text("\n".join(lines), encoding="utf-8")
    print(page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
