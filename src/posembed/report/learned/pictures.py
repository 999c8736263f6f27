"""Pictures of a learned table before and after training: values, cosines between rows, norms."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from posembed.report.drawing import INK, MUTED, RULE, SERIES, TEXT, WIDTH, axes_at, new_figure
from posembed.tables.similarity import cosine_matrix

COLOURS = "RdBu_r"
"""Blue below zero, white at zero, red above."""
HEIGHT = 590
LEFT, SIDE, BETWEEN = 40, 178, 36


def norms(rows: Tensor) -> Tensor:
    """Returns the norms (N,) of rows (N, D), in float64."""
    return rows.double().norm(dim=1)


def table_figure(initial: Tensor, final: Tensor) -> Figure:
    """Draws rows (N, D) at initialisation and after training: values, cosines, norms."""
    figure = new_figure(HEIGHT)
    for column, (title, rows) in enumerate((("at initialisation", initial), ("after training", final))):
        left = LEFT + column * (SIDE + BETWEEN)
        figure.text(left / WIDTH, 1 - 14 / HEIGHT, title, fontsize=TEXT, color=INK)
        largest = rows.abs().max().item()
        values = axes_at(figure, left=left, top=40, width=SIDE, height=150)
        image(values, rows.T, largest or 1.0, title=f"values, ± {largest:.2g}")
        alike = axes_at(figure, left=left, top=236, width=SIDE, height=SIDE)
        image(alike, cosine_matrix(rows), 1.0, title="cosine of two rows, ± 1")
        if column == 0:
            values.set_ylabel("dimension", fontsize=TEXT - 1, color=MUTED)
            alike.set_ylabel("row", fontsize=TEXT - 1, color=MUTED)
    norms_below = axes_at(figure, left=LEFT, top=460, width=2 * SIDE + BETWEEN, height=90)
    _norms(norms_below, initial, final)
    return figure


def image(
    axes: Axes,
    values: Tensor,
    largest: float,
    *,
    title: str,
    extent: tuple[float, float, float, float] | None = None,
) -> None:
    """Draws values (H, W) as colours. ``extent``: the axes' values at (left, right, bottom, top)."""
    small_title(axes, title)
    axes.imshow(
        values.float().numpy(),
        cmap=COLOURS,
        vmin=-largest,
        vmax=largest,
        aspect="auto",
        interpolation="nearest",
        extent=extent,
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))


def _norms(axes: Axes, initial: Tensor, final: Tensor) -> None:
    small_title(axes, "norms")
    for text, rows, colour in (("at initialisation", initial, MUTED), ("after training", final, SERIES[0])):
        lengths = norms(rows).numpy()
        axes.plot(lengths, color=colour, linewidth=1.6, label=text)
    axes.set_xlim(-0.5, len(final) - 0.5)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.grid(axis="y", color=RULE, linewidth=0.5)
    axes.set_xlabel("row", fontsize=TEXT - 1, color=MUTED)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=2,
        frameon=False,
        fontsize=TEXT - 1,
        labelcolor="linecolor",
        borderaxespad=0,
        handlelength=1.2,
    )


def small_title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=TEXT - 1, color=MUTED, pad=5)
