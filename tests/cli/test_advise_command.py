"""posembed advise, as a user runs it: with options, by questions, as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_up_runs import runs, save
from posembed.lab.advice.advise import recommend
from posembed.lab.advice.evidence import published_studies
from posembed.lab.advice.given import needs_of
from tiny_models import GPT, saved, tiny_model


@pytest.fixture
def advise(posembed):
    return lambda arguments, **others: posembed(f"advise {arguments}", columns=200, **others)


def test_the_answer_comes_first(advise) -> None:
    code, out, err = advise("--length 512 --longest none")
    assert (code, err) == (0, "")
    best = recommend(needs_of(length=512, longest="none"), published_studies())
    assert out.startswith(f"{best.recommendation}: {best.title}\n")
    for heading in (
        "Why\n",
        "Watch for\n",
        "Measured in\n",
        "Every option, the recommended one first, then the best: perplexity\n",
    ):
        assert heading in out


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
    (other,) = (line for line in out.splitlines() if "every-encoding.md" in line)
    assert "Passkeys found" in other  # and no perplexities


@pytest.fixture
def ask(advise):
    def asked(*answers: str) -> str:
        done = advise("", typed="\n".join(answers) + "\n")
        assert done.code == 0, done.err
        return done.out

    return asked


def test_questions_about_a_sequence(ask) -> None:
    out = ask("n", "512", "4096", "32000", "512", "", "n", "y")
    assert out.partition("rolling/none+logn: ")[2].startswith("one layer after the other: learned rows")
    assert f"{32 * 8}" in out  # T5's buckets, for the heads of width 64


def test_enter_takes_the_defaults(ask) -> None:
    best = recommend(needs_of(length=512), published_studies())
    assert f"{best.recommendation}: {best.title}\n" in ask("", "512", "", "", "", "", "", "")


def test_questions_about_a_grid(ask) -> None:
    assert "learned-2d: one trained row per patch" in ask("y", "14x14", "", "", "")
