from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from made_up_runs import run, runs, save
from posembed.lab.runs.tensors import snapshot_steps
from posembed.plots.several import frames
from posembed.report import learned
from posembed.report.svg import svg_for_page
from tolerance import assert_close


def texts(figure: Figure) -> list[str]:
    svg = svg_for_page(figure, name="test", described="a figure")
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def tables(*, moving: int, steps: int = 600) -> dict[int, Tensor]:
    """Of 12 rows, of which the first so many move; one more with every step that is kept."""
    start = torch.randn(12, 8)
    kept = [0, *snapshot_steps(steps), steps]
    found = {step: start.clone() for step in kept}
    for place, step in enumerate(kept):
        found[step][: min(moving, place)] += step
    return found


@pytest.mark.parametrize("steps", [[0, 1], [0, 1, 2], [0, 1, 2, 3, 5], [0, *snapshot_steps(600), 600]])
def test_frames_are_the_first_the_last_and_some_between(steps: list[int]) -> None:
    chosen = frames(steps)
    assert chosen == sorted(set(chosen))
    assert (chosen[0], chosen[-1]) == (0, steps[-1])
    assert len(chosen) <= 6
    if len(steps) > 8:
        assert len(chosen) == 6


def by_step(by_name: dict[str, dict[int, Tensor]]) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", learned.measures_picture(by_name).svg)


def test_the_numbers_along_the_training_with_a_line_a_table() -> None:
    words = by_step({"a": tables(moving=12), "b": tables(moving=12)})
    assert words.count("a") == words.count("b") == len(learned.MEASURES)
    zeros = {0: torch.zeros(4, 6), 1: torch.randn(4, 6), 3: torch.randn(4, 6)}
    large = {step: 100 * torch.randn(4, 6) for step in (0, 1, 3)}
    words = by_step({"zero": zeros, "large": large})
    assert words.count("zero") == len(learned.MEASURES)
    assert by_step({"alone": large}).count("alone") == 0


def test_rows_that_were_never_trained_are_named() -> None:
    assert learned.untrained_rows(tables(moving=12), 600) == []
    assert learned.untrained_rows(tables(moving=9), 600) == [9, 10, 11]
    assert learned.untrained_rows(tables(moving=9), 1) == list(range(1, 12))
    assert learned.which_were_trained(tables(moving=12)) == "Training changed all 12 rows."
    assert learned.which_were_trained(tables(moving=9)) == "Training changed 9 of 12 rows, but not rows 9, 10, 11."
    assert learned.which_were_trained(tables(moving=11)) == "Training changed 11 of 12 rows, but not row 11."
    assert "0, 1, 2, 3, 4 and others" in learned.which_were_trained(tables(moving=0))


def test_the_mean_norm_against_float64() -> None:
    rows = torch.randn(7, 5)
    expected = [math.sqrt(sum(x * x for x in row)) for row in rows.double().tolist()]
    assert_close(learned.MEASURES["mean norm of the rows"]({0: rows}, 0), math.fsum(expected) / 7)


def test_pictures_of_a_folder(tmp_path: Path) -> None:
    results = [run("learned", failure="the loss was nan at step 9 of 700"), *runs(2, ("rolling", "rope"))]
    folder = save(tmp_path, results)
    titles = [picture.title for picture in learned.table_pictures(folder, results[::-1])]
    assert titles == [
        "rolling, seed 0: 16 rows of 96",
        "rolling, during training",
        "The tables in numbers, during training",
    ]
    looking = learned.attention_pictures(folder, results)
    assert [picture.title for picture in looking] == ["rolling, seed 0", "rope, seed 0"]
    folder.file("attention", results[1].spec).unlink()
    titles = [picture.title for picture in learned.attention_pictures(folder, results)]
    assert titles == ["rope, seed 0", "rolling, seed 1"]


def test_the_sharpest_head() -> None:
    weights = torch.zeros(2, 3, 5)
    weights[:, :, 0] = 0.9
    weights[1, 2, 1] = 0.62
    said = learned.sharpest(weights)
    assert said == "The largest weight is in layer 2: head 3 gives 62% of its attention to distance 1."
    weights[0, 1, 4] = 0.7
    assert (
        learned.sharpest(weights)
        == "The largest weight is in layer 1: head 2 gives 70% of its attention to distance 4."
    )
    assert learned.sharpest(torch.ones(1, 1, 1)) == ""
