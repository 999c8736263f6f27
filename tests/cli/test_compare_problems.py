"""posembed compare tasks, on problems: what comes on stdout, and what is refused before anything trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posembed.lab.tasks.problem_texts import PROBLEMS
from together import together

SMALL = "--train-size 3 --test-sizes 2,5 --layers 1 --width 8 --heads 2 --steps 2 --batch 2 --test-problems 4"


def test_from_problem_to_table(posembed, tmp_path: Path) -> None:
    done = posembed(f"compare tasks addition {SMALL} --encodings learned,coupled --out", tmp_path)
    assert done.code == 0
    assert "Exact match in percent (higher is better), by digits" in done.out
    assert "coupled" in done.out
    summary = json.loads(
        posembed(f"compare tasks addition {SMALL} --encodings learned,coupled --json --out", tmp_path).out
    )
    assert [row["name"] for row in summary["rows"]] == ["learned", "coupled"]
    exact = {(one["run"], one["x"]): one["mean"] for one in summary["estimates"] if one["metric"] == "exact match"}
    assert exact["learned", 5] is None  # it has no row there
    assert exact["coupled", 5] is not None


def test_state_tracking_counts_wrong_reads(posembed, tmp_path: Path) -> None:
    command = f"compare tasks tracking {SMALL} --encodings learned,rope --json --out"
    summary = json.loads(posembed(command, tmp_path).out)
    metrics = {one["metric"] for one in summary["estimates"]}
    assert metrics == {f"share of wrong reads{tail}" for tail in ("", ", sparse tail", ", dense tail")}
    page = posembed("report", tmp_path)
    assert page.code == 0
    assert "follow a ball under five cups" in (tmp_path / "report.html").read_text(encoding="utf-8")
    (result, _) = sorted((tmp_path / "results").iterdir())
    kept = json.loads(result.read_text(encoding="utf-8"))["measurements"]
    assert list(kept["tails"]) == ["sparse", "dense"]
    told = posembed(f"compare tasks flip-flop {SMALL} --encodings learned,rope --out", tmp_path / "other").out
    assert "Share of wrong reads in percent (lower is better), by instructions" in told


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_problem_has_a_command_that_says_what_it_would_take(problem: str, posembed, tmp_path: Path) -> None:
    done = posembed(f"compare tasks {problem} {SMALL} --encodings alibi --dry-run --out", tmp_path / "runs")
    assert done.code == 0
    assert done.out.startswith(f"{problem}: ")
    assert "nothing was trained" in done.out
    assert not (tmp_path / "runs").exists()


@together(
    ("words", "message"),
    [
        ("sorting --encodings abacus", "abacus ids do not apply to sorting"),
        ("copy --encodings coupled", "they apply to reverse and addition"),
        ("parity --encodings ropes", "unknown encoding 'ropes' for parity"),
        ("parity --encodings alibi --track tensorboard --on ray", "leave out --on, or leave out --track"),
    ],
)
def test_a_mistake_is_refused_before_anything_trains(words: str, message: str, posembed, tmp_path: Path) -> None:
    problem, options = words.split(" ", 1)
    done = posembed(f"compare tasks {problem} {SMALL} {options} --out", tmp_path)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert list(tmp_path.iterdir()) == []
