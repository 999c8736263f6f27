from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.layers import SampledPositionalEmbedding
from posembed.layers.sampled import SAMPLERS


def draw(sampler: str, max_len: int, length: int, seed: int = 0, batch: int = 64) -> torch.Tensor:
    layer = SampledPositionalEmbedding(max_len=max_len, dim=4, sampler=sampler)
    return layer.training_positions(batch, length, torch.Generator().manual_seed(seed))


@settings(max_examples=60)
@given(st.sampled_from(sorted(SAMPLERS)), st.integers(1, 12), st.integers(0, 20))
def test_positions_rise_within_the_table(sampler: str, length: int, more: int) -> None:
    ids = draw(sampler, length + more, length)
    assert ids.shape == (64, length)
    assert ids.min() >= 0
    assert ids.max() < length + more
    assert (ids.diff(dim=1) > 0).all()
    if more == 0:
        assert torch.equal(ids, torch.arange(length).expand(64, -1))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_row_is_trained_and_the_generator_decides(sampler: str) -> None:
    ids = draw(sampler, 30, 8, batch=500)
    assert ids.unique().tolist() == list(range(30))
    assert torch.equal(ids, draw(sampler, 30, 8, batch=500))
    assert not torch.equal(ids, draw(sampler, 30, 8, batch=500, seed=1))


def test_how_each_is_drawn() -> None:
    assert (draw("shifted", 30, 8).diff() == 1).all()
    assert ((draw("skipped", 30, 8).diff() != 1).sum(dim=1) <= 1).all()
    assert (draw("randomized", 30, 8).diff() != 1).float().mean() > 0.5
