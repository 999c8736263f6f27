"""A learned table read by distance: full attention, no last row, and stable perplexity past the training length.

Rows P (N, D) added to the input of W_q and W_k give a head the position logits P W_q (P W_k)^T / sqrt(d). This encoding
uses only the mean of each diagonal, which depends on the distance alone. The means are the bias by distance of a layer
and head. Every forward pass recomputes the bias from the rows, in training too. The rows make the bias smooth, and all
layers share them. The bias does not depend on absolute positions, so no position is the last. Past the distances seen
in training, the bias continues as a line in log(1 + distance), which is fitted to the bias and never rises.

Logits between rows and token contents depend on absolute positions, so they are left out. By default, one head has no
position and attends by content alone, so that the model can find a distant passage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from posembed.arguments import Float
from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, fill_, projected
from posembed.layers.rolling import ring_sinusoids
from posembed.layers.score_bias import Formula, ScoreBias, require_divisible, wide
from posembed.settings import MOST, Amount, Count, NotNegative

FITTED_FROM = 4
"""The first distance used for fitting the line; nearer distances are excluded."""


def mean_logits_by_distance(
    for_queries: Float[Tensor, "N H d"], for_keys: Float[Tensor, "N H d"]
) -> Float[Tensor, "H N"]:
    """Returns the mean position logit at each distance, (H, N), given the rows projected for queries and for keys.

    Entry k is the mean of <row i + k, row i> / sqrt(d) over N - k pairs. Fourier transforms of the columns avoid
    an (N, N) matrix.
    """
    n, _, d = for_queries.shape
    # Zeros after the rows keep the circular correlation from wrapping around.
    spectrum = torch.fft.rfft(for_queries, n=2 * n, dim=0) * torch.fft.rfft(for_keys, n=2 * n, dim=0).conj()
    sums = torch.fft.irfft(spectrum.sum(dim=-1), n=2 * n, dim=0)[:n]
    return sums.T / (torch.arange(n, 0, -1, device=sums.device, dtype=sums.dtype) * d**0.5)


def fitted_line(by_distance: Float[Tensor, "H N"]) -> tuple[Tensor, Tensor]:
    """Fits a line in log(1 + distance) to each head's bias (H, N). Returns the intercepts and slopes, (H,) each.

    The fit is by least squares over the distances from FITTED_FROM on, each weighted by its number of pairs among N
    tokens. A slope is at most 0.
    """
    n = by_distance.size(-1)
    distance = torch.arange(FITTED_FROM, n, device=by_distance.device, dtype=by_distance.dtype)
    x, weight, y = distance.log1p(), (n - distance) / (n - distance).sum(), by_distance[:, FITTED_FROM:]
    x_mean, y_mean = (weight * x).sum(), (weight * y).sum(-1, keepdim=True)
    slope = (weight * (x - x_mean) * (y - y_mean)).sum(-1, keepdim=True) / (weight * (x - x_mean) ** 2).sum()
    slope = slope.clamp(max=0)
    return (y_mean - slope * x_mean).squeeze(-1), slope.squeeze(-1)


class DistanceBias(ScoreBias, in_a_pass=True):
    """The bias in one layer: the values ``by_distance`` (H, N) for distances below N, ``fitted_line`` beyond."""

    of_distance_alone = True

    def __init__(self, by_distance: Tensor) -> None:
        super().__init__(len(by_distance))
        self.by_distance = by_distance
        self.intercept, self.slope = fitted_line(by_distance)

    def formula(self, device: torch.device) -> Formula:
        by_distance, intercept, slope = self.by_distance, self.intercept, self.slope
        known = by_distance.size(-1)

        def bias(head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = (q - k).clamp(min=0)  # a decoder's mask hides the keys after a query
            beyond = intercept[head] + slope[head] * distance.to(slope.dtype).log1p()
            return torch.where(distance < known, by_distance[head, distance.clamp(max=known - 1)], beyond)

        return bias

    def _device(self) -> torch.device:
        return self.by_distance.device


class AveragedPositionalEmbedding(PositionEncoding):
    """A learned table that gives each layer a bias: the query-key logits of its rows, averaged by distance.

    A causal model passes each layer's query-key projection to ``in_layer``, which returns the bias. A model trained at
    ``max_len`` tokens can read texts of any length.

    Args:
        max_len: N, the number of rows, which is the training length.
        dim: the width D, a multiple of ``heads``.
        heads: the model's number of heads H.
        heads_without: the number of heads without position; these are the last heads. None means 1 (0 if H = 1).
        std: the scale of the initial rows, which are sinusoids whose periods divide 2 N.

    Raises:
        ArgumentError: fewer than 8 rows, a width that is not a multiple of ``heads``, or no head with
            position.

    Examples:
        >>> import torch
        >>> from posembed.layers import AveragedPositionalEmbedding
        >>> from posembed.nn import Decoder
        >>> averaged = AveragedPositionalEmbedding(max_len=32, dim=64, heads=4)
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding=averaged)  # each layer has its own bias
        >>> decoder(torch.randn(2, 100, 64)).shape
        torch.Size([2, 100, 64])
    """

    causal_only = True

    def __init__(
        self,
        *,
        max_len: Annotated[int, Ge(2 * FITTED_FROM), Le(MOST)],
        dim: Count,
        heads: Count,
        heads_without: Amount | None = None,
        std: NotNegative = 1.0,
    ) -> None:
        super().__init__()
        require_divisible(dim, heads)
        heads_without = min(1, heads - 1) if heads_without is None else heads_without
        if heads_without >= heads:
            raise ArgumentError(
                f"heads_without must be 0 to {heads - 1}, so that at least one head has position; got {heads_without}"
            )
        self.max_len, self.dim, self.heads, self.heads_without, self.std = max_len, dim, heads, heads_without, std
        self.weight = nn.Parameter(torch.empty(max_len, dim))
        self.reset_parameters()

    def table(self) -> Tensor:
        return self.weight

    def reset_parameters(self) -> None:
        fill_(self.weight, ring_sinusoids(2 * self.max_len, self.dim, std=self.std)[: self.max_len])

    def in_layer(self, project: Callable[[Tensor], Tensor]) -> DistanceBias:
        rows = wide(projected(project, self.weight)).unflatten(-1, (2, self.heads, -1))
        with_position = torch.arange(self.heads, device=rows.device) < self.heads - self.heads_without
        by_distance = mean_logits_by_distance(rows[:, 0], rows[:, 1]) * with_position.unsqueeze(-1)
        bias = DistanceBias(by_distance)
        bias.window = self.window
        return bias
