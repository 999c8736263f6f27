"""How much a row matters: the same for every kind of model, and the model is as before."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.tables.importance import INSTEAD, row_importance
from tolerance import assert_close

transformers = pytest.importorskip("transformers")
BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 60}
LENGTH = 12


def models() -> dict[str, tuple[nn.Module, Callable[[], Tensor]]]:
    """Returns tables, and losses, of a classifier, of language models, and of a sentence encoder."""
    torch.manual_seed(0)
    ids, labels = torch.randint(60, (6, LENGTH)), torch.randint(2, (6,))
    config = transformers.BertConfig(**BERT, max_position_embeddings=20, initializer_range=0.5)
    classifier = transformers.BertForSequenceClassification(config).eval()
    masked, encoder = transformers.BertForMaskedLM(config).eval(), transformers.BertModel(config).eval()
    gpt2 = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=20, vocab_size=60, bos_token_id=0,
                                   eos_token_id=0, initializer_range=0.5)  # fmt: skip
    causal = transformers.GPT2LMHeadModel(gpt2).eval()
    target = encoder(ids)[0].mean(1).detach().roll(1, 0)
    return {
        "classifier": (
            classifier.bert.embeddings.position_embeddings,
            lambda: F.cross_entropy(classifier(ids).logits, labels, reduction="none"),
        ),
        "masked": (
            masked.bert.embeddings.position_embeddings,
            lambda: F.cross_entropy(masked(ids).logits.transpose(1, 2), ids, reduction="none"),
        ),
        "causal": (
            causal.transformer.wpe,
            lambda: F.cross_entropy(causal(ids).logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none"),
        ),
        "sentences": (
            encoder.embeddings.position_embeddings,
            lambda: 1 - F.cosine_similarity(encoder(ids)[0].mean(1), target),
        ),
    }


def test_each_kind_of_model_gets_the_increase_of_its_own_losses() -> None:
    for kind, (layer, losses) in models().items():
        for instead in INSTEAD:
            before = layer.weight.detach().clone()
            found = row_importance(layer, losses, instead=instead)
            assert torch.equal(layer.weight, before), kind
            assert list(found) == list(range(20))
            assert all(found[row].value == 0 for row in range(LENGTH, 20)), kind
            assert all(found[row].value != 0 for row in range(LENGTH - 1)), kind
            intact = losses().detach()
            for row in (0, 7, 19):
                with torch.no_grad():
                    layer.weight[row] = before.mean(0) if instead == "mean" else before[row + 1 if row < 19 else 18]
                    wanted = (losses() - intact).double().reshape(6, -1).mean(1)
                    layer.weight[row] = before[row]
                assert_close(torch.tensor(found[row].values), wanted.float(), msg=f"{kind} {instead}", scale=intact)
            assert layer.weight.requires_grad
        assert torch.is_grad_enabled()
        assert row_importance(layer.weight, losses, rows=[3]) == row_importance(layer, losses, rows=[3])


def test_a_model_that_fails_keeps_its_table() -> None:
    layer, losses = models()["classifier"]
    before, calls = layer.weight.detach().clone(), []

    def failing() -> Tensor:
        calls.append(None)
        if len(calls) == 3:
            raise KeyError("in the model")
        return losses()

    with pytest.raises(KeyError):
        row_importance(layer, failing)
    assert torch.equal(layer.weight, before)


def test_a_classifier_that_reads_one_position_depends_on_its_row() -> None:
    """Its label is the token at position 4, which only the row tells apart."""
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(10, 4))
    wanted = table.detach()[4].clone()
    tokens = torch.randint(2, (40, 10))

    def losses() -> Tensor:
        seen = (8 * (table @ wanted) / wanted.norm() ** 2).softmax(0)  # attention to the row that is like row 4
        return (tokens[:, 4] - tokens.float() @ seen).abs()

    found = row_importance(table, losses)
    assert max(found, key=lambda row: found[row].value) == 4
    assert found[4].low is not None
    assert found[4].low > 0.1


def test_what_cannot_be_measured_is_refused() -> None:
    layer, losses = models()["classifier"]
    for table in (
        nn.Linear(2, 2, bias=False).to("meta"),
        nn.ReLU(),
        torch.zeros(1, 3),
        torch.zeros(3, dtype=torch.int64),
    ):
        with pytest.raises(ArgumentError, match="table"):
            row_importance(table, losses)
    for rows in ([20], [-1]):
        with pytest.raises(ArgumentError, match="from 0 to 19"):
            row_importance(layer, losses, rows=rows)
    with pytest.raises(ArgumentError, match="mean, neighbour"):
        row_importance(layer, losses, instead="zero")
    for wrong in (lambda: losses().mean(), lambda: 0.5, lambda: losses()[:0]):
        with pytest.raises(ArgumentError, match="reduction"):
            row_importance(layer, wrong)
    sizes = iter([8, 1, 8])
    with pytest.raises(ArgumentError, match=r"the same texts in each call; got losses of shape \(8,\), then \(1,\)"):
        row_importance(layer, lambda: torch.zeros(next(sizes)))
    with pytest.raises(ArgumentError, match="finite"):
        row_importance(layer, lambda: losses() * math.nan)
    with pytest.raises(ArgumentError, match=r"losses must be equal in each call .* model\.eval\(\)"):
        row_importance(layer, lambda: torch.dropout(losses(), 0.5, True))


def test_a_table_that_is_computed_is_refused_and_stays() -> None:
    table = nn.Embedding(8, 4)
    nn.utils.parametrizations.weight_norm(table)
    before = table.weight.clone()
    with pytest.raises(ArgumentError, match="table"):
        row_importance(table, lambda: table.weight.sum(dim=1))
    assert torch.equal(table.weight, before)
    assert list(row_importance(nn.Embedding(8, 4), lambda: torch.zeros(3), rows=range(2))) == [0, 1]
