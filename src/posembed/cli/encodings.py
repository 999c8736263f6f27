"""posembed encodings: every encoding of the lab, with what it learns at a size."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer

NARROWEST = 72
"""Columns. In fewer, names and addresses would be cut; a terminal that has fewer breaks the lines itself."""


def encodings(
    width: Annotated[int, typer.Option(help="Width of the model.")] = 768,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 12,
    length: Annotated[int, typer.Option(help="Training length in tokens.")] = 1024,
    layers: Annotated[int, typer.Option(help="Layers; the rolling table's window depends on them.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON, for machines.")] = False,
) -> None:
    """List the encodings that posembed compare knows: what each is, what it learns, and its paper."""
    from posembed.lab.encodings import ENCODINGS, position_parameters
    from posembed.lab.runs.spec import spec_of_size

    sizes = {"width": width, "heads": heads, "train_length": length, "layers": layers}
    # LongRoPE's factors, without which it is not built, are given and not learned.
    spec = spec_of_size(rope_factors=(1.0,) * (width // max(heads, 1) // 2), **sizes)
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "line": entry.line,
            "parameters": position_parameters(dataclasses.replace(spec, encoding=name)),
            "paper": entry.paper,
        }
        for name, entry in ENCODINGS.items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    print_encodings(rows, f"width {width:,}, {heads} heads, {length:,} tokens, {layers} layers")


def print_encodings(rows: list[dict[str, Any]], size: str) -> None:
    """A table on stdout."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from posembed.cli.console import plain_console, table_console

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("encoding", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("what it is")
    table.add_column("paper")
    for row in rows:
        table.add_row(row["name"], f"{row['parameters']:,}", row["line"], row["paper"])
    console = table_console()
    if console.width < NARROWEST:
        console = plain_console(width=NARROWEST)
    console.print(table)
    console.print(f"\nLearned parameters at {size}. NAME+window puts any of them under the rolling window.")
    console.print("NAME+logn lets the logits of any of them grow with the length of the text.")
