"""posembed compare tasks addition, copy, ...: trained on small problems, tested on larger ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posembed.cli.compare import options
from posembed.cli.compare.answering import How, answers, finish, print_json
from posembed.cli.compare.options import MODEL, TRAINING, option
from posembed.lab.tasks.algorithms.problems import PROBLEMS


def add_commands(app: typer.Typer) -> None:
    """One for each problem; their options are the same."""
    for problem, asked in PROBLEMS.items():
        text = f"Trained on short problems, tested on longer ones: {asked.line}."
        app.command(problem, help=text)(compare)


def compare(
    context: typer.Context,
    encodings: Annotated[
        str | None,
        option(
            "Names with commas between, NAME+window for a causal window; abacus and coupled where they apply. "
            "Default: learned,sinusoidal,rope,alibi and the ids that apply."
        ),
    ] = None,
    out: Annotated[
        Path | None, options.out("The run folder; the same command goes on where it stopped. Default: runs/TASK.")
    ] = None,
    seeds: Annotated[int, option("How many runs of each encoding.")] = 1,
    on: options.On = "here",
    cpus_per_run: options.CpusPerRun = 1,
    track: options.Track = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    train_size: Annotated[int | None, option("The longest problem trained on.", MODEL)] = None,
    test_sizes: Annotated[str | None, option("Sizes to measure at, commas between.", MODEL)] = None,
    layers: options.Layers = None,
    width: options.Width = None,
    heads: options.Heads = None,
    window: options.Window = None,
    ring: options.Ring = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    learning_rate: options.LearningRate = None,
    warmup: options.Warmup = None,
    weight_decay: options.WeightDecay = None,
    dropout: options.Dropout = None,
    test_problems: Annotated[int | None, option("Problems of each size to measure on.", TRAINING)] = None,
    precision: options.Precision = None,
    device: options.Device = None,
) -> None:
    """The command that was called names the problem."""
    from posembed.cli.compare.print_algorithm import print_algorithm
    from posembed.lab.questions.algorithms import algorithm_runs, default_encodings, summarise_algorithm
    from posembed.lab.tasks.algorithms.spec import settings
    from posembed.lab.tasks.algorithms.task import Algorithm

    problem = context.command.name or ""
    chosen = settings(
        problem,
        train_size=train_size,
        test_sizes=options.numbers(test_sizes),
        layers=layers,
        width=width,
        heads=heads,
        window=window,
        ring=ring,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        dropout=dropout,
        test_problems=test_problems,
        precision=precision,
    )
    names = default_encodings(problem) if encodings is None else options.names(encodings)
    folder = out or Path("runs") / problem
    specs = algorithm_runs(chosen, names, seeds)
    how = How(device=device, dry_run=dry_run, on=on, cpus_per_run=cpus_per_run, track=track)
    results = answers(specs, Algorithm(problem), folder, how)
    summary = summarise_algorithm(results)
    if as_json:
        print_json(summary)
    else:
        print_algorithm(summary)
    finish(results, folder, as_json=as_json)
