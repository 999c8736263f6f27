"""How often check_table names rarely trained rows, on tables whose rows were trained a known number of times, and how
often it names rows of tables that have none.

    python benchmarks/rare_rows.py --seeds 2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import posembed
from posembed.lab.runs.results import RunFolder
from posembed.lab.runs.tensors import load_tables
from posembed.lab.tasks.row_specs import AT, TRAINED
from posembed.tables.fill import initial_table, sinusoidal_table
from posembed.tables.health import describe_rows
from posembed.tables.rare_rows import RARE

SHORTER = {"10-percent": "32 9\n128 1\n", "3-percent": "64 31\n128 1\n", "1-percent": "32 99\n128 1\n"}
"""Files of lengths: all but this share of the sequences are truncated to 32 or 64 tokens."""
SETTINGS = {"train_length": 128, "layers": 1, "batch": 8, "test_tokens": 1024}
MADE = 150


def rare_rows(table: Tensor) -> tuple[int, ...]:
    return next(
        (finding.rows for finding in posembed.tables.check_table(table) if finding.what == "rarely trained"), ()
    )


def trained(folder: Path, seeds: int, steps: int) -> None:
    """Trains tables and prints the rows that were trained less than RARE times as often as row 0, and those named."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lengths in SHORTER.items():
        (folder / name).write_text(lengths, encoding="utf-8")
    names = ["full", "uniform", "short", *(str(folder / name) for name in SHORTER)]
    out = folder / "runs"
    answer = posembed.compare("rows", train_lengths=names, seeds=seeds, steps=steps, out=out, **SETTINGS)
    for run in answer.results:
        counts = torch.tensor(list(run.measurements.by_x(AT[TRAINED]).values()))
        rare = (counts < RARE * counts.max()).nonzero()[:, 0].tolist()
        table = load_tables(RunFolder(out, type(run.spec)).file("tables", run.spec), steps)[steps]
        named = rare_rows(table)
        truth, found = (describe_rows(tuple(rows)) if rows else "none" for rows in (rare, named))
        print(f"{Path(run.spec.name).name}: {truth} are rare, {found} named")


def made(kind: str, rows: int, dim: int) -> Tensor:
    """Makes a table (rows, dim) without rarely trained rows."""
    waves = sinusoidal_table(rows, 8, base=100.0) @ torch.randn(8, dim) + 0.3 * torch.rand(1) * torch.randn(rows, dim)
    if kind == "drawn at random":
        return initial_table("normal", rows, dim)
    if kind == "sinusoids":
        return sinusoidal_table(rows, dim)
    if kind == "random walks":
        return torch.randn(rows, dim).cumsum(dim=0)
    if kind == "waves and noise":
        return waves
    if kind == "waves that grow or shrink":
        return waves * torch.linspace(1, 0.2 + 3 * torch.rand(1).item(), rows)[:, None]
    side = sinusoidal_table(round(rows**0.5), 8, base=30.0) @ torch.randn(8, dim)
    return (side[:, None] + side.flip(0)[None]).flatten(0, 1) + 0.1 * torch.randn(len(side) ** 2, dim)


def false_alarms() -> Iterator[tuple[str, int]]:
    kinds = ("drawn at random", "sinusoids", "random walks", "waves and noise", "waves that grow or shrink", "grids")
    for kind in kinds:
        torch.manual_seed(0)
        sizes = [(int(torch.randint(33, 600, ())), 2 * int(torch.randint(16, 200, ()))) for _ in range(MADE)]
        yield kind, sum(bool(rare_rows(made(kind, *size))) for size in sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, default=Path("runs/rare-rows"))
    given = parser.parse_args()
    for kind, alarms in false_alarms():
        print(f"{kind}: {alarms} of {MADE} tables have rows named rarely trained")
    trained(given.out, given.seeds, given.steps)


if __name__ == "__main__":
    main()
