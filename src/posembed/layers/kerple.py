"""KERPLE (Chi et al. 2022, arXiv:2205.09921): kernels of the distance with two learned numbers per head.

Logarithmic: -r1 log(1 + r2 |i - j|). Power: -r1 |i - j|^r2 with 0 < r2 <= 2; ALiBi is the power with r2 = 1 and r1
fixed. Both are in section 4, under equation 4, and are conditionally positive definite if r1, r2 > 0. Equation 1 also
divides them by sqrt(d); the authors' code does not, and neither does posembed. The authors clamp r1 and r2 at .01 after
each step; here they are the softplus, or twice the sigmoid, of learned values, so that no clamp stops a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.layers.base import fill_
from posembed.layers.score_bias import Formula, ScoreBias, wide
from posembed.settings import Count

SMALLEST = 0.01
"""The smallest initial r1 and r2, equal to the authors' clamp."""


class KerpleLog(ScoreBias):
    """KERPLE's logarithmic bias -r1 log(1 + r2 |i - j|), the better of the two in the paper (arXiv:2205.09921).

    It starts as in the authors' code: r1 ~ U(0, 2), r2 ~ U(0, 1). The state dict holds ``r1_weight`` and
    ``r2_weight`` (H,); r1 and r2 are their softplus.

    Raises:
        ArgumentError: no head.

    Examples:
        >>> from posembed.layers import KerpleLog
        >>> KerpleLog(heads=4)(10).shape  # (H, L, L)
        torch.Size([4, 10, 10])
    """

    of_distance_alone = True

    def __init__(self, heads: Count) -> None:
        super().__init__(heads)
        self.r1_weight = nn.Parameter(torch.empty(heads))
        self.r2_weight = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        r1, r2 = 2 * torch.rand(self.heads), torch.rand(self.heads)
        fill_(self.r1_weight, inverse_softplus(r1.clamp(min=SMALLEST)))
        fill_(self.r2_weight, inverse_softplus(r2.clamp(min=SMALLEST)))

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Returns r1 and r2, (H,) each, positive, float32 or wider. The power kernel's r2 is below 2."""
        return F.softplus(wide(self.r1_weight)), F.softplus(wide(self.r2_weight))

    def formula(self, device: torch.device) -> Formula:
        r1, r2 = self.coefficients()
        return lambda head, q, k: -r1[head] * torch.log1p(r2[head] * (q - k).abs())


class KerplePower(KerpleLog):
    """KERPLE's power bias -r1 |i - j|^r2 (arXiv:2205.09921).

    It starts as in the authors' code: r1 ~ U(0, 1), r2 ~ U(0, 2). The state dict holds ``r1_weight`` and ``r2_weight``
    (H,); r1 = softplus(r1_weight) and r2 = 2 sigmoid(r2_weight).

    Raises:
        ArgumentError: no head.

    Examples:
        >>> from posembed.layers import KerplePower
        >>> KerplePower(heads=4)(10).shape  # (H, L, L)
        torch.Size([4, 10, 10])
    """

    def reset_parameters(self) -> None:
        r1, r2 = torch.rand(self.heads), 2 * torch.rand(self.heads)
        fill_(self.r1_weight, inverse_softplus(r1.clamp(min=SMALLEST)))
        fill_(self.r2_weight, torch.logit(r2 / 2, eps=SMALLEST / 2))

    def coefficients(self) -> tuple[Tensor, Tensor]:
        return F.softplus(wide(self.r1_weight)), 2 * torch.sigmoid(wide(self.r2_weight))

    def formula(self, device: torch.device) -> Formula:
        r1, r2 = self.coefficients()
        return lambda head, q, k: -r1[head] * (q - k).abs() ** r2[head]


def inverse_softplus(x: Tensor) -> Tensor:
    """Returns the y for which softplus(y) = x, for x > 0."""
    return x + torch.log(-torch.expm1(-x))
