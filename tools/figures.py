"""Draws the pictures of index.md and plots.md again: runs their code from top to bottom, and saves each block's figure.

    python tools/figures.py

Each picture comes from the block of code above it. It takes about a minute. Those of research/measured.md and
research/every-encoding.md come from what the package keeps as evidence.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from itertools import product
from pathlib import Path
from statistics import geometric_mean, mean

import matplotlib

matplotlib.use("agg")

import torch
from matplotlib import pyplot as plt
from matplotlib.transforms import Bbox
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


STUDIES = {
    study["kind"]: study
    for study in json.loads((DOCS.parent / "src/posembed/lab/advice/evidence.json").read_text(encoding="utf-8"))
}


def draw_measured() -> None:
    """Draws the perplexities, geometric means over seeds, of the encodings that research/measured.md compares."""
    study = STUDIES["perplexity"]
    means = {
        name: {int(length): values and geometric_mean(values) for length, values in study["rows"][name].items()}
        for name in MEASURED
    }
    plots.lengths(means, trained=study["train_length"])
    save(DOCS / "images" / "lengths.png")


def draw_choice() -> None:
    """Draws each encoding at eight times the training length: its perplexity, and the passkeys that it finds.
    Encodings that fail at both have no names, but for RoPE, which most models have."""
    ours, rivals = [], []
    for name, shares in STUDIES["passkey"]["rows"].items():
        perplexities = STUDIES["perplexity"]["rows"][name]
        if perplexities["512"] and shares["512"]:
            point = (name, geometric_mean(perplexities["512"]), mean(shares["512"]))
            (ours if name.startswith(("learned", "rolling")) else rivals).append(point)
    _, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    colours = {}
    for points, marker, label in ((ours, "o", "learned rows"), (rivals, "s", "others")):
        names, x, y = zip(*points, strict=True)
        drawn = axes.scatter(x, y, marker=marker, label=label, clip_on=False, zorder=3)
        colours |= dict.fromkeys(names, drawn.get_facecolor()[0])
    axes.set(xscale="log", xlim=(3.9, 42), ylim=(0, 110), ylabel="Passkeys found at 512 characters, %",
             xlabel="Perplexity at 512 tokens, trained at 64 (lower is better)")  # fmt: skip
    axes.set_xticks(ticks := [5, 6, 8, 10, 15, 20, 30], [str(tick) for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    axes.figure.canvas.draw()  # the layout, which places are chosen in
    points = axes.transData.transform([point[1:] for point in (*ours, *rivals)])
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in points]
    for name, x, y in sorted([*ours, *rivals], key=lambda point: -point[2]):
        if y < 10 and x > 7 and name != "rope":  # it fails at both
            continue
        lines = (4, -11, 15, -22) if y > 10 else range(4, 90, 11)  # below is the axis
        for line, side in product(lines, ("left", "right")):  # the first place where it hides nothing
            at = 5 if side == "left" else -5, line
            text = axes.annotate(name, (x, y), at, textcoords="offset points", ha=side, fontsize=8, color=colours[name])
            box = text.get_window_extent()
            if box.x0 > axes.bbox.x0 and not any(box.overlaps(other) for other in taken):
                break
            text.remove()
        taken.append(box)
        if abs(line) > 11:  # far from its point
            way = {"arrowstyle": "-", "linewidth": 0.5, "color": colours[name]}
            axes.annotate("", (x, y), at, textcoords="offset points", arrowprops=way)
    save(DOCS / "images" / "choice.png")


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
    draw_choice()
