"""The Transformer's input layer against the formula of its paper, in float64."""

from __future__ import annotations

import math

import torch

from posembed.inputs import TransformerInput
from tolerance import assert_close


def test_the_table_starts_as_the_papers_sinusoids() -> None:
    layer = TransformerInput(vocab_size=20, max_len=9, dim=6)
    for position in range(9):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            found = layer.embed_positions.weight[position, 2 * pair : 2 * pair + 2].tolist()
            assert_close(found, [math.sin(angle), math.cos(angle)], dtype=torch.float32)


def test_scaled_tokens_start_with_variance_one() -> None:
    layer = TransformerInput(vocab_size=2000, max_len=9, dim=64)
    assert abs(float((layer.embed_tokens.weight.detach() * 8).square().mean()) - 1) < 0.05


def test_with_a_pad_id_the_table_is_fairseqs() -> None:
    layer = TransformerInput(vocab_size=20, max_len=9, dim=6, pad_id=1).eval()
    assert layer.embed_positions.weight.shape == (9 + 2, 6)
    ids = torch.tensor([[1, 1, 3, 4]])
    weight, table = layer.embed_tokens.weight, layer.embed_positions.weight
    assert torch.equal(layer(ids), weight[ids] * math.sqrt(6) + table[[1, 1, 2, 3]])
    assert not layer(ids)[0, :2].any()
