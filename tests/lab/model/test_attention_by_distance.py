from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from posembed.errors import RunFolderError
from posembed.lab import attention
from posembed.lab.model import Decoder
from posembed.lab.runs import tensors
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.nn import Attention, Positions
from together import together
from tolerance import assert_close

CPU = torch.device("cpu")


def explicit_weights(model: Decoder, ids: Tensor, layer: int) -> Tensor:
    """(B, H, L, L) float64 of one layer: the softmax of q k / sqrt(d) plus the bias, under the mask."""
    encoding, ids_of_tokens, length = model.encoding, torch.arange(ids.size(1)), ids.size(1)
    x = encoding.at_input(model.tokens(ids), ids_of_tokens)
    bias = encoding.at_scores(ids_of_tokens, ids_of_tokens)
    positions = Positions(encoding, x)
    for block in model.body.layers[:layer]:
        x = block(x, positions=positions)
    block = model.body.layers[layer]
    q, k, _ = block.attention.queries_keys_and_values(block.attention_norm(x), positions)
    scores = q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.size(-1))
    if bias is not None:
        scores = scores + bias.double()
    for i in range(length):
        for j in range(length):
            if j > i or (encoding.window is not None and i - j >= encoding.window):
                scores[..., i, j] = -math.inf
    return scores.softmax(dim=-1)


ENCODINGS = ["learned", "rolling", "sinusoidal", "rope", "alibi", "none", "rope+window", "alibi+window"]


@together("encoding", ENCODINGS)
def test_it_is_the_mean_of_an_explicit_softmax_by_distance(
    spec: LengthSpec, task: LanguageModelling, encoding: str
) -> None:
    spec = dataclasses.replace(spec, encoding=encoding, window=5, ring=5)
    model = task.build(spec).eval()
    for parameter in model.parameters():  # far from the even attention of small initial weights
        parameter.data += 0.3 * torch.randn_like(parameter)
    ids = task.corpus.held_out[: 3 * 12].long().view(3, 12)
    with torch.no_grad():
        found = attention.by_distance(model, ids, CPU)
        assert found.shape == (2, 2, 12)
        for layer in range(2):
            weights = explicit_weights(model, ids, layer)
            for back in range(12):
                expected = torch.stack([weights[:, :, i, i - back] for i in range(back, 12)]).mean(dim=(0, 1))
                assert_close(found[layer, :, back], expected, dtype=torch.float32)
    if model.encoding.window is not None:
        assert not found[..., 5:].any()


def test_few_sequences_at_a_time_are_the_same_and_nothing_is_left_behind(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = task.build(dataclasses.replace(spec, encoding="alibi")).eval()
    together = task.attention(spec, model, accelerator.device)
    monkeypatch.setattr(attention, "WEIGHTS_AT_ONCE", 1)
    assert_close(task.attention(spec, model, accelerator.device), together, dtype=torch.float32)
    assert together.shape == (spec.layers, spec.heads, spec.train_length)
    assert all(not m._forward_pre_hooks for m in model.modules() if isinstance(m, Attention))


def test_the_file(tmp_path: Path) -> None:
    weights = torch.rand(2, 3, 8)
    tensors.save_attention(tmp_path / "a.safetensors", weights.double())
    assert torch.equal(tensors.load_attention(tmp_path / "a.safetensors"), weights)
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(RunFolderError, match="without its figure"):
        tensors.load_attention(tmp_path / "a.safetensors")
