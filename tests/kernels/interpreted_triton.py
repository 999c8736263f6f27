"""The Triton kernels against the formula in float64, run by Triton's interpreter on the CPU.

``test_triton.py`` runs this file in a process of its own: what the interpreter is to run has to be imported with
TRITON_INTERPRET=1 set.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

import oracles_lookup as oracle
from posembed.kernels import triton_rows
from posembed.kernels.plain import Request, plain
from tolerance import assert_close

ALL = [True] * 5
CASES = {
    "BERT's": {"norm": "layer", "type_ids": "own", "padding_idx": 2},
    "GPT-2's, dropped": {"norm": "none", "type_ids": "no table", "dropout": 0.25},
    "shared ids, RMS norm": {"norm": "rms", "position_ids": "shared", "padding_idx": 2, "scale": 2.5},
    "own ids, dropped": {"norm": "layer", "position_ids": "own", "dropout": 0.25},
    "tokens alone": {"norm": "none", "position_ids": "no table", "type_ids": "no table", "dim": 17},
    "bfloat16": {"norm": "layer", "dtype": torch.bfloat16, "position_ids": "own", "dim": 16},
    "float64": {"norm": "rms", "dtype": torch.float64, "type_ids": "own"},
    "one row": {"norm": "layer", "batch": 1, "length": 1},
    "no sequence": {"norm": "layer", "batch": 0, "type_ids": "own", "position_ids": "own"},
    "no token": {"norm": "layer", "length": 0, "dropout": 0.25},
}


@pytest.fixture(autouse=True)
def _in_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that occur 8 times are then added up by several programs."""
    monkeypatch.setattr(triton_rows, "SEGMENT", 4)
    torch.manual_seed(0)


def kept(request: Request) -> torch.Tensor | None:
    if request.seed is None:
        return None
    ones = Request(
        torch.zeros_like(request.token_ids),
        torch.ones(1, request.tokens.shape[1]),
        seed=request.seed,
        dropout=request.dropout,
    )
    return (triton_rows.forward(ones) != 0).double()


@pytest.mark.parametrize("name", CASES)
def test_numbers_and_gradients_are_those_of_the_formula(name: str) -> None:
    request = oracle.request_of(**{"batch": 2, "length": 7, **CASES[name]})
    upstream = torch.randn(request.shape).to(request.dtype)
    expected, gradients = oracle.with_gradients(request, upstream, kept(request))
    out = triton_rows.forward(request)
    assert out.dtype == request.dtype
    assert_close(out, expected, depth=2, dtype=request.dtype)
    found = triton_rows.backward(upstream, request, ALL)
    for table, gradient in zip(oracle.TABLES, found, strict=True):
        assert (gradient is None) == (table not in gradients)
        if gradient is not None:
            assert_close(gradient, gradients[table], depth=4, scale=gradients, dtype=request.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])  # the interpreter cuts bfloat16 off, no GPU does
@pytest.mark.parametrize("scale", [1.0, 2.7])
def test_sums_have_the_bits_of_the_definition(scale: float, dtype: torch.dtype) -> None:
    """Which small lookups run: a token's row must not depend on the size of the batch that it is in."""
    request = oracle.request_of(
        batch=2, length=7, dim=24, norm="none", dtype=dtype, type_ids="own", position_ids="own", scale=scale
    )
    assert torch.equal(triton_rows.forward(request), plain(request))


def test_dropout_drops_its_share_in_every_column() -> None:
    keep = kept(oracle.request_of(batch=20, length=10, dim=24, dropout=0.25))
    assert keep is not None
    assert abs(float(keep.mean()) - 0.75) < 4 * (0.75 * 0.25 / keep.numel()) ** 0.5
    assert bool(((keep.mean((0, 1)) - 0.75).abs() < 5 * (0.75 * 0.25 / 200) ** 0.5).all())
    assert len(torch.unique(keep.view(200, 24), dim=0)) == 200


def test_an_id_without_a_row_is_seen_in_the_result_and_trains_nothing() -> None:
    request = oracle.request_of(batch=1, length=4, norm="none")
    request.token_ids[0, 1], request.token_ids[0, 2] = 9, -1
    out = triton_rows.forward(request)
    assert out.isnan().all(-1).tolist() == [[False, True, True, False]]
    tokens = triton_rows.backward(torch.ones(1, 4, 5), request, ALL)[0]
    assert tokens is not None
    assert float(tokens.sum()) == 2 * 5


def test_a_sparse_gradient_is_that_of_the_rows() -> None:
    request = oracle.request_of(norm="none", padding_idx=2, scale=3.0)
    rows = triton_rows.backward(torch.ones(request.shape), replace(request, sparse=True), ALL)[0]
    assert rows is not None
    assert torch.equal(rows, torch.where(request.token_ids == 2, 0.0, 3.0)[..., None].expand(request.shape))
