"""Contexts that are longer than the model: windows, the answers in them, and the best span over all of them."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from asked import shared
from posembed.errors import ArgumentError
from posembed.lab.data.answered import load_answered
from posembed.lab.data.tokenizer import Pairs, Texts
from posembed.lab.metrics import Measured
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.classification import Spans
from posembed.lab.runs import train
from posembed.lab.tasks.classification_specs import SpanSpec
from posembed.lab.tasks.tokens import Answering
from posembed.measure.frame import Run
from together import together
from tolerance import assert_close

WORDS = "abcdefghijklmnopqrstuvw"  # x marks the answer


def doc_spans(tokens: int, most: int, stride: int) -> list[tuple[int, int]]:
    """Start and length of the parts of a document, as in run_squad.py of BERT."""
    found, start = [], 0
    while start < tokens:
        length = min(tokens - start, most)
        found.append((start, length))
        if start + length == tokens:
            break
        start += min(length, stride)
    return found


def texts(lengths: list[int]) -> Texts:
    return Texts(torch.arange(sum(lengths), dtype=torch.int32), torch.tensor([0, *lengths]).cumsum(0))


@together("stride", [1, 2, 3, 5, 7, 13, 100])
@together("limit", [6, 11, 16])
def test_windows_are_those_of_bert(limit: int, stride: int) -> None:
    questions, contexts = [1, 2, 3, 9] * 6, [1, 2, 5, 6, 7, 8, 9, 10, 13, 29, 30, 31] * 2
    pairs = Pairs(texts(questions), texts(contexts), separator=-1, keep_first=True)
    windows = pairs.windows(limit, stride)
    expected: list[tuple[int, int, int, bool]] = []
    for row, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        parts = doc_spans(context, limit - 2 - min(question, (limit - 2) // 2), stride)
        expected += [(row, start, length, len(parts) > 1) for start, length in parts]
    _, read = pairs.parts(limit, windows.rows, windows.starts)
    assert (
        list(zip(*(t.tolist() for t in (windows.rows, windows.starts, read, windows.several)), strict=True)) == expected
    )
    ids, lengths, segments = pairs.batch(windows.rows, limit, windows.starts)
    assert int(lengths.max()) <= limit
    for (row, start, length, _), tokens, kinds in zip(expected, ids, segments, strict=True):
        begin = int(pairs.second.bounds[row]) + start
        assert tokens[kinds == 1][:length].tolist() == list(range(begin, begin + length))
    first = pairs.windows(limit, None)
    assert (first.rows.tolist(), first.starts.any(), first.several.any()) == (list(range(24)), False, False)


def task_of(path: Path, contexts: list[tuple[str, list[tuple[str, int]]]], *, held_out: int) -> Answering:
    """Questions about contexts, the last of them held out."""
    for name, some in (("a", contexts[:-held_out]), ("b", contexts[-held_out:])):
        rows = [
            {"context": c, "question": "x?", "answers": [{"text": t, "answer_start": at} for t, at in found]}
            for c, found in some
        ]
        (path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return Answering(load_answered(str(path / "a.jsonl"), test_data=str(path / "b.jsonl")), "bytes")


def marked(count: int, longest: int, answer: str = "xyz", seed: int = 0) -> list[tuple[str, list[tuple[str, int]]]]:
    """Contexts of 1 to ``longest`` other characters, with the answer somewhere in each."""
    drawn, found = random.Random(seed), []
    for number in range(count):
        around = "".join(drawn.choices(WORDS, k=drawn.randint(1, longest))) + f"{number}"
        at = drawn.randint(0, len(around))
        found.append((around[:at] + answer + around[at:], [(answer, at)]))
    return found


@pytest.fixture
def spec() -> SpanSpec:
    small = {"layers": 1, "width": 16, "heads": 2, "steps": 4, "batch": 8, "warmup": 1, "tokenizer": "bytes"}
    settings = Spans.presets["default"] | small | {"data": "a.jsonl", "train_length": 20}
    return SpanSpec(question="spans", encoding="learned", data_sha256="", **settings)


class Finds(nn.Module):
    """Finds ``text``: its first token has a high logit as a start, its last as an end. Others have random logits."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = list(text.encode())

    def forward(self, ids: Tensor, lengths: Tensor, segments: Tensor) -> Tensor:
        logits = torch.rand(*ids.shape, 2, generator=torch.Generator().manual_seed(0))
        size = len(self.text)
        found = (ids.unfold(1, size, 1) == torch.tensor(self.text)).all(dim=2).nonzero()
        for row, at in found.tolist():
            logits[row, at, 0] += 5
            logits[row, at + size - 1, 1] += 5
        return logits


