"""Figures, axes placed in points, and the ``ax=`` of every public function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from textwrap import fill
from typing import Any, Literal, ParamSpec
from weakref import WeakSet

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from posembed.errors import ArgumentError
from posembed.plots.style import INK, LETTER, MUTED, RULE, TEXT, WIDTH, shortened
from posembed.plots.ticks import tick_text

TITLE = TEXT + 3
"""The height of a line of a title."""


_FOR_PAGES: ContextVar[bool] = ContextVar("_FOR_PAGES", default=False)
_SHOWN: ContextVar[list[Figure]] = ContextVar("_SHOWN")
"""The figures of pyplot that the call in progress has made."""
_FULL: WeakSet[Axes] = WeakSet()
"""Axes that hold a figure of several axes: the next figure on them replaces it."""

P = ParamSpec("P")


def draws(draw: Callable[P, Axes]) -> Callable[P, Axes]:
    """Decorates the functions of ``posembed.plots``: a call that fails leaves no figure in pyplot.

    Checks ``title``, and computes on the CPU, whatever torch's default device is.
    """

    @wraps(draw)
    def drawn(*args: P.args, **how: P.kwargs) -> Axes:
        if not isinstance(title := how.get("title"), str | None):
            raise ArgumentError(f"title: expected a text; got {title!r}")
        made: list[Figure] = []
        token = _SHOWN.set(made)
        try:
            with torch.device("cpu"):
                return draw(*args, **how)
        except BaseException:
            if made:
                from matplotlib import pyplot as plt

                for figure in made:
                    plt.close(figure)
            raise
        finally:
            _SHOWN.reset(token)

    return drawn


def figure_of(draw: Callable[..., Axes], *args: Any, **how: Any) -> Figure:
    """Returns the figure that a function of ``posembed.plots`` draws, made without pyplot, for a page."""
    token = _FOR_PAGES.set(True)
    try:
        figure = draw(*args, **how).get_figure(root=True)
    finally:
        _FOR_PAGES.reset(token)
    assert figure is not None
    return figure


def shown_figure(height: float) -> Figure:
    """Returns a white figure, WIDTH wide, that a notebook shows. Without a display, pyplot draws into memory."""
    if _FOR_PAGES.get():
        return page(height).axes
    from matplotlib import pyplot as plt  # imported here, since it chooses how to show figures

    figure = plt.figure(figsize=(WIDTH / 72, height / 72), facecolor="white", layout="none")
    _SHOWN.get().append(figure)
    return figure


def dress(
    axes: Axes, *, title: str = "", x: str = "", y: str = "", grid: Literal["x", "y", ""] = "", lift: float = 0
) -> Axes:
    """Gives axes two thin spines, muted ticks, a title above the left end, and the names of their axes.

    grid: the axis whose ticks get lines. lift: as in ``entitle``.
    """
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    axes.tick_params(which="both", color=RULE, labelcolor=MUTED, labelsize=TEXT - 1, length=3)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):  # a factor of all ticks would stand in the title
        axis.set_major_formatter(tick_text)
    entitle(axes, title, lift=lift)
    axes.set_xlabel(x, fontsize=TEXT - 1, color=MUTED)
    axes.set_ylabel(y, fontsize=TEXT - 1, color=MUTED)
    if grid:
        axes.grid(axis=grid, color=RULE, linewidth=0.5)
    return axes


def entitle(axes: Axes, title: str, colour: str = MUTED, lift: float = 0) -> None:
    """Writes the title above the left end. lift: the space below the title for another line, in points."""
    axes.set_title(title, loc="left", fontsize=TEXT - 1, color=colour, pad=5 + lift, parse_math=False)


@dataclass(frozen=True)
class Panels:
    """A figure, or axes that contain only other axes. Positions are in points of a drawing WIDTH wide and ``height``
    high, from its upper left corner."""

    axes: Any
    height: float

    def at(self, *, left: float, top: float, width: float, height: float, **words: Any) -> Axes:
        """Adds axes. words: see ``dress``."""
        place = (left / WIDTH, 1 - (top + height) / self.height, width / WIDTH, height / self.height)
        return dress(
            self.axes.add_axes(place) if isinstance(self.axes, Figure) else self.axes.inset_axes(place), **words
        )

    def heading(self, text: str, *, left: float = 2, top: float = 0, **how: Any) -> None:
        """Writes a line of text. ``top`` is 14 points above the baseline of the text. how: see ``Figure.text``."""
        how = {"fontsize": TEXT, "color": INK, "parse_math": False, **how}
        if isinstance(self.axes, Axes):
            how = {"transform": self.axes.transAxes, **how}
        self.axes.text(left / WIDTH, 1 - (top + 14) / self.height, text, **how)


def page(height: float) -> Panels:
    """Returns a figure WIDTH wide. It does not use pyplot, which would keep the figure and might open a window."""
    how: dict[str, Any] = {"layout": "none"}  # whatever rcParams say
    return Panels(Figure(figsize=(WIDTH / 72, height / 72), facecolor="none", **how), height)


def checked_axes(ax: object) -> Axes:
    """Returns ``ax`` if it is one matplotlib Axes with straight x and y axes. Raises ArgumentError otherwise.

    Clears axes that hold an earlier figure of several axes.
    """
    if isinstance(ax, Axes) and ax.name == "rectilinear":
        if ax in _FULL:
            ax.clear()
            _FULL.discard(ax)
        return ax
    given = f"a {type(ax).__name__}"
    remedy = "figure, ax = matplotlib.pyplot.subplots()"
    if isinstance(ax, Axes):
        given = f"{ax.name} axes"
    elif getattr(ax, "size", 0) and isinstance(next(iter(getattr(ax, "flat", ())), None), Axes):
        given, remedy = f"an array of {getattr(ax, 'size', 0)}", "one of them, such as ax.flat[0]"
    raise ArgumentError(f"ax: expected one matplotlib Axes with x and y; got {given}. Pass {remedy}, or leave ax out")


def title_of(title: str | None, drawn: str, notes: Sequence[str] = ()) -> str:
    """Returns the caller's title, or ``drawn`` if it is None, followed by notes on what could not be drawn."""
    return "; ".join(text for text in (drawn if title is None else title, *notes) if text)


