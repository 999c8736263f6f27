"""Formulas of the position in a model of bfloat16, in which 256 and 257 are one number: no position is lost."""

from __future__ import annotations

import copy

import torch
from torch import nn

from posembed import RotaryEmbedding, SinusoidalPositionalEmbedding
from posembed.layers import PolarEmbedding, YarnScaling
from together import together
from tolerance import assert_close


@torch.no_grad()
@together(
    "layer",
    [
        SinusoidalPositionalEmbedding(64),
        RotaryEmbedding(8),
        RotaryEmbedding(8, scaling=YarnScaling(16)),
        PolarEmbedding(head_dim=8, heads=1),
    ],
)
def test_every_position_keeps_its_own_values(layer: nn.Module) -> None:
    narrow = copy.deepcopy(layer).to(torch.bfloat16)
    rotates = not isinstance(layer, SinusoidalPositionalEmbedding)
    x = (torch.ones(1, 1, 300, 8),) * 2 if rotates else (torch.zeros(1, 600, 64),)
    ours, expected = narrow(*(t.bfloat16() for t in x)), layer(*x)
    for mine, theirs in zip(ours if rotates else [ours], expected if rotates else [expected], strict=True):
        assert mine.dtype == torch.bfloat16
        assert_close(mine.float(), theirs, dtype=torch.bfloat16)
        assert len(torch.unique(mine.flatten(0, -2).float(), dim=0)) == x[0].shape[-2]
