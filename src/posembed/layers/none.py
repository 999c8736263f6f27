"""No position at all (NoPE, Haviv et al. 2022, arXiv:2203.16634).

It is a useful baseline: a causal decoder can still count, because each token sees all tokens before it.
"""

from __future__ import annotations

from torch import Tensor

from posembed.layers.base import PositionEncoding


class NoPosition(PositionEncoding):
    """An encoding that does nothing.

    Raises:
        CallError: ``forward`` gets an unknown argument.

    Examples:
        >>> import torch
        >>> from posembed.layers import NoPosition
        >>> x = torch.randn(2, 10, 64)
        >>> torch.equal(NoPosition()(x), x)
        True
    """

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
    ) -> Tensor:
        """Returns x itself."""
        return x
