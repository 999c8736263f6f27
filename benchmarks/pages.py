"""Helpers for the benchmarks: a description of the machine, tables, and the page that keeps the results."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

import torch

from posembed.lab.runs.environment import processor_name
from posembed.statistics import Estimate

RESULTS = Path(__file__).parent / "results"


def machine(*peers: str) -> str:
    """Describes the processor, the threads and the versions, including the peers'."""
    versions = ", ".join(f"{peer} {version(peer)}" for peer in peers)
    return (
        f"{processor_name()}, {torch.get_num_threads()} threads; Python {platform.python_version()}, "
        f"torch {torch.__version__}{', ' if versions else ''}{versions}."
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns a Markdown table, followed by an empty line."""
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def write(name: str, lines: Sequence[str], *, keep: bool = True) -> None:
    """Prints a page, and saves it as results/NAME.md if ``keep`` is set. Runs with trial sizes do not keep it."""
    text = "\n".join(lines)
    print(text)
    if keep:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.md").write_text(text.rstrip() + "\n", encoding="utf-8")
        print(f"kept in {RESULTS / name}.md")


def at_most(measured: Estimate, bound: float) -> str:
    """Returns in words whether a claim holds. The interval decides, or the median if the bound is in it."""
    if measured.high is not None and measured.high <= bound:
        return "holds"
    if measured.low is not None and measured.low > bound:
        return "DOES NOT HOLD"
    return f"{'holds' if measured.value <= bound else 'does not hold'} by the median; the noise is larger"
