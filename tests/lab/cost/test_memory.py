"""The peak of memory, of steps whose peak is known."""

from __future__ import annotations

import torch

from posembed.lab.cost.instruments import peak_bytes
from posembed.layers.lookup import LARGE
from posembed.layers.rotary import rotate

X = torch.randn(8, 32)


def test_what_is_freed_does_not_count() -> None:
    def step() -> torch.Tensor:
        first = X + 1
        del first
        second = X * 2
        return second + 1

    assert peak_bytes(step) == 2 * X.nbytes


def test_views_and_what_was_there_before_cost_nothing() -> None:
    def step() -> torch.Tensor:
        X.add_(0)
        return X.view(-1)[:7].expand(3, 7)

    assert peak_bytes(step) == 0


def test_the_backward_pass_is_seen() -> None:
    weight, other = (torch.randn(8, 32, requires_grad=True) for _ in range(2))

    def forward() -> torch.Tensor:
        return (weight * other).sum()

    scalar = 4
    assert peak_bytes(forward) == X.nbytes + scalar
    both = peak_bytes(lambda: torch.autograd.grad(forward(), (weight, other)))
    assert both == 2 * X.nbytes + 2 * scalar


def test_two_countings_do_not_mix() -> None:
    assert [peak_bytes(lambda: X + 1) for _ in range(3)] == [X.nbytes] * 3


def test_large_pages_are_seen() -> None:
    q = torch.zeros(1, 2, LARGE // 128, 64)
    cos, sin = torch.ones(2, LARGE // 128, 32)
    assert peak_bytes(lambda: rotate(q, cos, sin)) >= q.nbytes
