"""What ``posembed inspect`` draws in a terminal: for which tables, how large, and in which colours."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

import posembed
from posembed.checkpoints.inspect import TableReport
from posembed.cli import checkpoints
from posembed.report.checkpoint_terminal import BARS, HALF, bars, colour, drawn, heat_map
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


def terminal(*, encoding: str = "utf-8", **options: Any) -> Console:
    given = {"force_terminal": True, "color_system": "truecolor", "width": 100, "legacy_windows": False, **options}
    return Console(**given, record=True, file=io.TextIOWrapper(io.BytesIO(), encoding=encoding))


def inspected(table: torch.Tensor, folder: Path) -> TableReport:
    save_file({"wpe.weight": table}, folder / "x.safetensors")
    [report] = posembed.inspect_checkpoint(folder / "x.safetensors").tables
    return report


def test_only_lines_of_positions_are_drawn(tmp_path: Path) -> None:
    line = inspected(sinusoidal_table(300, 16) + 0.1 * torch.randn(300, 16), tmp_path)
    assert len(drawn(line, terminal())) == 27
    for colourless in (terminal(no_color=True), terminal(color_system=None)):
        assert drawn(line, colourless)[0].plain.startswith("  cosine by distance, ")
    assert drawn(line, terminal(encoding="cp1252")) == []
    [grid] = posembed.inspect_checkpoint(saved(tiny_model("vit", IMAGE), tmp_path / "vit")).tables
    assert drawn(grid, terminal()) == []
    console = terminal()
    checkpoints.print_report(console, posembed.inspect_checkpoint(tmp_path / "vit"), plain=False)
    assert not console.export_text().endswith("\n\n")


@pytest.mark.parametrize("width", [4, 21, 40, 80])
def test_a_picture_fits_into_the_terminal(width: int, tmp_path: Path) -> None:
    lines = drawn(inspected(torch.randn(300, 16), tmp_path), terminal(width=width))
    pictured = [line.plain for line in lines if set(line.plain) & {HALF, *BARS}]
    assert len(pictured) == (min(width - 2, 48) // 2) + 1
    assert max(map(len, pictured)) <= width


@pytest.mark.parametrize("rows", [2, 3, 8, 9, 63, 2049, 9000])
@pytest.mark.parametrize("wrong", [0.0, torch.nan, torch.inf])
def test_a_table_of_any_size_and_values_is_reported(rows: int, wrong: float, tmp_path: Path) -> None:
    table = torch.randn(rows, 16)
    table[rows // 10 * 9] = wrong
    console = terminal(width=200)
    inspected(table, tmp_path)
    checkpoints.print_report(console, posembed.inspect_checkpoint(tmp_path / "x.safetensors"), plain=False)
    assert f"{rows} rows of 16" in console.export_text().replace(",", "")


@pytest.mark.parametrize(
    ("in_terminal", "plain", "shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_terminal_gets_the_picture(in_terminal: bool, plain: bool, shown: bool, tmp_path: Path) -> None:
    save_file({"wpe.weight": torch.randn(64, 16)}, tmp_path / "x.safetensors")
    console = Console(
        force_terminal=in_terminal, record=True, width=100, file=SimpleNamespace(write=len, flush=int, encoding="utf-8")
    )
    checkpoints.print_report(console, posembed.inspect_checkpoint(tmp_path / "x.safetensors"), plain=plain)
    assert ("cosine by distance, from 1" in console.export_text()) == shown
