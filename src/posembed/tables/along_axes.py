"""What a table learned along its axes: whether neighbouring rows are alike, and how relative rows depend on distance.

These measures compare the rows of a table with each other along one axis at a time. One number per row is enough, as in
the attention biases of one head, where cosines of rows mean little.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posembed.tables.layout import TableLayout, are_sides

DISTANCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class AlongAxis:
    """Measures of a table along one axis, from -1 to 1.

    neighbours: the correlation of neighbouring rows: 1 - mean |x[i + 1] - x[i]|^2 / (2 variance). It is near 1 for
    values that change slowly, and 0 on average for random values. opposites: the correlation of each difference with
    the opposite difference, 1 if the direction does not matter; None for an axis without signed differences.
    """

    axis: str
    neighbours: float
    opposites: float | None = None


def differences(layout: TableLayout) -> tuple[Tensor, ...]:
    """Returns the differences, distances or indices of the rows along each dimension of ``layout.shape``, int64.

    Examples:
        >>> from posembed.tables import Axis, TableLayout
        >>> from posembed.tables.along_axes import differences
        >>> differences(TableLayout(axes=(Axis("height", 3, relative=True),)))
        (tensor([-2, -1,  0,  1,  2]),)
    """
    if are_sides(layout.axes):
        backward, forward = (axis.size for axis in layout.axes)
        return (torch.arange(-backward, forward),)
    signed = (axis.relative and axis.signed for axis in layout.axes)
    sizes = (axis.size for axis in layout.axes)
    return tuple(torch.arange(1 - n if both else 0, n) for n, both in zip(sizes, signed, strict=True))


def along_axes(rows: Tensor, layout: TableLayout) -> tuple[AlongAxis, ...]:
    """Measures the rows (N, D) of positions along each axis with two rows or more. The two sides of limited differences
    (see ``TableLayout``) count as one axis.

    Examples:
        >>> from posembed.tables import Axis, TableLayout, sinusoidal_table
        >>> from posembed.tables.along_axes import along_axes
        >>> [time] = along_axes(sinusoidal_table(16, 32), TableLayout(axes=(Axis("time", 16),)))
        >>> time.axis, round(time.neighbours, 2)
        ('time', 0.9)
    """
    shape = layout.shape
    cells = rows.detach().to("cpu", torch.float64).reshape(*shape, rows.shape[1])
    cells = cells - cells.mean(dim=tuple(range(len(shape))))
    cells = cells / cells.abs().amax().clamp(min=torch.finfo(cells.dtype).tiny)
    named = ["difference"] if are_sides(layout.axes) else [axis.name for axis in layout.axes]
    measured = []
    for dim, (name, steps) in enumerate(zip(named, differences(layout), strict=True)):
        if len(steps) < 2:
            continue
        reach = min(-int(steps[0]), int(steps[-1]))  # differences whose opposite has a row too
        zero = -int(steps[0])
        opposites = None
        if reach > 0:
            forward = cells.narrow(dim, zero + 1, reach)
            opposites = correlation(forward, cells.narrow(dim, zero - reach, reach).flip(dim))
        first, second = (cells.narrow(dim, start, len(steps) - 1) for start in (0, 1))
        measured.append(AlongAxis(name, one_less_difference(first, second, cells), opposites))
    return tuple(measured)


def one_less_difference(first: Tensor, second: Tensor, cells: Tensor) -> float:
    """Returns 1 - mean |first - second|^2 / (2 variance of ``cells``), at least -1; 0 if the variance is 0."""
    variance = cells.square().mean().item()
    return max(1 - (first - second).square().mean().item() / (2 * variance), -1.0) if variance > 0 else 0.0


def correlation(first: Tensor, second: Tensor) -> float:
    """Returns the correlation of two centred tensors; 0 if either has no variance."""
    scale = (first.square().sum() * second.square().sum()).sqrt().item()
    return (first * second).sum().item() / scale if scale > 0 else 0.0


def by_distance(rows: Tensor, layout: TableLayout) -> tuple[tuple[int, float], ...]:
    """Returns the distances 0, 1, 2, 4 ..., each with the mean at this distance of the biases (N, H) of H heads.

    On a grid, the distance is the larger of the distances along both axes.

    Examples:
        >>> import torch
        >>> from posembed.tables import Axis, TableLayout
        >>> from posembed.tables.along_axes import by_distance
        >>> by_distance(torch.tensor([[1.0], [5], [3]]), TableLayout(axes=(Axis("width", 2, relative=True),)))
        ((0, 5.0), (1, 2.0))
    """
    steps = torch.meshgrid(*differences(layout), indexing="ij")
    distances = torch.stack([step.abs() for step in steps]).amax(dim=0).flatten()
    means = rows.detach().to("cpu", torch.float64).mean(dim=1)
    wanted = [distance for distance in DISTANCES if distance <= int(distances.max())]
    return tuple((distance, means[distances == distance].mean().item()) for distance in wanted)
