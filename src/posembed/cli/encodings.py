"""posembed encodings: every encoding by name, with its learned parameters at given sizes."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from posembed.cli.options import AsJson


def encodings(
    width: Annotated[int, typer.Option(help="Width of the model.")] = 768,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 12,
    length: Annotated[int, typer.Option(help="Training length in tokens.")] = 1024,
    layers: Annotated[int, typer.Option(help="Layers; the rolling table's window depends on them.")] = 12,
    grid: Annotated[int, typer.Option(help="Patches along each side of an image.")] = 14,
    as_json: AsJson = False,
) -> None:
    """List the encodings: a description of each, the models that support it, its learned parameters and its paper."""
    import torch

    from posembed.lab.runs.spec import default_window, require_divisible
    from posembed.nn.encodings import ENCODINGS, Sizes
    from posembed.positions.checks import require_at_least_one

    require_at_least_one(width=width, heads=heads, length=length, layers=layers, grid=grid)
    require_divisible(width, heads)
    # LongRoPE needs factors, which are given and not learned.
    factors = (1.0,) * (width // heads // 2)
    text = Sizes(dim=width, heads=heads, max_len=length, window=default_window(layers, length), rope_factors=factors)
    image = Sizes(dim=width, heads=heads, grid=(grid, grid), causal=False)
    rows: list[dict[str, Any]] = []
    for name, entry in ENCODINGS.items():
        with torch.device("meta"):  # no initial values are drawn
            encoding = entry.build(image if entry.uses == ("images",) else text)
        learned = sum(parameter.numel() for parameter in encoding.parameters())
        row = {"name": name, "line": entry.line, "models": entry.uses, "parameters": learned, "paper": entry.paper}
        rows.append(row)
    if as_json:
        print(json.dumps(rows))
        return
    from posembed.cli.console import table_console
    from posembed.report.page import Cell, table_of
    from posembed.report.terminal import print_tables

    table = table_of(
        rows,
        f"Learned parameters at width {width:,}, {heads} heads, {length:,} tokens, {layers} layers, images of {grid} x "
        f"{grid} patches",
        "",
        ("parameters", lambda row: f"{row['parameters']:,}"),
        (Cell("what it is", kind="words"), lambda row: row["line"]),
        (Cell("paper", kind="words"), lambda row: row["paper"]),
        name=lambda row: row["name"],
    )
    kinds = {"decoder": "Decoders", "encoder": "Text encoders", "images": "Image models"}
    names = {model: ", ".join(row["name"] for row in rows if model in row["models"]) for model in kinds}
    suffixes = (
        "In a decoder, NAME+window applies the rolling table's window to any encoding, and NAME+logn scales the logits "
        "of any encoding with the logarithm of the text's length."
    )
    print_tables(table_console(), [table], [*(f"{kinds[model]} support {names[model]}." for model in kinds), suffixes])
