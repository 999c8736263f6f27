from __future__ import annotations

import dataclasses

import pytest
import torch

from encoding_names import is_usual
from posembed import RollingPositionalEmbedding
from posembed.errors import ArgumentError
from posembed.lab.model import Classifier
from posembed.lab.tasks.classification import TextClassification
from posembed.lab.tasks.classification_specs import TextSpec
from posembed.layers import NoPosition
from posembed.nn.encodings import names_for
from together import together
from tolerance import assert_close, close


def classifier(task: TextClassification, spec: TextSpec, **others: object) -> Classifier:
    return task.build(dataclasses.replace(spec, **others)).double().eval()  # type: ignore[arg-type]


@together("pooling", ["cls", "mean"])
@together("encoding", names_for("encoder"), usual=is_usual)
def test_padded_is_unpadded(text_task: TextClassification, text_spec: TextSpec, encoding: str, pooling: str) -> None:
    model = classifier(text_task, text_spec, encoding=encoding, pooling=pooling)
    lengths = torch.tensor([3, 9, 1, 12])
    ids = torch.randint(256, (4, 12))
    together = model(ids, lengths)
    alone = [model(ids[i : i + 1, :length], lengths[i : i + 1]) for i, length in enumerate(lengths.tolist())]
    assert_close(together, torch.cat(alone))
    # What stands in the padding is read by nobody, forward or backward.
    noise = torch.where(torch.arange(12) < lengths.unsqueeze(1), ids, torch.randint(256, (4, 12)))
    assert torch.equal(model(noise, lengths), together)


@together("encoding", [name for name in names_for("encoder") if name != "none"], usual=is_usual)
def test_order_is_seen_both_ways(text_task: TextClassification, text_spec: TextSpec, encoding: str) -> None:
    """Every token's change reaches the class, and so does their order; without positions the order does not."""
    model = classifier(text_task, text_spec, encoding=encoding)
    bag = classifier(text_task, text_spec, encoding="none")
    ids, lengths = torch.arange(10).unsqueeze(0), torch.tensor([10])
    before = model(ids, lengths)
    for place in range(10):
        changed = ids.clone()
        changed[0, place] = 99
        assert not close(model(changed, lengths), before)
    assert not close(model(ids.flip(1), lengths), before)
    assert_close(bag(ids.flip(1), lengths), bag(ids, lengths))


def test_all_that_is_not_the_encoding_starts_the_same(text_task: TextClassification, text_spec: TextSpec) -> None:
    plain = classifier(text_task, text_spec, encoding="none").state_dict()
    for name in names_for("encoder"):
        weights = classifier(text_task, text_spec, encoding=name).state_dict()
        assert all(torch.equal(weights[key], weight) for key, weight in plain.items()), name


def test_what_an_encoder_cannot_use() -> None:
    def build(encoding: torch.nn.Module, **others: object) -> Classifier:
        settings = {"layers": 1, "heads": 2} | others
        return Classifier(torch.nn.Linear(4, 8), 8, 3, encoding=encoding, **settings)  # type: ignore[arg-type]

    with pytest.raises(ArgumentError, match="RollingPositionalEmbedding needs a causal window of 4 tokens"):
        build(RollingPositionalEmbedding(window=4, dim=8))
    with pytest.raises(ArgumentError, match="pooling must be one of cls, mean; got 'max'"):
        build(NoPosition(), pooling="max")
