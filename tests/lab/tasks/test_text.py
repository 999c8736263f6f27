"""Texts classified: batches, measurements, resuming, and what the runs say together."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from accelerate import Accelerator
from sklearn.metrics import f1_score

from asked import summarise
from posembed.lab.data.labelled import Example, Examples
from posembed.lab.data.tokenizer import encode, read_tokenizer
from posembed.lab.runs import train
from posembed.lab.tasks.classification import TextClassification, summed
from posembed.lab.tasks.classification_specs import ACCURACY, TextSpec
from posembed.lab.tasks.task import torch_seed
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.measure.frame import Run
from tolerance import assert_close


def test_batches_are_texts_cut_and_padded(text_task: TextClassification, text_spec: TextSpec) -> None:
    model = text_task.build(text_spec)
    ids, lengths, labels = text_task.draw(text_spec, model, 3)
    assert ids.shape == (8, int(lengths.max()))
    for row, length, label in zip(ids, lengths.tolist(), labels.tolist(), strict=True):
        text = bytes(row[:length].tolist()).decode().rstrip(".")
        assert text_task.classes[label] == ("up" if list(text) == sorted(text) else "down")
        assert not row[length:].any()
    short = dataclasses.replace(text_spec, train_length=4)
    assert text_task.draw(short, model, 3)[0].shape == (8, 3)


@pytest.mark.parametrize("name", ["bytes", "bpe:300"])
def test_texts_keep_their_ids_whatever_stands_beside_them(name: str) -> None:
    texts = ["one text", "another, longer text", "é", "one text again " * 20]
    tokenizer = read_tokenizer(name, texts)
    together = encode(tokenizer, texts)
    assert tokenizer.vocabulary >= int(together.ids.max()) + 1
    for i, text in enumerate(texts):
        (alone,), _ = encode(tokenizer, [text]).batch(torch.tensor([0]), 1000)
        ids, lengths = together.batch(torch.tensor([3, i]), 1000)
        assert torch.equal(ids[1, : lengths[1]], alone)
    assert read_tokenizer(name, texts).sha256 == tokenizer.sha256
    if name != "bytes":
        assert read_tokenizer(name, texts[:1]).sha256 != tokenizer.sha256


def test_position_is_learned_and_a_bag_of_letters_learns_nothing(
    text_task: TextClassification, text_spec: TextSpec, accelerator: Accelerator
) -> None:
    settings = dataclasses.replace(text_spec, layers=1, steps=120, batch=16, learning_rate=1e-2, warmup=10)
    results = [
        train.run(dataclasses.replace(settings, encoding=name), text_task, accelerator) for name in ("learned", "none")
    ]
    found = summarise(results, reference="none")
    assert found.mean(ACCURACY, "learned").value > 0.9
    assert abs(found.mean(ACCURACY, "none").value - 0.5) < 0.15
    versus = found.versus(ACCURACY, "learned")
    assert versus.over_items.side_of(0) in ("below", "above")
    assert versus.verdict == "unknown"  # a single seed tells nothing of seeds


def test_what_is_measured(
    text_task: TextClassification, text_spec: TextSpec, ordered: Examples[Example], accelerator: Accelerator
) -> None:
    model = text_task.build(text_spec).eval()
    measured = text_task.measure(text_spec, model, accelerator)
    predicted = []
    for row in range(len(ordered.held_out)):
        ids, lengths = text_task.held_out.batch(torch.tensor([row]), 15)
        predicted.append(int(model(ids, lengths).argmax()))
    labels = text_task.held_out_labels.tolist()
    found = Run("learned", 0, measured.values)
    assert_close(found.value(ACCURACY.name), sum(map(int.__eq__, predicted, labels)) / len(labels))
    assert_close(found.value("macro F1"), f1_score(labels, predicted, average="macro"))
    assert measured.sizes["examples of 2 classes"] == sum(measured.classes.values()) == len(ordered.held_out)
    assert set(measured.classes) == {"up", "down"}


def test_sums_by_document() -> None:
    assert summed([1, 2, 4, 0.5], [0, 2, 0, 2]) == [5, 0, 2.5]


# Random draws: equal for every encoding, different for every seed, step and process.


def test_seeds_steps_and_processes_draw_from_different_generators(spec: LengthSpec) -> None:
    made = {
        torch.Generator()
        .manual_seed(torch_seed(dataclasses.replace(spec, seed=seed), step, process))
        .get_state()[:64]
        .numpy()
        .tobytes()
        for seed in range(8)
        for step in (0, 1, 2, 999, 20_000)
        for process in range(4)
    }
    assert len(made) == 8 * 5 * 4
