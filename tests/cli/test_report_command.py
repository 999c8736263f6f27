from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from made_up_runs import runs, save
from posembed.cli import app
from posembed.errors import ArgumentError, RunFolderError


def test_report_says_where_the_page_is(tmp_path: Path) -> None:
    folder = save(tmp_path, runs(1, ("rope", "alibi"))).path
    asked = CliRunner().invoke(app, ["report", str(folder)], catch_exceptions=False)
    assert (asked.exit_code, asked.stdout) == (0, f"report: {folder / 'report.html'}\n")
    assert (folder / "report.html").exists()
    asked = CliRunner().invoke(app, ["report", str(folder), "--out", str(tmp_path / "page.html")])
    assert asked.stdout == f"report: {tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_bytes() == (folder / "report.html").read_bytes()


def test_report_of_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        CliRunner().invoke(app, ["report", str(tmp_path)], catch_exceptions=False)
    save(tmp_path, runs(1, ("rope", "alibi")))
    with pytest.raises(ArgumentError, match="the reference 'xpos' was not run"):
        CliRunner().invoke(app, ["report", str(tmp_path), "--reference", "xpos"], catch_exceptions=False)
