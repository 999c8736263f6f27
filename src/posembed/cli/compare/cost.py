"""posembed compare cost: what each encoding costs in parameters, time and memory, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from posembed.cli import options
from posembed.cli.fields import with_fields
from posembed.lab.cost.settings import CostSettings


@with_fields(CostSettings)
def cost(
    out: Annotated[Path, options.out("Where cost.json is kept, for posembed report.")] = Path("runs/cost"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    **given: Any,
) -> None:
    """What does each encoding cost? Parameters, time relative to attention, memory, and growth with length."""
    from posembed.cli.compare.print_cost import print_cost
    from posembed.cli.evaluate import Bar
    from posembed.lab.cost.measure import checked, measure_cost
    from posembed.lab.cost.results import prepare, save

    if given["encodings"] is not None:
        given["encodings"] = tuple(options.names(given["encodings"]))
    settings = checked(CostSettings(**{name: value for name, value in given.items() if value is not None}))
    prepare(out, settings)
    with Bar() as bar:
        result = measure_cost(settings, bar.update)
    save(result, out)
    if as_json:
        print(result.to_json())
    else:
        print_cost(result)
        print(f"posembed: the result is in {out}; posembed report {out} makes a page of it", file=sys.stderr)
