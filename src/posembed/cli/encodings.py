"""posembed encodings: every encoding by name, with its learned parameters at given sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from posembed.cli.options import Printing, command
from posembed.errors import ArgumentError
from posembed.settings import Count, Settings, given_to, option


@dataclass(frozen=True, kw_only=True)
class Sized(Settings):
    """The sizes at which parameters are counted."""

    width: Count = option("Width of the model.", default=768)
    heads: Count = option("Attention heads.", default=12)
    length: Count = option("Training length in tokens.", default=1024)
    layers: Count = option("Layers, some of whose encodings have parameters in each.", default=12)
    grid: Count = option("Patches along each side of an image.", default=14)


def run(given: dict[str, Any]) -> None:
    """List the encodings: a description of each, the models that support it, its learned parameters and its paper."""
    import torch

    from posembed.lab.runs.spec import default_window, require_divisible
    from posembed.nn.encodings import ENCODINGS, Sizes, encoding_by_name

    at = given_to(Sized, given)
    width, heads, length, layers, grid = at.width, at.heads, at.length, at.layers, at.grid
    require_divisible(width, heads)
    # LongRoPE needs factors, which are given and not learned.
    factors = (1.0,) * (width // heads // 2)
    window = default_window(layers, length)
    text = Sizes(dim=width, heads=heads, max_len=length, window=window, rope_factors=factors, layers=layers)
    image = Sizes(dim=width, heads=heads, grid=(grid, grid), causal=False)
    rows: list[dict[str, Any]] = []
    for name, entry in ENCODINGS.items():
        row: dict[str, Any] = {"name": name, "line": entry.line, "models": entry.uses, "parameters": None}
        try:
            with torch.device("meta"):  # no initial values are drawn
                encoding = encoding_by_name(name, image if entry.uses == ("images",) else text)
            row["parameters"] = sum(parameter.numel() for parameter in encoding.parameters())
        except ArgumentError as error:
            row["line"] += f" (impossible at these sizes: {error})"
        rows.append({**row, "paper": entry.paper})
    if given:
        print(json.dumps(rows))
        return
    from posembed.cli.console import plain_console
    from posembed.report.page import Cell, table_of
    from posembed.report.terminal import print_tables

    table = table_of(
        rows,
        f"Learned parameters at width {width:,}, {heads} heads, {length:,} tokens, {layers} layers, images of {grid} x "
        f"{grid} patches",
        "",
        ("parameters", lambda row: "impossible" if row["parameters"] is None else f"{row['parameters']:,}"),
        (Cell("what it is", kind="words"), lambda row: row["line"]),
        (Cell("paper", kind="words"), lambda row: row["paper"]),
        name=lambda row: row["name"],
    )
    kinds = {"decoder": "Decoders", "encoder": "Text encoders", "images": "Image models"}
    names = {model: ", ".join(row["name"] for row in rows if model in row["models"]) for model in kinds}
    suffixes = (
        "In a decoder, NAME+window applies the rolling table's window to any encoding, and NAME+logn scales the logits "
        "of any encoding with the logarithm of the text's length. NAME/NAME gives each layer its own, over and over."
    )
    print_tables(plain_console(), [table], [*(f"{kinds[model]} support {names[model]}." for model in kinds), suffixes])


encodings = command("encodings", run, Sized, Printing)
