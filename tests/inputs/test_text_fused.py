"""One lookup gives an input layer the bits that its modules give one by one, and the same gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from posembed import inputs
from posembed.inputs import text
from posembed.layers import lookup
from together import together
from tolerance import assert_close

PAD = 1
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: inputs.BertInput(vocab_size=50, max_len=24, dim=8, pad_id=PAD),
    "bert without types": lambda: inputs.BertInput(vocab_size=50, max_len=24, dim=8, token_types=0, pad_id=None),
    "roberta": lambda: inputs.RobertaInput(vocab_size=50, max_len=24, dim=8, pad_id=PAD),
    "gpt2": lambda: inputs.GPT2Input(vocab_size=50, max_len=24, dim=8),
    "bart": lambda: inputs.BartInput(vocab_size=50, max_len=24, dim=8, pad_id=PAD),
    "bart, scaled, without norm": lambda: inputs.BartInput(vocab_size=50, max_len=24, dim=8, scale=True, norm=False),
    "transformer, counting": lambda: inputs.TransformerInput(vocab_size=50, max_len=24, dim=8, pad_id=PAD),
    "convs2s": lambda: inputs.ConvS2SInput(vocab_size=50, max_len=24, dim=8),
}
IDS = torch.tensor([[PAD, PAD, 7, 8, 9, 7], [6, 7, 8, 9, 6, 7]])
CALLS = {
    "consecutive": {},
    "offset": {"offset": 3},
    "offsets": {"offset": torch.tensor([1, 4])},
    "mask": {"mask": (IDS != PAD).long()},
    "ids": {"position_ids": torch.tensor([3, 1, 2, 0, 9, 9])},
}


def lookups(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One element for each lookup from now on."""
    seen: list[None] = []
    monkeypatch.setattr(text, "lookup", lambda request: (seen.append(None), lookup.lookup(request))[1])
    monkeypatch.setattr(lookup, "PIECE", 8)
    return seen


def run(layer: nn.Module, arguments: dict[str, object]) -> tuple[Tensor, list[Tensor]]:
    out = layer(IDS, **arguments)
    weights = torch.arange(out.numel()).view(out.shape).cos()
    return out, list(torch.autograd.grad((out * weights).sum(), list(layer.parameters())))


@together("call", CALLS)
@together("name", LAYERS)
def test_one_lookup_is_the_modules_one_by_one(name: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = LAYERS[name]().eval()
    seen = lookups(monkeypatch)
    out, gradients = run(layer, CALLS[call])
    assert len(seen) == 1
    next(module for module in layer.modules() if isinstance(module, nn.Embedding)).register_forward_hook(
        lambda *_: None
    )
    expected, expected_gradients = run(layer, CALLS[call])
    assert len(seen) == 1
    assert torch.equal(out, expected)
    assert_close(gradients, expected_gradients)


class Recorded(nn.Embedding):
    """A table of someone's own."""


@pytest.mark.parametrize("change", ["a subclass", "max_norm", "a norm of one's own", "two dropouts"])
def test_what_a_lookup_would_pass_over_is_called(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = inputs.BertInput(vocab_size=50, max_len=24, dim=8)
    if change == "a subclass":
        layer.word_embeddings = Recorded(50, 8)
    if change == "max_norm":
        layer.word_embeddings.max_norm = 0.01
    if change == "a norm of one's own":
        layer.LayerNorm = nn.Sequential(nn.LayerNorm(8))
    if change == "two dropouts":
        layer.position_embeddings.dropout = 0.5
    seen = lookups(monkeypatch)
    layer(IDS)
    assert not seen
    if change == "max_norm":
        assert float(layer.word_embeddings.weight[7].detach().norm()) < 0.011


def test_dropout_in_training_is_that_of_the_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    for layer in (
        inputs.BertInput(vocab_size=50, max_len=24, dim=8, dropout=0.5),
        inputs.GPT2Input(vocab_size=50, max_len=24, dim=8, dropout=0.5),
    ):
        seen = lookups(monkeypatch)
        out = layer(IDS)
        assert len(seen) == 1
        kept = out != 0
        assert 0.2 < float(kept.float().mean()) < 0.8
        assert_close(out[kept], 2 * layer.eval()(IDS)[kept])


def test_a_sparse_token_table(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = inputs.GPT2Input(vocab_size=50, max_len=24, dim=8).eval()
    layer.wte.sparse = True
    seen = lookups(monkeypatch)
    layer(IDS).sum().backward()
    assert len(seen) == 1
    assert layer.wte.weight.grad.is_sparse
