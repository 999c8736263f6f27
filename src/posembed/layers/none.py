"""No position at all (NoPE, Haviv et al. 2022, arXiv:2203.16634).

It is a useful baseline: a causal decoder can still count, because its mask shows each token how many came before.
"""

from __future__ import annotations

from torch import Tensor

from posembed.calls import Never
from posembed.layers.base import PositionEncoding


class NoPosition(PositionEncoding):
    """An encoding that does nothing."""

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        *extra: Never,
        offset: int | Tensor = 0,
        **unknown: Never,
    ) -> Tensor:
        """Returns x itself."""
        if extra or unknown:
            raise self.wrong_forward(x, position_ids, *extra, **unknown)
        return x
