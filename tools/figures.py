"""Draws the pictures of index.md and plots.md again: runs their code from top to bottom, and saves each block's figure.

    python tools/figures.py

Each picture comes from the block of code above it. It takes about a minute. That of research/measured.md comes from the
perplexities that the package keeps as evidence.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from statistics import geometric_mean

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt
from PIL import Image

from posembed import plots

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n!\[[^\]]*\]\((\S+)\))?", flags=re.DOTALL)
"""A block of code, and the picture below it, if there is one."""
DPI = 130


def draw(page: Path) -> None:
    """Runs the code of a page in an empty folder, and writes its pictures beside the page."""
    torch.manual_seed(0)
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for code, picture in BLOCK.findall(page.read_text(encoding="utf-8")):
            exec(compile(code, page.name, "exec"), names)
            if picture:
                save(page.parent / picture)
            plt.close("all")
        os.chdir(page.parent)


MEASURED = [
    "rolling",
    "learned-averaged",
    "kerple-power",
    "kerple-log",
    "alibi",
    "fire",
    "none",
    "t5",
    "sinusoidal",
    "pope",
    "rope",
    "learned",
]


def draw_measured() -> None:
    """Draws the perplexities, geometric means over seeds, of the encodings that research/measured.md compares."""
    evidence = DOCS.parent / "src" / "posembed" / "lab" / "advice" / "evidence.json"
    study = json.loads(evidence.read_text(encoding="utf-8"))[0]
    means = {
        name: {int(length): values and geometric_mean(values) for length, values in study["rows"][name].items()}
        for name in MEASURED
    }
    plots.lengths(means, trained=study["train_length"])
    save(DOCS / "images" / "lengths.png")


def save(path: Path) -> None:
    """Saves the current figure in 256 colours, a third of the size of all colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.gcf().savefig(path, dpi=DPI)
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(256)
    few.save(path, optimize=True)
    print(f"{path.relative_to(DOCS)}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    for name in ("index.md", "plots.md"):
        draw(DOCS / name)
    draw_measured()
