"""posembed compare cost: what each encoding costs in parameters, time and memory, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posembed.cli.options import parameter, parameters_of, with_parameters
from posembed.lab.cost.settings import CostSettings

if TYPE_CHECKING:
    from posembed.lab.cost.results import CostResult


def cost(*, out: Path | None, json: bool, **given: Any) -> None:
    """What does each encoding cost? Parameters, time relative to attention, memory, and growth with length."""
    from posembed.cli.evaluate import Bar
    from posembed.lab.cost.measure import checked, measure_cost
    from posembed.lab.cost.results import prepare, save

    settings = checked(CostSettings(**{name: value for name, value in given.items() if value is not None}))
    out = out or Path("runs/cost")
    prepare(out, settings)
    with Bar() as bar:
        result = measure_cost(settings, bar.update)
    save(result, out)
    if json:
        print(result.to_json())
    else:
        print_cost(result)
        print(f"posembed: the result is in {out}; posembed report {out} makes a page of it", file=sys.stderr)


with_parameters(
    cost,
    [
        *parameters_of(CostSettings),
        parameter("out", Path, "The folder for cost.json, which posembed report reads.", shown="runs/cost"),
        parameter("json", bool, "Print the result as JSON.", default=False),
    ],
)


def print_cost(result: CostResult) -> None:
    """Prints the tables of the page, then the answer."""
    from rich.text import Text

    from posembed.cli.console import table_console
    from posembed.report.cost.report import about
    from posembed.report.cost.tables import cost_tables
    from posembed.report.cost.words import answer
    from posembed.report.terminal import print_tables

    console = table_console()
    print_tables(console, cost_tables(result))
    for sentence in answer(result):
        console.print(Text(sentence))
    console.print(Text(f"{about(result)} torch {result.environment['torch']}; {result.seconds:.0f} s.", style="dim"))
