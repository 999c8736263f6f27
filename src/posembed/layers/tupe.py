"""TUPE, positions with their own projection matrices (Ke et al. 2021, arXiv:2006.15595, section 3).

If rows are added to the tokens, a score contains four products: content with content, position with position, and two
mixed products. TUPE drops the mixed products, and the positions get their own projections U_q and U_k:

    score(i, j) = x_i W_q (x_j W_k)^T / sqrt(2 d) + p_i U_q (p_j U_k)^T / sqrt(2 d)        (equation 7)

All layers share the rows p, U_q and U_k, so a model computes the second term once. TUPE-R also adds a bias by distance
(equation 8). As in the authors' code, p_i is the layer-normed row of position i, and U_q and U_k have biases.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.arguments import Float, Integer
from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, ScoreMod, fill_, overrides
from posembed.layers.score_bias import Formula, ScoreBias, in_full_precision, require_divisible, wide
from posembed.positions.checks import check_positions
from posembed.settings import Count, NotNegative
from posembed.tables.fill import STD
from posembed.torch_internals import is_being_recorded

AUTHORS_WIDTH = 768
"""The width of the authors' models, in which U has a scale of .02 at the start."""


class Tupe(ScoreBias):
    """TUPE. Adds to the scores the query-key logits of learned position rows, which have their own projections.

    A model calls ``at_queries_keys``, which divides the queries by sqrt(2), and adds ``at_scores``. The sum of content
    logits and position logits then has the scale of either.

    Args:
        max_len: N, the number of positions.
        dim: the width D, a multiple of ``heads``.
        heads: the model's number of heads H.
        reset_first: True gives position 0, such as [CLS], two learned numbers per head instead of its logits: one for
            position 0 as the query, one for position 0 as the key of another query (equation 9). Row 0 is then unused.
        relative: a bias by distance to add, such as ``T5Bias(heads)``: TUPE-R. None is TUPE-A. With ``reset_first`` the
            bias does not apply to position 0.
        std: the scale of the initial projections U_q and U_k. None means .02 sqrt(768 / D), which gives projected rows
            the same scale as the authors' .02 at their width of 768. The initial rows have a scale of .02, which the
            norm removes.

    The state dict holds the rows ``weight`` (N, D), ``norm_weight`` and ``norm_bias`` (D,), and ``projection_weight``
    (2 D, D) and ``projection_bias`` (2 D,): U_q above U_k. With ``reset_first`` also ``first_weight`` (2, H).

    Raises:
        ArgumentError: a size that cannot be used, or a relative bias that does more than add to the scores of H heads.
        PositionError: in a call, a position without a row.

    Examples:
        >>> import torch
        >>> from posembed.layers import T5Bias, Tupe
        >>> from posembed.nn import Encoder
        >>> tupe = Tupe(max_len=128, dim=64, heads=4, reset_first=True, relative=T5Bias(4))
        >>> Encoder(dim=64, heads=4, layers=2, encoding=tupe)(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> tupe.at_scores(torch.arange(10), torch.arange(10)).shape  # (H, L, L), the same in all layers
        torch.Size([4, 10, 10])
    """

    def __init__(
        self,
        *,
        max_len: Count,
        dim: Count,
        heads: Count,
        reset_first: bool = False,
        relative: ScoreBias | None = None,
        std: NotNegative | None = None,
    ) -> None:
        super().__init__(heads)
        require_divisible(dim, heads)
        if relative is not None and not (is_bias_alone(relative) and relative.heads == heads):
            raise ArgumentError(
                f"relative must be a bias for heads={heads} that acts on the scores alone and has no window or "
                f"log_length, such as T5Bias({heads}), or None; got {relative!r}. Set a window on the Tupe"
            )
        self.max_len, self.dim, self.reset_first, self.relative, self.std = max_len, dim, reset_first, relative, std
        self.causal_only = relative is not None and relative.causal_only
        # Not nn.LayerNorm and nn.Linear: ``formula`` would not call them, so their hooks would not run.
        self.weight = nn.Parameter(torch.empty(max_len, dim))
        self.norm_weight = nn.Parameter(torch.empty(dim))
        self.norm_bias = nn.Parameter(torch.empty(dim))
        self.projection_weight = nn.Parameter(torch.empty(2 * dim, dim))
        self.projection_bias = nn.Parameter(torch.empty(2 * dim))
        self.first_weight = nn.Parameter(torch.empty(2, heads)) if reset_first else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new rows and projections. A relative bias keeps its values."""
        std = STD * math.sqrt(AUTHORS_WIDTH / self.dim) if self.std is None else self.std
        fill_(self.weight, torch.empty(self.weight.shape).normal_(std=STD))
        fill_(self.projection_weight, torch.empty(self.projection_weight.shape).normal_(std=std))
        fill_(self.norm_weight, torch.ones(self.dim))
        for zero in (self.norm_bias, self.projection_bias, self.first_weight):
            if zero is not None:
                fill_(zero, torch.zeros(zero.shape))

    def table(self) -> Tensor:
        return self.weight

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, *, text_length: int | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Divides the queries by sqrt(2); the keys stay unchanged."""
        return q * math.sqrt(0.5), k

    def at_scores(
        self, q_positions: Integer[Tensor, "... Lq"], k_positions: Integer[Tensor, "... Lk"]
    ) -> Float[Tensor, "... H Lq Lk"]:
        q_positions, k_positions = (check_positions(ids, self.max_len) for ids in (q_positions, k_positions))
        with in_full_precision(self.weight.device):
            bias = self._logits(q_positions, k_positions)
        head = torch.arange(self.heads, device=bias.device).view(-1, 1, 1)
        q, k = q_positions[..., None, :, None], k_positions[..., None, None, :]
        relative = None if self.relative is None else self.relative.at_scores(q_positions, k_positions)
        return self._completed(bias if relative is None else bias + relative, head, q, k)

    def score_mod(self, q_positions: Tensor, k_positions: Tensor) -> ScoreMod:
        return super().score_mod(*(check_positions(ids, self.max_len) for ids in (q_positions, k_positions)))

    def formula(self, device: torch.device) -> Formula:
        """Computes the logits (H, N, N) of all N positions at once, because a kernel has no products of vectors."""
        positions = torch.arange(self.max_len, device=device)
        with in_full_precision(device):
            logits = self._logits(positions, positions)
        relative = None if self.relative is None else self.relative.formula(device)

        def bias(head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            total = logits[head, q, k]
            return self._completed(total if relative is None else total + relative(head, q, k), head, q, k)

        return bias

    def _logits(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Returns p_i U_q (p_j U_k)^T / sqrt(2 d), (..., H, Lq, Lk), in float32 or wider."""
        rows = F.layer_norm(wide(self.weight), (self.dim,), wide(self.norm_weight), wide(self.norm_bias))
        (w_q, w_k), (b_q, b_k) = wide(self.projection_weight).chunk(2), wide(self.projection_bias).chunk(2)
        q = self._of_positions(rows, q_positions, w_q, b_q).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        q = q / math.sqrt(2 * q.size(-1))
        if not is_being_recorded() and q_positions.size(-1) * self.heads < self.dim:
            # With few queries, as in decoding, projecting the queries back costs less than projecting every key.
            back = q @ w_k.unflatten(0, (self.heads, -1))
            of_bias = (q * b_k.view(self.heads, 1, -1)).sum(-1, keepdim=True)
            return back @ F.embedding(k_positions, rows).unsqueeze(-3).transpose(-1, -2) + of_bias
        k = self._of_positions(rows, k_positions, w_k, b_k).unflatten(-1, (self.heads, -1)).transpose(-2, -3)
        return q @ k.transpose(-1, -2)

    def _of_positions(self, rows: Tensor, position_ids: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Projects the rows of these positions, (..., L, D); each row of the table only once."""
        if not is_being_recorded() and position_ids.numel() <= self.max_len:
            return F.linear(F.embedding(position_ids, rows), weight, bias)
        return F.embedding(position_ids, F.linear(rows, weight, bias))

    def _completed(self, bias: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Replaces the bias of pairs with position 0 if ``reset_first`` is set."""
        if self.first_weight is None:
            return bias
        as_query, as_key = wide(self.first_weight)
        return torch.where(q == 0, as_query[head], torch.where(k == 0, as_key[head], bias))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"  # in which the relative bias is an argument

    forward = PositionEncoding.forward  # the bias alone is only half of the encoding


def is_bias_alone(encoding: object) -> bool:
    """Returns whether an encoding does nothing but add its bias to the scores."""
    return (
        isinstance(encoding, ScoreBias)
        and not overrides(encoding, "at_input", "before_queries_keys", "at_queries_keys", "in_layer")
        and encoding.window is None
        and encoding.log_length is None
    )
