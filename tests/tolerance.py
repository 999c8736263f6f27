"""How close two results of arithmetic must be: the only place in the tests that says so.

A result differs between processors, numbers of threads and shapes, because each takes the terms of a sum in another
order. Rounding moves a sum of n terms by about sqrt(n) ulps of its largest term, and each layer adds its own. So the
tolerance is a few ulps of the largest value, never a number that passed on one machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

ULPS = 4


def assert_close(actual: Any, expected: Any, *, msg: object = None, relative: bool = False, **size: Any) -> None:
    """Fails unless two tensors, arrays or numbers, or two collections of them, differ by no more than rounding.

    ``size`` is what ``tolerance`` takes. With ``dtype``, the two may have different dtypes: it is the one that the
    values were computed in. ``relative`` gives each value a tolerance of its own size: for values of many magnitudes
    that no sum mixes.
    """
    for key, ours, theirs in _pairs(actual, expected):
        text = ", ".join(str(part) for part in (msg, key) if part not in (None, ""))
        allowed = tolerance(theirs, **size)
        largest = _largest(theirs) if relative else 1.0
        torch.testing.assert_close(
            ours,
            theirs,
            rtol=allowed / largest if relative and largest else 0.0,
            atol=0.0 if relative else allowed,
            check_dtype=size.get("dtype") is None,
            msg=lambda found, text=text: f"{text}\n{found}" if text else found,
        )


def close(actual: Any, expected: Any, **options: Any) -> bool:
    """Whether ``assert_close`` holds, for a test that two results differ by more than rounding."""
    try:
        assert_close(actual, expected, **options)
    except AssertionError:
        return False
    return True


def assert_same(actual: Any, expected: Any, *, msg: Any = None) -> None:
    """Fails unless the two are equal bit for bit: copies, files, and the same kernel on the same shapes."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, msg=msg)


def tolerance(
    expected: Any,
    *,
    depth: float = 1,
    terms: int = 64,
    scale: Any = 0.0,
    dtype: torch.dtype | None = None,
    places: int | None = None,
) -> float:
    """How far a result may be from ``expected``.

    Args:
        depth: How many layers follow each other; a backward pass counts as much as its forward pass.
        terms: How many terms the longest sum has, such as the width of a matrix product.
        scale: The largest intermediate value, or the tensors that have it, where the result itself is smaller: a
            difference, or a gradient that cancels.
        dtype: What the values were computed in, where ``expected`` has another dtype.
        places: How many decimals ``expected`` is published with.
    """
    largest = max(_largest(expected), scale if isinstance(scale, (int, float)) else _largest(scale))
    dtypes = {dtype} if dtype else {each.dtype for each in _tensors(expected) if each.is_floating_point()}
    if not dtypes:
        return 0.0
    eps = max(torch.finfo(each).eps for each in dtypes)
    if eps > 1e-4:  # sums of 16 bits are accumulated in float32: only their results are rounded
        terms = 1
    printed = 0.0 if places is None else 0.5 * 10.0**-places
    return printed + ULPS * eps * math.sqrt(terms) * depth * largest


def _largest(values: Any) -> float:
    """The largest absolute value, without infinity and the number that a mask has in its place."""
    found = [0.0]
    for each in _tensors(values):
        if each.numel() and (each.is_floating_point() or each.is_complex()):
            sizes = each.detach().abs().double()
            sizes = sizes[sizes < torch.finfo(each.dtype).max / 2]
            found.append(sizes.max().item() if sizes.numel() else 0.0)
    return max(found)


def _tensors(values: Any) -> Iterator[Tensor]:
    for _, each, _ in _pairs(values, values):
        yield each


def _pairs(actual: Any, expected: Any, key: str = "") -> Iterator[tuple[str, Tensor, Tensor]]:
    if isinstance(actual, Mapping):
        assert actual.keys() == expected.keys(), (key, actual.keys() ^ expected.keys())
        for name in actual:
            yield from _pairs(actual[name], expected[name], f"{key}{'.' if key else ''}{name}")
    elif isinstance(actual, Sequence) and not all(isinstance(each, (int, float)) for each in actual):
        assert len(actual) == len(expected), (key, len(actual), len(expected))
        for at, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            yield from _pairs(ours, theirs, f"{key}[{at}]")
    elif actual is None or expected is None:
        assert actual is expected, key
    else:
        yield key, _tensor(actual), _tensor(expected)


def _tensor(value: Any) -> Tensor:
    if isinstance(value, (int, float, Sequence)):
        return torch.tensor(value, dtype=torch.float64)
    return torch.as_tensor(value) if isinstance(value, np.ndarray) else value
