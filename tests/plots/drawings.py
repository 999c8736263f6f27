"""Every figure of posembed.plots, and what tests read off it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from posembed import plots

OF_ONE: dict[str, Callable[..., Axes]] = {
    "heatmap": plots.heatmap,
    "similarity": plots.similarity,
    "similarity_by_distance": plots.similarity_by_distance,
    "norms": plots.norms,
    "neighbours": plots.neighbours,
    "spectrum": plots.spectrum,
    "singular values": partial(plots.spectrum, cumulative=False),
    "fourier": plots.fourier,
    "directions": plots.directions,
    "idea": plots.idea,
}
"""The figures of one table."""


def during_training(table: Any, **how: Any) -> Axes:
    return plots.during_training({0: table, 50: table, 100: table}, **how)


OF_SEVERAL: dict[str, Callable[..., Axes]] = {
    "compare": lambda table, **how: plots.compare({"one": table, "other": table}, **how),
    "compare one": lambda table, **how: plots.compare({"one": table}, **how),
    "compare five": lambda table, **how: plots.compare({f"table {n}": table for n in range(5)}, **how),
    "before_after": lambda table, **how: plots.before_after(table, table, **how),
    "during_training": during_training,
    "lines of distance": lambda table, **how: plots.similarity_by_distance({"one": table, "other": table}, **how),
    "lines of norms": lambda table, **how: plots.norms({"one": table, "other": table}, **how),
    "lines of neighbours": lambda table, **how: plots.neighbours({"one": table, "other": table}, **how),
    "lines of spectra": lambda table, **how: plots.spectrum({"one": table, "other": table}, **how),
}
"""The figures of several tables, here each the same."""
OF_TABLES = {**OF_ONE, **OF_SEVERAL}
ALIKE = ("singular values", "compare one", "compare five", "lines of neighbours", "lines of spectra")
"""Figures that are drawn as another of these is: with --whole alone, where it matters how a figure is made."""


def title(axes: Axes) -> str:
    return axes.get_title(loc="left").replace("\n", " ")


def all_axes(axes: Axes) -> list[Axes]:
    return [axes, *(inner for child in axes.child_axes for inner in all_axes(child))]


def titles(axes: Axes) -> str:
    """The titles of axes and of the panels that they hold."""
    return " | ".join(title(one) for one in all_axes(axes))
