"""What a comparison learned, drawn in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from matplotlib import pyplot

import made_up_inits
from made_up_runs import run, runs, save
from posembed import plots
from posembed.comparison import Comparison
from posembed.errors import ArgumentError
from posembed.lab.questions import QUESTIONS
from posembed.plots.by_length import lines_by_x, lines_of
from posembed.plots.charts import Line, draw_chart
from posembed.statistics import Estimate


def comparison(folder: Path, *results: object) -> Comparison:
    question = QUESTIONS["lengths"]
    return Comparison(question, save(folder, list(results)).path, list(results), question.summarise(list(results)))


def test_lengths_of_a_comparison(tmp_path: Path) -> None:
    answer = comparison(tmp_path, *runs(2), run("none", failure="the loss was nan at step 9 of 700"))
    for given in (answer, answer.summary):
        words = [text.get_text() for text in plots.lengths(given).texts]
        assert {"alibi", "rolling", "trained", "learned ✕ 64"} <= set(words)
        assert not any("none" in word for word in words)


def test_plain_numbers_give_the_lines_of_a_comparison(tmp_path: Path) -> None:
    answer = comparison(tmp_path, *runs(1))
    values = {
        name: {x: mean and mean.value for x, mean in answer.summary.by_x(answer.summary.headline, name).items()}
        for name in answer.summary.names
    }

    def shown(lines: list[Line]) -> list[object]:
        return [(line.name, line.end, [(x, at.value) for x, at in line.points.items()]) for line in lines]

    measured = lines_by_x(answer.summary, answer.summary.headline, answer.summary.names, 64)
    assert shown(lines_of(values, 64)) == shown(measured)
    assert shown(lines_of(values, None)) == shown(measured)


@pytest.mark.parametrize("low", [0.0, 0.5, 0.97, 1.0])
def test_no_share_is_above_all(low: float) -> None:
    axes = pyplot.figure().subplots()
    lines = [Line.of("rope", {64: Estimate(1.0), 128: Estimate(low)})]
    draw_chart(axes, lines, names=["rope"], ticks=[64, 128])
    ticks = axes.get_yticks()
    assert ticks[-1] == 100
    assert len(ticks) > 1
    assert axes.get_ylim()[0] <= min(ticks[0], 100 * low)
    pyplot.close()


def test_other_comparisons_have_no_lengths() -> None:
    results = made_up_inits.typical(2)
    question = QUESTIONS["inits"]
    with pytest.raises(ArgumentError, match="expected a comparison of lengths"):
        plots.lengths(Comparison(question, Path("runs"), results, question.summarise(results)))


def test_what_was_learned_is_drawn(tmp_path: Path) -> None:
    answer = comparison(tmp_path, *runs(2))
    tables = answer.learned_tables()
    assert set(tables) == {"learned", "rolling"}
    for by_step in tables.values():
        assert list(by_step)[:1] + list(by_step)[-1:] == [0, 700]
        assert plots.during_training(by_step).child_axes
        plots.before_after(by_step[0], by_step[700])
    attention = answer.attention()
    assert set(attention) == {row.name for row in answer.summary.rows}
    assert attention["rope"].shape == (3, 4, 64)
    assert len(plots.attention_by_distance(attention["rope"]).child_axes) == 3
    assert torch.equal(attention["rope"], comparison(tmp_path / "again", *runs(2)).attention()["rope"])
