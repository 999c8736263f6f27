"""Figures do not mislead: no tokens as positions, no wall that is not there, no scores as weights, no lost outliers."""

from __future__ import annotations

from typing import Any

import matplotlib
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

import posembed
from plots.drawings import OF_ONE
from posembed import plots
from posembed.errors import ArgumentError
from posembed.plots.tables import kept_in_lines
from together import together


@together("figure", OF_ONE.values())
@together("name", ["embed", "emb", "embedding", "tokens"])
def test_the_token_table_of_a_model_without_positions_is_not_drawn(figure: Any, name: str) -> None:
    model = nn.ModuleDict({name: nn.Embedding(30, 8), "head": nn.Linear(8, 30)})
    with pytest.raises(ArgumentError, match="expected one position table"):
        figure(model, ax=Figure().add_subplot())


@pytest.mark.parametrize(
    "encoding",
    [
        posembed.RollingPositionalEmbedding(window=8, dim=16),
        posembed.layers.ExtendedPositionalEmbedding(max_len=8, dim=16, method="tile"),
    ],
    ids=lambda encoding: type(encoding).__name__,
)
def test_no_wall_for_an_encoding_that_does_not_end(encoding: posembed.PositionEncoding) -> None:
    with pytest.raises(ArgumentError, match="ends at its last row"):
        plots.idea(encoding, ax=Figure().add_subplot())
    plots.heatmap(encoding, ax=Figure().add_subplot())


@pytest.mark.parametrize("rows", [1, 2047, 2048, 2049, 4098, 20_001])
def test_the_extremes_of_every_line_are_drawn(rows: int) -> None:
    values = torch.randn(rows, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    kept = kept_in_lines(values)
    assert len(kept) <= 2048
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert (values[kept].min(), values[kept].max()) == (values.min(), values.max())


def test_rows_stand_at_their_numbers_whatever_rcparams_say() -> None:
    with matplotlib.rc_context({"image.origin": "lower"}):
        (image,) = plots.similarity(torch.randn(8, 4), ax=Figure().add_subplot()).images
    assert image.origin == "upper"


def test_a_long_name_loses_its_beginning() -> None:
    long = "runs/" + "x" * 60 + "/checkpoint"
    axes = plots.norms({long: torch.randn(8, 4), "short": torch.randn(8, 4)})
    names = {text.get_text() for text in axes.texts}
    assert "short" in names
    assert any(name.startswith("…") and long.endswith(name[1:]) for name in names)
