"""The Triton kernels: interpreted on the CPU, compiled for a GPU that need not be there, run on one that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import oracles_lookup as oracle
import posembed
from posembed.kernels import pieces
from posembed.kernels.plain import Request
from tolerance import assert_close

triton = pytest.importorskip("triton", reason="needs Triton, which has no build for this system")


def test_interpreted_they_are_the_formula() -> None:
    source = Path(posembed.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    inner = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*inner, str(Path(__file__).with_name("interpreted_triton.py"))],
        env=environment,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


TABLES = dict.fromkeys(("tokens", "positions", "types", "weight", "bias"), "*bf16")
IDS = dict.fromkeys(("token_ids", "position_ids", "type_ids", "seed"), "*i64")
NUMBERS = dict.fromkeys(("V", "N", "T", "L", "D", "threshold"), "i32") | dict.fromkeys(
    ("scale", "eps", "keep_scale"), "fp32"
)
SORTED = dict.fromkeys(("order", "ids", "first", "last"), "*i64") | {"rows": "i32", "D": "i32", "scale": "fp32"}
KERNELS = {
    "_forward_kernel": {"out": "*bf16", **TABLES, **IDS, **NUMBERS},
    "_backward_kernel": {
        **{"dx_out": "*bf16", "grad": "*bf16", "weight_sums": "*fp32", "bias_sums": "*fp32"},
        **{**TABLES, **IDS, **NUMBERS, "rows": "i32", "rows_each": "i32"},
    },
    "_segments_kernel": {"sums": "*bf16", "partial": "*fp32", "values": "*bf16", **SORTED},
    "_joined_kernel": {"sums": "*bf16", "partial": "*fp32", **SORTED},
}


@pytest.mark.parametrize("name", KERNELS)
def test_they_compile_for_an_h100_and_add_nothing_atomically(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from posembed.kernels import triton_rows

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(triton_rows, name)
    constants = {
        "SHARED": False,
        "NORM": "layer",
        "COMPUTE": triton.language.float32,
        **dict.fromkeys(("SCALED", "TYPED", "SUM"), triton.language.bfloat16),
        "BLOCK": 1024,
        "SEGMENT": triton_rows.SEGMENT,
    }
    signature = {argument: KERNELS[name].get(argument, "constexpr") for argument in kernel.arg_names}
    values = {(kernel.arg_names.index(key),): value for key, value in constants.items() if key in signature}
    compiled = triton.compile(ASTSource(kernel, signature, values), target=GPUTarget("cuda", 90, 32))
    assert "ld.global" in compiled.asm["ptx"]
    assert "atom" not in compiled.asm["ptx"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("position_ids", ["none", "shared", "own"])
@pytest.mark.parametrize("dim", [1, 5, 768, 5000])
def test_on_a_gpu_they_give_what_the_cpu_gives(dim: int, position_ids: str, dtype: torch.dtype) -> None:
    from posembed.kernels import triton_rows

    torch.manual_seed(0)
    norm = "rms" if dim == 1 else "layer"
    settings = {"dim": dim, "dtype": dtype, "position_ids": position_ids, "norm": norm, "type_ids": "own"}
    request = oracle.request_of(batch=4, length=70, padding_idx=2, **settings)
    there = Request(**{
        name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in vars(request).items()
    })  # fmt: skip
    upstream = torch.randn(request.shape).to(dtype)
    assert_close(triton_rows.forward(there).cpu(), pieces.forward(request), depth=2, terms=dim)
    runs = [triton_rows.backward(upstream.cuda(), there, [True] * 5) for _ in range(2)]
    expected = pieces.backward(upstream, request, [True] * 5)
    for first, second, wanted in zip(*runs, expected, strict=True):
        if wanted is None:
            assert first is None
        else:
            assert torch.equal(first, second)
            assert_close(first.cpu(), wanted, depth=4, terms=max(dim, 280), scale=expected)
