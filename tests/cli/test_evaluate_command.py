"""posembed evaluate and posembed resize --check: one table per measure, JSON and the page."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evaluated_models import save_causal, save_encoder, write_collection, write_texts
from posembed.measure.jobs import Kept
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


# posembed evaluate --retrieval: tables, the plan, JSON, the page, and options that do not fit together.


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    save_encoder(Path("model"))
    write_collection(Path("beir"))
    return ["evaluate", "model", "--retrieval", "beir", "--lengths", "32,128", "--device", "cpu"]


def test_retrieval(posembed, words: list[str]) -> None:
    planned = posembed("", *words, "--dry-run")
    assert planned.code == 0
    assert "Tokens to read, by text length" in planned.out
    assert "of which 0 are kept" in " ".join(planned.out.split())
    assert "Nothing was measured (--dry-run)." in planned.out
    assert "model takes at most 64 tokens" in " ".join(planned.out.split())
    assert not Path("runs").exists()
    done = posembed("", *words, "--report", "page.html")
    assert done.code == 0
    for title in ("NDCG@10 (higher is better)", "Recall@1 (higher is better)", "Recall@10 (higher is better)"):
        assert title in done.out
    assert "Reference: model, chunks of 64, mean." in " ".join(done.out.split())
    assert "paired by query" in " ".join(done.out.split())
    page = Path("page.html").read_text(encoding="utf-8")
    assert "on 12 queries" in page
    planned = json.loads(posembed("", *words, "--dry-run", "--json").out)
    assert (planned["jobs"], planned["kept"], planned["tokens_to_read"], planned["queries"]) == (3, 3, 0, 12)
    printed = json.loads(posembed("", *words, "--json").out)
    assert printed["queries"] == 12
    assert printed["rows"][-1]["baseline"] == "chunks of 64, mean"
    (of_short,) = (
        each for each in printed["estimates"] if (each["run"], each["metric"], each["x"]) == ("model", "NDCG@10", 128)
    )
    assert of_short["mean"] is None


def test_the_plan_of_texts(posembed, words: list[str]) -> None:
    text = str(write_texts(Path("text")))
    planned = json.loads(posembed("evaluate", "model", "--text", text, *words[4:], "--dry-run", "--json").out)
    assert (planned["texts"], planned["kept"]) == (12, 0)
    assert planned["tokens_to_read"] > 0
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "expected either --text or --retrieval; got neither"),
        (["--text", "a", "--retrieval", "b"], "got both"),
        (["--retrieval", "no"], "no: expected a folder with corpus.jsonl, queries.jsonl"),
        (["--retrieval", "passkey", "--ways", "best"], "ways: expected a list, each one of truncate, late, context"),
    ],
)
def test_options_that_do_not_fit(posembed, words: list[str], options: list[str], message: str) -> None:
    done = posembed("evaluate", "model", *options)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
