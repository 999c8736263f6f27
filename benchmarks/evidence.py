"""The figures that `posembed advise` rests on, taken from the documentation, so that none is typed twice.

python benchmarks/evidence.py    # run it when a page below has changed
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from posembed.lab import presets
from posembed.lab.advice.evidence import COMMITTED
from posembed.lab.encodings import ENCODINGS

ROOT = Path(__file__).parents[1]
PAGES = ("benchmarks/results/length-stdlib.md", "benchmarks/results/length-wikitext-2.md")
BROAD = "docs/measured.md"


def studies() -> list[dict[str, Any]]:
    """Every study of these pages, those of most seeds first."""
    found = [study for page in PAGES for study in of_results(page)]
    found.append(of_broad((ROOT / BROAD).read_text(encoding="utf-8")))
    return sorted(found, key=lambda study: -max(row["seeds"] for row in study["rows"]))


def of_results(page: str) -> list[dict[str, Any]]:
    """Of a page that benchmarks/length.py wrote."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        rows = [row for row in table_rows(section) if row["encoding"].split("+")[0] in ENCODINGS]
        if len(rows) > 1:
            _, train_length = matched(r"steps of (\d+) x (\d+) tokens", section)
            name = page.rsplit("/", 1)[-1].removesuffix(".md").removeprefix("length-")
            title = f"{section.splitlines()[0]} ({name})"
            found.append({"title": title, "source": page, "train_length": int(train_length), "rows": rows})
    return found


def table_rows(section: str) -> list[dict[str, Any]]:
    seeds, window = int(matched(r"(\d+) seeds", section)[0]), int(matched(r"window (\d+)", section)[0])
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    heads, *bodies = lines
    lengths = [(place, int(head)) for place, head in enumerate(heads) if head.isdigit()]
    return [
        {
            "encoding": cells[0],
            "window": window if cells[0] == "rolling" or "+window" in cells[0] else None,
            "seeds": seeds,
            "by_length": [(length, interval(cells[place])) for place, length in lengths],
        }
        for cells in bodies
    ]


def interval(cell: str) -> dict[str, float] | None:
    """ "4.14 ± 0.01" -> mean and ends; "no row" -> None."""
    if cell == "no row":
        return None
    mean, _, half = (part.strip() for part in cell.partition("±"))
    if not half:
        return {"mean": float(mean)}
    ends = float(mean) - float(half), float(mean) + float(half)
    return {"mean": float(mean), "low": round(ends[0], 4), "high": round(ends[1], 4)}


def of_broad(page: str) -> dict[str, Any]:
    """The table of every encoding, with intervals at the last length."""
    section = page[page.index("## Perplexity beyond") :]
    seeds = int(matched(r"--seeds (\d+)", section)[0])
    train_length, layers = map(int, matched(r"Trained at (\d+) bytes[^(]*\((\d+) layers", section))
    heads, _, *bodies = matched(r"((?:^\|.*\n)+)", section)[0].splitlines()
    lengths = [int(head) for head in cells_of(heads) if head.isdigit()]
    rows = []
    for encoding, *cells in map(cells_of, bodies):
        window = presets.default_window(layers, train_length) if encoding == "rolling" else None
        by_length = [(length, with_ends(cell)) for length, cell in zip(lengths, cells, strict=False)]
        rows.append({"encoding": encoding, "window": window, "seeds": seeds, "by_length": by_length})
    return {"title": "every encoding, quick preset", "source": BROAD, "train_length": train_length, "rows": rows}


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split("|")]


def with_ends(cell: str) -> dict[str, float] | None:
    """ "7.73 (7.52\N{EN DASH}7.96)" -> mean and ends; "no row" -> None."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", cell)]
    return dict(zip(("mean", "low", "high"), numbers, strict=False)) or None


def matched(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text, flags=re.MULTILINE)
    if found is None:
        raise ValueError(f"nothing in the page looks like {pattern!r}; does it have another form now?")
    return found.groups()


if __name__ == "__main__":
    COMMITTED.write_text(json.dumps(studies(), indent=1) + "\n", encoding="utf-8")
    print(COMMITTED)
