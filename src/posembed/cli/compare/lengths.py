"""posembed compare lengths: how far does each encoding carry a language model past its training length?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from posembed.cli.compare import options
from posembed.cli.compare.answering import How, answers, finish, print_json
from posembed.cli.compare.options import MODEL, TRAINING, option


def lengths(
    encodings: Annotated[
        str, option("Names with commas between. NAME+window puts any of them under a causal window.")
    ] = "learned,rolling,sinusoidal,rope,alibi",
    data: options.Data = "stdlib",
    tokenizer: options.Tokenizer = "bytes",
    out: Annotated[Path, options.out("The run folder; the same command goes on where it stopped.")] = Path(
        "runs/lengths"
    ),
    seeds: Annotated[int, option("How many runs of each encoding.")] = 1,
    reference: Annotated[
        str | None, option("The encoding that the others are held against. Default: alibi, if it is run.")
    ] = None,
    preset: Annotated[str, option("quick (minutes), small (an hour on two cores) or gpt2 (a GPU).")] = "small",
    on: options.On = "here",
    cpus_per_run: options.CpusPerRun = 1,
    track: options.Track = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    train_length: options.TrainLength = None,
    test_lengths: Annotated[str | None, option("Context lengths to measure at, commas between.", MODEL)] = None,
    layers: options.Layers = None,
    width: options.Width = None,
    heads: options.Heads = None,
    window: options.Window = None,
    ring: options.Ring = None,
    rope_factors: options.RopeFactors = None,
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
    """How far does each encoding carry a language model past its training length?"""
    from posembed.cli.compare.print_lengths import print_lengths
    from posembed.lab import presets
    from posembed.lab.data.text import load_corpus
    from posembed.lab.questions.lengths import length_runs, summarise_lengths
    from posembed.lab.tasks.language import LanguageModelling

    corpus = load_corpus(data, tokenizer=tokenizer)
    settings = presets.settings(
        preset,
        data=data,
        data_sha256=corpus.sha256,
        tokenizer=tokenizer,
        train_length=train_length,
        test_lengths=options.numbers(test_lengths),
        layers=layers,
        width=width,
        heads=heads,
        window=window,
        ring=ring,
        rope_factors=options.decimals(rope_factors),
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        dropout=dropout,
        test_tokens=test_tokens,
        precision=precision,
    )
    specs = length_runs(settings, options.names(encodings), seeds, reference=reference)
    how = How(device=device, dry_run=dry_run, on=on, cpus_per_run=cpus_per_run, track=track)
    results = answers(specs, LanguageModelling(corpus), out, how)
    summary = summarise_lengths(results, reference=reference)
    if as_json:
        print_json(summary)
    else:
        print_lengths(summary)
    finish(results, out, as_json=as_json)
