"""How large tokens and positions are beside each other: of two summands far apart in scale one is lost."""

from __future__ import annotations

import warnings

from torch import Tensor

FAR_APART = 20
"""The ratio of scales above which one summand is taken to drown the other: N(0, 1) tokens and N(0, .02) rows."""


def root_mean_square(values: Tensor) -> float:
    """The scale of a tensor of any shape, computed in float32."""
    return float(values.detach().float().square().mean().sqrt())


def warn_if_far_apart(tokens: Tensor, rows: Tensor, *, stacklevel: int = 1) -> None:
    """Warn where tokens and the rows added to them differ in scale more than ``FAR_APART``, unless one is zero."""
    try:
        token_scale, row_scale = root_mean_square(tokens), root_mean_square(rows)
    except RuntimeError:  # there are no values to look at: vmap, fake tensors
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
