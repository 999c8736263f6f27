"""Writes what `posembed advise` reads: the measurements of every_encoding.py, and what each encoding can do.

python benchmarks/evidence.py    # run it after you change the page
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import every_encoding
import torch
from other_encodings import NOT_KEPT

from posembed.errors import PositionError
from posembed.lab.advice import candidates
from posembed.lab.advice.evidence import PUBLISHED
from posembed.nn import Decoder, Encoder, Sizes, encoding_by_name
from posembed.nn.encodings import ENCODINGS, Use, names_for, split_mixture

SOURCE = "benchmarks/results/every-encoding.md"
TABLE = Path(candidates.__file__).with_suffix(".json")
ALSO: dict[Use, tuple[str, ...]] = {"decoder": ("rope+window", "alibi+window", "rolling/none+logn", "rolling/path")}
"""More names to measure, with a suffix or with different encodings by layer."""
SAID = {"+window": "under a causal window", "+logn": "with logits that grow with the logarithm of the length"}
TRAINED, LONGEST = 8, 16
"""The training length and the longest length, in tokens, of the small models that ``able`` tries out."""


def studies(page: str) -> list[dict[str, Any]]:
    """Reads the page's studies as plain values: per encoding and size one number per seed, None for no position."""
    found: list[dict[str, Any]] = []
    for kind, section in every_encoding.SECTIONS.items():
        text = page[page.index(f"## {section.title}\n") :].partition("\n## ")[0]
        heads, _, *bodies = (cells_of(line) for line in text.splitlines() if line.startswith("|"))
        sizes = [head.removesuffix(", trained") for head in heads[1:]]
        (trained,) = (int(size) for size, head in zip(sizes, heads[1:], strict=True) if head.endswith("trained"))
        rows = {
            name: dict(zip(sizes, map(seeds_of, cells), strict=True)) for name, *cells in bodies if name not in NOT_KEPT
        }
        about = {"title": section.title, "source": SOURCE, "train_length": trained, "kind": kind, "use": section.use}
        found.append(about | {"rows": rows})
    return found


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def seeds_of(cell: str) -> list[float] | None:
    """Reads the values of the seeds in "5.18 (5.10, 5.21, 5.23)"; None for "no position"."""
    values = re.search(r"\((.*)\)", cell)
    return None if values is None else [float(value) for value in values[1].split(", ")]


def write_studies(studies: list[dict[str, Any]]) -> str:
    """Returns the studies as JSON with one encoding per line."""
    texts = []
    for study in studies:
        head = {name: value for name, value in study.items() if name != "rows"}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in study["rows"].items())
        texts.append(f'{json.dumps(head)[:-1]}, "rows": {{\n{lines}\n}}}}')
    return "[\n" + ",\n".join(texts) + "\n]\n"


def write_table() -> str:
    """Returns the table of candidates as JSON with one encoding per line."""
    uses = []
    for use in get_args(Use):
        rows = {name: [title(name, use), *able(name, use)] for name in (*names_for(use), *ALSO.get(use, ()))}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        uses.append(f'"{use}": {{\n{lines}\n}}')
    return "{\n" + ",\n".join(uses) + "\n}\n"


def title(name: str, use: Use) -> str:
    lines = [
        ENCODINGS[base].line.partition(";")[0] + "".join(f" ({SAID[suffix]})" for suffix in sorted(suffixes))
        for base, suffixes in split_mixture(name, use)
    ]
    return f"one layer after the other: {' / '.join(lines)}" if len(lines) > 1 else lines[0]


def able(name: str, use: Use) -> tuple[str | None, bool]:
    """Returns where an encoding's positions end, and whether it has a window. Runs a small model on inputs past
    ``TRAINED`` and past ``LONGEST``. None means that positions do not end, or that they are those of images, whose
    encodings are resized instead."""
    grid, causal = (2, 4) if use == "images" else None, use == "decoder"
    sizes = {"dim": 32, "heads": 4, "max_len": TRAINED, "longest": LONGEST, "window": 2, "layers": 2}
    encoding = encoding_by_name(name, Sizes(**sizes, rope_factors=(1.0,) * 4, grid=grid, causal=causal))
    kind = Decoder if causal else Encoder
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = kind(dim=32, heads=4, layers=2, encoding=encoding).eval()
        for end, length in {"training": TRAINED, "longest": LONGEST}.items() if use != "images" else ():
            try:
                model(torch.zeros(1, length + 1, 32))
            except PositionError:
                return end, encoding.window is not None
    return None, encoding.window is not None


if __name__ == "__main__":
    PUBLISHED.write_text(write_studies(studies(every_encoding.PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    TABLE.write_text(write_table(), encoding="utf-8")
    print(PUBLISHED, TABLE)
