"""Draws the pictures of index.md and plots.md again: runs their code from top to bottom, and saves each block's figure.

    python tools/figures.py

Each picture comes from the block of code above it. It takes about a minute.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt
from PIL import Image

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
