"""The objective of sentence encoders, against float64 and plain definitions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evaluated_models import save_encoder, write_texts
from posembed.errors import ArgumentError
from posembed.measure.jobs import Store
from posembed.tuning.draws import seeded, window_of
from posembed.tuning.plan import plan_tuning
from posembed.tuning.run import TunePlan
from posembed.tuning.sentences import ANCHORS, PASSAGES_PER_PIECE, Sentences, answer_loss
from posembed.tuning.settings import Queries
from tolerance import assert_close


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    save_encoder(folder / "model", positions=150)
    save_encoder(folder / "short")
    write_texts(folder / "text", number=24, words=300)
    return folder


def planned(folder: Path, **settings: Any) -> TunePlan:
    return plan_tuning(
        folder / "short",
        folder / "out",
        folder / "text",
        {"length": 150, "passage": 8, "query": 6, **settings},
        device="cpu",
    )


@pytest.fixture(scope="module")
def objective(folder: Path) -> Sentences:
    made = planned(folder).objective
    assert isinstance(made, Sentences)
    made.prepare(Store(folder, {}), lambda *done: None)
    return made


def plain_answer_loss(scores: Tensor, own: Tensor, same: Tensor) -> float:
    losses = []
    for row in range(len(scores)):
        others = [float(each) for each, left_out in zip(scores[row], same[row], strict=True) if not left_out]
        of_row = [
            -math.log(math.exp(s) / (math.exp(s) + math.fsum(map(math.exp, others))))
            for s, is_own in zip(scores[row].tolist(), own[row].tolist(), strict=True)
            if is_own
        ]
        losses += [math.fsum(of_row) / len(of_row)] if of_row else []
    return math.fsum(losses) / len(losses)


def test_the_loss_of_answers_in_float64() -> None:
    draw = torch.Generator().manual_seed(0)
    scores = (4 * torch.randn(5, 12, generator=draw, dtype=torch.float64)).requires_grad_()
    documents, owners = torch.tensor([0, 0, 1, 2, 2]), torch.arange(12) // 4
    same = documents[:, None] == owners
    own = same & (torch.rand(5, 12, generator=draw) < 0.6)
    own[3] = False  # a short last piece has no passage of its own
    loss = answer_loss(scores, own, same)
    assert_close(loss.item(), plain_answer_loss(scores.detach(), own, same))
    (gradient,) = torch.autograd.grad(loss, scores)
    # A passage of the same document that is not the piece's own neither attracts nor repels.
    assert torch.equal(gradient != 0, (own | ~same) & own.any(dim=1)[:, None])
    assert bool((gradient[own] < 0).all())


def test_pieces_cover_a_window_once(objective: Sentences) -> None:
    width = objective.setup.texts.width
    assert objective.pieces(150) == [slice(0, width)]
    short = objective.pieces(64)
    assert [place for piece in short for place in range(piece.start, piece.stop)] == list(range(width))
    assert max(piece.stop - piece.start for piece in short) == 64 - objective.around


def test_passages_lie_in_their_windows(objective: Sentences) -> None:
    bank, size = objective.bank, objective.of_loss.passage
    for ids, window, start, document in zip(*bank, strict=True):
        assert torch.equal(ids, objective.windows[window].ids[start : start + size])
        assert objective.windows[window].document == document
    for piece in objective.pieces(64):
        assert objective.inside(0, piece).sum() == PASSAGES_PER_PIECE * (piece.stop - piece.start >= size)
    held_out = {document.text for document in objective.setup.texts.held_out}
    assert not held_out & {document.text for document in objective.setup.texts.training}


@pytest.mark.parametrize("length", [150, 64])
def test_the_loss_of_items_by_hand(objective: Sentences, folder: Path, length: int) -> None:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder / "model").eval().double()

    def embed(ids: Tensor) -> Tensor:
        fed = torch.cat([torch.tensor([2]), ids, torch.tensor([3])])[None]
        states = model(input_ids=fed, attention_mask=torch.ones_like(fed)).last_hidden_state
        return torch.nn.functional.normalize(states.mean(dim=1)[0], dim=0)

    items, expected = [0, 7, 30], []
    assert objective.vectors is not None
    vectors, bank = objective.vectors.double(), objective.bank
    for item in items:
        number = window_of(item, len(objective.windows), 3)
        window = objective.windows[number]
        pieces = [piece for piece in objective.pieces(length) if objective.inside(number, piece).any()]
        own = torch.stack([objective.inside(number, piece) for piece in pieces])
        scores = torch.stack([embed(window.ids[piece]) for piece in pieces]) @ vectors.T / 0.05
        same = (bank.documents == window.document).expand_as(own)
        drawn = torch.randint(len(vectors), (ANCHORS,), generator=seeded(3, f"anchors {item}")).tolist()
        cosines = [float(embed(bank.ids[each]).detach() @ vectors[each]) for each in drawn]
        expected.append(
            plain_answer_loss(scores.detach(), own, same)
            + objective.of_loss.anchor * (1 - math.fsum(cosines) / ANCHORS)
        )
    found = objective.loss(model, items, length=length, seed=3)
    assert_close(found.item(), math.fsum(expected) / 3, dtype=torch.float32)
    of_each = [objective.loss(model, [item], length=length, seed=3).item() for item in items]
    assert_close(found.item(), math.fsum(of_each) / 3, dtype=torch.float32)  # so a batch can be read in parts
    assert objective.loss(model, items, length=length, seed=4).item() != found.item()


def test_every_window_comes_once_in_each_turn(objective: Sentences) -> None:
    number = len(objective.windows)
    for seed in (0, 1):
        order = [window_of(item, number, seed) for item in range(2 * number)]
        assert sorted(order[:number]) == sorted(order[number:]) == list(range(number))
        assert order[:number] != order[number:]


def test_queries_are_removed_from_their_documents(objective: Sentences) -> None:
    collection, tokenizer = objective.collection, objective.setup.tokenizer
    assert len(collection.documents) == len(objective.setup.texts.held_out)
    for name, query in collection.queries.items():
        (document,) = collection.judged[name]
        text = collection.documents[document]
        assert len(query.split()) == objective.settings.part(Queries).query
        assert query not in text
        assert len(tokenizer(text)["input_ids"]) == objective.settings.length


def test_a_passage_must_be_short(folder: Path) -> None:
    for name in ("passage", "query"):
        with pytest.raises(ArgumentError, match=f"{name}: expected at most 16 tokens, a quarter of the old length"):
            planned(folder, **{name: 17})
