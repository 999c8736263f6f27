"""Writes what `posembed advise` reads: the measurements of every_encoding.py, and what each encoding can do.

python benchmarks/evidence.py    # run it after you change the page
"""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import every_encoding
from other_encodings import NOT_KEPT

from posembed.lab.advice.built import built_candidates
from posembed.lab.advice.candidates import TABLE
from posembed.lab.advice.evidence import PUBLISHED
from posembed.lab.advice.needs import Needs
from posembed.nn.encodings import Use

SOURCE = "benchmarks/results/every-encoding.md"


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
        grid = (2, 4) if use == "images" else None
        needs = Needs(length=8, longest=8, width=8, heads=2, grid=grid, encoder=use == "encoder")
        rows = {each.name: [each.title, each.ends, each.window is not None] for each in built_candidates(needs)}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        uses.append(f'"{use}": {{\n{lines}\n}}')
    return "{\n" + ",\n".join(uses) + "\n}\n"


if __name__ == "__main__":
    PUBLISHED.write_text(write_studies(studies(every_encoding.PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    TABLE.write_text(write_table(), encoding="utf-8")
    print(PUBLISHED, TABLE)