def score(measured: Measured) -> float:
    found = Run("learned", 0, measured.values).value("exact match")
    assert found is not None
    return found


@pytest.mark.parametrize("stride", [1, 4, 9, 11])
def test_an_answer_is_found_wherever_it_is(
    stride: int, spec: SpanSpec, accelerator: Accelerator, tmp_path: Path
) -> None:
    task = task_of(tmp_path, marked(80, 90), held_out=60)
    model: Any = Finds("xyz")
    truncated = task.measure(spec, model, accelerator)
    assert 0 < truncated.unseen < 60
    assert_close(score(truncated), 1 - truncated.unseen / 60)
    windows = task.measure(dataclasses.replace(spec, stride=stride), model, accelerator)
    assert (windows.unseen, score(windows)) == (0, 1.0)


def test_an_answer_across_windows_is_counted(spec: SpanSpec, accelerator: Accelerator, tmp_path: Path) -> None:
    """Windows have 16 tokens of the context. If they do not overlap, one of them ends within the answer."""
    split = ("a" * 14 + "xyz" + "b" * 20, [("xyz", 14)])
    task = task_of(tmp_path, [*marked(8, 30), split], held_out=1)
    model: Any = Finds("xyz")
    for stride, seen in ((16, False), (100, False), (14, True), (13, True), (3, True)):
        measured = task.measure(dataclasses.replace(spec, stride=stride), model, accelerator)
        assert (measured.unseen, score(measured)) == ((0, 1.0) if seen else (1, 0.0)), stride


class PrefersDigits(nn.Module):
    """Starts and ends an answer at a digit, the more surely the larger it is."""

    def forward(self, ids: Tensor, lengths: Tensor, segments: Tensor) -> Tensor:
        digits = ids - ord("0")
        return digits.where((digits >= 0) & (digits <= 9), -1).unsqueeze(2).expand(-1, -1, 2).float()


@pytest.mark.parametrize("stride", [1, 6, 7, 16])
def test_the_best_span_over_all_windows_wins(
    stride: int, spec: SpanSpec, accelerator: Accelerator, tmp_path: Path
) -> None:
    contexts = []
    for order in ("1529", "9321", "4187", "27", "5"):
        context = "".join(digit + "." * 22 for digit in order)
        contexts.append((context, [(max(order), context.index(max(order)))]))
    task = task_of(tmp_path, [*marked(8, 30), *contexts], held_out=5)
    model: Any = PrefersDigits()
    assert score(task.measure(dataclasses.replace(spec, stride=stride), model, accelerator)) == 1.0
    assert score(task.measure(spec, model, accelerator)) < 1.0


def test_without_long_contexts_windows_change_nothing(spec: SpanSpec, accelerator: Accelerator, tmp_path: Path) -> None:
    task = task_of(tmp_path, marked(60, 10, seed=1), held_out=20)
    model = task.build(spec).eval()
    for stride in (1, 8, 50):
        windows = dataclasses.replace(spec, stride=stride)
        for step in range(3):
            plain, drawn = (task.draw(each, model, step) for each in (spec, windows))
            assert all(torch.equal(a, b) for a, b in zip(plain, drawn, strict=True))
            assert task.loss(model, *plain).item() == task.loss(model, *drawn).item()
        assert task.measure(windows, model, accelerator) == task.measure(spec, model, accelerator)
        assert task.tokens_measured(windows) == task.tokens_measured(spec)


