"""posembed advise, as a user runs it: with options, by questions, as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_up_runs import runs, save
from posembed.cli import advise as command
from tiny_models import GPT, saved, tiny_model


@pytest.fixture
def advise(posembed):
    return lambda arguments, **others: posembed(f"advise {arguments}", columns=200, **others)


def test_the_answer_comes_first(advise) -> None:
    code, out, err = advise("--length 512 --longest none")
    assert (code, err) == (0, "")
    assert out.startswith("rolling: learned rows in a ring")
    for heading in ("Why\n", "Position parameters", "Watch for\n", "Measured: "):
        assert heading in out


def test_json(advise) -> None:
    code, out, _ = advise("--grid 14x14 --longest-grid 24x24 --json")
    assert code == 0
    advice = json.loads(out)
    assert advice["recommendation"] == "learned-grid, re-gridded"
    assert advice["needs"]["longest"] == 576
    assert advice["needs"]["vocabulary"] == 0


def test_a_checkpoint_is_inspected(advise, tmp_path: Path) -> None:
    saved(tiny_model("gpt2", GPT), tmp_path)
    length = GPT["n_positions"]
    kept = json.loads(advise(f"--length {length} --checkpoint {tmp_path} --json")[1])
    assert kept["recommendation"] == "keep"
    longer = json.loads(advise(f"--length {length} --longest {4 * length} --checkpoint {tmp_path} --json")[1])
    assert longer["recommendation"] == "resize"
    assert longer["needs"]["checkpoint"]["length"] == length


def test_figures_of_ones_own_runs(advise, tmp_path: Path) -> None:
    folder = save(tmp_path / "runs", runs(2)).path
    out = advise(f"--length 64 --longest none --runs {folder}")[1]
    assert f"({folder})" in out
    assert "measured.md" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "give --length"),
        ("--length 512 --longest 256", "below the training length of 512"),
        ("--length 512 --longest far", "--longest: expected a number of tokens, or none"),
        ("--length 512 --width 100", "width 100 is not divisible by 12 heads"),
        ("--grid 14", "--grid: expected HEIGHTxWIDTH, such as 24x32; got '14'"),
        ("--grid 14x14 --length 193", "a grid of 14 x 14 has 196 patches, and the training length is 193"),
        ("--length 8 --table 8 --checkpoint x", "give --checkpoint or --table, not both"),
        ("--length 8 --table 0", "--table: expected a number of positions"),
        ("--length 8 --runs nowhere", "nowhere is not a run folder"),
    ],
)
def test_a_mistake_is_one_line(advise, arguments: str, said: str) -> None:
    code, out, err = advise(arguments)
    assert (code, out) == (1, "")
    assert err.startswith("posembed: error: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, advise):
    def asked(*answers: str) -> str:
        monkeypatch.setattr(command, "_someone_is_there", lambda: True)
        done = advise("", typed="\n".join(answers) + "\n")
        assert done.code == 0, done.err
        return done.out

    return asked


def test_questions_about_a_sequence(ask) -> None:
    out = ask("n", "512", "4096", "32000", "512", "8", "", "y")
    assert "rope-scaled: RoPE with scaled frequencies (YaRN, factor 8)" in out
    assert f"learned: {4096 * 512:,}" in out


def test_enter_takes_the_defaults(ask) -> None:
    assert "learned: a learned table, 512 rows" in ask("", "512", "", "", "", "", "", "")


def test_questions_about_a_grid(ask) -> None:
    assert "learned-grid: a learned table of the grid, 14 x 14" in ask("y", "14x14", "", "", "", "")
