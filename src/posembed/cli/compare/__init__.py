"""posembed compare: one question a file. Each trains the same small models, and measures."""

from __future__ import annotations

import typer

from posembed.cli.compare import cost, inits, lengths, tasks

app = typer.Typer(no_args_is_help=True, help="Compare position encodings by experiment, on your own data.")
app.command()(lengths.lengths)
app.command()(inits.inits)
app.add_typer(tasks.app, name="tasks")
app.command()(cost.cost)
