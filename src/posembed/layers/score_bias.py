"""The base of all biases on the scores: one formula of (head, query position, key position), used in two ways.

The dense bias evaluates the formula for all pairs at once. FlexAttention evaluates it inside its kernel, as a
``score_mod``, without creating an (H, Lq, Lk) tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posembed.arguments import Float, Integer
from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, ScoreMod
from posembed.positions.checks import as_int64, require_whole
from posembed.settings import Count
from posembed.torch_internals import is_being_recorded, transforms_are_active

Formula = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps head, query position and key position (integers that broadcast) to the bias (float32 or wider)."""


def wide(x: Tensor) -> Tensor:
    """Converts x to float32 unless its dtype is wider: biases are not computed in a model's bfloat16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def in_full_precision(device: torch.device) -> torch.autocast:
    """Returns a context in which autocast does not round the numbers from which a bias is computed."""
    return torch.autocast(device.type if torch.amp.is_autocast_available(device.type) else "cpu", enabled=False)


def require_divisible(dim: int, heads: int) -> None:
    """Raises ArgumentError unless the width is a multiple of the number of heads."""
    if dim % heads:
        raise ArgumentError(f"dim must be a multiple of heads; got {dim} and {heads}")


class ScoreBias(PositionEncoding):
    """A bias added to the scores q k / sqrt(d) before the softmax. Subclasses define the formula.

    Args:
        heads: the number of heads H, each with its own bias.
    """

    def __init__(self, heads: Count) -> None:
        super().__init__()
        self.heads = heads

    of_distance_alone = False
    """Whether the formula depends only on the difference of positions. Consecutive positions are then cheaper."""

    def formula(self, device: torch.device) -> Formula:
        """Returns the bias as a function of head and positions, with learned values on this device."""
        raise NotImplementedError

    def at_scores(
        self, q_positions: Integer[Tensor, "... Lq"], k_positions: Integer[Tensor, "... Lk"]
    ) -> Float[Tensor, "... H Lq Lk"]:
        """Returns the dense bias, float32: (H, Lq, Lk) for positions (L,), or (B, H, Lq, Lk) for positions (B, L)."""
        q_positions, k_positions = as_int64(q_positions, "q_positions"), as_int64(k_positions, "k_positions")
        diagonals = self.diagonals(q_positions, k_positions)
        if diagonals is not None:  # row i of the bias has the Lk values from index Lq - 1 - i on
            return diagonals.unfold(-1, k_positions.size(-1), 1).flip(-2)
        head = torch.arange(self.heads, device=q_positions.device).view(-1, 1, 1)
        formula = self.formula(q_positions.device)
        return formula(head, q_positions[..., None, :, None], k_positions[..., None, None, :])

    def diagonals(
        self, q_positions: Integer[Tensor, "... Lq"], k_positions: Integer[Tensor, "... Lk"]
    ) -> Float[Tensor, "H M"] | None:
        """Returns the values of the dense bias, float32 (H, M), one for each of its M = Lq + Lk - 1 diagonals.

        The values run from (last query, first key) to (first query, last key). None means that a diagonal may have
        several values: the formula does not depend on the distance alone, or positions are not consecutive.
        """
        q_positions, k_positions = as_int64(q_positions, "q_positions"), as_int64(k_positions, "k_positions")
        if not (self.of_distance_alone and _are_consecutive(q_positions) and _are_consecutive(k_positions)):
            return None
        device = q_positions.device
        descending = torch.arange(len(q_positions) - 1, -len(k_positions), -1, device=device)
        head = torch.arange(self.heads, device=device).unsqueeze(-1)
        return self.formula(device)(head, q_positions[0] + descending, k_positions[0])

    def score_mod(self, q_positions: Tensor, k_positions: Tensor) -> ScoreMod:
        q_positions, k_positions = (
            # One row of positions is shared by all sequences.
            as_int64(ids.squeeze(0) if ids.dim() == 2 and ids.size(0) == 1 else ids, "positions")
            for ids in (q_positions, k_positions)
        )
        formula = self.formula(q_positions.device)

        def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            q_position = q_positions[batch, query] if q_positions.dim() == 2 else q_positions[query]
            k_position = k_positions[batch, key] if k_positions.dim() == 2 else k_positions[key]
            return score + formula(head, q_position, k_position)

        return add_bias

    def forward(
        self,
        q_length: int,
        k_length: int | None = None,
        *,
        device: torch.device | None = None,
    ) -> Float[Tensor, "H Lq Lk"]:
        """Returns the bias (H, Lq, Lk), float32. As in decoding, queries are the last q_length of k_length tokens."""
        k_length = q_length if k_length is None else k_length
        require_whole(q_length, "q_length")
        require_whole(k_length, "k_length")
        if not 0 <= q_length <= k_length:
            raise ArgumentError(f"q_length must be 0 to k_length={k_length}, the number of tokens; got {q_length}")
        positions = torch.arange(k_length, device=self._device() if device is None else device)
        return self.at_scores(positions[k_length - q_length :], positions)

    def _device(self) -> torch.device | None:
        """Returns the device of the learned values, or None if there are none."""
        learned = next(self.parameters(), None)
        return None if learned is None else learned.device


def _are_consecutive(position_ids: Tensor) -> bool:
    """Returns True if the ids are p, p + 1, p + 2, ... and this can be checked without waiting for a device.

    Returns False under torch.func's transforms, where values cannot be read or views of diagonals cannot be batched.
    """
    # Before len(), which would fix the length in a graph.
    if is_being_recorded() or transforms_are_active() or type(position_ids) is not Tensor:
        return False
    if position_ids.dim() != 1 or len(position_ids) < 2 or not position_ids.is_cpu:
        return False
    return bool((position_ids.diff() == 1).all())
