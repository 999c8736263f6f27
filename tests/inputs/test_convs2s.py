"""ConvS2S's input layer: a convolution over it must not see that a batch was padded."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posembed.inputs import ConvS2SInput
from tolerance import assert_close

PAD = 1


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("with_mask", [False, True])
def test_a_convolution_does_not_see_padding(side: str, with_mask: bool) -> None:
    layer = ConvS2SInput(vocab_size=20, max_len=9, dim=6).double().eval()
    convolution = nn.Conv1d(6, 6, kernel_size=5, padding=2).double()
    sequences = [torch.tensor([3, 4, 5, 6, 7]), torch.tensor([8, 9])]
    ids = nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=PAD, padding_side=side)
    mask = ids != PAD
    if with_mask:
        ids = ids.where(mask, 0)  # padding by another token, which has a row
    x = layer(ids, mask=mask if with_mask else None)
    assert not x[~mask].any()
    convolved = convolution(x.mT).mT
    for row, sequence in enumerate(sequences):
        alone = convolution(layer(sequence[None]).mT).mT
        assert_close(convolved[row, mask[row]], alone[0])


def test_padding_trains_nothing() -> None:
    layer = ConvS2SInput(vocab_size=20, max_len=9, dim=6)
    layer(torch.tensor([[3, 4, PAD]])).sum().backward()
    assert not layer.embed_tokens.weight.grad[PAD].any()
    assert not layer.embed_positions.weight.grad[PAD].any()
