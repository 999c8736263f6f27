"""A learned table that never runs out: P rows used in a ring, under a causal window of w <= P tokens.

Token i reads row (i + s) mod P. In training every sequence draws its own phase s, so all rows are trained and none
means "the start"; at test time any s works. A token sees at most w - 1 tokens back, and within a window of w <= P no
row repeats, so the rows distinguish all visible tokens. With n layers an output depends on the last n (w - 1) + 1
tokens. If this number is at most the training length, every position of any longer text looks exactly as in training.
Without the window, two visible positions would share a row, which is why reading an ordinary table modulo its length
fails. The window must apply both in training and at test time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, fill_, projected
from posembed.positions.checks import as_int64
from posembed.settings import Amount, Count, NotNegative


def ring_sinusoids(ring: int, dim: int, *, std: float = 1.0) -> Tensor:
    """Returns rows (P, D), float32, of sinusoids whose periods divide the ring, so that row P would equal row 0.

    Harmonics 1 .. P/2 are spaced geometrically like the original Transformer's wavelengths. The root mean square of
    all values is std (for even D).
    """
    pairs = (dim + 1) // 2
    highest = max(ring // 2, 1)
    harmonics = (highest ** (torch.arange(pairs, dtype=torch.float64) / max(pairs - 1, 1))).round()
    angles = torch.arange(ring, dtype=torch.float64).unsqueeze(1) * harmonics * (2 * math.pi / ring)
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :dim]
    return (waves * (std * math.sqrt(2))).float()


class RollingPositionalEmbedding(PositionEncoding):
    """A ring of P learned rows under a causal window: token i reads row (i + s) mod P, with a random s in training.

    The rows are added to the input of W_q and W_k in every layer.

    Args:
        window: w, the number of tokens that a token attends to, itself included. The model applies ``.window``.
        dim: the width D.
        ring: P, the number of rows, at least w. None means w, which is enough.
        std: the scale of the initial rows, sinusoids whose periods divide the ring. They are added to normalized
            activations.

    Raises:
        ArgumentError: a window below 1, or a ring below the window.

    Examples:
        >>> import torch
        >>> from posembed import RollingPositionalEmbedding
        >>> from posembed.nn import Decoder
        >>> rolling = RollingPositionalEmbedding(window=16, dim=64)
        >>> rolling.table().shape  # 16 rows, and no last position
        torch.Size([16, 64])
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding=rolling)  # applies rolling.window
        >>> decoder(torch.randn(2, 1000, 64)).shape
        torch.Size([2, 1000, 64])
    """

    def __init__(
        self,
        *,
        window: Count,
        dim: Count,
        ring: Count | None = None,
        std: NotNegative = 1.0,
    ) -> None:
        super().__init__()
        self.ring = window if ring is None else ring
        if self.ring < window:
            raise ArgumentError(
                f"ring={ring} is smaller than window={window}: two tokens that see each other would share a row; "
                f"give a ring of at least {window} rows or a window of at most {ring} tokens"
            )
        self.weight = nn.Parameter(torch.empty(self.ring, dim))
        self.window, self.dim, self.std = window, dim, std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fill_(self.weight, ring_sinusoids(self.ring, self.dim, std=self.std))

    def table(self) -> Tensor:
        return self.weight

    def training_positions(self, batch: Amount, length: Amount, generator: torch.Generator) -> Tensor:
        """Draws ids (B, L), int64 on the CPU: each sequence starts at its own phase, so that all rows are trained."""
        phases = torch.randint(self.ring, (batch, 1), generator=generator, device="cpu")
        return phases + torch.arange(length, device="cpu")

    def _read(self, rows: Tensor, position_ids: Tensor) -> Tensor:
        """Returns the rows (..., E) of a ring (P, E) at position_ids, integers of any shape (...)."""
        return F.embedding(as_int64(position_ids, "position_ids") % self.ring, rows)

    def rows(self, position_ids: Tensor) -> Tensor:
        """Returns the rows (..., D) of position_ids, integers of any shape (...)."""
        return self._read(self.weight, position_ids)

    def before_queries_keys(self, project: Callable[[Tensor], Tensor], position_ids: Tensor) -> Tensor:
        # Project the ring, not the tokens' rows: this takes P products for any length and batch size.
        return self._read(projected(project, self.weight), position_ids)
