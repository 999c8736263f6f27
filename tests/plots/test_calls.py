"""Any call draws or says what is wrong before it touches an Axes: keys, names, numbers, titles."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import posembed
from plots.drawings import OF_SEVERAL, OF_TABLES, all_axes, title
from posembed import plots
from posembed.errors import ArgumentError
from posembed.plots.source import rows_of
from tiny_models import IMAGE, PAIR, saved, tiny_model
from together import together

TABLE = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))
NAMES = ["$\\lr 1e-3$", "_b", "runs/" + "x" * 60 + "/model", "two\nlines", "", "a; b", "5%"]
LINES: list[Callable[..., Axes]] = [plots.norms, plots.neighbours, plots.similarity_by_distance, plots.spectrum]


def layer() -> posembed.LearnedPositionalEmbedding:
    return posembed.LearnedPositionalEmbedding(max_len=12, dim=8)


def refused(draw: Callable[..., Axes], *args: Any, said: str, **how: Any) -> None:
    """Checks that a call is refused, and that its ``ax`` stays as it was."""
    ax = Figure().add_subplot()
    with pytest.raises(ArgumentError, match=said):
        draw(*args, ax=ax, **how)
    assert ax.axison
    assert not [*ax.child_axes, *ax.texts, *ax.lines, *ax.images]
    with pytest.raises(ArgumentError, match=said):
        draw(*args, **how)
    assert not plt.get_fignums()


# A model, a checkpoint and a module with several tables


def test_a_key_names_one_of_several_tables_in_every_figure(tmp_path: Any) -> None:
    model = tiny_model("bart", PAIR)
    pairs = nn.ModuleDict({"left": layer(), "right": layer()})
    key = "decoder.embed_positions.weight"
    sources = [(model, key), (saved(model, tmp_path), key), (pairs, "right")]
    for place, draw in enumerate(OF_SEVERAL.values()):
        for source, named in sources if place == 0 else [sources[place % 3]]:
            draw(source, key=named, ax=Figure().add_subplot())


@pytest.mark.parametrize("draw", LINES)
def test_a_key_is_for_the_sources_that_may_have_several_tables(draw: Callable[..., Axes]) -> None:
    pairs = nn.ModuleDict({"left": layer(), "right": layer()})
    tables = {"of a model": pairs, "a layer": layer(), "an embedding": nn.Embedding(12, 8), "rows": TABLE}
    draw(tables, key="left", ax=Figure().add_subplot())
    refused(draw, tables, key="middle", said="expected the key of one of these tables: 'left', 'right'")
    refused(draw, {"a layer": layer(), "rows": TABLE}, key="left", said="none of these is one")


@pytest.mark.parametrize(
    "around", [nn.Sequential, nn.DataParallel, lambda one: nn.ModuleDict({"a": nn.Sequential(one)})]
)
@pytest.mark.parametrize("kind", [("vit", IMAGE), ("bart", PAIR)])
def test_a_module_around_a_model_is_read_as_the_model(around: Callable[..., nn.Module], kind: Any) -> None:
    model = tiny_model(*kind)
    key = {"vit": "embeddings.position_embeddings", "bart": "encoder.embed_positions.weight"}[kind[0]]
    wrapped = around(model)
    (path,) = [name for name, one in wrapped.named_modules() if one is model]
    expected = rows_of(model, key)
    for found in (rows_of(wrapped, key), rows_of(wrapped, f"{path}.{key}")):
        assert torch.equal(found.values, expected.values)
        assert (found.first, found.grid) == (expected.first, expected.grid)
        assert found.first > 0


def test_one_of_several_models_is_named() -> None:
    models = nn.ModuleList([tiny_model("vit", IMAGE), tiny_model("vit", IMAGE)])
    with pytest.raises(ArgumentError, match="several tensors could be it"):
        rows_of(models)
    for index, model in enumerate(models):
        found = rows_of(models, f"{index}.embeddings.position_embeddings")
        assert torch.equal(found.values, rows_of(model).values)
        assert found.grid == rows_of(model).grid


# Names


@pytest.mark.parametrize("draw", [*LINES, plots.compare])
def test_any_names_are_written_as_they_are_and_stay_inside(draw: Callable[..., Axes]) -> None:
    axes = draw(dict.fromkeys(NAMES, TABLE))
    figure = axes.get_figure(root=True)
    assert figure is not None
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) > -0.01, drawn
    words = {text.get_text() for text in axes.texts} | {title(one) for one in all_axes(axes)}
    assert {"$\\lr 1e-3$", "_b", "two lines", "a; b", "5%"} <= words


@pytest.mark.parametrize("names", [NAMES[:2], NAMES[1:3], NAMES[2:4], ["", "_"], ["$", "$$"]])
def test_any_two_names_head_a_table_before_and_after(names: list[str]) -> None:
    axes = plots.before_after(TABLE, TABLE, names=(names[0], names[1]))
    axes.figure.canvas.draw()
    legend = axes.child_axes[-1].get_legend()
    assert legend is not None
    for text, name in zip(legend.get_texts(), names, strict=True):
        assert text.get_text().removeprefix("…") in name.replace("\n", " ")


@together("count", [13, 30])
@together("draw", [*LINES, lambda tables, **how: plots.lengths({name: {1: 2.0, 4: 3.0} for name in tables}, **how)])
def test_many_names_neither_overlap_nor_leave_the_figure(draw: Callable[..., Axes], count: int) -> None:
    tables = {f"table {index}": TABLE + index for index in range(count)}
    for ax in (None, plt.figure(figsize=(6, 2)).add_subplot()):
        axes = draw(tables, ax=ax)
        named = [text for text in axes.texts if text.get_text().startswith("table")]
        boxes = sorted((text.get_window_extent() for text in named), key=lambda box: box.y0)
        assert len(boxes) == count
        assert all(low.y0 + 0.4 * low.height <= high.y0 for low, high in pairwise(boxes))
        assert boxes[-1].y1 <= axes.get_window_extent().y1 + boxes[-1].height


# Numbers


@pytest.mark.parametrize("kind", [list, tuple, set, np.array, torch.tensor])
def test_rows_are_marked_in_any_order(kind: Callable[[list[int]], Any]) -> None:
    axes = plots.norms(TABLE, marked=kind([11, 5, 0]), ax=Figure().add_subplot())
    assert [text.get_text() for text in axes.texts] == ["0", "5", "11"]
    assert len(axes.lines) == 1 + 3


def test_a_row_of_no_position_may_be_marked() -> None:
    rows = posembed.LearnedPositionalEmbedding(max_len=12, dim=8, layout=posembed.tables.TableLayout.roberta())
    assert not plots.norms(rows, marked=[0], ax=Figure().add_subplot()).texts


@together("heading", [5, b"x", ["a"], 2.0])
@together("name", OF_TABLES)
def test_a_title_is_a_text(name: str, heading: Any) -> None:
    refused(OF_TABLES[name], TABLE, title=heading, said="title: expected a text")


# Steps, lengths and perplexities


def steps_shown(axes: Axes) -> list[str]:
    return [title(one) for one in axes.child_axes if title(one).startswith("step")]


def test_steps_are_drawn_in_their_order() -> None:
    for steps in ([0, 5, 100], [100, 0, 5], ["100", "5", "0"], [np.int64(5), torch.tensor(100), 0]):
        axes = plots.during_training(dict.fromkeys(steps, TABLE), ax=Figure().add_subplot())
        assert steps_shown(axes) == ["step 0", "step 5", "step 100"]


@together("length", ["64", np.int64(64), torch.tensor(64)])
@together("value", [3.0, 3, np.float32(3), np.float64(3), torch.tensor(3.0), np.array(3.0)])
def test_lengths_and_perplexities_of_any_library(length: Any, value: Any) -> None:
    axes = plots.lengths({"a": {length: value, 128: 4.0}}, trained=np.int64(64), ax=Figure().add_subplot())
    assert [list(line) for line in axes.lines[0].get_xydata()] == [[64, 3], [128, 4]]


# What is refused

WEIGHTS = torch.full((1, 2, 8), 1 / 8)
GRIDS = [(-3, -4), (3, 4.0), (3, 4, 1), 12, "34", (0, 12), (3, True)]
# fmt: off
OF_AN_ARGUMENT = {
    "names": (plots.before_after, (TABLE, TABLE), [("x",), ("x", "x"), ("x", "y", "z"), 5, None, "ab", (1, 2)]),
    "number": (plots.directions, (TABLE,), [0, -1, 2.5, "3", None, True]),
    "window": (plots.attention_by_distance, (WEIGHTS,), [0, -3, 2.5, "3", True]),
    "marked": (plots.norms, (TABLE,), [[12], [-1], [1.5], 5, None, "12", np.ones((2, 2)), [None]]),
    "trained": (plots.lengths, ({"a": {64: 3.0}},), [0, -5, "64", 64.0, True]),
    "grid": (plots.similarity, (TABLE,), GRIDS),
    "grid ": (plots.directions, (TABLE,), GRIDS),
}
OF_THE_DATA = {
    "training steps: expected": (plots.during_training, [dict.fromkeys(steps, TABLE) for steps in (
        ["first", "last"], [-1, 0], [1.5], [5, "5"], [None], [True], ["²"])]),
    "lengths: expected": (plots.lengths, [{"a": dict.fromkeys(keys, 3.0)} for keys in (
        [0, 64], [-5], [64.0], ["x"], [64, "64"], [None], [True])]),
    "for a at 64": (plots.lengths, [{"a": {64: value, 128: 1.0}} for value in (
        0, -1.0, 0.0, -math.inf, True, "3", torch.ones(2), torch.ones((), device="meta"), 1j)]),
    "expected attention weights": (plots.attention_by_distance, [
        torch.rand(0, 4, 16), [torch.rand(0, 4, 16, 16)], [torch.ones(1, 1, 0, 0)], torch.ones(2, 4, 16, device="meta"),
        [torch.ones(1, 4, 16, 16, device="meta")], torch.ones(2, 4, 16).int(), torch.ones(2, 4, 16) * 1j,
        torch.full((2, 4, 16), math.nan), torch.randn(1, 2, 8, 8), torch.rand(2, 8, 8), torch.rand(4, 4),
        [torch.rand(3, 4, 4)], [torch.rand(1, 2, 3, 4)], [], [None], None]),
}
# fmt: on


@together("name", OF_AN_ARGUMENT)
def test_an_argument_of_another_kind_is_refused(name: str) -> None:
    draw, given, values = OF_AN_ARGUMENT[name]
    for value in values:
        refused(draw, *given, **{name.strip(): value}, said=f"{name.strip()}: expected")


@together("said", OF_THE_DATA)
def test_data_of_another_kind_are_refused(said: str) -> None:
    draw, every = OF_THE_DATA[said]
    for data in every:
        refused(draw, data, said=said)


def test_a_grid_may_be_of_any_library_and_names_must_differ() -> None:
    for draw in (plots.similarity, plots.directions):
        assert draw(TABLE, grid=(np.int64(3), torch.tensor(4)), ax=Figure().add_subplot()).child_axes
    for draw in (*LINES, plots.compare):
        refused(draw, {1: TABLE, "1": TABLE}, said="different names")
