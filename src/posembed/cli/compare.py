"""posembed compare: train the same small model under every encoding, and measure."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Compare position encodings by experiment on your own text.")

Size = typer.Option(rich_help_panel="Model and training (what a preset sets)")


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(number) for number in names(text))
    except ValueError:
        raise typer.BadParameter(
            f"expected whole numbers with commas between, such as 128,256; got {text!r}"
        ) from None


@app.command()
def lengths(
    encodings: Annotated[
        str, typer.Option(help="Names with commas between; +window puts one under a window.")
    ] = "learned,rolling,sinusoidal,rope,alibi",
    data: Annotated[str, typer.Option(help="stdlib, text files, a folder, or hf:NAME[:CONFIG].")] = "stdlib",
    tokenizer: Annotated[
        str, typer.Option(help="bytes, a tokenizer.json, or a name on the Hugging Face hub.")
    ] = "bytes",
    out: Annotated[Path, typer.Option(help="The run folder. The same command goes on where it stopped.")] = Path(
        "runs/lengths"
    ),
    seeds: Annotated[int, typer.Option(help="How many runs of each encoding.", min=1)] = 1,
    reference: Annotated[str, typer.Option(help="The encoding that the others are held against.")] = "alibi",
    preset: Annotated[str, typer.Option(help="quick, small or gpt2.")] = "small",
    train_length: Annotated[int | None, Size] = None,
    test_lengths: Annotated[str | None, Size] = None,
    layers: Annotated[int | None, Size] = None,
    width: Annotated[int | None, Size] = None,
    heads: Annotated[int | None, Size] = None,
    window: Annotated[int | None, Size] = None,
    ring: Annotated[int | None, Size] = None,
    steps: Annotated[int | None, Size] = None,
    batch: Annotated[int | None, Size] = None,
    learning_rate: Annotated[float | None, Size] = None,
    warmup: Annotated[int | None, Size] = None,
    dropout: Annotated[float | None, Size] = None,
    weight_decay: Annotated[float | None, Size] = None,
    test_tokens: Annotated[int | None, Size] = None,
    precision: Annotated[str | None, typer.Option(help="no, bf16 or fp16.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, or leave it to Accelerate.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and their sizes; train nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """How far does each encoding carry a language model past its training length?"""
    from posembed.cli.progress import ProgressBar
    from posembed.cli.tables import print_lengths
    from posembed.lab import experiments, presets
    from posembed.lab.data import load_corpus
    from posembed.lab.results import RunFolder
    from posembed.lab.sweep import sweep
    from posembed.lab.train import make_accelerator

    corpus = load_corpus(data, tokenizer=tokenizer)
    settings = presets.settings(
        preset,
        data_sha256=corpus.sha256,
        data=data,
        tokenizer=tokenizer,
        train_length=train_length,
        test_lengths=numbers(test_lengths),
        layers=layers,
        width=width,
        heads=heads,
        window=window,
        ring=ring,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        warmup=warmup,
        dropout=dropout,
        weight_decay=weight_decay,
        test_tokens=test_tokens,
        precision=precision,
    )
    specs = experiments.length_runs(settings, names(encodings), seeds)
    accelerator = make_accelerator(settings.precision, device)
    with ProgressBar(specs) as bar:
        results = sweep(specs, corpus, RunFolder(out), accelerator, bar)
    summary = experiments.summarise_lengths(results, reference=reference)
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))
    else:
        print_lengths(summary)