@pytest.mark.parametrize("train_length", [8, 40])
def test_a_stride_past_every_window_is_refused(train_length: int) -> None:
    given = {"train_length": train_length, "stride": train_length - 3}
    assert QUESTIONS["spans"].prepare(QUESTIONS["spans"].settings(None, given))[1].stride == train_length - 3
    with pytest.raises(ArgumentError, match=f"stride: expected at most {train_length - 3}, "):
        QUESTIONS["spans"].prepare(QUESTIONS["spans"].settings(None, given | {"stride": train_length - 2}))


def test_windows_to_train_on(spec: SpanSpec, tmp_path: Path) -> None:
    task = task_of(tmp_path, marked(60, 60, seed=2), held_out=4)
    spec = dataclasses.replace(spec, stride=5, batch=200)
    model = task.build(spec)
    ids, lengths, segments, several, places = task.draw(spec, model, 0)
    assert several.any()
    assert not several.all()
    kinds = set()
    for tokens, length, kind, part, (first, last) in zip(
        ids, lengths.tolist(), segments, several.tolist(), places.tolist(), strict=True
    ):
        text = bytes(tokens[:length].clamp(max=255).tolist()).replace(b"\xff", b"|").decode("latin-1")
        separator = int((kind == 0).sum()) - 1
        if first == last == separator:
            assert "xyz" not in text
            assert part  # a context of one window has its answer in it
        else:
            assert bytes(tokens[first : last + 1].tolist()) == b"xyz"
        kinds.add((first == separator, part))
    assert kinds == {(True, True), (False, True), (False, False)}
    # The loss has the separator as a choice in windows that are one of several, and only there.
    logits = torch.randn(*ids.shape, 2, dtype=torch.float64)

    def given(*_: Tensor) -> Tensor:
        return logits

    expected = torch.zeros((), dtype=torch.float64)
    for row in range(len(ids)):
        separator, end = int((segments[row] == 0).sum()) - 1, int(lengths[row]) - 1
        choices = [*([separator] if several[row] else []), *range(separator + 1, end)]
        for which in (0, 1):
            log = logits[row, choices, which].float().log_softmax(dim=0)
            expected -= log[choices.index(int(places[row, which]))] / (2 * len(ids))
    loss: Any = task.loss
    assert_close(loss(given, ids, lengths, segments, several, places).item(), expected.item(), dtype=torch.float32)


def test_a_model_learns_to_find_far_answers(spec: SpanSpec, accelerator: Accelerator, tmp_path: Path) -> None:
    task = task_of(tmp_path, marked(200, 70, answer="xy", seed=3), held_out=40)
    spec = dataclasses.replace(spec, steps=60, learning_rate=1e-2, batch=32, dropout=0.0)
    truncated, windows = (
        train.run(dataclasses.replace(spec, stride=stride), task, accelerator).measurements for stride in (None, 8)
    )
    assert truncated is not None
    assert windows is not None
    assert windows.unseen == 0 < truncated.unseen
    assert score(windows) > 0.9 > score(truncated)


def test_strides_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="stride: expected a whole number of at least 0; got -3"):
        shared("spans", stride=-3)
    task_of(tmp_path, marked(8, 30), held_out=2)
    question = QUESTIONS["spans"]
    own = {"data": str(tmp_path / "a.jsonl"), "tokenizer": "bytes"}
    plain, none, some = (shared("spans", **own, **given) for given in ({}, {"stride": 0}, {"stride": 8}))
    assert plain == none != some
    assert plain.key() == none.key() != some.key()
    assert {name: question.presets[name].get("stride") for name in ("documents", "documents-quarter")} == {
        "documents": 128,
        "documents-quarter": 32,
    }
