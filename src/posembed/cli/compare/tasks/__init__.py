"""posembed compare tasks: beyond language modelling, a command a task."""

from __future__ import annotations

import typer

from posembed.cli.compare.tasks import algorithms, images, text

app = typer.Typer(no_args_is_help=True, help="What is an encoding worth on tasks: problems, texts, images?")
algorithms.add_commands(app)
app.command()(text.text)
app.command()(images.images)
