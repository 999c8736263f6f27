"""The warning for tokens and positions of different scales."""

from __future__ import annotations

import warnings

import pytest
import torch

from posembed.tables.scale import root_mean_square, warn_if_far_apart

ones = torch.ones(2, 3, 4)


def test_root_mean_square() -> None:
    assert root_mean_square(torch.tensor([3.0, 4.0], dtype=torch.bfloat16)) == pytest.approx(12.5**0.5)


@pytest.mark.parametrize(("tokens", "rows", "lost"), [(1, 0.02, "positions"), (0.02, 0.5, "tokens")])
def test_far_apart(tokens: float, rows: float, lost: str) -> None:
    with pytest.warns(UserWarning, match=f"have scale {tokens} and .* {rows} .* the {lost} are drowned") as caught:
        warn_if_far_apart(tokens * ones, rows * ones)
    assert caught[0].filename == __file__, "it points at the caller"


@pytest.mark.parametrize(("tokens", "rows"), [(1.0, 1.0), (1.0, 0.06), (0.06, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_near_enough_or_zero(tokens: float, rows: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_far_apart(tokens * ones, rows * ones)