def fill_axes(axes: Axes) -> None:
    """Notes that axes hold a figure of several axes."""
    _FULL.add(axes)


def axes_for(
    ax: object, *, title: str, height: float, left: float = 52, right: float = 20, lift: float = 0, **words: Any
) -> Axes:
    """Returns ``ax``, dressed. For None, returns new axes of this height, in points, in a figure that a notebook shows.

    left, right: the room beside new axes, in points. lift, words: see ``dress``.
    """
    if ax is not None:
        axes = checked_axes(ax)
        figure = axes.get_figure(root=True)
        assert figure is not None
        units = axes.get_position().width * figure.get_figwidth() * 72
        return dress(axes, title=wrapped(title, units) if ";" in title else title, lift=lift, **words)
    title = wrapped(title, WIDTH - left - 6)
    top = 12 + TITLE * (title.count("\n") + 1) + lift
    where = {"left": left, "top": top, "width": WIDTH - left - right, "height": height}
    whole = top + height + 46
    return Panels(shown_figure(whole), whole).at(title=title, lift=lift, **where, **words)


def panels_for(ax: object, *, title: str, height: float) -> Panels:
    """Returns panels in ``ax``. For None, creates a figure that a notebook shows."""
    if ax is None:
        title = wrapped(title, WIDTH - 8)
        room = (TITLE * (title.count("\n") + 1) + 4) if title else 0
        axes = shown_figure(height + room).add_axes((0, 0, 1, height / (height + room)))
    else:
        axes = checked_axes(ax)
    fill_axes(axes)
    axes.set_axis_off()
    axes.set_title(title, loc="left", fontsize=TEXT, color=INK, pad=3, parse_math=False, x=2 / WIDTH)
    return Panels(axes, height)


def wrapped(text: str, units: float) -> str:
    """Breaks lines that are wider than this, in points."""
    letters = max(int(units / (0.82 * LETTER)), 12)
    return "\n".join(fill(line, letters) for line in text.split("\n"))


def key_above(axes: Axes, lines: Sequence[tuple[str, Line2D]], **how: Any) -> None:
    """Writes a legend above the right end of the axes: names in the colours of lines. how: see ``Axes.legend``."""
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": 3, "borderaxespad": 0}
    how = {"frameon": False, "labelcolor": "linecolor", "handlelength": 1.2, "fontsize": TEXT - 1, **place, **how}
    handles = [line for _, line in lines]
    legend = axes.legend(handles, [" "] * len(handles), **how)  # it would leave out names that start with _
    for text, (name, _) in zip(legend.get_texts(), lines, strict=True):
        text.set(text=name, parse_math=False)


def sheet(
    height: float, *, title: str, below: str, right: float, left: float = 40, top: float = 34
) -> tuple[Figure, Axes]:
    """Returns a figure with one plot of this height, a title above it and the name of its x axis below."""
    title = wrapped(title, WIDTH - 8)
    more = TITLE * title.count("\n")
    top += more
    panels = page(top + height + 46)
    axes = panels.at(left=left, top=top, width=WIDTH - left - right, height=height)
    panels.heading(title, top=more)  # the place of the last line
    axes.set_xlabel(below, fontsize=TEXT, color=INK)
    return panels.axes, axes


def room_for(names: Iterable[str]) -> float:
    """Returns the width, in points, of the space for names beside a plot."""
    return max((len(shortened(name)) for name in names), default=0) * LETTER + 24


def room_for_rows(last: int) -> float:
    """Returns the width, in points, of the space for row numbers up to ``last`` and the name of the axis."""
    return len(f"{last}") * LETTER + 28
