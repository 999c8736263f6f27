"""posembed compare cost: what each encoding costs in parameters, time and memory, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posembed.cli.compare import options


def cost(
    encodings: Annotated[
        str | None, typer.Option(help="Names with commas between; NAME+window is that one under a causal window.")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens a sequence.")] = 512,
    width: Annotated[int, typer.Option(help="Width of the model.")] = 768,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 12,
    layers: Annotated[int, typer.Option(help="Layers; the lab's window follows from them.")] = 12,
    vocabulary: Annotated[int, typer.Option(help="Rows of the token table.")] = 50_257,
    batch: Annotated[int, typer.Option(help="Sequences at once.")] = 1,
    window: Annotated[int | None, typer.Option(help="Causal window, of encodings that use one.")] = None,
    longest: Annotated[int, typer.Option(help="How far growth is followed, doubling from 512.")] = 131_072,
    seconds: Annotated[float, typer.Option(help="How long encodings take turns, at least.")] = 30.0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[
        Path,
        typer.Option(
            help="The folder for cost.json, from which posembed report makes a page.",
            parser=options.folder,
            metavar="PATH",
        ),
    ] = Path("runs/cost"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")] = False,
) -> None:
    """What does each encoding cost? Parameters, time beside attention, memory, and growth with length."""
    import sys

    from posembed.cli.compare.print_cost import print_cost
    from posembed.cli.evaluate import Bar
    from posembed.lab.cost.measure import cost_spec, measure_cost
    from posembed.lab.cost.results import prepare, save

    spec = cost_spec(
        None if encodings is None else tuple(options.names(encodings)),
        length=length,
        width=width,
        heads=heads,
        layers=layers,
        vocabulary=vocabulary,
        batch=batch,
        window=window,
        longest=longest,
        seconds=seconds,
        device=device,
    )
    prepare(out, spec)
    with Bar() as bar:
        result = measure_cost(spec, bar.update)
    save(result, out)
    if as_json:
        print(result.to_json())
    else:
        print_cost(result)
        print(f"posembed: kept in {out}; posembed report {out} makes a page of it", file=sys.stderr)
