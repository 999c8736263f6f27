"""Figures of several tables: side by side, before and after a change, and during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from posembed.errors import ArgumentError
from posembed.plots.canvas import Panels, draws, entitle, key_above, panels_for, room_for_rows, title_of
from posembed.plots.source import Rows, Source, by_number, named_rows
from posembed.plots.spectra import draw_shares, spectra_of
from posembed.plots.style import MUTED, SERIES, TEXT, WIDTH, shortened, styles
from posembed.plots.tables import draw_by_distance, draw_norms, heatmap, similarity
from posembed.settings import Amount
from posembed.tables.compare import TableComparison, compare_tables

FRAMES = 6
LEAST_SHARE = 1e-4
"""Directions with a smaller share of the variance are not drawn."""
BEFORE_AFTER = 412
"""The height of ``before_after`` without its maps of cosines, in points."""
HOW_ALIKE = {"procrustes_distance": "Procrustes distance", "cka": "CKA", "shared_subspace": "shared subspace"}


@draws
def compare(
    tables: Mapping[str, Source], *, key: str | None = None, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draws tables side by side: the cosines of their rows, their similarity by distance, and their variance shares.

    For two tables of the same length it also writes the measures of ``posembed.tables.compare_tables``, each with its
    value for unrelated tables.

    Args:
        tables: tables by name, each as in ``heatmap``.
        key: the name of the table in every checkpoint and model among ``tables``.
        ax: the Axes that holds the panels, at least 6 x 6 inches. None means a new figure.
        title: as in ``heatmap``.

    Returns:
        The Axes, whose ``child_axes`` are the panels.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``.

    Examples:
        >>> import torch
        >>> import posembed
        >>> tables = {"random": torch.randn(64, 32), "sinusoidal": posembed.tables.sinusoidal_table(64, 32)}
        >>> ax = posembed.plots.compare(tables)
    """
    if not isinstance(tables, Mapping):
        given = type(tables).__name__
        raise ArgumentError(f'expected tables by name, such as {{"learned": a, "sinusoidal": b}}; got a {given}')
    rows = {name: replace(one, grid=None) for name, one in named_rows(tables, key).items()}
    looks, numbers = styles(list(rows)), how_alike(list(rows.values()))
    columns = 2 if len(rows) in (1, 2, 4) else 3
    side = (WIDTH - 4 - 14 * (columns - 1)) / columns
    below = -(-len(rows) // columns) * (side + 24) + 26
    height = below + 190 + (44 if numbers else 0)
    panels = panels_for(ax, title=title_of(title, "cosines between rows"), height=height)
    for index, (name, one) in enumerate(rows.items()):
        left, top = index % columns * (side + 14) + 2, index // columns * (side + 24) + 20
        at = panels.at(left=left, top=top, width=side, height=side)
        bare(similarity(one, ax=at, colorbar=False, title=shortened(name, side)))
        entitle(at, at.get_title(loc="left"), looks[name].colour)
    where: dict[str, Any] = {"top": below, "width": (WIDTH - 2 * 36 - 22) / 2, "height": 140, "grid": "y"}
    words: dict[str, Any] = {"title": "mean cosine by distance", "x": "distance in rows"}
    draw_by_distance(panels.at(left=36, **where, **words), rows)
    words = {"title": "cumulative variance share", "x": "direction, strongest first"}
    draw_shares(panels.at(left=WIDTH - where["width"] - 8, **where, **words), spectra_of(rows))
    if numbers is not None:
        write_numbers(panels, numbers, top=below + 180)
    return panels.axes


def how_alike(rows: Sequence[Rows]) -> TableComparison | None:
    """Compares two tables; None if there are not two, if their lengths differ, or if they cannot be compared."""
    if len(rows) != 2 or len(rows[0]) != len(rows[1]) or not all(one.spectrum and one.finite.all() for one in rows):
        return None
    return compare_tables(rows[0].values, rows[1].values) if len(rows[0]) > 2 else None


def write_numbers(panels: Panels, numbers: TableComparison, *, top: float) -> None:
    for left, (field, name) in zip((4, 168, 304), HOW_ALIKE.items(), strict=True):
        panels.heading(f"{name} {getattr(numbers, field):.2f}", left=left, top=top)
        floor = f"nothing shared: {getattr(numbers.floor, field):.2f}"
        panels.heading(floor, left=left, top=top + 16, color=MUTED, fontsize=TEXT - 1)


def bare(axes: Axes) -> Axes:
    """Removes ticks and names of axes from a small map."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(NullLocator())
    axes.set(xlabel="", ylabel="")
    return axes


@draws
def before_after(
    before: Source,
    after: Source,
    *,
    key: str | None = None,
    names: tuple[str, str] = ("before", "after"),
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draws a table before and after a change, such as training or a resize: values, cosines of its rows, and norms.

    Args:
        before, after: tables as in ``heatmap``. Their lengths may differ.
        key: the name of the table, if these are checkpoints or models with several tables.
        names: the two headings, which must differ.
        ax: the Axes that holds the panels, at least 6 x 8 inches. None means a new figure.
        title: as in ``heatmap``.

    Returns:
        The Axes, whose ``child_axes`` are the panels.

    Raises:
        ArgumentError, CheckpointError: as for ``heatmap``.

    Examples:
        >>> import torch
        >>> import posembed
        >>> table = torch.randn(64, 32)
        >>> ax = posembed.plots.before_after(table, posembed.resize_table(table, length=96, method="linear"))
    """
    two_texts = isinstance(names, tuple | list) and len(names) == 2 and all(isinstance(name, str) for name in names)
    if not two_texts or names[0] == names[1]:
        raise ArgumentError(f"names: expected two different names, got {names!r}")
    tables = named_rows({names[0]: before, names[1]: after}, key)
    left, between = room_for_rows(max(rows.last for rows in tables.values())), 36
    side = (WIDTH - left - between - 8) / 2
    panels = panels_for(ax, title=title or "", height=side + BEFORE_AFTER)
    for column, (name, rows) in enumerate(tables.items()):
        at = left + column * (side + between)
        panels.heading(shortened(name, side), left=at, top=0)
        drawn = [
            heatmap(rows, ax=panels.at(left=at, top=40, width=side, height=150)),
            similarity(
                replace(rows, grid=None),
                ax=panels.at(left=at, top=236, width=side, height=side),
                colorbar=False,
                title="cosines between rows, ± 1",
            ),
        ]
        for axes in drawn:
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
            axes.set_xlabel("")
            axes.set_ylabel(axes.get_ylabel() if column == 0 else "")
    below = panels.at(left=left, top=282 + side, width=2 * side + between, height=90, title="norms", x="row", grid="y")
    drawn_norms = draw_norms(below, tables, colours=(MUTED, SERIES[0]))
    if drawn_norms:
        short = [shortened(name, 0.36 * WIDTH) for name in drawn_norms]
        key_above(below, list(zip(short, below.get_lines(), strict=True)))
    return panels.axes


def frames(steps: Sequence[int], count: int = FRAMES) -> list[int]:
    """Chooses the first step, and steps evenly spread over the last 60% of those given, since little happens before."""
    last = len(steps) - 1
    middle = last * 0.4
    chosen = {round(middle + index * (last - middle) / (count - 2)) for index in range(count - 1)}
    return [steps[index] for index in sorted({0, *chosen})]


@draws
def during_training(
    tables: Mapping[int, Source], *, key: str | None = None, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draws one table at several training steps: the cosine of each pair of rows, and below them norms and spectra.

    Darker lines are later steps.

    Args:
        tables: the table by training step, each as in ``heatmap``. At most six steps are drawn.
        key: the name of the table, if these are checkpoints or models with several tables.
        ax: the Axes that holds the panels, at least 6 x 7 inches. None means a new figure.
        title: as in ``heatmap``.

    Returns:
        The Axes, whose ``child_axes`` are the panels.

    Raises:
        ArgumentError: there is no table, a step is not a whole number, or a table or ``ax`` has the wrong type.
        CheckpointError: as for ``heatmap``.

    Examples:
        >>> import torch
        >>> import posembed
        >>> noise, waves = torch.randn(64, 32), posembed.tables.sinusoidal_table(64, 32)
        >>> ax = posembed.plots.during_training({step: noise + step / 100 * waves for step in (0, 50, 100, 200)})
    """
    if not isinstance(tables, Mapping) or not tables:
        raise ArgumentError("expected tables by training step, such as {0: first, 100: last}; got none")
    by_step = by_number(tables, "training steps", Amount)
    side, between, above = 132, 22, 26
    drawn = frames(list(by_step))
    named = named_rows({f"{step}": by_step[step] for step in drawn}, key)
    chosen = dict(zip(drawn, named.values(), strict=True))
    below = -(-len(chosen) // 3) * (side + above) + 34
    panels = panels_for(ax, title=title or "", height=below + 110 + 42)
    wide = (WIDTH - 2 * 36 - 24) / 2
    row_norm, shares = (
        panels.at(left=left, top=below, width=wide, height=110, title=name, x=x, grid="y")
        for left, name, x in ((36, "norm of each row", "row"), (WIDTH - wide - 8, "variance by direction", "direction"))
    )
    for index, (step, rows) in enumerate(chosen.items()):
        at = {"left": index % 3 * (side + between), "top": above + index // 3 * (side + above)}
        panel = panels.at(**at, width=side, height=side)
        bare(similarity(replace(rows, grid=None), ax=panel, colorbar=False, title=f"step {step:,}"))
        look: dict[str, Any] = {"color": SERIES[0], "alpha": (index + 1) / len(chosen), "linewidth": 1.4}
        look |= {"marker": "o"} if len(rows) == 1 else {}
        row_norm.plot(rows.norms.numpy(), **look)
        if rows.spectrum is not None:
            held = rows.spectrum.variance_shares
            shares.plot(held.where(held >= LEAST_SHARE, float("nan")).numpy(), **look)
    for axes in (row_norm, shares):
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
    row_norm.set_ylim(bottom=0)
    row_norm.yaxis.set_major_locator(MaxNLocator(4))
    shares.set_yscale("log", nonpositive="mask")
    shares.set_ylim(LEAST_SHARE, 1.2)
    shares.yaxis.set_minor_locator(NullLocator())
    return panels.axes
