"""The scales of tokens and positions: if they differ too much, one of the two is lost in the sum."""

from __future__ import annotations

import warnings

from torch import Tensor

FAR_APART = 20
"""The ratio of scales above which one summand drowns the other: N(0, 1) tokens and N(0, .02) rows."""


def root_mean_square(values: Tensor) -> float:
    """Returns the scale of a tensor of any shape, computed in float32."""
    return float(values.detach().float().square().mean().sqrt())


def warn_if_far_apart(tokens: Tensor, rows: Tensor, *, stacklevel: int = 1) -> None:
    """Warns if the scales of tokens and their position rows differ by more than ``FAR_APART`` and none is zero."""
    try:
        token_scale, row_scale = root_mean_square(tokens), root_mean_square(rows)
    except RuntimeError:  # vmap and fake tensors have no values to look at
        return
    if token_scale > FAR_APART * row_scale > 0:
        lost = "positions"
    elif row_scale > FAR_APART * token_scale > 0:
        lost = "tokens"
    else:
        return
    warnings.warn(
        f"the tokens have scale {token_scale:.3g} and the rows of their positions {row_scale:.3g} (root mean "
        f"squares), so early in training the {lost} are drowned. Choose the table's std, or the tokens' scale, so "
        "that the two are alike",
        stacklevel=stacklevel + 1,
    )
