"""Fine-tuning that is measured on the user's own queries, in BEIR's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluated_models import save_causal, save_encoder, write_collection, write_texts
from posembed import evaluate_retrieval
from posembed.errors import ArgumentError, CheckpointError, DataError, PosEmbedError
from posembed.report.tuning import answer, plan_words
from posembed.tuning.plan import plan_tuning, tune_checkpoint
from posembed.tuning.result import Tuned
from posembed.tuning.settings import TuneSettings

SETTINGS: dict[str, Any] = {"length": 128, "steps": 2, "batch": 2, "passage": 8, "query": 8}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_encoder(Path("model"))
    write_collection(Path("mine"), documents=14, words=160)
    return tmp_path


def tune(text: Any = None, **others: Any) -> Tuned:
    return tune_checkpoint("model", "out", text, **{"device": "cpu", "retrieval": "mine", **SETTINGS, **others})


def test_the_values_are_those_of_evaluate(folder: Path) -> None:
    tuned = tune()
    evaluation = tuned.evaluation
    found = evaluate_retrieval(["out", "model", "out-at-64"], "mine", lengths=[64, 128], device="cpu")
    assert (evaluation.unit, evaluation.texts) == ("query", 14)
    for row in evaluation.rows:
        (same,) = [each for each in found.rows if each.name == row.name]
        assert same.by_text == row.by_text
    assert [row.name for row in tuned.candidates] == [
        "model, chunks of 64, mean",
        "out-at-64, chunks of 64, mean",
        "out",
    ]
    first, *others = answer(tuned)
    assert first.startswith("For these queries, use ")
    assert all("document" not in sentence for sentence in others)
    assert "The models were trained on 14 of these documents, but on no query" in evaluation.notes[0]


def test_texts_of_ones_own_are_all_trained_on(folder: Path) -> None:
    write_texts(Path("text"), number=12, words=300)
    plan = plan_tuning("model", "out", "text", TuneSettings(**SETTINGS), retrieval="mine", device="cpu")
    assert (len(plan.texts.training), len(plan.texts.held_out)) == (12, 0)
    assert plan.setup.windows_measured == pytest.approx(14)
    assert plan.to_dict()["queries"] == 14
    said = plan_words(plan, {"steps": 2})[1]
    assert said.startswith("Documents with 128 tokens: 12. All of them are trained on, in 36 windows.")
    assert "measured by 14 queries on 14 documents" in said


def test_another_collection_is_not_continued(folder: Path) -> None:
    def stop(name: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    write_texts(Path("text"), number=12, words=300)
    with pytest.raises(KeyboardInterrupt):
        tune("text", progress=stop)
    with (folder / "mine" / "qrels" / "test.tsv").open("a") as file:
        file.write("q0\td1\t1\n")
    with pytest.raises(CheckpointError, match="differs in the collection; repeat its command"):
        tune("text")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"retrieval": None}, ArgumentError, "text: expected the path of a file .* or a collection as retrieval"),
        ({"retrieval": None, "text": "text", "split": "dev"}, ArgumentError, "split: only for a collection"),
        ({"retrieval": "none"}, DataError, "none: expected a folder with corpus.jsonl"),
        ({"split": "dev"}, DataError, "split: expected one of the files in mine.qrels: test"),
        ({"retrieval": "few"}, DataError, "few: expected at least 10 queries with a relevant document .* got 9"),
        ({"retrieval": "short"}, DataError, "documents of more than 64 tokens.* the longest has 62; no longer table"),
        ({"retrieval": "middling"}, DataError, "expected at least 10 documents of 128 tokens, 10 to train on; 0 of 14"),
        ({"text": []}, ArgumentError, "text: expected the path"),
    ],
)
def test_refusals(folder: Path, given: dict[str, Any], error: type[PosEmbedError], message: str) -> None:
    write_texts(Path("text"), number=12, words=300)
    for name, documents, words in (("few", 9, 160), ("short", 14, 60), ("middling", 14, 80)):
        write_collection(Path(name), documents=documents, words=words)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(error, match=message):
        tune(**given)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_language_models_have_no_queries(folder: Path) -> None:
    save_causal(Path("causal"))
    with pytest.raises(
        ArgumentError, match=r"retrieval: expected a sentence encoder.*causal is a causal language model"
    ):
        tune_checkpoint("causal", "out", "text", retrieval="mine", device="cpu", **SETTINGS)
