"""posembed encodings: every encoding by name, with what it learns at a size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from posembed.cli.options import AsJson

NARROWEST = 72
"""Columns. In fewer, names and addresses would be cut; a terminal that has fewer breaks the lines itself."""


def encodings(
    width: Annotated[int, typer.Option(help="Width of the model.")] = 768,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 12,
    length: Annotated[int, typer.Option(help="Training length in tokens.")] = 1024,
    layers: Annotated[int, typer.Option(help="Layers; the rolling table's window depends on them.")] = 12,
    grid: Annotated[int, typer.Option(help="Patches along each side of an image.")] = 14,
    as_json: AsJson = False,
) -> None:
    """List the encodings: what each is, which models take it, what it learns, and its paper."""
    import torch

    from posembed.lab.runs.spec import default_window
    from posembed.nn.encodings import ENCODINGS, Sizes

    # LongRoPE is not built without factors, which are given and not learned.
    factors = (1.0,) * (width // max(heads, 1) // 2)
    text = Sizes(dim=width, heads=heads, max_len=length, window=default_window(layers, length), rope_factors=factors)
    image = Sizes(dim=width, heads=heads, grid=(grid, grid), causal=False)
    rows = []
    for name, entry in ENCODINGS.items():
        with torch.device("meta"):  # nothing is drawn
            encoding = entry.build(image if entry.uses == ("images",) else text)
        learned = sum(parameter.numel() for parameter in encoding.parameters())
        row = {"name": name, "line": entry.line, "models": entry.uses, "parameters": learned, "paper": entry.paper}
        rows.append(row)
    if as_json:
        print(json.dumps(rows))
    else:
        size = f"width {width:,}, {heads} heads, {length:,} tokens, {layers} layers, images of {grid} x {grid} patches"
        print_encodings(rows, size)


def print_encodings(rows: Sequence[Mapping[str, Any]], size: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Column, Table

    from posembed.cli.console import plain_console, table_console

    numbers = Column("parameters", justify="right", no_wrap=True)
    columns = Column("encoding", no_wrap=True), numbers, "what it is", "paper"
    table = Table(*columns, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], f"{row['parameters']:,}", row["line"], row["paper"])
    console = table_console()
    if console.width < NARROWEST:
        console = plain_console(width=NARROWEST)
    console.print(table)
    console.print(f"\nLearned parameters at {size}.")
    for model, kind in (("decoder", "Decoders"), ("encoder", "Encoders of texts"), ("images", "Images")):
        names = [row["name"] for row in rows if model in row["models"]]
        console.print(f"{kind} take {', '.join(names) if model != 'decoder' else f'the first {len(names)} encodings'}.")
    console.print("In a decoder, NAME+window applies the rolling table's window to any of them, and NAME+logn lets the")
    console.print("logits of any of them grow with the logarithm of the text's length.")
