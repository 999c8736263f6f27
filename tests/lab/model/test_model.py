from __future__ import annotations

import dataclasses

import pytest
import torch
from accelerate import Accelerator

from encoding_names import is_usual
from posembed.errors import ArgumentError
from posembed.lab.data.text import Corpus
from posembed.lab.model import Decoder
from posembed.lab.runs import train
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.task import build_encoding
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.layers import NoPosition
from posembed.nn.encodings import names_for
from together import together
from tolerance import assert_close


def usual(name: str) -> bool:
    return is_usual(name.removesuffix("+window"))


NAMES = [*names_for("decoder"), *(f"{name}+window" for name in names_for("decoder"))]


def build_decoder(spec: LengthSpec, vocabulary: int) -> Decoder:
    text = Corpus(torch.zeros(1), torch.zeros(1), None, vocabulary, description="text", sha256="")
    return LanguageModelling(text).build(spec)  # type: ignore[return-value]


@pytest.fixture
def spec(spec: LengthSpec) -> LengthSpec:
    """With what rope-longrope asks for."""
    return dataclasses.replace(spec, rope_factors=(1.0, 1.5, 2.0, 4.0))


@together("name", NAMES, usual=usual)
def test_all_that_is_not_the_encoding_starts_the_same(spec: LengthSpec, name: str) -> None:
    model = build_decoder(dataclasses.replace(spec, encoding=name), 50)
    plain = build_decoder(dataclasses.replace(spec, encoding="none"), 50)
    for key, weight in plain.state_dict().items():
        assert torch.equal(model.state_dict()[key], weight)
    assert sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters()) == sum(
        p.numel() for p in build_encoding(dataclasses.replace(spec, encoding=name)).parameters()
    )


@pytest.mark.parametrize("name", ["rope+windows", "rope+logn+logn", "rope+", "learned tiled"])
def test_unknown_suffixes(spec: LengthSpec, name: str) -> None:
    with pytest.raises(ArgumentError, match=r"unknown encoding .*; \+logn \(the same with logits"):
        build_encoding(dataclasses.replace(spec, encoding=name))


def test_tables_for_the_longest_text_hold_it(spec: LengthSpec) -> None:
    for name in ("learned-shifted", "learned-randomized", "learned-skipped"):
        model = build_decoder(dataclasses.replace(spec, encoding=name), 50)
        assert model.encoding.weight.shape == (40, 16)  # type: ignore[union-attr]
        ids = model.encoding.training_positions(300, 16, torch.Generator().manual_seed(0))
        assert ids.max() == 39
    assert dataclasses.replace(spec, test_lengths=(8,)).longest == 16


def test_a_long_table_trained_short_keeps_its_later_rows(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator
) -> None:
    """And everything else is trained as with the short table; the norm of more gradients may be rounded elsewhere."""
    long, short = (dataclasses.replace(spec, encoding=name, dropout=0.0) for name in ("learned-long", "learned"))
    results = [train.run(each, task, accelerator) for each in (long, short)]
    assert_close(results[0].losses, results[1].losses, dtype=torch.float32, depth=len(results[0].losses))
    model = task.build(long)
    assert model.encoding.weight.shape == (40, 16)  # type: ignore[union-attr]
    before = model.encoding.weight.detach().clone()  # type: ignore[union-attr]
    state = {name: value.clone() for name, value in task.build(short).state_dict().items()}
    assert torch.equal(before[:16], state["encoding.weight"])
    optimizer = train.make_optimizer(long, model)
    for step in range(3):
        task.loss(model, *task.draw(long, model, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = model.encoding.weight  # type: ignore[union-attr]
    assert torch.equal(after[16:], before[16:])
    assert not (after[:16] == before[:16]).all(dim=1).any()


def test_the_head_is_tied() -> None:
    model = Decoder(7, 8, layers=1, heads=2, encoding=NoPosition())
    assert [p.shape for p in model.parameters() if 7 in p.shape] == [(7, 8)]
