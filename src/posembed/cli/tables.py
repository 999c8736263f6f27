"""Results as tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from posembed.lab.experiments import LengthSummary
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
