"""Large tensors from NumPy's memory are tensors like any other."""

from __future__ import annotations

import pytest
import torch

from posembed.kernels.memory import ALIGNMENT, LARGE, fresh, fresh_like


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [0, 3, LARGE // 10])
def test_any_shape_and_dtype(rows: int, dtype: torch.dtype) -> None:
    made = fresh((rows, 5), torch.empty(0), dtype)
    assert (made.shape, made.dtype, made.is_contiguous()) == ((rows, 5), dtype, True)
    assert made.data_ptr() % ALIGNMENT == 0
    made.fill_(2)
    assert torch.equal(made.clone(), torch.full_like(made, 2))


def test_the_device_is_that_of_the_other() -> None:
    assert fresh((LARGE, 1), torch.empty(0, device="meta"), torch.float32).is_meta


@pytest.mark.parametrize("shape", [(2, 3, 5), (1, LARGE // 100, 30)])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_dimensions_are_laid_out_as_the_other_s_are(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    x = torch.zeros(shape)[..., ::2].permute(order)
    made = fresh_like(x)
    assert made.shape == x.shape
    assert made.stride() == x.clone().stride()
