"""posembed advise, as a user runs it: with options, by questions, as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from made_up_runs import runs, save
from posembed import cli
from posembed.cli import advise as command
from tiny_models import GPT, saved, tiny_model


@pytest.fixture
def posembed(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "200")

    def run(arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["posembed", "advise", *arguments.split()])
        code = 0
        try:
            cli.main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return code, *capfd.readouterr()

    return run


def test_the_answer_comes_first(posembed) -> None:
    code, out, err = posembed("--length 512 --longest none")
    assert (code, err) == (0, "")
    assert out.startswith("rolling: learned rows in a ring")
    for heading in ("Why\n", "Position parameters", "Watch for\n", "Measured: "):
        assert heading in out


def test_json(posembed) -> None:
    code, out, _ = posembed("--grid 14x14 --longest-grid 24x24 --json")
    assert code == 0
    advice = json.loads(out)
    assert advice["recommendation"] == "learned-grid, re-gridded"
    assert advice["needs"]["longest"] == 576
    assert advice["needs"]["vocabulary"] == 0


def test_a_checkpoint_is_inspected(posembed, tmp_path: Path) -> None:
    saved(tiny_model("gpt2", GPT), tmp_path)
    length = GPT["n_positions"]
    kept = json.loads(posembed(f"--length {length} --checkpoint {tmp_path} --json")[1])
    assert kept["recommendation"] == "keep"
    longer = json.loads(posembed(f"--length {length} --longest {4 * length} --checkpoint {tmp_path} --json")[1])
    assert longer["recommendation"] == "resize"
    assert longer["needs"]["checkpoint"]["length"] == length


def test_figures_of_ones_own_runs(posembed, tmp_path: Path) -> None:
    folder = save(tmp_path / "runs", runs(2)).path
    out = posembed(f"--length 64 --longest none --runs {folder}")[1]
    assert f"({folder})" in out
    assert "measured.md" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "give --length"),
        ("--length 512 --longest 256", "below the training length of 512"),
        ("--length 512 --longest far", "--longest: expected a number of tokens, or none"),
        ("--length 512 --width 100", "width 100 is not divisible by 12 heads"),
        ("--grid 14", "--grid: expected HEIGHTxWIDTH in patches, such as 14x14; got '14'"),
        ("--grid 14x14 --length 193", "a grid of 14 x 14 has 196 patches, and the training length is 193"),
        ("--length 8 --table 8 --checkpoint x", "give --checkpoint or --table, not both"),
        ("--length 8 --table 0", "--table counts positions"),
        ("--length 8 --runs nowhere", "nowhere is not a run folder"),
    ],
)
def test_a_mistake_is_one_line(posembed, arguments: str, said: str) -> None:
    code, out, err = posembed(arguments)
    assert (code, out) == (1, "")
    assert err.startswith("posembed: error: ")
    assert said in err
    assert err.count("\n") == 1


def ask(monkeypatch: pytest.MonkeyPatch, *answers: str) -> str:
    monkeypatch.setattr(command, "_someone_is_there", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(cli.app, ["advise"], input="\n".join(answers) + "\n")
    assert result.exit_code == 0, result.output
    return result.output


def test_questions_about_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    out = ask(monkeypatch, "n", "512", "4096", "512", "32000", "8", "", "y")
    assert "rope-scaled: RoPE with scaled frequencies (YaRN, factor 8)" in out
    assert f"learned: {4096 * 512:,}" in out


def test_enter_takes_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "learned: a learned table, 512 rows" in ask(monkeypatch, "", "512", "", "", "", "", "", "")


def test_questions_about_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "learned-grid: a learned table of the grid, 14 x 14" in ask(monkeypatch, "y", "14x14", "", "", "", "")
