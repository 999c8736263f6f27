from __future__ import annotations

import pytest
import torch

from posembed import Alibi
from posembed.layers import KerpleLog, KerplePower
from posembed.layers.alibi import alibi_slopes
from posembed.layers.kerple import SMALLEST, inverse_softplus
from tolerance import assert_close

KINDS = [KerpleLog, KerplePower]


@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_as_the_authors_does_and_stays_in_range(kind: type[KerpleLog] | type[KerplePower]) -> None:
    """The authors draw r1 ~ U(0, 2) and r2 ~ U(0, 1), in the power kernel the other way round; clamped at .01."""
    r1, r2 = kind(4000).coefficients()
    for r, highest in ((r1, 2 if kind is KerpleLog else 1), (r2, 1 if kind is KerpleLog else 2)):
        assert SMALLEST * 0.999 <= r.min() < 0.02
        assert highest - 0.02 < r.max() <= highest
        assert r.mean().item() == pytest.approx(highest / 2, rel=0.05)
    layer = kind(2)
    with torch.no_grad():
        layer.r1_weight.copy_(torch.tensor([-30.0, 30.0]))
        layer.r2_weight.copy_(torch.tensor([-30.0, 30.0]))
    r1, r2 = layer.coefficients()
    assert (r1 > 0).all()
    assert (r2 > 0).all()
    assert kind is KerpleLog or (r2 <= 2).all()


def test_the_power_of_one_is_alibi() -> None:
    layer = KerplePower(4)
    with torch.no_grad():
        layer.r1_weight.copy_(inverse_softplus(alibi_slopes(4)))
        layer.r2_weight.zero_()  # twice a sigmoid of 0
    assert_close(layer(50), Alibi(4)(50))


def test_inverse_softplus() -> None:
    r = torch.tensor([0.01, 0.5, 2.0, 40.0], dtype=torch.float64)
    assert_close(torch.nn.functional.softplus(inverse_softplus(r)), r)
