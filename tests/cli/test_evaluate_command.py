"""posembed evaluate and posembed resize --check: one table per measure, JSON and the page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from evaluated_models import save_causal, write_texts
from posembed.measure.jobs import Kept
from posembed.tables.resize import WHY_TEXT_METHOD
from tiny_models import TEXT, saved, tiny_model


def test_evaluate(posembed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_causal(Path("gpt"))
    write_texts(Path("text"))
    words = ["evaluate", "gpt", "--text", "text", "--lengths", "32,64,1024", "--texts", "2", "--device", "cpu"]
    failed = posembed("", *words)
    assert "expected at least 1 text of 1,024 tokens" in failed.err
    words[5] = "32,64,128"
    done = posembed("", *words)
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    assert lines[0][0] == "Perplexity"
    assert lines[2][1:4] == ["32", "64", "128"]
    assert lines[4][:6] == ["gpt,", "truncated", "or", "chunked", "at", "64"]
    assert (lines[6][0], lines[6][-2:]) == ("gpt", ["too", "long"])
    assert "gpt takes at most 64 tokens" in " ".join(done.out.split())
    assert list(Path("runs/evaluations").glob("*.json"))
    assert posembed("", *words, "--csv").out.startswith("run,seed,item,metric,x,value,weight\n")
    printed = json.loads(posembed("", *words, "--json").out)
    assert [each["mean"] for each in printed["estimates"] if (each["run"], each["x"]) == ("gpt", 128)] == [None, None]


def test_resize_with_a_check(posembed, tmp_path: Path) -> None:
    save_causal(tmp_path / "gpt")
    text = write_texts(tmp_path / "text")
    words = [str(tmp_path / "gpt"), str(tmp_path / "out"), "--length", "128", "--check", str(text)]
    done = posembed("resize", *words)
    assert done.code == 0
    assert done.out.index("written: ") < done.out.index("Perplexity (lower is better), by tokens")
    assert done.out.count("too long") == 2  # the old checkpoint, in both tables
    printed = posembed("resize", *words, "--json", "--overwrite").out
    check = json.loads(printed)["check"]
    before, after, baseline = (row["name"] for row in check["rows"])
    values = {(each["run"], each["x"]): each["mean"] for each in check["estimates"] if each["metric"] == "perplexity"}
    assert values[before, 64] == values[after, 64]
    assert values[after, 128]["value"] != values[baseline, 128]["value"]


def test_a_check_that_cannot_run_is_refused_before_anything_is_written(posembed, tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "bert")
    words = [str(source), str(tmp_path / "out"), "--length", "128", "--check", str(write_texts(tmp_path / "text"))]
    done = posembed("resize", *words)
    assert done.code == 1
    assert "evaluate the checkpoint that has the model's head" in done.err
    done = posembed("resize", *words, "--dry-run")
    assert done.code == 1
    assert "--dry-run writes none" in done.err
    done = posembed("resize", *words[:2], *words[4:])
    assert done.code == 1
    assert "give --length" in done.err
    save_causal(tmp_path / "gpt")
    short = write_texts(tmp_path / "short", words=100)
    done = posembed("resize", tmp_path / "gpt", *words[1:5], short)
    assert done.code == 1
    assert "expected at least 1 text of 128 tokens" in done.err
    assert not (tmp_path / "out").exists()


def test_leftovers_of_a_killed_resize_are_listed(posembed, tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "bert")
    (tmp_path / ".out.0123abcd.partial").mkdir()
    (tmp_path / ".other.0123abcd.partial").mkdir()
    words = [str(source), str(tmp_path / "out"), "--length", "128"]
    done = posembed("resize", *words)
    assert ".out.0123abcd.partial: " in done.out
    assert f"tile is the default: {WHY_TEXT_METHOD}" in done.out
    assert ".other" not in done.out
    assert (tmp_path / ".out.0123abcd.partial").exists()


def test_reports(posembed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_causal(Path("gpt"))
    words = ["evaluate", "gpt", "--text", str(write_texts(Path("text"))), "--lengths", "32,128", "--texts", "3"]
    done = posembed("", *words, "--device", "cpu", "--report", "a.html")
    assert done.out.endswith("report: a.html\n")
    assert "How good is the model at 128 tokens" in Path("a.html").read_text(encoding="utf-8")
    Path("thesis.html").write_text("years of work")
    words = ["evaluate", "no", "--text", "no", "--report", "thesis.html"]
    done = posembed("", *words)  # before anything is measured
    assert done.code == 1
    assert "not a page of posembed" in done.err
    seen = posembed("inspect gpt --report b.html --json")
    assert json.loads(seen.out)["tables"][0]["key"] == "transformer.wpe.weight"
    assert "transformer.wpe.weight" in Path("b.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("lengths", ["a", "1e3", "256 512", "256,512.5", "-3", "8,256", ""])
def test_lengths_that_no_text_has_are_refused(lengths: str, posembed) -> None:
    done = posembed("evaluate no --text no --lengths", lengths)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("posembed: error: lengths: expected")


def test_results_that_cannot_be_kept_are_refused_before_anything_is_measured(posembed, tmp_path: Path) -> None:
    save_causal(tmp_path / "gpt")
    file = write_texts(tmp_path / "text")
    words = ["evaluate", tmp_path / "gpt", "--text", file, "--lengths", "32", "--texts", "3", "--device", "cpu"]
    (tmp_path / "file").write_text("")
    closed = tmp_path / "closed"
    Kept(closed).prepare()
    closed.chmod(0o500)
    for results in [tmp_path / "file" / "below", *[closed] * (os.geteuid() != 0)]:
        done = posembed("", *words, "--results", results)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("posembed: error: ")
        assert "cannot be written" in done.err
    done = posembed("", *words, "--results", tmp_path / ("r" * 300))
    assert done.code == 1
    assert "cannot be written: File name too long" in done.err
    assert [path.name for path in closed.iterdir()] == ["settings.json"]


def test_ctrl_c_ends_the_command_without_a_traceback(posembed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    save_causal(tmp_path / "gpt")
    monkeypatch.setattr("posembed.evaluation.plan.Plan.run", pressed)
    done = posembed("", "evaluate", tmp_path / "gpt", "--text", write_texts(tmp_path / "text"), "--lengths", "32",
                    "--texts", "3", "--device", "cpu", "--results", tmp_path / "results")  # fmt: skip
    assert (done.code, done.out) == (130, "")
    assert "Traceback" not in done.err
