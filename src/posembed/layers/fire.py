"""FIRE, functional interpolation for relative positions (Li et al. 2024, arXiv:2310.04418).

The bias is f(psi(i - j) / psi(max(L, i))), where psi(x) = log(c x + 1) and f is a small network with one output per
head. The distance is divided by the query's own position, so f reads only values in [0, 1] at any length. For positions
up to the learned threshold L, it is divided by L instead, so that in short texts equal distances have equal values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posembed.arguments import Float, Integer
from posembed.layers.base import fill_
from posembed.layers.score_bias import Formula, ScoreBias, in_full_precision, wide
from posembed.positions.checks import as_int64
from posembed.settings import Count, Positive
from posembed.torch_internals import forward_mode_is_active, is_being_recorded, transforms_are_active

EPSILON = 1e-6
"""The number added to the denominator, as in the authors' code."""
PAIRS_AT_ONCE = 2**18
"""The number of pairs whose hidden units exist at once: 32 MiB at the paper's width."""


def fire_interpolation(c: Tensor, threshold: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Returns psi(|i - j|) / psi(max(L, i)), elementwise. Keys that do not follow their query give values in [0, 1]."""
    distance = (q_positions - k_positions).abs()
    longest = torch.maximum(q_positions.to(threshold.dtype), threshold.abs())
    return torch.log(c.abs() * distance + 1) / (torch.log(c.abs() * longest + 1) + EPSILON)


class Fire(ScoreBias):
    """FIRE for decoders: bias f(psi(i - j) / psi(max(i, T))) of query i and earlier key j, with psi(x) = log(c x + 1).

    Args:
        heads: the number of heads H.
        width: the width of the hidden layer of the network f; 32 in the paper.
        c: the initial value of the learned c; .1 in the paper.
        threshold: the initial value of the learned T; 512 in the paper, a quarter of its training length.

    Raises:
        ArgumentError: a width below 1, or a c or threshold that is not positive.

    Examples:
        >>> from posembed.layers import Fire
        >>> Fire(heads=4)(10).shape  # (H, L, L)
        torch.Size([4, 10, 10])
    """

    causal_only = True

    def __init__(self, heads: Count, *, width: Count = 32, c: Positive = 0.1, threshold: Positive = 512.0) -> None:
        super().__init__(heads)
        self.width, self.initial_c, self.initial_threshold = width, c, threshold
        # Single numbers, but with one dimension: a parameter without dimensions cannot be sharded.
        self.c = nn.Parameter(torch.empty(1))
        self.threshold_factor = nn.Parameter(torch.empty(1))
        # Not two nn.Linear: ``formula`` would not call them, so their hooks (such as offloading) would not run.
        self.hidden_weight = nn.Parameter(torch.empty(width))
        self.hidden_bias = nn.Parameter(torch.empty(width))
        self.output_weight = nn.Parameter(torch.empty(heads, width))
        self.output_bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights as nn.Linear does: uniform between -1/sqrt(inputs) and 1/sqrt(inputs)."""
        fill_(self.c, torch.full((1,), self.initial_c))
        fill_(self.threshold_factor, torch.ones(1))
        for parameter, inputs in (
            (self.hidden_weight, 1),
            (self.hidden_bias, 1),
            (self.output_weight, self.width),
            (self.output_bias, self.width),
        ):
            fill_(parameter, torch.empty(parameter.shape).uniform_(-(inputs**-0.5), inputs**-0.5))

    def c_and_threshold(self) -> tuple[Tensor, Tensor]:
        """Returns c and the threshold, scalar tensors in float32 or wider."""
        return wide(self.c).squeeze(0), wide(self.threshold_factor).squeeze(0) * self.initial_threshold

    def formula(self, device: torch.device) -> Formula:
        # A kernel has no vectors, so the hidden units are summed one by one.
        c, threshold = self.c_and_threshold()
        slopes, offsets = wide(self.hidden_weight), wide(self.hidden_bias)
        weights, biases = wide(self.output_weight), wide(self.output_bias)

        def bias(head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            x = fire_interpolation(c, threshold, q, k)
            total = biases[head]
            for unit in range(self.width):
                total = total + weights[head, unit] * (slopes[unit] * x + offsets[unit]).relu()
            return total

        return bias

    def at_scores(
        self, q_positions: Integer[Tensor, "... Lq"], k_positions: Integer[Tensor, "... Lk"]
    ) -> Float[Tensor, "... H Lq Lk"]:
        """Returns the dense bias. One matrix product over the hidden units takes a third as long as a sum over them.

        A large bias is computed in blocks of queries, and again in the backward pass, so that the (..., Lq, Lk, width)
        hidden units never exist at once.
        """
        q_positions, k_positions = as_int64(q_positions, "q_positions"), as_int64(k_positions, "k_positions")
        if is_being_recorded() or transforms_are_active() or forward_mode_is_active():
            return self._of_block(q_positions, k_positions)
        pairs_of_a_query = max(1, q_positions[..., :1].numel() * k_positions.size(-1))
        blocks = q_positions.split(max(1, PAIRS_AT_ONCE // pairs_of_a_query), dim=-1)
        if len(blocks) == 1:
            return self._of_block(q_positions, k_positions)
        again = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
        parts = [
            checkpoint(self._of_block, block, k_positions, use_reentrant=False, preserve_rng_state=False)
            if again
            else self._of_block(block, k_positions)
            for block in blocks
        ]
        return torch.cat(parts, dim=-2)

    def _of_block(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        x = fire_interpolation(*self.c_and_threshold(), q_positions[..., :, None], k_positions[..., None, :])
        with in_full_precision(x.device):
            hidden = torch.addmm(
                wide(self.hidden_bias)[:, None], wide(self.hidden_weight)[:, None], x.reshape(1, -1)
            ).relu()
            bias = wide(self.output_weight) @ hidden
        return bias.view(self.heads, *x.shape).movedim(0, -3) + wide(self.output_bias)[:, None, None]

    def extra_repr(self) -> str:
        return f"{self.heads}, width={self.width}, c={self.initial_c:g}, threshold={self.initial_threshold:g}"
