"""SeqPE: the authors' numbers, each position encoded once, and random starts in training."""

from __future__ import annotations

import pytest
import torch

from posembed.errors import PositionError
from posembed.layers import SequentialPositionalEmbedding
from posembed.torch_internals import without_memory
from together import together
from tolerance import assert_close

# SequentialPE(4, 2, 1, 3, attn_direction="causal", use_last_layernorm=True, mask_padding=False, out_proj_dim=3,
# seqpe_temperature=2) of the authors' image_seqpe/models/sequential_pe.py in float64, with the weights of ``small``, at
# positions 0, 7, 42 and 999.
AUTHORS = [
    [-0.204515082537, 0.514313341471, -0.288894903030],
    [-0.209402640262, 0.525057852100, -0.298053506969],
    [-0.246988284254, 0.520706271021, -0.254779096552],
    [-0.221177625279, 0.523507141111, -0.284251297261],
]


def small() -> SequentialPositionalEmbedding:
    """Weight number i of parameter number k, in the order of the state dict, is sin(i + k)."""
    layer = SequentialPositionalEmbedding(longest=1000, dim=3, width=4, encoder_heads=2, layers=1, scale=0.5).double()
    with torch.no_grad():
        for k, parameter in enumerate(layer.parameters()):
            parameter.copy_(torch.sin(torch.arange(parameter.numel()).double() + k).view(parameter.shape))
    return layer


def test_the_authors_numbers() -> None:
    rows = small().rows(torch.tensor([0, 7, 42, 999]))
    assert_close(rows, torch.tensor(AUTHORS, dtype=torch.float64), places=12)


@together(("longest", "digits"), [(1, 1), (10, 1), (11, 2), (20_000, 5), (100_000, 5)])
def test_the_number_of_digits(longest: int, digits: int) -> None:
    layer = SequentialPositionalEmbedding(longest=longest, dim=6, width=4)
    assert layer.digits == len(layer.place_weight) == digits
    assert layer.rows(torch.tensor([longest - 1])).isfinite().all()
    with pytest.raises(PositionError, match=f"{longest}"):
        layer.rows(torch.tensor([longest]))


def test_tensors_without_values() -> None:
    with without_memory():
        layer = SequentialPositionalEmbedding(longest=20, dim=6, width=4)
        assert layer(torch.randn(2, 5, 6), offset=3).shape == (2, 5, 6)


def test_training_starts_a_share_of_sequences_elsewhere() -> None:
    layer = SequentialPositionalEmbedding(longest=500, dim=6, width=4, shift_rate=0.25)
    ids = layer.training_positions(2000, 30, torch.Generator().manual_seed(0))
    assert ids.shape == (2000, 30)
    assert (ids.diff(dim=1) == 1).all()
    starts = ids[:, 0]
    assert starts.min() == 0
    assert 450 < starts.max() <= 470
    assert 0.2 < (starts > 0).double().mean() < 0.3
    whole = SequentialPositionalEmbedding(longest=30, dim=6, width=4)
    assert (whole.training_positions(50, 30, torch.Generator()) == torch.arange(30)).all()
    with pytest.raises(PositionError):
        whole.training_positions(2, 31, torch.Generator())
