"""``pytest --perturb``: results of arithmetic on a CPU, one ulp away, as another processor might give them.

A test that fails here compares bits that nobody promises. Sums, such as matrix products, change with the shapes of
their inputs, because another shape may take the terms in another order; functions of one value change with the value
alone. The same kernel on the same shapes therefore still gives the same bits, and whole numbers are exact.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
SUMS = ("mm", "addmm", "bmm", "baddbmm", "sum.dim_IntList", "sum", "mean.dim", "mean", "native_layer_norm_backward")
SUMS += (ATTENTION, f"{ATTENTION}_backward", "_slow_conv2d_forward", "cumsum", "linalg_vector_norm")
VALUES = ("_softmax", "_log_softmax", "native_layer_norm", "gelu", "tanh", "exp", "log", "sin", "cos", "rsqrt")

_library: Any = None


def perturb() -> None:
    """From now on, in this process."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced
        for name in SUMS + VALUES:
            _library.impl(name, _perturbed(name), "CPU", with_keyset=True, allow_override=True)


def _perturbed(name: str) -> Any:
    kernel = torch.library.get_kernel(f"aten::{name}", "CPU")

    def call(keys: Any, *given: Any, **named: Any) -> Any:
        results = kernel.call_boxed(keys, *given, **named)
        shapes = [tuple(each.shape) for each in given if isinstance(each, Tensor)] if name in SUMS else []
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, Tensor) and result.dtype in (torch.float32, torch.float64):
                ulps = _signs(result, shapes).to(result.dtype) * (result != result.round())
                result.mul_(1 + torch.finfo(result.dtype).eps * ulps)
        return results

    return call


def _signs(result: Tensor, shapes: list[tuple[int, ...]]) -> Tensor:
    if shapes:
        random = np.random.default_rng(hash((*shapes, tuple(result.shape))) % 2**32)  # vmap refuses torch's
        return torch.as_tensor(random.integers(-1, 2, tuple(result.shape)))
    bits = result.view(torch.int32 if result.dtype == torch.float32 else torch.int64)
    return bits.div(4, rounding_mode="floor") % 3 - 1
