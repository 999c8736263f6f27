"""Results as tables on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table

from posembed.lab.data import Corpus
from posembed.lab.experiments import LengthSummary
from posembed.lab.plan import PlannedRun
from posembed.lab.statistics import Estimate


def number(estimate: Estimate | None) -> str:
    if estimate is None:
        return "no row"
    text = f"{estimate.mean:.2f}"
    return (
        text if estimate.low is None or estimate.high is None else f"{text} ± {estimate.high - estimate.mean:.2f}"
    )


def print_lengths(summary: LengthSummary) -> None:
    table = Table(title="same tokens")
    table.add_column("encoding")
    for length in summary.test_lengths:
        table.add_column(str(length), justify="right")
    for name in ("perplexity", "same_tokens", "chopped", "ratio", "versus_reference", "repeat_gain"):
        table.add_section()
        for row in summary.rows:
            table.add_row(row.encoding + " " + name, *(number(e) for e in getattr(row, name).values()))
    Console().print(table)


def print_plan(runs: Sequence[PlannedRun], corpus: Corpus) -> None:
    """What --dry-run says."""
    console = Console(highlight=False)
    console.print(f"text: {corpus.description}")
    console.print(f"      {len(corpus.train):,} tokens to train on, {len(corpus.held_out):,} held out\n")
    table = Table(
        "run", *(Column(name, justify="right") for name in ("parameters", "of positions", "steps", "time"))
    )
    for run in runs:
        name = f"{run.spec.encoding}, seed {run.spec.seed}"
        numbers = f"{run.parameters:,}", f"{run.position_parameters:,}", f"{run.spec.steps:,}"
        table.add_row(name, *numbers, duration(run.seconds))
    console.print(table)
    console.print(
        f"about {duration(sum(run.seconds for run in runs))} in all on this machine; nothing was trained"
    )


def duration(seconds: float) -> str:
    """As people say it: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
