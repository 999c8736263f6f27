"""Drawn training lengths: the distributions, files, and what a padded batch trains."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from asked import shared
from posembed.errors import ArgumentError, DataError
from posembed.lab.data.lengths import TrainLengths, counts_of, distribution
from posembed.lab.question import TrainedQuestion
from posembed.lab.questions import QUESTIONS
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.settings import options
from together import together
from tolerance import assert_close

DRAWS = 40_000


@pytest.mark.parametrize("length", [1, 7, 64])
@pytest.mark.parametrize("name", ["uniform", "short"])
def test_draws_follow_the_named_distribution(name: str, length: int) -> None:
    found = distribution(name, (), length)
    assert found is not None
    drawn = found.draw(DRAWS, torch.Generator().manual_seed(0))
    weights = torch.tensor([1.0 if name == "uniform" else 1 / n for n in range(1, length + 1)], dtype=torch.float64)
    expected = weights / weights.sum()
    shares = torch.bincount(drawn, minlength=length + 1)[1:] / DRAWS
    assert ((shares - expected).abs() <= 5 * (expected / DRAWS).sqrt()).all()
    assert torch.equal(drawn, found.draw(DRAWS, torch.Generator().manual_seed(0)))


def test_a_file_of_lengths_or_of_lengths_and_counts(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("5\n\n3 2\n5 4\n9 0\n100\t1\n", encoding="utf-8")
    counts = counts_of(str(file))
    assert counts == ((3, 2), (5, 5), (100, 1))
    file.write_bytes("\ufeff5\r\n\r\n3 2\r\n5 4\r\n9 0\r\n100\t1".encode())  # as editors on Windows save it
    assert counts_of(str(file)) == counts
    found = distribution("lengths.txt", counts, 4)  # texts longer than the training length are truncated
    assert found is not None
    assert (found.lengths, found.weights, found.mean) == ((3, 4), (2.0, 6.0), 3.75)
    assert distribution("full", (), 4) is distribution(None, (), 4) is None


@together(
    ("text", "message"),
    [
        ("", "holds no training lengths"),
        ("5 0\n", "holds no training lengths"),
        ("5\nfive\n", r"line 2: expected one length per line, .* got 'five'"),
        ("0\n", "line 1: .* at least 1"),
        ("-3\n", "line 1: "),
        ("3 -1\n", "line 1: "),
        ("3 1 1\n", "line 1: "),
        ("1.5\n", "line 1: "),
        ("9" * 5000, "line 1: "),
        (b"\xff\xfe", "is not text in UTF-8"),
    ],
)
def test_a_file_of_anything_else_is_refused(text: str | bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message):
        counts_of(str(file))


def test_an_unknown_name_says_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"'shrt' \(did you mean short\?\); choose from full, .*, or a file with one length"
    ):
        counts_of("shrt")
    with pytest.raises(ArgumentError, match="unknown training lengths"):
        counts_of(str(tmp_path))


@pytest.fixture
def drawn(spec: LengthSpec) -> LengthSpec:
    return dataclasses.replace(spec, encoding="learned", train_lengths="short", batch=6)


def test_other_draws_stay_and_padding_follows_the_tokens(task: LanguageModelling, drawn: LengthSpec) -> None:
    model = task.build(drawn)
    inputs, targets, positions, counts, mean = task.draw(drawn, model, 3)
    full_inputs, full_targets, full_positions = task.draw(dataclasses.replace(drawn, train_lengths=None), model, 3)
    assert torch.equal(positions, full_positions)
    assert mean == counts.double().mean().float()
    ids, full_ids = torch.cat([inputs, targets[:, -1:]], 1), torch.cat([full_inputs, full_targets[:, -1:]], 1)
    for row, target, full, count in zip(ids, targets, full_ids, counts.tolist(), strict=True):
        assert torch.equal(row[: count + 1], full[: count + 1])
        assert torch.equal(target[:count], full[1 : count + 1])
        assert not row[count + 1 :].any()


@pytest.mark.parametrize("encoding", ["learned", "rope", "alibi", "rolling", "fire"])
def test_a_padded_batch_has_the_loss_of_its_texts(task: LanguageModelling, drawn: LengthSpec, encoding: str) -> None:
    drawn = dataclasses.replace(drawn, encoding=encoding)
    model = task.build(drawn).double().eval()
    inputs, targets, positions, counts, mean = task.draw(drawn, model, 0)
    total = 0.0
    places = positions.expand(inputs.shape)
    for row, target, place, count in zip(inputs, targets, places, counts.tolist(), strict=True):
        logits = model(row[None, :count], place[:count])
        total += F.cross_entropy(logits[0], target[:count], reduction="sum").item()
    expected = total / counts.sum().item()
    loss = task.loss(model, inputs, targets, positions, counts, mean).item()
    assert_close(loss, expected, dtype=torch.float32)
    # Shares of a batch have its loss between them, although they hold different numbers of tokens.
    parts = [task.loss(model, *task.draw(drawn, model, 0, part)).item() for part in (slice(0, 3), slice(3, 6))]
    assert_close(math.fsum(parts) / 2, expected, dtype=torch.float32)


def test_rows_past_every_text_have_no_gradient(task: LanguageModelling, drawn: LengthSpec) -> None:
    drawn = dataclasses.replace(drawn, train_lengths="some.txt", train_length_counts=((3, 1), (5, 2)))
    model = task.build(drawn)
    task.loss(model, *task.draw(drawn, model, 0)).backward()
    gradient = model.encoding.get_parameter("weight").grad
    assert gradient is not None
    assert gradient.ne(0).any(dim=1).tolist() == [True] * 5 + [False] * 11


WITH_LENGTHS = [
    name
    for name, question in QUESTIONS.items()
    if isinstance(question, TrainedQuestion)
    and question.compared != "train_lengths"
    and "train_lengths" in options(question.Spec)
]


@pytest.mark.parametrize("name", WITH_LENGTHS)
def test_full_is_the_default_and_a_file_is_its_contents(name: str, tmp_path: Path) -> None:
    data = tmp_path / "text.txt"
    data.write_text("a line of text that comes again\n" * 100, encoding="utf-8")
    file, moved = tmp_path / "lengths.txt", tmp_path / "elsewhere" / "lengths.txt"
    file.write_text("8\n", encoding="utf-8")
    moved.parent.mkdir()
    moved.write_text("8 1\n", encoding="utf-8")
    plain, full, here, there, short = (
        shared(name, data=str(data), train_length=64, train_lengths=None if given is None else str(given))
        for given in (None, "full", file, moved, "short")
    )
    assert plain == full
    assert "train_lengths" not in plain.shared_settings()
    assert plain.lengths_drawn is None
    assert here.lengths_drawn == TrainLengths((8,), (1.0,))
    assert here.lengths_drawn is here.lengths_drawn  # counted once, because every step reads it
    assert short.lengths_drawn is not None
    assert (here.tokens_read, plain.tokens_read) == (here.steps * here.batch * 8, plain.steps * plain.batch * 64)
    with pytest.raises(ArgumentError, match="unknown training lengths 'shrt'"):
        shared(name, data=str(data), train_lengths="shrt")
    with pytest.raises(ArgumentError, match="unknown training lengths 'shrt'"):
        _ = dataclasses.replace(short, train_lengths="shrt").lengths_drawn
    for word, each in (("64 tokens", plain), ("up to 64 tokens (train lengths: lengths.txt)", here)):
        assert f"sequences of {word}" == each.sequences_in_words
    assert here == there
    assert (here.train_lengths, here.train_length_counts) == ("lengths.txt", ((8, 1),))
    named = file.rename(tmp_path / "short")  # a file with the name of a distribution keeps its folder
    assert shared(name, data=str(data), train_lengths=str(named)).train_lengths == str(named)
    assert len({str(each.shared_settings()) for each in (plain, here, short)}) == 3
