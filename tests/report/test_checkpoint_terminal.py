"""What ``posembed inspect`` draws in a terminal: for which tables, how large, and in which colours."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

import posembed
from posembed.cli import checkpoints
from posembed.report.checkpoint_terminal import HALF, bars, colour, drawn, heat_map
from posembed.tables import sinusoidal_table
from tiny_models import IMAGE, saved, tiny_model


def test_a_heat_map_has_two_cells_in_a_character() -> None:
    rows = torch.eye(8).repeat_interleave(12, dim=0)  # 8 blocks, each of equal rows
    lines = heat_map(rows)
    assert [line.plain for line in lines] == ["  " + 48 * HALF] * 24
    red, white = colour(1.0), colour(0.0)
    for y, line in enumerate(lines):
        for x, span in enumerate(line.spans):
            assert span.style.color == (red if (2 * y) // 6 == x // 6 else white)
            assert span.style.bgcolor == (red if (2 * y + 1) // 6 == x // 6 else white)
    assert len(heat_map(rows[:7])) == 3  # an even number of cells on a side


def test_colours_and_bars() -> None:
    assert [tuple(colour(cosine).triplet) for cosine in (-1.0, 0.0, 1.0)] == [
        (33, 102, 172),
        (247, 247, 247),
        (178, 24, 43),
    ]
    assert bars(torch.tensor([0.0, 7.0, 3.4])) == "▁█▄"
    assert bars(torch.zeros(3)) == "▁▁▁"


def test_only_lines_of_positions_are_drawn(tmp_path: Path) -> None:
    save_file({"wpe.weight": sinusoidal_table(300, 16) + 0.1 * torch.randn(300, 16)}, tmp_path / "x.safetensors")
    [line] = posembed.inspect_checkpoint(tmp_path / "x.safetensors").tables
    assert len(drawn(line, colours=True)) == 27
    assert drawn(line, colours=False)[0].plain.startswith("  cosine by distance, ")
    [grid] = posembed.inspect_checkpoint(saved(tiny_model("vit", IMAGE), tmp_path / "vit")).tables
    assert drawn(grid, colours=True) == []


@pytest.mark.parametrize(
    ("terminal", "plain", "shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_terminal_gets_the_picture(terminal: bool, plain: bool, shown: bool, tmp_path: Path) -> None:
    save_file({"wpe.weight": torch.randn(64, 16)}, tmp_path / "x.safetensors")
    console = Console(force_terminal=terminal, record=True, width=100, file=SimpleNamespace(write=len, flush=int))
    checkpoints.print_report(console, posembed.inspect_checkpoint(tmp_path / "x.safetensors"), plain=plain)
    assert ("cosine by distance, from 1" in console.export_text()) == shown
