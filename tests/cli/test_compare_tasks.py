"""posembed compare tasks, on problems: what comes on stdout, and what is refused before anything trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from posembed.cli import app
from posembed.errors import ArgumentError
from posembed.lab.tasks.problem_texts import PROBLEMS

SMALL = "--train-size 3 --test-sizes 2,5 --layers 1 --width 8 --heads 2 --steps 2 --batch 2 --test-problems 4"


def asked(words: str, out: Path) -> str:
    done = CliRunner().invoke(
        app, ["compare", "tasks", *words.split(), *SMALL.split(), "--out", str(out)], catch_exceptions=False
    )
    assert done.exit_code == 0
    return done.stdout


def test_from_problem_to_table_to_page(tmp_path: Path) -> None:
    out = asked("addition --encodings learned,coupled", tmp_path)
    assert "Exact match in percent, addition, by digits; trained up to 3" in out
    assert "coupled" in out
    summary = json.loads(asked("addition --encodings learned,coupled --json", tmp_path))
    assert [row["encoding"] for row in summary["rows"]] == ["learned", "coupled"]
    assert summary["rows"][0]["exact_match"]["5"] is None


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_problem_has_a_command_that_says_what_it_would_take(problem: str, tmp_path: Path) -> None:
    out = asked(f"{problem} --encodings alibi --dry-run", tmp_path / "runs")
    assert out.startswith(f"{problem}: ")
    assert "nothing was trained" in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("sorting --encodings abacus", "abacus ids do not apply to sorting"),
        ("copy --encodings coupled", "they apply to reverse and addition"),
        ("parity --encodings ropes", "unknown encoding 'ropes' for parity"),
        ("parity --seeds 0", "at least one encoding and one seed"),
        ("parity --width 9 --encodings alibi", "width 9 is not divisible by 2 heads"),
    ],
)
def test_a_mistake_is_said_before_anything_trains(words: str, message: str, tmp_path: Path) -> None:
    command = ["compare", "tasks", *words.split()[:1], *SMALL.split(), *words.split()[1:], "--out", str(tmp_path)]
    with pytest.raises(ArgumentError, match=message):
        CliRunner().invoke(app, command, catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("problem", PROBLEMS)
def test_where_runs_go_and_who_follows_them_is_heard(problem: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="unknown tracker 'excel'"):
        asked(f"{problem} --encodings alibi --track excel", tmp_path / "runs")
    with pytest.raises(ArgumentError, match="leave out --on, or leave out --track"):
        asked(f"{problem} --encodings alibi --track tensorboard --on ray", tmp_path / "runs")
