"""Copies the measurements behind `posembed advise` from the documentation into the package.

python benchmarks/evidence.py    # run it after you change one of the pages below
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from posembed.lab.advice.evidence import PUBLISHED, Measured, Study
from posembed.lab.runs.spec import default_window
from posembed.nn.encodings import names_for
from posembed.statistics import Estimate

ROOT = Path(__file__).parents[1]
PAGES = ("benchmarks/results/length-stdlib.md", "benchmarks/results/length-wikitext-2.md")
BROAD = "docs/measured.md"


def studies() -> list[Study]:
    """Returns every study of these pages; those with the most seeds come first."""
    found = [study for page in PAGES for study in of_results(page)]
    found.append(of_broad((ROOT / BROAD).read_text(encoding="utf-8")))
    return sorted(found, key=lambda study: -max(row.seeds for row in study.rows))


def of_results(page: str) -> list[Study]:
    """Reads the studies of a page that benchmarks/length.py wrote."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        rows = tuple(row for row in table_rows(section) if row.encoding.split("+")[0] in names_for("decoder"))
        if len(rows) > 1:
            _, train_length = matched(r"steps of (\d+) x (\d+) tokens", section)
            name = page.rsplit("/", 1)[-1].removesuffix(".md").removeprefix("length-")
            found.append(Study(f"{section.splitlines()[0]} ({name})", page, int(train_length), rows))
    return found


def table_rows(section: str) -> list[Measured]:
    seeds, window = int(matched(r"(\d+) seeds", section)[0]), int(matched(r"window (\d+)", section)[0])
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    heads, *bodies = lines
    lengths = [(place, int(head)) for place, head in enumerate(heads) if head.isdigit()]
    return [
        Measured(
            encoding=cells[0],
            window=window if cells[0] == "rolling" or "+window" in cells[0] else None,
            seeds=seeds,
            by_length={length: interval(cells[place]) for place, length in lengths},
        )
        for cells in bodies
    ]


def interval(cell: str) -> Estimate | None:
    """Reads "4.14 ± 0.01"; "no row" gives None."""
    if cell == "no row":
        return None
    mean, _, half = (part.strip() for part in cell.partition("±"))
    if not half:
        return Estimate(float(mean))
    return Estimate(float(mean), round(float(mean) - float(half), 4), round(float(mean) + float(half), 4))


def of_broad(page: str) -> Study:
    """Reads the table of every encoding, which has intervals at the last length."""
    section = page[page.index("## Perplexity beyond") :]
    seeds = int(matched(r"--seeds (\d+)", section)[0])
    train_length, layers = map(int, matched(r"Trained at (\d+) bytes[^(]*\((\d+) layers", section))
    heads, _, *bodies = matched(r"((?:^\|.*\n)+)", section)[0].splitlines()
    lengths = [int(head) for head in cells_of(heads) if head.isdigit()]
    rows = []
    for encoding, *cells in map(cells_of, bodies):
        window = default_window(layers, train_length) if encoding == "rolling" else None
        by_length = {length: with_ends(cell) for length, cell in zip(lengths, cells, strict=False)}
        rows.append(Measured(encoding, window, seeds, by_length))
    return Study("every encoding, quick preset", BROAD, train_length, tuple(rows))


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split("|")]


def with_ends(cell: str) -> Estimate | None:
    """Reads "7.73 (7.52\N{EN DASH}7.96)"; "no row" gives None."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", cell)]
    return Estimate(*numbers) if numbers else None


def matched(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text, flags=re.MULTILINE)
    if found is None:
        raise ValueError(f"nothing in the page looks like {pattern!r}; does it have another form now?")
    return found.groups()


def write_studies(studies: Sequence[Study]) -> str:
    """Returns the studies as JSON with one encoding per line; an estimate is [mean] or [mean, low, high]."""
    texts = []
    for study in studies:
        rows = [
            {**vars(row), "by_length": {length: _ends(value) for length, value in row.by_length.items()}}
            for row in study.rows
        ]
        head = {"title": study.title, "source": study.source, "train_length": study.train_length}
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        texts.append(f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}')
    return "[\n" + ",\n".join(texts) + "\n]\n"


def _ends(value: Estimate | None) -> list[float] | None:
    return None if value is None else [end for end in (value.value, value.low, value.high) if end is not None]


if __name__ == "__main__":
    PUBLISHED.write_text(write_studies(studies()), encoding="utf-8")
    print(PUBLISHED)
