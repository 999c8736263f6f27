"""Large tensors from NumPy's memory are tensors like any other."""

from __future__ import annotations

import pytest
import torch

from posembed.kernels.memory import ALIGNMENT, LARGE, add, fresh, fresh_like


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


WIDTH = 128


@pytest.mark.parametrize(
    "rows_shape", [(WIDTH,), (1100, WIDTH), (1, 1100, WIDTH), (8, 1100, WIDTH), (8, 1, WIDTH)]
)
def test_a_large_sum_is_the_sum_with_its_gradients(rows_shape: tuple[int, ...]) -> None:
    x = torch.randn(8, 1100, WIDTH, requires_grad=True)
    rows = torch.randn(rows_shape, requires_grad=True)
    assert x.numel() * x.element_size() >= LARGE
    ours, plain = add(x, rows), x + rows
    assert torch.equal(ours, plain)
    weights = torch.randn(x.shape)
    for mine, theirs in zip(
        *(torch.autograd.grad((total * weights).sum(), (x, rows)) for total in (ours, plain)), strict=True
    ):
        assert torch.equal(mine, theirs)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # by which PyTorch loads its own forward mode
def test_sums_that_are_not_as_x_are_made_by_pytorch() -> None:
    x = torch.randn(1, 1100 * 8, WIDTH)
    assert add(x, torch.randn(2, 1, WIDTH)).shape == (2, 1100 * 8, WIDTH)
    assert add(x.to(torch.bfloat16), torch.randn(WIDTH)).dtype == torch.float32
    mapped = torch.func.vmap(add)(x.expand(2, -1, -1), torch.ones(2, WIDTH))
    assert torch.equal(mapped, (x + 1).expand(2, -1, -1))
    value, tangent = torch.func.jvp(add, (x, x), (x, x))
    assert torch.equal(value, tangent)


def test_tracing_records_the_definition() -> None:
    x = torch.randn(1, 1100 * 8, WIDTH)
    for traced in (torch.export.export(_Adds(), (x,)).module(), torch.compile(_Adds(), backend="eager")):
        assert torch.equal(traced(x), x + 1)


class _Adds(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return add(x, torch.ones(WIDTH))
