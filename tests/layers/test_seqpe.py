"""SeqPE: the authors' numbers, each position encoded once, random starts in training, and the auxiliary losses."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

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


@pytest.fixture
def with_losses(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of benchmarks/seqpe_losses.py."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("seqpe_losses").SeqPeWithLosses


@together(("longest", "length"), [(500, 40), (20_000, 512), (83, 40), (66, 5), (65, 64), (64, 8), (9, 3), (2, 1)])
def test_auxiliary_losses_are_the_formulas(
    longest: int, length: int, with_losses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = with_losses(longest=longest, dim=6, width=4, scale=20.0).double()
    calls: list[tuple[Tensor, Tensor]] = []
    encode = layer.rows

    def rows(position_ids: Tensor) -> Tensor:
        calls.append((position_ids, encode(position_ids)))
        return calls[-1][1]

    monkeypatch.setattr(layer, "rows", rows)
    loss = layer.auxiliary_loss(length, torch.Generator().manual_seed(0))
    ids, scored = calls[0]
    for group in ids.tolist():
        assert len(set(group)) == len(group)
        assert 0 <= min(group) <= max(group) < longest
    nearest = (ids[:, 1:] - ids[:, :1]).abs().argmin(-1)
    expected = F.cross_entropy((scored[:, :1] @ scored[:, 1:].mT).squeeze(1), nearest)
    assert len(calls) == (3 if longest > 2 * length else 1)
    if len(calls) == 3:
        (near, rows_near), (far, rows_far) = calls[1:]
        assert 0 <= near.min() <= near.max() < length <= far.min() <= far.max() < longest
        assert ((far - near).diff(dim=-1) == 0).all()
        p, q = ((rows @ rows.mT).log_softmax(-1) for rows in (rows_near, rows_far))
        expected = expected + (q.exp() * (q - p) + p.exp() * (p - q)).mean()
    assert_close(loss, 0.1 * expected, places=12)


def test_auxiliary_losses_have_gradients(with_losses: Any) -> None:
    torch.manual_seed(0)
    layer = with_losses(longest=1000, dim=32, width=16).double()
    values: list[float] = []
    for _ in range(2):
        loss = layer.auxiliary_loss(20, torch.Generator().manual_seed(0))
        assert loss is not None
        values.append(loss.item())
        loss.backward()
        for parameter in layer.parameters():
            assert parameter.grad is not None
            parameter.data -= 0.1 * parameter.grad
    assert values[1] < values[0]


def test_auxiliary_losses_at_the_limits(with_losses: Any) -> None:
    assert with_losses(longest=1, dim=6, width=4).auxiliary_loss(1, torch.Generator()) is None
    with pytest.raises(PositionError):
        with_losses(longest=30, dim=6, width=4).auxiliary_loss(31, torch.Generator())
