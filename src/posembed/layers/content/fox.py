"""FoX's forget gate (Lin et al. 2025, arXiv:2503.02130) and CABLE's bias (Veisi et al. 2025, arXiv:2503.08067).

Each token x_t gives each head a number g_t <= 0. The sum of g over the tokens after the key, up to the query, is added
to the score:

    score(i, j) = q_i k_j / sqrt(d) + g_(j+1) + ... + g_i

In FoX, g_t = log sigmoid(w x_t + b), the logarithm of a forget gate: the sum is log F_ij of the paper's section 3. In
CABLE, g_t = -softplus(w x_t + b), as in the authors' code (axiomlab/Cable). A version of their paper has a ReLU
of w x_t, and each query multiplies its sums by its own factor (equations 2 to 7); this encoding does neither. Because
log sigmoid(z) = -softplus(-z), FoX and CABLE are the same functions here: the models differ only in the sign of w and
b. Both start w from N(0, .02) and b from 0, so at first each step halves the weight of a token.

The sum is c_i - c_j, where c is the running sum of g. On a CPU, extra components of queries and keys compute this
difference, so that attention needs no (B, H, L, L) tensor. Elsewhere the difference is a dense bias: GPU kernels may
round float32 to TF32, in which numbers near -3,000 are 2 apart.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.arguments import Float
from posembed.layers.base import Content, PositionEncoding, fill_
from posembed.layers.score_bias import in_full_precision, wide
from posembed.settings import Count
from posembed.tables.fill import STD


def add_differences(
    q: Float[Tensor, "B H Lq d"], k: Float[Tensor, "B Hk Lk d"], sums: Float[Tensor, "B H Lk"]
) -> tuple[Float[Tensor, "B H Lq e"], Float[Tensor, "B Hk Lk e"]]:
    """Returns q and k, in float32 or wider, with q k / sqrt(e) = old q k / sqrt(d) + sums_i - sums_j.

    The queries are the last Lq of the Lk tokens. A key head shared by several query heads gets one component for each.
    """
    (heads, queries, width), key_heads = q.shape[1:], k.size(1)
    group = heads // key_heads
    root = math.sqrt(width + 1 + group)
    own = sums[..., sums.size(-1) - queries :, None].to(torch.promote_types(q.dtype, sums.dtype))
    which = torch.eye(group, dtype=own.dtype, device=q.device).repeat(key_heads, 1)[:, None].expand(*q.shape[:3], group)
    q = torch.cat((q.to(own.dtype) * (root / math.sqrt(width)), root * own, root * which), dim=-1)
    of_keys = -sums.to(own.dtype).unflatten(1, (key_heads, group)).transpose(-1, -2)
    return q, torch.cat((k.to(own.dtype), torch.ones_like(of_keys[..., :1]), of_keys), dim=-1)


class Fox(PositionEncoding):
    """FoX (arXiv:2503.02130): each token computes a gate per head, which multiplies the weights of all earlier tokens.

    Sums of log gates, and on a CPU also the scores, are computed in float32 or wider. Rounding errors grow with the
    sum: after n tokens that each halve the weights, they are about 1e-7 n. A decoder's cache keeps H more numbers per
    token and layer. Weights of distant tokens are often subnormal numbers, which Intel processors handle slowly:
    ``torch.set_flush_denormal(True)`` made training there 1.8 times as fast.

    Args:
        dim: the width D, a multiple of ``heads``.
        heads: the model's number of heads H.

    The state dict holds ``gate_weight`` (H, D) and ``gate_bias`` (H,).

    Raises:
        ArgumentError: a size below 1.

    Examples:
        >>> import torch
        >>> from posembed.layers import Fox
        >>> from posembed.nn import Decoder
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding="fox")  # each layer has its own gates
        >>> decoder(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> Fox(dim=64, heads=4).of_tokens(torch.randn(2, 10, 64)).shape  # the logarithms of the gates
        torch.Size([2, 10, 4])
    """

    causal_only = True
    per_layer = True

    def __init__(self, *, dim: Count, heads: Count) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads
        self.gate_weight = nn.Parameter(torch.empty(heads, dim))
        self.gate_bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fill_(self.gate_weight, torch.empty(self.heads, self.dim).normal_(std=STD))
        fill_(self.gate_bias, torch.zeros(self.heads))

    def of_tokens(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L H"]:
        """Returns each token's g for each head."""
        with in_full_precision(x.device):
            return self.of_logits(F.linear(wide(x), wide(self.gate_weight), wide(self.gate_bias)))

    def of_logits(self, logits: Tensor) -> Tensor:
        """Returns g, given the logits w x + b, elementwise."""
        return F.logsigmoid(logits)

    def at_content(self, q: Tensor, k: Tensor, content: Content) -> tuple[Tensor, Tensor, Tensor | None]:
        assert content.of_tokens is not None
        sums = content.of_tokens.cumsum(1).transpose(1, 2)
        if q.is_cpu:
            return *add_differences(q, k, sums), None
        return q, k, sums[..., sums.size(-1) - q.size(-2) :, None] - sums[..., None, :]


class Cable(Fox):
    """CABLE (arXiv:2503.08067): each token computes a bias per head; scores add those after the key, up to the query.
    It equals ``Fox`` with ``gate_weight`` and ``gate_bias`` negated.

    Raises:
        ArgumentError: a size below 1.

    Examples:
        >>> import torch
        >>> from posembed.nn import Decoder
        >>> Decoder(dim=64, heads=4, layers=2, encoding="cable")(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def of_logits(self, logits: Tensor) -> Tensor:
        return -F.softplus(logits)
