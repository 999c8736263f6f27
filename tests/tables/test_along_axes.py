"""Measures along axes, against plain loops over cells."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from posembed.tables import Axis, TableLayout
from posembed.tables.along_axes import along_axes, by_distance, differences
from posembed.tables.health import check_relative
from together import together
from tolerance import assert_close

SIDES = (Axis("backward", 5, True, False), Axis("forward", 3, True, False))
LAYOUTS = [
    TableLayout(axes=(Axis("time", 6),)),
    TableLayout(axes=(Axis("frequency", 3), Axis("time", 5))),
    TableLayout(axes=(Axis("time", 2), Axis("height", 3), Axis("width", 1))),
    TableLayout(axes=(Axis("height", 4, relative=True),)),
    TableLayout(axes=(Axis("height", 3, relative=True), Axis("width", 4, relative=True))),
    TableLayout(axes=(Axis("height", 3, True, False), Axis("width", 3, True, False))),
    TableLayout(axes=SIDES),
]


def table_in(layout: TableLayout, dim: int = 3) -> Tensor:
    torch.manual_seed(len(layout.shape))
    return torch.randn(int(np.prod(layout.shape)), dim)


@together("layout", LAYOUTS)
@together("dim", [1, 3])
def test_neighbours_and_opposites_are_those_of_plain_loops(layout: TableLayout, dim: int) -> None:
    rows = table_in(layout, dim)
    steps = [step.tolist() for step in differences(layout)]
    centred = rows.double().numpy() - rows.double().numpy().mean(axis=0)
    cells = dict(zip(product(*steps), centred, strict=True))
    variance = np.mean(centred**2)
    expected = []
    for at, along in enumerate(steps):
        if len(along) < 2:
            continue
        moved = [(cell, (*cell[:at], cell[at] + 1, *cell[at + 1 :])) for cell in cells]
        squares = [(cells[here] - cells[there]) ** 2 for here, there in moved if there in cells]
        mirrored = [(cell, (*cell[:at], -cell[at], *cell[at + 1 :])) for cell in cells if cell[at] > 0]
        pairs = [(cells[here], cells[there]) for here, there in mirrored if there in cells]
        opposites = None
        if pairs:
            first, second = (np.array(side) for side in zip(*pairs, strict=True))
            opposites = (first * second).sum() / np.sqrt((first**2).sum() * (second**2).sum())
        expected.append((max(1 - np.mean(squares) / (2 * variance), -1), opposites))
    measured = along_axes(rows, layout)
    assert_close([each.neighbours for each in measured], [each for each, _ in expected], scale=1)
    assert [each.opposites for each in measured] == [
        None if each is None else pytest.approx(each) for _, each in expected
    ]
    again = along_axes(-1e30 * rows.double() + 7e30, layout)
    assert_close([each.neighbours for each in again], [each.neighbours for each in measured], scale=7**2)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.axes[0].relative], ids=str)
def test_by_distance_is_the_mean_of_all_cells_at_that_distance(layout: TableLayout) -> None:
    rows = table_in(layout)
    cells = list(product(*(step.tolist() for step in differences(layout))))
    means = by_distance(rows, layout)
    assert [distance for distance, _ in means] == [d for d in (0, 1, 2, 4) if d <= max(max(map(abs, c)) for c in cells)]
    for distance, mean in means:
        held = [row.mean().item() for row, cell in zip(rows, cells, strict=True) if max(map(abs, cell)) == distance]
        assert_close(mean, np.mean(held), dtype=torch.float32)


def test_what_is_smooth_random_symmetric_or_constant() -> None:
    layout = TableLayout(axes=(Axis("height", 20, relative=True), Axis("width", 30, relative=True)))
    height, width = (step.double() for step in differences(layout))
    distance = (height[:, None].abs() + width.abs()).flatten()[:, None]
    for smooth in along_axes(distance, layout):
        assert smooth.neighbours > 0.97
        assert_close(smooth.opposites, 1)
    down, across = along_axes((height[:, None] + 0 * width).flatten()[:, None], layout)
    assert (down.opposites, across.opposites) == (pytest.approx(-1), pytest.approx(1))
    assert all(abs(each.neighbours) < 0.1 for each in along_axes(table_in(layout), layout))
    assert all(each.neighbours == each.opposites == 0 for each in along_axes(torch.ones(39 * 59, 2), layout))


def test_relative_rows_may_be_small_but_not_zero_or_broken() -> None:
    rows = table_in(LAYOUTS[4])
    rows[4] *= 1e-6
    assert check_relative(rows) == ()
    rows[[1, 3]] = 0
    rows[2, 0] = torch.inf
    assert [(finding.what, finding.rows) for finding in check_relative(rows)] == [
        ("not finite", (2,)),
        ("never trained", (1, 3)),
    ]
    (every,) = check_relative(torch.zeros(9, 2))
    assert every.rows == tuple(range(9))
