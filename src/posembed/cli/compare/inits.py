"""posembed compare inits: which values should a learned table start from?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from posembed.cli.compare import options
from posembed.cli.compare.answering import How, answers, finish, print_json
from posembed.cli.compare.options import TRAINING, option


def inits(
    inits: Annotated[
        str,
        option(
            "Starts with commas between: normal-STD, xavier, zero, sinusoidal (amplitude 1), sinusoidal-STD (at "
            "that scale)."
        ),
    ] = "normal-0.02,normal-0.01,normal-0.05,xavier,sinusoidal,sinusoidal-0.02,zero",
    data: options.Data = "stdlib",
    tokenizer: options.Tokenizer = "bytes",
    out: Annotated[Path, options.out("The run folder; the same command goes on where it stopped.")] = Path(
        "runs/inits"
    ),
    seeds: Annotated[int, option("How many runs of each start.")] = 1,
    reference: Annotated[
        str | None, option("The start that the others are held against. Default: normal-0.02, if it is run.")
    ] = None,
    loss: Annotated[
        float | None,
        option("Count the steps to this training loss, in nats. Default: the highest that a run of the seed ended at."),
    ] = None,
    preset: Annotated[str, option("quick (minutes), small (an hour on two cores) or gpt2 (a GPU).")] = "small",
    on: options.On = "here",
    cpus_per_run: options.CpusPerRun = 1,
    track: options.Track = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    train_length: options.TrainLength = None,
    layers: options.Layers = None,
    width: options.Width = None,
    heads: options.Heads = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    learning_rate: options.LearningRate = None,
    warmup: options.Warmup = None,
    weight_decay: options.WeightDecay = None,
    dropout: options.Dropout = None,
    test_tokens: Annotated[int | None, option("Held-out tokens to measure on.", TRAINING)] = None,
    precision: options.Precision = None,
    device: options.Device = None,
) -> None:
    """Which values should a learned table start from? Loss, steps, and what becomes of its rows."""
    from posembed.cli.compare.print_inits import print_inits
    from posembed.lab import presets
    from posembed.lab.data.text import load_corpus
    from posembed.lab.questions.inits import init_runs, summarise_inits
    from posembed.lab.tasks.initial_values import InitialValues

    corpus = load_corpus(data, tokenizer=tokenizer)
    settings = presets.settings(
        preset,
        data=data,
        data_sha256=corpus.sha256,
        tokenizer=tokenizer,
        train_length=train_length,
        layers=layers,
        width=width,
        heads=heads,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        dropout=dropout,
        test_tokens=test_tokens,
        precision=precision,
    )
    specs = init_runs(settings, options.names(inits), seeds, reference=reference, loss=loss)
    how = How(device=device, dry_run=dry_run, on=on, cpus_per_run=cpus_per_run, track=track)
    results = answers(specs, InitialValues(corpus), out, how)
    summary = summarise_inits(results, reference=reference, loss=loss)
    if as_json:
        print_json(summary)
    else:
        print_inits(summary)
    finish(results, out, as_json=as_json)
