"""The tolerance is as wide as rounding and no wider, and no test has one of its own."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import torch

from fresh_process import run_fresh
from tolerance import assert_close, assert_same, close, tolerance

TESTS = Path(__file__).parent
OWN = r"torch\.testing\.assert_close|allclose\(|isclose\(|\b[ar]tol=|approx\([^#]*\b(abs|rel)=[\d.]*e-([5-9]|\d\d)"
"""Not where a gradient is compared with a finite difference: its step decides there."""


def test_no_test_has_a_tolerance_of_its_own() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{number}: {line.strip()}"
        for path in TESTS.rglob("test_*.py")
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(OWN, line) and "gradcheck" not in line
    ]
    assert not found, "\n".join(["write assert_close of tests/tolerance.py instead of:", *found])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_another_order_of_a_sum_is_close_and_a_wrong_term_is_not(dtype: torch.dtype) -> None:
    left, right = torch.randn(2, 300, 300, dtype=torch.float64)
    exact = left @ right
    order = torch.randperm(300)
    ours = (left.to(dtype)[:, order] @ right.to(dtype)[order]).double()
    assert_close(ours, left.to(dtype) @ right.to(dtype), dtype=dtype)
    assert not close(ours, exact - left[:, :1] @ right[:1], dtype=dtype)
    assert tolerance(torch.ones(3, dtype=dtype)) < 0.04


def test_what_does_not_widen_it() -> None:
    values = torch.tensor([1.0, -torch.inf, torch.finfo(torch.float32).min])
    assert tolerance(values) == tolerance(torch.ones(1))
    assert_close(values, values)
    assert tolerance(torch.zeros(2)) == 0
    assert tolerance(torch.zeros(2), scale=[None, values]) == tolerance(values)
    assert tolerance(torch.tensor([3, 4])) == 0


def test_it_looks_into_collections_and_at_shapes_and_dtypes() -> None:
    ones = torch.ones(2, 2)
    near, far = ones * (1 + 1e-7), ones + 1e-4
    assert_close({"a": [near, None]}, {"a": [ones, None]})
    assert_close((0.5, 2), [0.5 + 1e-16, 2.0])
    for wrong in ({"a": [far, None]}, {"a": [near, ones]}, {"b": [near, None]}, {"a": [near]}, {"a": [near[0], None]}):
        assert not close(wrong, {"a": [ones, None]})
    assert not close(near.double(), ones)
    assert_close(near.double(), ones.double(), dtype=torch.float32)
    assert not close(near.double(), ones.double())
    assert close(torch.tensor([1.0, 2e-9]), torch.tensor([1.0, 1e-9]))
    assert not close(torch.tensor([1.0, 2e-9]), torch.tensor([1.0, 1e-9]), relative=True)
    with pytest.raises(AssertionError, match="layer 3, a"):
        assert_close({"a": far}, {"a": ones}, msg="layer 3")
    with pytest.raises(AssertionError):
        assert_same(near, ones)


def test_perturbed_results_differ_by_an_ulp_whatever_the_default_dtype() -> None:
    code = """
        import torch
        import perturbed
        from tolerance import assert_close, assert_same
        inputs = {dtype: torch.randn(2, 50, 50, dtype=dtype) for dtype in (torch.float32, torch.float64)}
        calculated = lambda left, right: [left @ right, left.sin()]
        exact = {dtype: calculated(*given) for dtype, given in inputs.items()}
        perturbed.perturb()
        for default in (torch.float32, torch.float64, torch.bfloat16):
            torch.set_default_dtype(default)
            for dtype, given in inputs.items():
                results = calculated(*given)
                assert not any(map(torch.equal, results, exact[dtype])), (default, dtype)
                assert_close(results, exact[dtype], terms=1)
                assert_same(results, calculated(*given))
    """
    status, output = run_fresh(textwrap.dedent(code), TESTS)
    assert status == 0, output
