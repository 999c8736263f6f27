"""posembed compare tasks text: does the position encoding matter where texts are classified?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from posembed.cli.compare import options
from posembed.cli.compare.answering import How, answers, finish, print_json
from posembed.cli.compare.options import MODEL, option


def text(
    encodings: Annotated[str, option("Names with commas between.")] = "learned,sinusoidal,rope,alibi,t5,none",
    data: Annotated[
        str, option("stdlib (which part is this piece of source from?), a .csv, .tsv or .jsonl file, or hf:NAME.")
    ] = "stdlib",
    text_column: Annotated[
        str | None, option("Of the text; several with commas between are joined. Default: one of an obvious name.")
    ] = None,
    label_column: Annotated[str | None, option("Of the label. Default: one of an obvious name.")] = None,
    tokenizer: Annotated[
        str, option("bytes, bpe:N (N pairs learned from the data), a tokenizer.json, or a name on the hub.")
    ] = "bpe:2000",
    out: Annotated[Path, options.out("The run folder; the same command goes on where it stopped.")] = Path("runs/text"),
    seeds: Annotated[int, option("How many runs of each encoding.")] = 1,
    reference: Annotated[
        str | None, option("The encoding that the others are held against. Default: sinusoidal, if it is run.")
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    on: options.On = "here",
    cpus_per_run: options.CpusPerRun = 1,
    track: options.Track = None,
    train_length: Annotated[int | None, option("Tokens of a text; longer ones are cut.", MODEL)] = None,
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
    """Does the position encoding matter where texts are classified? Differences with intervals."""
    from posembed.cli.compare.print_accuracy import print_classification
    from posembed.lab.data.readers import load_labelled
    from posembed.lab.questions.classification import classification_runs, summarise_classification
    from posembed.lab.tasks.classification import Classification, classification_settings

    labelled = load_labelled(data, text_column=text_column, label_column=label_column)
    task = Classification(labelled, tokenizer)
    settings = classification_settings(
        task,
        data=data,
        tokenizer=tokenizer,
        pooling=pooling,
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
        precision=precision,
    )
    specs = classification_runs(settings, options.names(encodings), seeds, reference=reference)
    how = How(device=device, dry_run=dry_run, on=on, cpus_per_run=cpus_per_run, track=track)
    results = answers(specs, task, out, how)
    summary = summarise_classification(results, reference=reference)
    if as_json:
        print_json(summary)
    else:
        print_classification(summary)
    finish(results, out, as_json=as_json)
