"""What all biases on the scores share: one formula of (head, query position, key position), used in two ways.

Dense, it is evaluated for every pair at once; as a ``score_mod`` FlexAttention evaluates it where it stands,
inside the kernel, and no (H, Lq, Lk) tensor is ever made.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, ScoreMod
from posembed.positions.checks import as_int64
from posembed.torch_internals import is_being_recorded

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(head, query position, key position), integers of any shapes that broadcast -> the bias, float32 or wider."""


def wide(x: Tensor) -> Tensor:
    """x in float32, or in its own dtype where that is wider: biases are not computed in a model's bfloat16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class ScoreBias(PositionEncoding):
    """A bias that is added to the scores q k / sqrt(d) before the softmax. Subclasses give the formula.

    Args:
        heads: H, each with a bias of its own.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise ArgumentError(f"{type(self).__name__} needs at least one head, got {heads}")
        self.heads = heads

    of_distance_alone = False
    """Whether the formula reads nothing of the positions but their difference: then consecutive ones cost less."""

    def formula(self, device: torch.device) -> Formula:
        """The bias as a function of single heads and positions, its learned values ready on the device."""
        raise NotImplementedError

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Positions (L,) or (B, L) -> (H, Lq, Lk) or (B, H, Lq, Lk), float32."""
        q_positions, k_positions = as_int64(q_positions, "q_positions"), as_int64(k_positions, "k_positions")
        head = torch.arange(self.heads, device=q_positions.device).view(-1, 1, 1)
        formula = self.formula(q_positions.device)
        if self.of_distance_alone and _are_consecutive(q_positions) and _are_consecutive(k_positions):
            return _along_diagonals(formula, head.squeeze(-1), q_positions, k_positions)
        return formula(head, q_positions[..., None, :, None], k_positions[..., None, None, :])

    def score_mod(self, q_positions: Tensor, k_positions: Tensor) -> ScoreMod:
        q_positions, k_positions = as_int64(q_positions, "q_positions"), as_int64(k_positions, "k_positions")
        formula = self.formula(q_positions.device)

        def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            q_position = q_positions[batch, query] if q_positions.dim() == 2 else q_positions[query]
            k_position = k_positions[batch, key] if k_positions.dim() == 2 else k_positions[key]
            return score + formula(head, q_position, k_position)

        return add_bias

    def forward(self, q_length: int, k_length: int | None = None, *, device: torch.device | None = None) -> Tensor:
        """The bias (H, Lq, Lk), float32, of the last q_length of k_length tokens, as in decoding with a cache."""
        k_length = q_length if k_length is None else k_length
        if q_length > k_length:
            raise ArgumentError(
                f"k_length counts all tokens, so it is at least q_length={q_length}, got {k_length}"
            )
        positions = torch.arange(k_length, device=device)
        return self.at_scores(positions[k_length - q_length :], positions)

    def extra_repr(self) -> str:
        return f"{self.heads}"


def _are_consecutive(position_ids: Tensor) -> bool:
    """p, p + 1, p + 2 and so on, where that can be seen without waiting for a device."""
    if position_ids.dim() != 1 or len(position_ids) < 2 or not position_ids.is_cpu:
        return False
    if is_being_recorded() or type(position_ids) is not Tensor:
        return False
    try:
        return bool((position_ids.diff() == 1).all())
    except RuntimeError:  # there are no values to look at: vmap
        return False


def _along_diagonals(formula: Formula, head: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """(H, Lq, Lk) of consecutive positions: each of the Lq + Lk - 1 distances is computed once."""
    q_length, k_length = len(q_positions), len(k_positions)
    # From the distance of the last query and the first key down to that of the first query and the last key: row i
    # of the bias is the k_length of them from the place q_length - 1 - i on.
    descending = torch.arange(q_length - 1, -k_length, -1)
    by_distance = formula(head, q_positions[0] + descending, k_positions[0])
    return by_distance.unfold(-1, k_length, 1).flip(-2)
