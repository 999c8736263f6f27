from __future__ import annotations

import math

import pytest
import torch

from posembed import Alibi
from posembed.layers.alibi import alibi_slopes
from together import together
from tolerance import assert_close


def authors_slopes(n: int) -> list[float]:
    """The recursion of the paper's appendix, in float64."""

    def power_of_two(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_two(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_two(closest) + authors_slopes(2 * closest)[0::2][: n - closest]


@together("heads", [1, 2, 3, 4, 5, 8, 12, 16, 20, 33])
def test_slopes_are_the_authors(heads: int) -> None:
    assert_close(alibi_slopes(heads).tolist(), authors_slopes(heads), dtype=torch.float32, relative=True)


@pytest.mark.parametrize("heads", [4, 6, 8])
def test_bias_differs_from_transformers_bloom_by_a_constant_a_row(heads: int) -> None:
    """BLOOM adds slope * j; softmax does not see the slope * i by which ours is lower."""
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 9, dtype=torch.long), heads, torch.float32)[:, 0]
    ours = Alibi(heads)(9)
    assert_close(ours[:, -1] - ours[:, -1, :1], theirs - theirs[:, :1])


@pytest.mark.parametrize("scale", [0.5, 96])
def test_the_scale_multiplies_every_slope_in_every_form(scale: float) -> None:
    scaled, plain = Alibi(4, scale=scale), Alibi(4)
    assert torch.equal(scaled(9), scale * plain(9))
    q, k = torch.tensor([7, 2]), torch.tensor([0, 3, 5])
    assert torch.equal(scaled.at_scores(q, k), scale * plain.at_scores(q, k))
    assert "scale" in repr(scaled)
