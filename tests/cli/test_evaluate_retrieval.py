"""posembed evaluate --retrieval: tables, the plan, JSON, the page, and options that do not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluated_models import save_encoder, write_collection, write_texts


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
        (
            ["--retrieval", "passkey", "--ways", "best"],
            "ways: expected a list, each one of truncate, late, context",
        ),
    ],
)
def test_options_that_do_not_fit(posembed, words: list[str], options: list[str], message: str) -> None:
    done = posembed("evaluate", "model", *options)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
