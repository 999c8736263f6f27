"""No position at all (NoPE, Haviv et al. 2022, arXiv:2203.16634).

A causal decoder can still count: its mask lets each token see how many came before. A baseline, not a mistake.
"""

from __future__ import annotations

from posembed.layers.base import PositionEncoding


class NoPosition(PositionEncoding):
    """Nothing at any of the three places."""
