"""Retrieval from end to end, with small models: rows, shared measurements, what is kept, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import posembed
from evaluated_models import by_text, save_causal, save_encoder, write_collection
from posembed import evaluate_retrieval
from posembed.errors import ArgumentError
from posembed.evaluation.collection import read_collection
from posembed.evaluation.results import Evaluation
from posembed.evaluation.retrieval import plan_retrieval
from posembed.evaluation.runnable import Runnable, open_runnable
from tolerance import assert_close

LENGTHS = (32, 64, 128)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An encoder of 64 positions, and the same resized to 128."""
    folder = tmp_path_factory.mktemp("models")
    save_encoder(folder / "short", pooling={"pooling_mode": "mean", "embedding_dimension": 32})
    posembed.resize_checkpoint(folder / "short", folder / "long", length=128)
    return [folder / "short", folder / "long"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_collection(tmp_path_factory.mktemp("data") / "beir")


def evaluated(models: list[Path], data: Path | str, **how: Any) -> Evaluation:
    return evaluate_retrieval(models, data, **{"lengths": LENGTHS, "device": "cpu", **how})


def test_rows(models: list[Path], folder: Path) -> None:
    evaluation = evaluated(models, folder)
    rows = {row.name.replace(f"{models[0].parent}/", ""): row for row in evaluation.rows}
    assert list(rows) == [
        "short",
        "long",
        "long, late chunks of 64, max",
        *(f"long, chunks of 64{how}" for how in (" in context, max", ", max", ", mean")),
        "short, truncated at 64",
        *(f"short, chunks of 64{how}" for how in (" in context, max", ", max", ", mean")),
    ]
    assert evaluation.reference is rows["short, chunks of 64, mean"]
    assert (evaluation.unit, evaluation.texts) == ("query", 12)
    for measure in evaluation.measures:
        values = {name: {at: by_text(row, measure, at) for at in (32, 64, 128)} for name, row in rows.items()}
        assert values["short"][128] is None
        assert not rows["short"].fits(128)
        # Tiling keeps the existing rows. Up to the original length, all rows read the same.
        for length in (32, 64):
            assert len({values[name][length] for name in rows}) == 1
        for how in (", mean", ", max", " in context, max"):
            assert values[f"long, chunks of 64{how}"] == values[f"short, chunks of 64{how}"]
        assert values["short, truncated at 64"][128] == values["short"][64]
    found = {by_text(row, "NDCG@10", 128) for row in rows.values()}
    assert len(found) >= 5
    versus = rows["long"].versus(evaluation.reference, "NDCG@10", 128)
    assert versus is not None
    assert versus.over_items is not None
    printed = json.loads(json.dumps(evaluation.to_dict(), allow_nan=False))
    assert printed["queries"] == 12


def test_bag_of_words_in_float64(models: list[Path], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model whose states are its input, the whole is a retrieval by word counts, computed here by hand."""
    counted = torch.nn.functional.one_hot

    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
            return type("Output", (), {"last_hidden_state": self.scale * counted(input_ids, 95)})

    monkeypatch.setattr(Runnable, "model", lambda self, device: Words())
    evaluation = evaluated(models, folder, lengths=[40, 128], ways=["mean", "max"], chunk=40)
    texts = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    queries = [json.loads(line)["text"] for line in (folder / "queries.jsonl").read_text().splitlines()]

    def vector(words: list[str]) -> torch.Tensor:
        ids = [2, *(int(word[1:]) + 5 for word in words), 3]
        return torch.nn.functional.normalize(counted(torch.tensor(ids), 95).double().mean(dim=0), dim=0)

    documents = [f"{text['title']} {text['text']}".split()[:126] for text in texts]
    whole = [[vector(words)] for words in documents]
    parts = [[vector(words[i : i + 38]) for i in (0, 38, 76)] + [vector(words[82:120])] for words in documents]
    sizes = torch.tensor([38.0, 38.0, 38.0, 6.0]).double()
    means = [[torch.nn.functional.normalize(sizes @ torch.stack(each), dim=0)] for each in parts]
    expected = {"long": whole, "long, chunks of 40, max": parts, "long, chunks of 40, mean": means}
    for row in evaluation.rows:
        name = row.name.replace(f"{models[0].parent}/", "")
        if name not in expected:
            continue
        found = by_text(row, "NDCG@10", 128)
        assert found is not None
        for i, query in enumerate(queries):
            asked = vector(query.split())
            scores = [max(float(asked @ each) for each in vectors) for vectors in expected[name]]
            # Scores that differ by less than float32 can tell are equal, in either order.
            first, last = (1 + sum(score > scores[i] + by for score in scores) for by in (1e-6, -1e-6))
            assert gain(last - 1) - 1e-9 <= found[i] <= gain(first) + 1e-9, name


def gain(rank: int) -> float:
    return 1 / math.log2(rank + 1) if rank <= 10 else 0.0


def test_nothing_is_measured_twice(models: list[Path], folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    whole = evaluated(models, folder, results=kept)
    files = [file for file in sorted(kept.iterdir()) if file.name != "settings.json"]
    before = [file.read_bytes() for file in files]
    plan = plan_retrieval(models, folder, lengths=LENGTHS, results=kept)
    # 4 readings of the original (32, 64, and chunks at 128), 5 of the other.
    assert (len(plan.jobs), len(plan.missing), len(files)) == (3 + 5, 0, 3 + 5)
    for file in files[:3]:
        file.unlink()
    seen: list[tuple[int, int]] = []
    again = evaluated(models, folder, results=kept, progress=lambda name, done, total: seen.append((done, total)))
    assert again == whole
    assert seen[-1][0] == seen[-1][1]
    assert [file.read_bytes() for file in files] == before


def test_lengths_beyond_every_document_are_measured_once(models: list[Path], tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "short", words=50)
    plan = plan_retrieval(models[1:], folder, lengths=[60, 100, 128], ways=["mean"])
    assert len(plan.jobs) == 1
    assert any("60: 0, 100: 0, 128: 0. The longest has 52 tokens." in note for note in plan.notes)


@pytest.mark.parametrize("task", ["passkey", "needle"])
def test_generated_tasks(models: list[Path], task: str) -> None:
    # The tokenizer of the small model knows no words of the tasks, so only the frame can be tested.
    evaluation = evaluated(models, task, lengths=[48, 100], texts=6, seed=1)
    assert evaluation.texts == 3
    assert any(f"The task {task} is generated anew for each length, with seed 1" in note for note in evaluation.notes)


def test_the_query_itself_is_not_ranked_unless_it_is_judged(models: list[Path], tmp_path: Path) -> None:
    folder = write_collection(tmp_path / "own")
    plain = by_text(evaluated(models[:1], folder, lengths=[32]).rows[0], "NDCG@10", 32)
    for path in (folder / "queries.jsonl", folder / "corpus.jsonl"):
        path.write_text(path.read_text().replace('"q', '"').replace('"d', '"'))
    judged = (folder / "qrels" / "test.tsv").read_text().replace("q", "").replace("d", "")
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged.splitlines()[1:]))
    assert by_text(evaluated(models[:1], folder, lengths=[32]).rows[0], "NDCG@10", 32) == plain
    text = json.loads((folder / "queries.jsonl").read_text().splitlines()[0])["text"]
    with (folder / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "new", "text": text}) + "\n")
    with_copy, unjudged = (evaluated(models[:1], folder, lengths=[32]), read_collection(folder))
    assert by_text(with_copy.rows[0], "recall@1", 32)[0] == 0  # type: ignore[index]
    assert not unjudged.notes
    for path in (folder / "corpus.jsonl", folder / "queries.jsonl"):
        path.write_text(
            path.read_text()
            .replace('"_id": "new"', '"_id": "ask"')
            .replace('"_id": "0", "text"', '"_id": "ask", "text"')
        )
    (folder / "qrels" / "test.tsv").write_text("ask\t0\t1\n" + "\n".join(judged.splitlines()[2:]))
    without = evaluated(models[:1], folder, lengths=[32])
    assert any("taken for the query itself" in note for note in without.notes)
    assert by_text(without.rows[0], "NDCG@10", 32)[0] == plain[0]  # type: ignore[index]


def test_prompts_stand_before_every_window(models: list[Path], folder: Path, tmp_path: Path) -> None:
    from shutil import copytree

    settings = {"prompts": {"query": "w1 w2 ", "passage": "w3 "}, "default_prompt_name": None}
    prompted = copytree(models[1], tmp_path / "prompted")
    (prompted / "config_sentence_transformers.json").write_text(json.dumps(settings))
    own = plan_retrieval([prompted], folder, lengths=LENGTHS)
    given = plan_retrieval([models[1]], folder, lengths=LENGTHS, query_prompt="w1 w2 ", document_prompt="w3 ")
    without = plan_retrieval([models[1]], folder, lengths=LENGTHS)
    assert own.jobs.keys() == given.jobs.keys()
    assert own.jobs.keys().isdisjoint(without.jobs)
    (data,) = {job.data for job in plan_retrieval([prompted], folder, lengths=[64]).jobs.values()}  # type: ignore[attr-defined]
    assert data.around_documents == ((2, 8), (3,))
    assert data.around_queries == ((2, 6, 7), (3,))


def test_a_model_that_pools_by_its_first_token_has_no_late_chunks(folder: Path, tmp_path: Path) -> None:
    save_encoder(tmp_path / "cls", positions=64, pooling={"pooling_mode_cls_token": True})
    plan = plan_retrieval([tmp_path / "cls"], folder, lengths=[64, 128], chunk=32)
    assert not any("late" in row.baseline for row in plan.rows)
    assert any("no late chunking" in note for note in plan.notes)


def test_the_vectors_are_those_of_sentence_transformers(models: list[Path], folder: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    from posembed.evaluation.ways import Encoder

    peer = library.SentenceTransformer(str(models[1]), device="cpu")
    plan = plan_retrieval([models[1]], folder, lengths=[128], device="cpu")
    row = plan.rows[0]
    job: Any = row.jobs[128]
    data = job.data
    with torch.inference_mode():
        reader = Encoder(row.runnable.model("cpu"), *data.around_documents, "mean", data.pad)
        ours = torch.cat([vectors for _, vectors in reader.read(data.documents, job.reading)])
    theirs = torch.tensor(peer.encode([data.collection.documents[name] for name in data.names]))
    assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"ways": ["late", "nearest"]}, "ways: expected a list, each one of truncate, late"),
        ({"chunk": 8}, "chunk: expected a whole number of at least 16"),
        ({"chunk": 65}, "chunk: expected at most 64 tokens, the original length; got 65"),
        ({"texts": 10}, "texts: only for --text and the generated tasks, passkey and needle"),
        ({"split": "dev"}, "split: expected one of the files"),
        ({"lengths": [8]}, "lengths: expected"),
        ({"document_prompt": "w1 " * 70}, "leave no room in 32 tokens"),
    ],
)
def test_wrong_arguments_are_refused(models: list[Path], folder: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(posembed.PosEmbedError, match=message):
        evaluated(models, folder, **how)


def test_other_models_are_refused(folder: Path, tmp_path: Path) -> None:
    save_causal(tmp_path / "gpt")
    with pytest.raises(ArgumentError, match=r"expected sentence encoders .* is a causal language model"):
        evaluated([tmp_path / "gpt"], folder)
    save_encoder(tmp_path / "bare")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bare" / file).unlink()
    with pytest.raises(posembed.errors.CheckpointError, match="expected a tokenizer next to the weights"):
        evaluated([tmp_path / "bare"], folder)


def test_outputs_that_are_not_finite_have_no_values(folder: Path, tmp_path: Path) -> None:
    model = save_encoder(tmp_path / "nan")
    with torch.no_grad():
        model.embeddings.position_embeddings.weight[20:] = math.nan
    model.save_pretrained(tmp_path / "nan")
    evaluation = evaluated([tmp_path / "nan"], folder, lengths=[16, 64])
    assert by_text(evaluation.rows[0], "NDCG@10", 16) is not None
    assert by_text(evaluation.rows[0], "NDCG@10", 64) is None
    assert any("no values at 64 tokens" in note for note in evaluation.notes)


@pytest.mark.parametrize("limit", [10**30, 1000000000000000019884624838656, 10**12])
def test_a_tokenizer_without_a_limit_is_not_named_as_one(tmp_path: Path, limit: int) -> None:
    save_encoder(tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": limit}))
    runnable = open_runnable(tmp_path / "model")
    assert (runnable.fed, runnable.length) == (None, 64)
    assert [note.partition(" takes ")[2] for note in runnable.notes_on([128])] == ["at most 64 tokens (positions: 64)."]
