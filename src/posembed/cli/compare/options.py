"""The options that several questions share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(text: str, panel: str | None = None) -> Any:
    return typer.Option(help=text, rich_help_panel=panel)


def folder(path: str | Path) -> Path:
    """The folder that an option names; an empty name, as of a variable that is not set, is none."""
    if not str(path):
        raise typer.BadParameter("expected a folder, got an empty name; write . for the current one")
    return Path(path)


def out(text: str) -> Any:
    """The option --out."""
    return typer.Option(help=text, parser=folder, metavar="PATH")


MODEL, TRAINING = "Model (a preset sets these)", "Training (a preset sets these)"

Data = Annotated[str, option("stdlib, text files, a folder, or hf:NAME[:CONFIG].")]
Tokenizer = Annotated[str, option("bytes, a tokenizer.json, or a name on the Hugging Face hub.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the runs, their sizes and the time.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, for machines.")]
Track = Annotated[str | None, option("Follow the runs in tensorboard or wandb (Weights & Biases).")]


def _answering(address: str) -> str:
    """An address of a cluster is tried before anything is loaded."""
    if address not in ("here", "ray"):
        from posembed.lab.runs.cluster import knock

        knock(address)
    return address


On = Annotated[
    str,
    typer.Option(
        help="Where the runs go: here, ray (a cluster on this machine, or RAY_ADDRESS's) or ray://HOST:PORT.",
        callback=_answering,
    ),
]
CpusPerRun = Annotated[int, typer.Option(help="On Ray: cores of each run.", min=1)]

TrainLength = Annotated[int | None, option("Tokens a training sequence.", MODEL)]
Layers = Annotated[int | None, option("Layers.", MODEL)]
Width = Annotated[int | None, option("Width of the model.", MODEL)]
Heads = Annotated[int | None, option("Attention heads.", MODEL)]
Window = Annotated[int | None, option("Window, of encodings that use one.", MODEL)]
Ring = Annotated[int | None, option("Rows of the rolling table; at least the window.", MODEL)]

RopeFactors = Annotated[
    str | None, option("Of rope-longrope, one for each pair of a head's components, commas between.", MODEL)
]

Steps = Annotated[int | None, option("Training steps.", TRAINING)]
Batch = Annotated[int | None, option("Sequences a step, over all processes.", TRAINING)]
LearningRate = Annotated[float | None, option("Peak of the cosine.", TRAINING)]
Warmup = Annotated[int | None, option("Steps of linear warm-up.", TRAINING)]
WeightDecay = Annotated[float | None, option("Of the matrices.", TRAINING)]
Dropout = Annotated[float | None, option("After each sublayer and each position sum.", TRAINING)]
Precision = Annotated[str | None, option("no (float32), bf16 or fp16.", TRAINING)]
Device = Annotated[str | None, option("cpu, cuda, mps; default: what there is.", TRAINING)]


def names(text: str) -> list[str]:
    """ "rope, alibi" -> ["rope", "alibi"]."""
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str | None) -> tuple[int, ...] | None:
    """ "128,256" -> (128, 256)."""
    try:
        return None if text is None else tuple(int(number) for number in names(text))
    except ValueError:
        raise typer.BadParameter(f"expected whole numbers with commas between, as 128,256; got {text!r}") from None


def decimals(text: str | None) -> tuple[float, ...] | None:
    """ "1,1.5" -> (1.0, 1.5)."""
    try:
        return None if text is None else tuple(float(number) for number in names(text))
    except ValueError:
        raise typer.BadParameter(f"expected numbers with commas between, as 1,1.5; got {text!r}") from None
