"""A lookup against its formula in float64, in pieces of any size: what it gives, its gradients, its operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

import oracles_lookup as oracle
from posembed.errors import ArgumentError
from posembed.kernels import Norm, lookup, pieces
from posembed.kernels.plain import Request, draw_keep, generator_of, plain
from tolerance import assert_close

ALL = [True] * 5
cases = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def _in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits in one piece is left to the definition, so pieces are small here."""
    monkeypatch.setattr(pieces, "PIECE", 8)
    torch.manual_seed(0)


requests = st.builds(
    oracle.request_of,
    batch=st.sampled_from([0, 1, 4]),
    length=st.sampled_from([0, 1, 7]),
    dim=st.sampled_from([1, 5, 8]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    position_ids=st.sampled_from(["none", "shared", "own", "no table"]),
    type_ids=st.sampled_from(["none", "own", "no table"]),
    norm=st.sampled_from(["none", "layer", "rms"]),
    dropout=st.sampled_from([0.0, 0.25]),
    padding_idx=st.sampled_from([None, 2]),
    scale=st.sampled_from([1.0, 2.5]),
)


@cases
@given(request=requests, piece=st.sampled_from([1, 8, 40, 1 << 18]))
def test_numbers_and_gradients_are_those_of_the_formula(request: Request, piece: int) -> None:
    pieces.PIECE = piece
    if request.norm == "layer" and request.tokens.shape[1] == 1:
        return  # the norm of one element is 0 / eps
    upstream = torch.randn(request.shape).to(request.dtype)
    keep = None
    if request.seed is not None:
        keep = draw_keep(generator_of(request.seed), request.shape, request.dropout, request.dtype)
    expected, gradients = oracle.with_gradients(request, upstream, keep)
    out = pieces.forward(request)
    assert out.dtype == request.dtype
    assert_close(out, expected, depth=2, dtype=request.dtype)
    found = dict(zip(oracle.TABLES, pieces.backward(upstream, request, ALL), strict=True))
    for name, gradient in found.items():
        table = getattr(request, name)
        if table is None:
            assert gradient is None
        else:
            assert gradient.dtype == table.dtype
            assert_close(gradient, gradients[name], depth=4, scale=gradients, dtype=request.dtype)


@cases
@given(request=requests, piece=st.sampled_from([1, 8, 40]))
def test_pieces_of_any_size_give_the_definitions_bits(request: Request, piece: int) -> None:
    pieces.PIECE = piece
    keep = None
    if request.seed is not None:
        keep = draw_keep(generator_of(request.seed), request.shape, request.dropout, request.dtype)
    assert torch.equal(pieces.forward(request), plain(request, keep))


def called(request: Request, tables: tuple[Tensor | None, ...], **more: Any) -> Tensor:
    """``lookup`` with the settings of a request and other tables."""
    tokens, positions, types, weight, bias = tables
    return lookup(
        request.token_ids,
        tokens,
        positions=positions,
        position_ids=request.position_ids,
        types=types,
        type_ids=request.type_ids,
        scale=request.scale,
        norm=None if request.norm == "none" else Norm(request.norm, weight, bias, request.eps),
        **{
            "dropout": request.dropout,
            "padding_idx": request.padding_idx,
            "position_padding_idx": request.position_padding_idx,
            **more,
        },
    )


def tables_of(request: Request) -> tuple[Tensor | None, ...]:
    tables = (getattr(request, name) for name in oracle.TABLES)
    return tuple(None if table is None else table.clone().requires_grad_() for table in tables)


@pytest.mark.parametrize("position_ids", ["none", "shared", "own"])
@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_gradients_and_their_gradients_by_differences(norm: str, position_ids: str) -> None:
    request = oracle.request_of(
        batch=2,
        length=3,
        dim=3,
        dtype=torch.float64,
        norm=norm,
        position_ids=position_ids,
        type_ids="own",
        scale=2,
    )
    given_tables = tables_of(request)
    inputs = tuple(table for table in given_tables if table is not None)

    def function(*inputs: Tensor) -> Tensor:
        remaining = iter(inputs)
        return called(request, tuple(None if table is None else next(remaining) for table in given_tables))

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_gradients_of_gradients_know_what_was_dropped() -> None:
    request = oracle.request_of(dtype=torch.float64, dropout=0.5, norm="rms")
    tables = tables_of(request)

    def penalty(create_graph: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(5)
        out = called(request, tables)
        return out, torch.autograd.grad(out.square().sum(), tables[0], create_graph=create_graph)[0]

    out, once = penalty(False)
    _, again = penalty(True)
    assert_close(once, again)
    again.square().sum().backward()
    assert tables[0].grad is not None
    assert bool((out == 0).any())


def test_only_gradients_that_are_asked_for() -> None:
    request = oracle.request_of(type_ids="own")
    tokens, positions, types, weight, bias = tables_of(request)
    out = called(request, (tokens.detach(), positions, types.detach(), weight.detach(), bias))
    out.sum().backward()
    assert positions.grad is not None
    assert bias.grad is not None
    assert tokens.grad is types.grad is weight.grad is None


def test_narrow_tables_add_their_gradients_up_in_float32() -> None:
    """4,000 gradients of 1: in bfloat16 the sum would stop at 256."""
    tokens = torch.zeros(3, 2, dtype=torch.bfloat16, requires_grad=True)
    types = torch.zeros(2, 2, dtype=torch.bfloat16, requires_grad=True)
    ids = torch.ones(40, 100, dtype=torch.int64)
    lookup(ids, tokens, types=types, type_ids=ids).sum().backward()
    assert tokens.grad[1].tolist() == types.grad[1].tolist() == [4000.0, 4000.0]


class Made(TorchDispatchMode):
    """The number of elements of each tensor that an operator makes, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            for made in result if isinstance(result, tuple) else (result,):
                if isinstance(made, Tensor) and not any(made is arg for arg in args):
                    self.elements.append(made.numel())
        return result


@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_nothing_larger_than_a_piece_is_made_but_the_result(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 40)
    request = oracle.request_of(batch=9, length=11, dim=5, norm=norm, type_ids="own", position_ids="own")
    with Made() as made:
        out = pieces.forward(request)
        pieces.backward(out, request, ALL)
    largest_piece = max(40, request.positions.numel())
    assert [count for count in made.elements if count > largest_piece] == [out.numel()]


# Dropout


def test_dropout_drops_its_share_and_scales_the_rest() -> None:
    tokens = torch.ones(1, 64)
    ids = torch.zeros(40, 50, dtype=torch.int64)
    for dropout in (0.1, 0.5, 0.9):
        out = lookup(ids, tokens, dropout=dropout)
        dropped = float((out == 0).float().mean())
        deviation = (dropout * (1 - dropout) / out.numel()) ** 0.5
        assert abs(dropped - dropout) < 4 * deviation + 2**-16
        assert (out[out != 0] * (1 - dropout) - 1).abs().max() < 2**-16 / (1 - dropout)  # to which the share is rounded
        rows = (out == 0).float().mean(-1)
        assert abs(float(rows.var()) - dropout * (1 - dropout) / 64) < 0.2 * dropout * (1 - dropout) / 64
    assert not lookup(ids, tokens, dropout=1.0).any()


def test_dropout_is_drawn_anew_from_pytorchs_seed() -> None:
    tokens, ids = torch.ones(1, 64), torch.zeros(4, 5, dtype=torch.int64)

    def two() -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        return lookup(ids, tokens, dropout=0.5), lookup(ids, tokens, dropout=0.5)

    (first, second), (first_again, second_again) = two(), two()
    assert torch.equal(first, first_again)
    assert torch.equal(second, second_again)
    assert not torch.equal(first, second)


def test_what_was_dropped_has_no_gradient() -> None:
    positions = torch.ones(50, 64, requires_grad=True)
    out = lookup(torch.zeros(1, 50, dtype=torch.int64), torch.zeros(1, 64), positions=positions, dropout=0.5)
    out.sum().backward()
    assert torch.equal(positions.grad, out[0])


# Determinism, sparse gradients, other ways through PyTorch


def test_every_run_gives_the_same_bits() -> None:
    request = oracle.request_of(batch=8, length=40, dim=16, position_ids="own", type_ids="own", dropout=0.1)
    upstream = torch.randn(request.shape)
    runs = [pieces.backward(upstream, request, ALL) for _ in range(3)]
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("padding_idx", [None, 2])
def test_a_sparse_gradient_is_the_dense_one(padding_idx: int | None) -> None:
    request = oracle.request_of(padding_idx=padding_idx, scale=3.0)
    dense, sparse = tables_of(request), tables_of(request)
    called(request, dense).square().sum().backward()
    called(request, sparse, sparse=True).square().sum().backward()
    assert sparse[0].grad.is_sparse
    assert_close(sparse[0].grad.to_dense(), dense[0].grad)
    assert_close(sparse[1].grad, dense[1].grad)
    before = sparse[0].detach().clone()
    torch.optim.SparseAdam([sparse[0]], lr=0.1).step()
    read = torch.isin(torch.arange(9), request.token_ids) & (torch.arange(9) != (padding_idx or -1))
    assert torch.equal((sparse[0] != before).any(1), read)


@pytest.mark.parametrize("norm", ["none", "layer", "rms"])
def test_the_operator_is_what_pytorch_expects(norm: str) -> None:
    r = oracle.request_of(norm=norm, position_ids="own", dropout=0.5)
    tokens, positions, types, weight, bias = tables_of(r)
    arguments = (
        r.token_ids, tokens, positions, r.position_ids, types, None, weight, bias, r.seed,
        2.0, norm, 1e-5, 0.5, 1, None, False,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.posembed.lookup.default, arguments)


def test_compiled_for_every_length_with_two_graphs_at_most() -> None:
    tables = tables_of(oracle.request_of(length=30, dim=6))
    torch.compiler.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    function = torch.compile(called, fullgraph=True, dynamic=True, backend=graphs)
    for length in (5, 9, 30):
        request = oracle.request_of(length=length, dim=6)
        out, expected = function(request, tables), called(request, tables)
        assert torch.equal(out, expected)
        wanted = torch.autograd.grad(expected.sum(), tables)
        assert all(map(torch.equal, torch.autograd.grad(out.sum(), tables), wanted))
    assert graphs.frame_count <= 2


def test_vmap_and_functional_gradients_go_through_the_definition() -> None:
    request = oracle.request_of(batch=4)
    tokens, positions, types, weight, bias = (table.detach() for table in tables_of(request))

    def loss(tokens: Tensor, ids: Tensor) -> Tensor:
        norm = Norm("layer", weight, bias)
        return lookup(ids[None], tokens, positions=positions, types=types, norm=norm).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(tokens, request.token_ids)
    leaf = tokens.requires_grad_()
    expected = [torch.autograd.grad(loss(leaf, ids), leaf)[0] for ids in request.token_ids]
    assert_close(each, torch.stack(expected))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by which PyTorch gets at its formulas
def test_forward_mode_derivatives_go_through_the_definition() -> None:
    request = oracle.request_of(norm="none")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(request.tokens, torch.ones_like(request.tokens))
        tangent = torch.autograd.forward_ad.unpack_dual(lookup(request.token_ids, dual, scale=3.0)).tangent
    assert torch.equal(tangent, torch.full(request.shape, 3.0))


def test_norm_of_a_module() -> None:
    x, ids = torch.randn(9, 6), torch.arange(9)[None]
    for module in (
        torch.nn.LayerNorm(6, eps=1e-3),
        torch.nn.LayerNorm(6, bias=False),
        torch.nn.RMSNorm(6, eps=1e-6),
    ):
        torch.nn.init.normal_(module.weight)
        assert_close(lookup(ids, x, norm=Norm.of(module))[0], module(x))


def test_an_id_without_a_row() -> None:
    with pytest.raises(IndexError):
        lookup(torch.tensor([[1, 9]]), torch.zeros(9, 5))


IDS, TABLE = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(9, 5)
BAD = {
    "tokens without a batch": ((IDS[0], TABLE), {}, r"token_ids must be \(B, L\); got \(4,\)"),
    "a table of one row": ((IDS, TABLE[0]), {}, r"tokens must be a table \(V, D\); got \(5,\)"),
    "another width": ((IDS, TABLE), {"positions": TABLE[:, :3]}, r"positions must be .*D=5.*got \(9, 3\)"),
    "types of another width": ((IDS, TABLE), {"types": TABLE[:, :3]}, r"types must be .*D=5.*got \(9, 3\)"),
    "too few rows": ((IDS, TABLE), {"positions": TABLE[:3]}, "positions has 3 rows for 4 tokens"),
    "ids of another length": ((IDS, TABLE), {"positions": TABLE, "position_ids": IDS[:, :3]}, r"got \(2, 3\)"),
    "ids of another batch": (
        (IDS, TABLE),
        {"positions": TABLE, "position_ids": IDS.repeat(2, 1)},
        r"got \(4, 4\)",
    ),
    "ids without a table": ((IDS, TABLE), {"type_ids": IDS}, "type_ids were given without types"),
    "types of a sequence": ((IDS, TABLE), {"types": TABLE, "type_ids": IDS[0]}, r"type_ids must be .*got \(4,\)"),
    "a weight of another width": (
        (IDS, TABLE),
        {"norm": Norm("layer", torch.ones(4))},
        r"weight must be .*\(4,\)",
    ),
    "another norm": ((IDS, TABLE), {"norm": Norm("batch")}, "norm must be none, layer or rms"),
    "an RMS norm with a bias": ((IDS, TABLE), {"norm": Norm("rms", None, torch.ones(5))}, "no bias"),
    "a probability above 1": ((IDS, TABLE), {"dropout": 1.5}, "dropout is a probability"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    arguments, options, message = BAD[name]
    with pytest.raises(ArgumentError, match=message):
        lookup(*arguments, **options)


# What a user may give: padding rows counted from the end, narrow ids, a table that is changed


@pytest.mark.parametrize("size", [(2, 5), (40, 200)], ids=["one piece", "several"])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_padding_row_counted_from_the_end_is_not_trained(sparse: bool, size: tuple[int, int]) -> None:
    """As nn.Embedding counts it, with sparse gradients too."""
    ids = torch.randint(9, size)
    ids[0, 0] = 8
    gradients = []
    for padding_idx in (8, -1):
        tokens = torch.randn(9, 128, requires_grad=True)
        lookup(ids, tokens, padding_idx=padding_idx, sparse=sparse).sum().backward()
        gradient = tokens.grad.to_dense()
        assert not bool(gradient[8].any())
        gradients.append(gradient)
    assert torch.equal(*gradients)
    with pytest.raises(ArgumentError, match=r"padding_idx must be a row of its table, -9 \.\. 8; got 9"):
        lookup(ids, tokens, padding_idx=9)


@pytest.mark.parametrize("size", [(2, 5), (40, 200)], ids=["one piece", "several"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_narrow_ids_are_ids(dtype: torch.dtype, size: tuple[int, int]) -> None:
    ids, places, types = (torch.randint(n, size) for n in (9, 7, 2))
    tables = [torch.randn(n, 128) for n in (9, 7, 2)]
    call = {"positions": tables[1], "types": tables[2]}
    wide = lookup(ids, tables[0], position_ids=places, type_ids=types, **call)
    narrow = lookup(ids.to(dtype), tables[0], position_ids=places.to(dtype), type_ids=types.to(dtype), **call)
    assert torch.equal(wide, narrow)
    for floats in (ids.float(), ids > 0):
        with pytest.raises(ArgumentError, match="token_ids must be integers; got torch"):
            lookup(floats, tables[0])


def test_a_table_that_changes_before_the_backward_pass_is_an_error() -> None:
    """The backward pass reads the tables again, and must not read others."""
    tokens = torch.randn(9, 128, requires_grad=True)
    out = lookup(torch.randint(9, (40, 200)), tokens, norm=Norm("layer"))
    with torch.no_grad():
        tokens.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
