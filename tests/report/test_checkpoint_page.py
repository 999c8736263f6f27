"""The page about a checkpoint's tables: words made from the numbers, and pictures that fit every table."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from minilm import minilm_positions
from posembed import plots
from posembed.checkpoints.buckets import Bucket
from posembed.checkpoints.inspect import inspect_checkpoint
from posembed.errors import ArgumentError
from posembed.plots.biases import bias_lines, bias_maps, bucket_lines, layer_line
from posembed.plots.source import Rows
from posembed.plots.spectra import wave_length
from posembed.report.checkpoint import answer, render, shown_name
from posembed.report.checkpoint_pictures import figures
from posembed.report.page import write_page
from posembed.tables.fill import sinusoidal_table
from posembed.tables.spectrum import fourier_power
from tiny_models import TEXT, saved, tiny_model
from together import together


def text_model(folder: Path) -> Path:
    """A tiny BERT with the first rows and columns of a trained table."""
    model = tiny_model("bert", TEXT)
    table = model.embeddings.position_embeddings.weight
    table.data.copy_(minilm_positions()[: table.size(0), : table.size(1)])
    return saved(model, folder)


def test_the_answer_says_what_stands_out_and_what_was_learned(tmp_path: Path) -> None:
    report = inspect_checkpoint(text_model(tmp_path / "bert"))
    (table,) = report.tables
    assert table.learned is not None
    (text,) = answer(report)
    assert f"{table.table.length} positions of width {table.table.width}" in text
    assert f"{table.learned.directions_90} directions hold 90% of the variance." in text
    assert f"{table.learned.order_error:.1%} of pairs" in text
    for finding in table.findings:
        assert finding.what in text or "out." in text
    assert bool(table.findings) != ("No problems were found" in text)


def test_a_page_is_one_file_with_the_same_words_each_time(tmp_path: Path) -> None:
    report = inspect_checkpoint(text_model(tmp_path / "bert"))
    written = write_page(tmp_path / "page.html", render(report))
    page = written.read_text(encoding="utf-8")
    assert page == render(report)
    assert page.count("<svg") == 5
    assert "<script" not in page
    assert str(tmp_path) not in page
    with pytest.raises(ArgumentError, match="name another file"):
        write_page(tmp_path, page)


def test_a_model_without_a_table_says_so(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    LlamaModel(LlamaConfig(vocab_size=95, **sizes)).save_pretrained(tmp_path)
    page = render(inspect_checkpoint(tmp_path))
    assert "No position table was found: the model rotates queries and keys" in page
    assert "<svg" not in page


SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
PIXELS = {**SIZES, "image_size": 32, "patch_size": 8}
WINDOWS = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [3, 1], "num_heads": [2, 2], "window_size": 4}


@pytest.mark.parametrize(
    ("family", "settings", "shown", "words"),
    [
        ("swin", WINDOWS, {"What each head adds": 1, "The layers": 1}, ["7 x 7 differences", "bias by distance"]),
        ("timesformer", {**PIXELS, "num_frames": 6}, {"from its first row": 1, "Which cells": 1}, ["along time"]),
        ("sam_vision_model", {**PIXELS, "output_channels": 8, "mlp_dim": 8, "window_size": 2, "num_pos_feats": 4},
         {"from its first row": 4, "Which cells": 1}, ["a vector for each difference", "both directions"]),
    ],
)  # fmt: skip
def test_each_kind_of_table_has_its_pictures_and_measures(
    family: str, settings: dict[str, Any], shown: dict[str, int], words: list[str], tmp_path: Path
) -> None:
    page = render(inspect_checkpoint(saved(tiny_model(family, settings), tmp_path / "source")))
    assert {title: page.count(f"<h3>{title}") + page.count(f"<h3>The table {title}") for title in shown} == shown
    assert all(text in page for text in words)


@pytest.mark.parametrize("heads", [1, 6, 7, 16])
def test_biases_of_any_number_of_heads_have_their_figures(heads: int) -> None:
    biases, steps = torch.randn(35, heads).double(), torch.arange(-17, 18)
    buckets = [Bucket(0, None, -3), Bucket(1, -2, -1), Bucket(2, 0, None)]
    for figure in (
        bias_maps(biases, torch.arange(-2, 3), torch.arange(-3, 4)),
        bias_lines(biases, steps),
        bucket_lines(buckets, biases),
        layer_line([biases, torch.zeros(3, 2)]),
    ):
        figure.canvas.draw()


def test_names_are_escaped_and_tell_no_path() -> None:
    assert shown_name("sentence-transformers/all-MiniLM-L6-v2") == "sentence-transformers/all-MiniLM-L6-v2"
    assert shown_name(str(Path(__file__).parent)) == "tests/report"


def titles(rows: torch.Tensor) -> list[str]:
    return [panel.get_title(loc="left") for panel in plots.directions(rows, ax=Figure().subplots()).child_axes]


def test_waves_are_named_by_their_length() -> None:
    positions = torch.arange(120.0)
    table = torch.stack([torch.sin(positions * 2 * torch.pi / 12), torch.cos(positions * 2 * torch.pi / 12)], dim=1)
    assert titles(table)[0] == "direction 1: 50% of the variance, waves of about 12 rows"
    assert not any("wave" in title for title in titles(torch.randn(120, 16)))
    # Waves that lengthen from 11 rows to 15.
    drifting = torch.sin(positions * 2 * torch.pi / (11 + positions / 60))
    assert wave_length(fourier_power(drifting[:, None])[:, 0], 120) == pytest.approx(13, abs=1)
    between = torch.sin(torch.arange(256.0) * 2 * torch.pi / 100)[:, None]
    assert wave_length(fourier_power(between - between.mean())[:, 0], 256) == pytest.approx(100, rel=0.02)


def test_slopes_and_steps_are_no_waves() -> None:
    rows = torch.arange(256.0)
    for values in (rows, rows.sqrt(), rows**2, (rows > 128).float()):
        assert wave_length(fourier_power((values - values.mean())[:, None])[:, 0], 256) is None


TABLES = {
    "zeros": torch.zeros(20, 4),
    "ones": torch.ones(20, 4),
    "waves": sinusoidal_table(16, 2),
    "large": torch.randn(700, 600, generator=torch.Generator().manual_seed(0)),
}


def is_usual(kind: str, grid: bool) -> bool:
    return grid == (kind in ("zeros", "waves"))


@together("kind, grid", list(product(TABLES, [False, True])), usual=is_usual)
def test_any_table_has_its_figures(kind: str, grid: bool) -> None:
    rows = TABLES[kind]
    drawn = dict(figures(Rows(rows.double(), 2, (4, len(rows) // 4) if grid else None), marked=(2, 3, 9)))
    assert len(drawn) == (3 if grid else 5)
    for figure in drawn.values():
        figure.canvas.draw()
