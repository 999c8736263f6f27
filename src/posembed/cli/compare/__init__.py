"""posembed compare: one command per question, made from the question's own settings."""

from __future__ import annotations

import typer

from posembed.cli.compare.command import command_of
from posembed.lab.questions import QUESTIONS

app = typer.Typer(no_args_is_help=True, help="Compare position encodings by experiment, on your own data.")
tasks = typer.Typer(no_args_is_help=True, help="What is an encoding worth on tasks: problems, texts, images?")
for question in QUESTIONS.values():
    (tasks if question.group else app).command(question.name, help=question.asks)(command_of(question))
app.add_typer(tasks, name="tasks")
