"""The figures that `posembed advise` rests on, taken from the documentation, so that none is typed twice.

python benchmarks/evidence.py    # run it when a page below has changed
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from posembed.lab.advice.evidence import COMMITTED
from posembed.lab.encodings import ENCODINGS

ROOT = Path(__file__).parents[1]
PAGES = ("benchmarks/results/length-stdlib.md", "benchmarks/results/length-wikitext-2.md")
DEMO = "README.md"


def studies() -> list[dict[str, Any]]:
    """Every study of these pages, those of most seeds first."""
    found = [study for page in PAGES for study in of_results(page)]
    found.append(of_demo((ROOT / DEMO).read_text(encoding="utf-8")))
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


def of_demo(readme: str) -> dict[str, Any]:
    """The table that `make demo` prints."""
    first, second, *body = matched(r"by tokens of context: lower is better\n\n((?: {4}.*\n)+)", readme)[
        0
    ].splitlines()
    train_length = int(matched(r"^\s+(\d+)", first)[0])
    lengths = [train_length, *(int(n) for n in matched(r"trained\s+([\d ]+?)\s+at ", second)[0].split())]
    rows = []
    for line in body:
        if (cells := line.split())[0] in ENCODINGS:
            window = int(cells.pop(1)) if re.fullmatch(r"\d+", cells[1]) else None
            values = [None if cell == "-" else {"mean": float(cell)} for cell in cells[1 : 1 + len(lengths)]]
            by_length = list(zip(lengths, values, strict=True))
            rows.append({"encoding": cells[0], "window": window, "seeds": 1, "by_length": by_length})
    return {"title": "make demo", "source": DEMO, "train_length": train_length, "rows": rows}


def matched(pattern: str, text: str) -> tuple[str, ...]:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"nothing in the page looks like {pattern!r}; does it have another form now?")
    return found.groups()


if __name__ == "__main__":
    COMMITTED.write_text(json.dumps(studies(), indent=1) + "\n", encoding="utf-8")
    print(COMMITTED)
