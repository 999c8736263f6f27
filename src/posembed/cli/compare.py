"""posembed compare: train the same small model under every encoding, and measure."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, help="Compare position encodings by experiment, on your own text.")


def _option(text: str, panel: str | None = None) -> Any:
    return typer.Option(help=text, rich_help_panel=panel)


MODEL, TRAINING = "Model (a preset sets these)", "Training (a preset sets these)"


@app.command()
def lengths(
    encodings: Annotated[
        str, _option("Names with commas between. NAME+window puts any of them under a causal window.")
    ] = "learned,rolling,sinusoidal,rope,alibi",
    data: Annotated[str, _option("stdlib, text files, a folder, or hf:NAME[:CONFIG].")] = "stdlib",
    tokenizer: Annotated[str, _option("bytes, a tokenizer.json, or a name on the Hugging Face hub.")] = "bytes",
    out: Annotated[Path, _option("The run folder; the same command goes on where it stopped.")] = Path(
        "runs/lengths"
    ),
    seeds: Annotated[int, _option("How many runs of each encoding.")] = 1,
    reference: Annotated[
        str | None, _option("The encoding that the others are held against. Default: alibi, if it is run.")
    ] = None,
    preset: Annotated[str, _option("quick (minutes), small (an hour on two cores) or gpt2 (a GPU).")] = "small",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the runs, their sizes and the time.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, for machines.")] = False,
    train_length: Annotated[int | None, _option("Tokens a training sequence.", MODEL)] = None,
    test_lengths: Annotated[str | None, _option("Context lengths to measure at, commas between.", MODEL)] = None,
    layers: Annotated[int | None, _option("Layers.", MODEL)] = None,
    width: Annotated[int | None, _option("Width of the model.", MODEL)] = None,
    heads: Annotated[int | None, _option("Attention heads.", MODEL)] = None,
    window: Annotated[int | None, _option("Causal window, of encodings that use one.", MODEL)] = None,
    ring: Annotated[int | None, _option("Rows of the rolling table; at least the window.", MODEL)] = None,
    steps: Annotated[int | None, _option("Training steps.", TRAINING)] = None,
    batch: Annotated[int | None, _option("Sequences a step, over all processes.", TRAINING)] = None,
    learning_rate: Annotated[float | None, _option("Peak of the cosine.", TRAINING)] = None,
    warmup: Annotated[int | None, _option("Steps of linear warm-up.", TRAINING)] = None,
    weight_decay: Annotated[float | None, _option("Of the matrices.", TRAINING)] = None,
    dropout: Annotated[float | None, _option("After each sublayer and each position sum.", TRAINING)] = None,
    test_tokens: Annotated[int | None, _option("Held-out tokens to measure on.", TRAINING)] = None,
    precision: Annotated[str | None, _option("no (float32), bf16 or fp16.", TRAINING)] = None,
    device: Annotated[str | None, _option("cpu, cuda, mps; default: what there is.", TRAINING)] = None,
) -> None:
    """How far does each encoding carry a language model past its training length?"""
    from posembed.cli.plan import print_plan
    from posembed.cli.progress import ProgressBar
    from posembed.cli.tables import print_lengths
    from posembed.lab import experiments, presets
    from posembed.lab.data import load_corpus
    from posembed.lab.environment import make_accelerator
    from posembed.lab.plan import plan
    from posembed.lab.results import RunFolder
    from posembed.lab.sweep import sweep

    corpus = load_corpus(data, tokenizer=tokenizer)
    settings = presets.settings(
        preset,
        data=data,
        data_sha256=corpus.sha256,
        tokenizer=tokenizer,
        train_length=train_length,
        test_lengths=_numbers(test_lengths),
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
        test_tokens=test_tokens,
        precision=precision,
    )
    specs = experiments.length_runs(settings, _names(encodings), seeds, reference=reference)
    accelerator = make_accelerator(settings.precision, device)
    if dry_run:
        print_plan(plan(specs, corpus, accelerator), corpus)
        return
    try:
        with ProgressBar(specs, quiet=not accelerator.is_main_process) as bar:
            results = sweep(specs, corpus, RunFolder(out), accelerator, bar)
    except KeyboardInterrupt:
        print(f"posembed: stopped; the same command goes on from {out}", file=sys.stderr)
        raise typer.Exit(130) from None
    if not accelerator.is_main_process:
        return
    summary = experiments.summarise_lengths(results, reference=reference)
    if as_json:
        print(json.dumps(dataclasses.asdict(summary)))
    else:
        print_lengths(summary)
        print(f"posembed: the runs are in {out}; posembed report {out} makes a page of them", file=sys.stderr)
    if all(result.failure for result in results):
        raise typer.Exit(1)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(number) for number in _names(text))
    except ValueError:
        raise typer.BadParameter(f"expected whole numbers with commas between, as 128,256; got {text!r}") from None
