"""How an encoding's time and memory grow: with length from 512 to 131,072, with batch, with width.

    python benchmarks/growth.py
    python benchmarks/growth.py --longest 2048 --largest-batch 4 --largest-width 256    # to try it out

Measures the layers alone, forward. By length: one sequence, two heads of width 32. By batch and width: length 512. All
encodings take turns at each size. The results are medians, and exponents fitted by least squares on the logarithms: 1
is linear, 2 is quadratic. A length that would need more than 2 GiB, or more time than an encoding's share, is not
tried; the page lists these lengths.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Literal

import pages
import torch

from posembed.lab.cost.instruments import peak_bytes, take_turns
from posembed.lab.cost.measure import FIT_FROM, MOST_BYTES, Growth, Point, doublings, encoding_of, grow
from posembed.lab.cost.places import Places, Shape
from posembed.lab.cost.results import GROWTH_SHAPE, CostSettings
from posembed.layers.base import PositionEncoding
from posembed.nn.encodings import names_for
from posembed.words import in_bytes, milliseconds

LENGTH = 512
ROUNDS = 7


def build(name: str, shape: Shape) -> PositionEncoding:
    spec = CostSettings(batch=shape.batch, length=shape.length, width=shape.width, heads=shape.heads)
    return encoding_of(spec, name)


def by_size(shapes: dict[int, Shape]) -> dict[str, Growth]:
    """Measures every encoding at each of these shapes, which are given by size."""
    found: dict[str, list[Point]] = {name: [] for name in names_for("decoder")}
    for size, shape in shapes.items():
        steps = {name: Places(build(name, shape), shape) for name in names_for("decoder")}
        for name, taken in take_turns(steps, seconds=0.0, fewest=ROUNDS).items():
            found[name].append(Point(size, taken.value, peak_bytes(steps[name])))
    return {name: Growth(points) for name, points in found.items()}


def shown(grown: dict[str, Growth], unit: str, first: int = 0) -> list[str]:
    """Returns two tables, time and memory, and a line for each encoding that was stopped. first: the size from which
    the exponents are fitted."""
    lines = ["Milliseconds:", "", *_table(grown, unit, "seconds", milliseconds, first)]
    lines += ["Peak memory:", "", *_table(grown, unit, "peak", in_bytes, first)]
    stopped = [f"- {name}: {growth.stopped}." for name, growth in grown.items() if growth.stopped]
    return [*lines, *(["Not tried:", "", *stopped, ""] if stopped else [])]


def _table(
    grown: dict[str, Growth], unit: str, of: Literal["seconds", "peak"], write: Callable[[float], str], first: int
) -> list[str]:
    sizes, rows = sorted({point.length for growth in grown.values() for point in growth.points}), []
    for name, growth in grown.items():
        at = {point.length: getattr(point, of) for point in growth.points}
        power = growth.exponent(of, first)
        cells = [write(at[size]) if size in at else "not tried" for size in sizes]
        rows.append([name, "" if power is None else f"{power:.2f}", *cells])
    return pages.table([unit, "exponent", *(f"{size:,}" for size in sizes)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=131_072)
    parser.add_argument("--largest-batch", type=int, default=32)
    parser.add_argument("--largest-width", type=int, default=2048)
    args = parser.parse_args()
    keep = all(getattr(args, name) == parser.get_default(name) for name in vars(args))

    length = grow(names_for("decoder"), build, longest=args.longest, device=torch.device("cpu"))
    batch = by_size({n: Shape(n, LENGTH, 256, 4) for n in doublings(1, args.largest_batch)})
    width = by_size({n: Shape(2, LENGTH, n, 4) for n in doublings(128, args.largest_width)})
    lines = ["# How an encoding's cost grows", "", "    python benchmarks/growth.py", "", pages.machine(), ""]
    lines += [
        "The layers alone, forward. Times are medians; exponents are fitted by least squares on the logarithms.",
        "",
    ]
    lines += [
        f"## By length: batch 1, width {GROWTH_SHAPE.width}, {GROWTH_SHAPE.heads} heads",
        "",
        f"Exponents are fitted from 2,048 tokens on. Sizes that need more than {in_bytes(MOST_BYTES)} are not tried.",
        "",
        *shown(length, "tokens", FIT_FROM),
        f"## By batch: length {LENGTH}, width 256, 4 heads",
        "",
        *shown(batch, "sequences"),
        f"## By width: length {LENGTH}, batch 2, 4 heads",
        "",
        *shown(width, "width"),
    ]
    pages.write("growth", lines, keep=keep)


if __name__ == "__main__":
    main()
