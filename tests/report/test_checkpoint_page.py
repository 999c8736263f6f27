"""The page about a checkpoint's tables: words made from the numbers, and pictures that fit every table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minilm import minilm_positions
from posembed.checkpoints.inspect import inspect_checkpoint
from posembed.errors import ArgumentError
from posembed.report.checkpoint import answer, render, shown_name, write_checkpoint_page
from posembed.report.checkpoint_pictures import (
    along_figure,
    components_figure,
    fourier_figure,
    grid_components_figure,
    grid_similarity_figure,
    thinned,
    wave_length,
)
from posembed.tables.fill import sinusoidal_table
from posembed.tables.spectrum import fourier_power, table_spectrum
from tiny_models import TEXT, saved, tiny_model


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
    assert f"{table.learned.directions_90} of " in text
    assert f"{table.learned.order_error:.1%} of pairs" in text
    for finding in table.findings:
        assert finding.what in text or "out." in text
    assert bool(table.findings) != ("No problems were found" in text)


def test_a_page_is_one_file_with_the_same_words_each_time(tmp_path: Path) -> None:
    report = inspect_checkpoint(text_model(tmp_path / "bert"))
    written = write_checkpoint_page(report, tmp_path / "page.html")
    page = written.read_text(encoding="utf-8")
    assert page == render(report)
    assert page.count("<svg") == 5
    assert "<script" not in page
    assert str(tmp_path) not in page
    with pytest.raises(ArgumentError, match="name another file"):
        write_checkpoint_page(report, tmp_path)


def test_a_model_without_a_table_says_so(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    LlamaModel(LlamaConfig(vocab_size=95, **sizes)).save_pretrained(tmp_path)
    page = render(inspect_checkpoint(tmp_path))
    assert "No position table was found: no length" in page
    assert "<svg" not in page


def test_a_grid_has_maps(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ViTModel(ViTConfig(image_size=64, patch_size=16, **sizes)).save_pretrained(tmp_path)
    page = render(inspect_checkpoint(tmp_path))
    assert "Which cells are similar" in page
    assert page.count("<svg") == 3


def test_names_are_escaped_and_tell_no_path() -> None:
    assert shown_name("sentence-transformers/all-MiniLM-L6-v2") == "sentence-transformers/all-MiniLM-L6-v2"
    assert shown_name(str(Path(__file__).parent)) == "tests/report"


def test_large_tables_are_thinned_to_what_is_drawn() -> None:
    for rows, step in ((10, 1), (512, 1), (513, 2), (5000, 10)):
        drawn, found = thinned(torch.arange(rows))
        assert found == step
        assert len(drawn) <= 512
        assert drawn[1] == step


def test_waves_are_named_by_their_length() -> None:
    positions = torch.arange(120.0)
    table = torch.stack([torch.sin(positions * 2 * torch.pi / 12), torch.cos(positions * 2 * torch.pi / 12)], dim=1)
    figure = components_figure(table_spectrum(table), first=0)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["direction 1: 50% of the variance, waves of about 12 rows", *titles[1:]]
    noise = components_figure(table_spectrum(torch.randn(120, 16)), first=0)
    # Waves that lengthen from 11 rows to 15.
    drifting = torch.sin(positions * 2 * torch.pi / (11 + positions / 60))
    assert wave_length(fourier_power(drifting[:, None])[:, 0], 120) == pytest.approx(13, abs=1)
    assert not any("wave" in axes.get_title(loc="left") for axes in noise.axes)


@pytest.mark.parametrize(
    "rows", [torch.zeros(20, 4), torch.ones(20, 4), sinusoidal_table(16, 2), torch.randn(700, 600)]
)
def test_any_table_can_be_drawn(rows: torch.Tensor) -> None:
    spectrum = table_spectrum(rows)
    along_figure(rows, first=2, marked=(2, 3, 9))
    components_figure(spectrum, first=2)
    fourier_figure(spectrum)
    grid = (4, len(rows) // 4)
    grid_similarity_figure(rows, grid)
    grid_components_figure(spectrum, grid)
