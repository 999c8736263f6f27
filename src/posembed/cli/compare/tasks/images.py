"""posembed compare tasks images: which positions do images want, and which still serve on another grid?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from posembed.cli.compare import options
from posembed.cli.compare.answering import How, answers, finish, print_json
from posembed.cli.compare.options import MODEL, option


def images(
    encodings: Annotated[
        str, option("Names with commas between.")
    ] = "learned-1d,learned-2d,factorized,sinusoidal,sinusoidal-2d,none",
    data: Annotated[str, option("digits: scikit-learn's, 8 x 8 pixels.")] = "digits",
    out: Annotated[Path, options.out("The run folder; the same command goes on where it stopped.")] = Path(
        "runs/images"
    ),
    seeds: Annotated[int, option("How many runs of each encoding.")] = 1,
    reference: Annotated[
        str | None, option("The encoding that the others are held against. Default: learned-1d, if it is run.")
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    on: options.On = "here",
    cpus_per_run: options.CpusPerRun = 1,
    track: options.Track = None,
    patch: Annotated[int | None, option("Side of a patch in pixels.", MODEL)] = None,
    test_sizes: Annotated[
        str | None, option("Sides in pixels to which held-out images are drawn, commas between.", MODEL)
    ] = None,
    pooling: Annotated[str | None, option("cls (a token in front) or mean.", MODEL)] = None,
    layers: options.Layers = None,
    width: options.Width = None,
    heads: options.Heads = None,
    steps: options.Steps = None,
    batch: options.Batch = None,
    learning_rate: options.LearningRate = None,
    warmup: options.Warmup = None,
    weight_decay: options.WeightDecay = None,
    dropout: options.Dropout = None,
    precision: options.Precision = None,
    device: options.Device = None,
) -> None:
    """Which positions do images want, and which still serve on another grid? Accuracies with intervals."""
    from posembed.cli.compare.print_accuracy import print_images
    from posembed.lab.data.images import load_images
    from posembed.lab.questions.images import image_runs, summarise_images
    from posembed.lab.tasks.images import ImageClassification, image_settings

    there = load_images(data)
    settings = image_settings(
        there,
        data=data,
        patch=patch,
        test_sizes=options.numbers(test_sizes),
        pooling=pooling,
        layers=layers,
        width=width,
        heads=heads,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        warmup=warmup,
        weight_decay=weight_decay,
        dropout=dropout,
        precision=precision,
    )
    specs = image_runs(settings, options.names(encodings), seeds, reference=reference)
    how = How(device=device, dry_run=dry_run, on=on, cpus_per_run=cpus_per_run, track=track)
    results = answers(specs, ImageClassification(there), out, how)
    summary = summarise_images(results, reference=reference)
    if as_json:
        print_json(summary)
    else:
        print_images(summary)
    finish(results, out, as_json=as_json)
