"""Fine-tuning that is measured on the user's own queries, in BEIR's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluated_models import save_causal, save_encoder, write_collection, write_texts
from posembed import evaluate_retrieval
from posembed.errors import ArgumentError, DataError, PosEmbedError, RunFolderError
from posembed.measure.jobs import Kept
from posembed.report.tuning import answer, plan_words
from posembed.tuning.plan import plan_tuning, tune_checkpoint
from posembed.tuning.result import Tuned
from posembed.tuning.sentences import count_of_both
from together import together
from tolerance import assert_close

SETTINGS: dict[str, Any] = {"length": 128, "steps": 2, "batch": 2, "passage": 8}


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
        assert same.runs[0].values == row.runs[0].values
    assert [row.name for row in tuned.candidates] == [
        "model, chunks of 64, mean",
        "out-at-64, chunks of 64, mean",
        "out",
    ]
    first, *others = answer(tuned)
    assert first.startswith("For these queries, use ")
    assert all("document" not in sentence for sentence in others)
    assert "The models were trained on 14 of these documents, but on no judgement" in evaluation.notes[0]


def test_texts_of_ones_own_are_all_trained_on(folder: Path) -> None:
    write_texts(Path("text"), number=12, words=300)
    plan = plan_tuning("model", "out", "text", SETTINGS, retrieval="mine", device="cpu")
    assert (len(plan.texts.training), len(plan.texts.held_out)) == (12, 0)
    assert_close(plan.setup.windows_measured, 14)
    assert plan.to_dict()["queries"] == 14
    _, trained, measured, *_ = plan_words(plan)
    assert trained.startswith("To train on: 12 documents of 128 tokens or more, in 36 windows;")
    assert measured.startswith("To measure the result: 14 queries on 14 documents.")


def test_another_collection_is_not_continued(folder: Path) -> None:
    def stop(name: str, done: int, total: int) -> None:
        if name != "tokenizing documents":
            raise KeyboardInterrupt

    write_texts(Path("text"), number=12, words=300)
    with pytest.raises(KeyboardInterrupt):
        tune("text", progress=stop)
    with (folder / "mine" / "qrels" / "test.tsv").open("a") as file:
        file.write("q0\td1\t1\n")
    with pytest.raises(RunFolderError, match=r"other settings .collection: ........… there"):
        tune("text")


@pytest.fixture
def refusing(folder: Path) -> Path:
    write_texts(Path("text"), number=12, words=300)
    for name, documents, words in (("few", 9, 160), ("short", 14, 60), ("middling", 14, 80)):
        write_collection(Path(name), documents=documents, words=words)
    return folder


@together(
    ("given", "error", "message"),
    [
        ({"retrieval": None}, ArgumentError, "expected text, retrieval or both"),
        ({"retrieval": None, "text": "text", "split": "dev"}, ArgumentError, "split: only for a folder as --retrieval"),
        ({"retrieval": "none"}, DataError, "none: expected a folder with corpus.jsonl"),
        ({"split": "dev"}, DataError, "split: expected one of the files in mine.qrels: test"),
        ({"retrieval": "few"}, DataError, "few: expected at least 10 queries with a relevant document .* got 9"),
        ({"retrieval": "short"}, DataError, "documents of more than 64 tokens.* the longest has 62; no longer table"),
        (
            {"retrieval": "middling"},
            DataError,
            r"10 to train on; 0 of 14 .*; give long documents to train on as --text",
        ),
        ({"text": []}, ArgumentError, "text: expected at least one path"),
    ],
)
def test_refusals(refusing: Path, given: dict[str, Any], error: type[PosEmbedError], message: str) -> None:
    before = sorted(path.name for path in refusing.iterdir())
    with pytest.raises(error, match=message):
        tune(**given)
    assert sorted(path.name for path in refusing.iterdir()) == before


def rewritten(name: str, change: Any) -> None:
    path = Path("mine", f"{name}.jsonl")
    lines = [change(number, json.loads(line)) for number, line in enumerate(path.read_text().splitlines())]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("words", [63, *(pytest.param(n, marks=pytest.mark.whole) for n in (61, 62, 90, 200))])
def test_queries_longer_than_the_model_are_measured(folder: Path, words: int) -> None:
    text = " ".join(f"w{number % 90}" for number in range(words))
    rewritten("queries", lambda number, line: {**line, "text": text} if number == 3 else line)
    tuned = tune(steps=1)
    assert tuned.kept is not None
    assert len(tuned.kept.values) == 14


@pytest.mark.parametrize("given", ["collection", "text"])
def test_no_query_is_trained_on(folder: Path, given: str) -> None:
    """Also where the documents hold the queries themselves, as those of ArguAna and Quora do."""
    write_collection(Path("more"), documents=12, words=160, seed=1)
    texts = [json.loads(line)["text"] for line in Path("more/corpus.jsonl").read_text().splitlines()]
    rewritten("queries", lambda number, line: {**line, "text": texts[number]} if number < 6 else line)
    with Path("mine/corpus.jsonl").open("a") as file:
        for number in range(3):
            file.write(json.dumps({"_id": f"other {number}", "text": f" {texts[number]}  "}) + "\n")
        for number in range(3, 6):  # the query itself, with a title, under the query's own id
            file.write(json.dumps({"_id": f"q{number}", "title": "w1 w2", "text": texts[number]}) + "\n")
    (folder / "texts").mkdir()
    for number, text in enumerate(texts):
        (folder / "texts" / f"{number}.txt").write_text(text.replace(" ", "\n"))
    extra = [(folder / "texts" / f"more {number}.txt") for number in range(6)]
    for number, path in enumerate(extra):
        path.write_text(" ".join(f"w{(7 * number + each * each) % 90}" for each in range(150)))
    text = "texts" if given == "text" else None
    plan = plan_tuning("model", "out", text, SETTINGS, retrieval="mine", device="cpu")
    trained = [" ".join(document.text.split()) for document in plan.texts.training]
    assert len(trained) == (14 if given == "collection" else 12)
    assert not any(query in document for query in texts[:6] for document in trained)


def test_a_title_makes_no_other_document() -> None:
    trained, title = [[1, *range(20, 60)], [2, *range(30, 90)]], [7, 8, 9]
    searched = [[1, *range(20, 60)], [*title, 3, *range(30, 90)], [*range(40, 60)], [9, *range(31, 90)], [5]]
    assert count_of_both(trained, searched) == 2


@pytest.mark.parametrize("known", [0, 5, 14])
def test_the_notes_count_the_documents_that_were_trained_on(folder: Path, known: int) -> None:
    """However they are spaced."""
    (folder / "texts").mkdir()
    for number, line in enumerate(Path("mine/corpus.jsonl").read_text().splitlines()[:known]):
        entry = json.loads(line)
        (folder / "texts" / f"{number}.txt").write_text(f"{entry['title']} {entry['text']}\n".replace(" ", " \n "))
    for number in range(14 - known):
        words = (f"w{(number + each * each) % 90}" for each in range(160))
        (folder / "texts" / f"other {number}.txt").write_text(" ".join(words))
    plan = plan_tuning("model", "out", "texts", SETTINGS, retrieval="mine", device="cpu")
    notes = plan.objective.plan(plan.original, plan.original, None, Kept(None)).notes
    on = f"{known} of these documents, but" if known else "none of these documents, and"
    assert f"The models were trained on {on} on no judgement." in notes[0]


def test_only_relevant_documents_in_the_corpus_count(folder: Path) -> None:
    rewritten("corpus", lambda number, line: {**line, "_id": f"x{number}"} if number < 5 else line)
    with pytest.raises(DataError, match=r"at least 10 queries with a relevant document in the corpus .* got 9"):
        tune()


def test_language_models_have_no_queries(folder: Path) -> None:
    save_causal(Path("causal"))
    with pytest.raises(
        ArgumentError, match=r"retrieval: expected a sentence encoder.*causal is a causal language model"
    ):
        tune_checkpoint("causal", "out", "text", retrieval="mine", device="cpu", **SETTINGS)
