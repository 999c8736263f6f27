"""What outsiders proved against layers and lookups, each as the class it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import posembed
from every_layer import LAYERS, SMALL, tensors
from fresh_process import run_fresh
from posembed import LearnedPositionalEmbedding, RotaryEmbedding, inputs
from posembed.errors import ArgumentError
from posembed.layers import ExtendedPositionalEmbedding
from posembed.layers.lookup import Request, lookup
from posembed.positions import from_token_ids
from together import together
from tolerance import assert_close, assert_same

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")  # by which PyTorch loads its own forward mode
BELOW, ABOVE = (1, 1024), (1, 1025)  # of 2^19 elements at a width of 512
SIZES = pytest.mark.parametrize("size", [BELOW, ABOVE], ids=["below", "above"])
NORMS = together("norm", [{}, {"norm": "layer", "weight": torch.ones(512), "bias": torch.zeros(512)}])


@SIZES
def test_compiled_derivatives_of_torch_func(size: tuple[int, int]) -> None:
    W, ids = torch.randn(50, 512), torch.randint(50, size)

    def f(w: Tensor) -> Tensor:
        return lookup(Request(ids, w)).square().sum()

    for derivative in (torch.func.grad(f), lambda w: torch.func.jvp(f, (w,), (w,))[1]):
        torch.compiler.reset()
        compiled = torch.compile(derivative, backend="eager")
        assert_close(compiled(W), derivative(W))


@pytest.mark.parametrize("how", ["grad", "jvp", "vmap"])
def test_compiled_derivatives_of_rotations(how: str) -> None:
    rope, q = RotaryEmbedding(8), torch.randn(3, 2, 4, 8)

    def f(q: Tensor) -> Tensor:
        return rope(q, q)[0].sin().sum()

    derivative = {
        "grad": torch.func.grad(f),
        "jvp": lambda q: torch.func.jvp(f, (q,), (q,))[1],
        "vmap": torch.func.vmap(torch.func.grad(lambda q: f(q[None]))),
    }[how]
    torch.compiler.reset()
    assert_close(torch.compile(derivative, backend="aot_eager")(q), derivative(q))
    assert torch.func.functionalize(lambda q: rope(q, q)[0])(q).shape == q.shape


SHARED = {
    "one table": lambda W, P: {"positions": W},
    "a part of it": lambda W, P: {"positions": W[:200]},
    "a product with it": lambda W, P: {"positions": P @ W},
    "two of three": lambda W, P: {"positions": W, "types": W},
}


@NORMS
@together("shared", SHARED)
@together("batch", [5, 6])  # 5 x 200 x 512 is below 2^19 elements, 6 above
def test_gradients_of_gradients_where_tables_depend_on_each_other(
    shared: str, batch: int, norm: dict[str, Any]
) -> None:
    W, P = torch.randn(200, 512).requires_grad_(), torch.randn(200, 200)
    ids = torch.randint(200, (batch, 200))

    def gradient(create_graph: bool) -> Tensor:
        y = lookup(Request(ids, W, **norm, **SHARED[shared](W, P))).square().sum()
        return torch.autograd.grad(y, W, create_graph=create_graph)[0]

    assert_close(gradient(True), gradient(False))


@pytest.mark.parametrize("pad_id", [256, -1, -100])
def test_narrow_token_ids_and_a_wide_pad_id(pad_id: int) -> None:
    narrow = torch.tensor([[0, 1, 255, 156, 0]], dtype=torch.uint8)
    assert torch.equal(from_token_ids(narrow, pad_id), from_token_ids(narrow.long(), pad_id))
    if pad_id > 0:
        for kind in (inputs.ConvS2SInput, inputs.TransformerInput, inputs.RobertaInput):
            layer = kind(vocab_size=300, max_len=16, dim=4, pad_id=pad_id).eval()
            assert torch.equal(layer(narrow), layer(narrow.long()))


@pytest.mark.parametrize("size", [pytest.param(BELOW, marks=pytest.mark.whole), ABOVE], ids=["below", "above"])
def test_tables_of_other_strides_under_the_default_compiler(size: tuple[int, int]) -> None:
    layer = inputs.GPT2Input(vocab_size=9, max_len=1030, dim=512, dropout=0.0)
    layer.wpe.weight = nn.Parameter(torch.randn(512, 1030).T)
    torch.compiler.reset()
    ids = torch.zeros(size, dtype=torch.int64)
    torch.compile(layer)(ids).square().sum().backward()
    compiled = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    layer(ids).square().sum().backward()
    assert_close(compiled, [p.grad for p in layer.parameters()])


PATCHES = ["Embedding.forward", "LayerNorm.forward", "Module._call_impl", "Module.__call__"]
SEES_A_PATCH = """
def sees(target, patch):
    kind, name = getattr(torch.nn, target.split(".")[0]), target.split(".")[1]
    original, seen = getattr(kind, name), []

    def patched(self, *args, **kwargs):
        seen.append(type(self).__name__)
        return original(self, *args, **kwargs)

    patch(kind, name, patched)
    from posembed.inputs import BertInput

    BertInput(vocab_size=10, max_len=600, dim=1024).eval()(torch.zeros(1, 600, dtype=torch.int64))
    return ("LayerNorm" if target.startswith("LayerNorm") else "TokenEmbedding") in seen
"""
BEFORE = """
import os, torch
import torch._dynamo, torch._inductor.decomposition  # which the first call would import in each process

for target in TARGETS:
    process = os.fork()
    if not process:
        assert not [name for name in sys.modules if name.startswith("posembed.inputs")]
        os._exit(0 if sees(target, setattr) else 3)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status == 0, (target, status)
"""


def test_a_class_that_was_patched_before_the_import_is_called(tmp_path: Path) -> None:
    status, printed = run_fresh(f"import sys\nTARGETS = {PATCHES}\n{SEES_A_PATCH}\n{BEFORE}", tmp_path)
    assert status == 0, printed


@together("target", PATCHES)
def test_a_class_that_was_patched_after_the_import_is_called(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(SEES_A_PATCH, names)
    assert names["sees"](target, monkeypatch.setattr)


def test_a_function_mode_sees_every_call() -> None:
    class Counting(torch.overrides.TorchFunctionMode):
        embeddings = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            self.embeddings += func is torch.nn.functional.embedding
            return func(*args, **(kwargs or {}))

    layer = inputs.BertInput(vocab_size=10, max_len=600, dim=1024).eval()
    for batch in (1, 4):
        with Counting() as mode:
            layer(torch.zeros(batch, 600, dtype=torch.int64))
        assert mode.embeddings >= 1


def test_a_load_hook_may_change_the_table() -> None:
    layer = LearnedPositionalEmbedding(max_len=8, dim=4)

    def lengthen(module, state_dict, prefix, *_):  # type: ignore[no-untyped-def]
        state_dict[f"{prefix}weight"] = posembed.resize_table(state_dict[f"{prefix}weight"], length=8)

    layer.register_load_state_dict_pre_hook(lengthen)
    layer.load_state_dict({"weight": torch.ones(4, 4)})
    assert torch.equal(layer.weight.detach(), torch.ones(8, 4))


@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.RMSNorm(8),
        lambda: nn.LayerNorm((5, 8), elementwise_affine=False),
        lambda: nn.RMSNorm((5, 8), eps=1e-3, elementwise_affine=False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_norm_of_ones_own_is_the_module(norm, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    layer = inputs.BertInput(vocab_size=50, max_len=9, dim=8, dropout=0.0)
    layer.LayerNorm = norm()
    layer.to(dtype)
    ids = torch.randint(2, 50, (2, 5))
    summed = layer.word_embeddings(ids) + layer.token_type_embeddings.weight[0] + layer.position_embeddings.weight[:5]
    assert_close(layer(ids), layer.LayerNorm(summed))


def test_a_norm_for_another_width_is_refused() -> None:
    layer = inputs.BertInput(vocab_size=50, max_len=9, dim=8)
    layer.LayerNorm = nn.LayerNorm(4, elementwise_affine=False)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        layer(torch.ones(2, 5, dtype=torch.int64))


class OnlyRows(LearnedPositionalEmbedding):
    """A subclass that changes one method."""

    def rows(self, position_ids: Tensor) -> Tensor:
        return 2 * super().rows(position_ids)


def test_a_subclass_that_changes_rows_alone() -> None:
    layer, x = OnlyRows(max_len=9, dim=4, dropout=0.0), torch.zeros(2, 5, 4)
    assert torch.equal(layer(x), layer(x, torch.arange(5)))
    assert torch.equal(layer(x)[0], 2 * layer.weight[:5])


class Wrapped(nn.Module):
    """As an adapter stands around a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        return self.module(*args, **kwargs)


@together("name", [name for name, case in LAYERS.items() if case.reads_tokens])
def test_any_module_of_an_input_layer_may_be_wrapped(name: str) -> None:
    layer, (ids,) = LAYERS[name].make(SMALL).eval(), LAYERS[name].arguments(SMALL)
    expected = layer(ids)
    for key, module in list(layer.named_children()):
        setattr(layer, key, Wrapped(module))
    assert_close(layer(ids), expected)
    assert_close(layer(ids, mask=torch.ones_like(ids)), expected)


ROPE = RotaryEmbedding(8)
Q = torch.randn(1, 2, 4, 8)
EXTENDED = ExtendedPositionalEmbedding(max_len=4, dim=8, method="linear", dropout=0.0).eval()
NEVER_SILENT = {
    "one position for four queries": lambda: ROPE.at_queries_keys(Q, Q, torch.tensor([7]), torch.arange(4)),
    "positions of another batch": lambda: ROPE.at_queries_keys(Q, Q, *[torch.zeros(3, 4, dtype=torch.int64)] * 2),
    "a mask as positions": lambda: ROPE.at_queries_keys(Q, Q, torch.ones(4) > 0, torch.arange(4)),
    "queries without a batch": lambda: ROPE(Q[0], Q[0], torch.arange(4)[None]),
    "half an offset": lambda: ROPE(Q, Q, offset=np.float32(1.5)),
    "no offset": lambda: ROPE(Q, Q, offset=None),
    "a list of offsets": lambda: posembed.SinusoidalPositionalEmbedding(8)(torch.zeros(2, 4, 8), offset=[1, 2]),
    "a list of ids": lambda: LearnedPositionalEmbedding(max_len=9, dim=8)(torch.zeros(2, 4, 8), [0, 1, 2, 3]),
    "tokens in a list": lambda: inputs.GPT2Input(vocab_size=9, max_len=9, dim=8)([[1, 2]]),
    "a mask in a list": lambda: inputs.GPT2Input(vocab_size=9, max_len=9, dim=8)(
        torch.ones(1, 2, dtype=torch.int64), mask=[[1, 1]]
    ),
    "a text shorter than its positions": lambda: EXTENDED(torch.zeros(1, 6, 8), text_length=3),
    "lengths of another batch": lambda: EXTENDED(torch.zeros(1, 6, 8), text_length=torch.tensor([6, 7, 8])),
    "lengths of two": lambda: EXTENDED(torch.zeros(2, 6, 8), text_length=torch.tensor([6, 7, 8])),
    "the factor first": lambda: posembed.layers.YarnScaling(8.0, 4096),
    "the factor first, Llama's": lambda: posembed.layers.Llama3Scaling(8.0, 8192),
    "part of a grid": lambda: posembed.layers.SinusoidalGridEmbedding(grid=(14, 14), dim=8)(torch.zeros(1, 101, 8)),
    "a grid of nothing": lambda: posembed.layers.SinusoidalGridEmbedding(grid=(0, 3), dim=8),
    "no specials at all": lambda: posembed.layers.SinusoidalGridEmbedding(grid=(2, 3), dim=8, special=-1),
    "a grid of one number": lambda: posembed.LearnedGridEmbedding(grid=14, dim=8),
    "W_v too": lambda: posembed.layers.AveragedPositionalEmbedding(max_len=8, dim=8, heads=2).in_layer(
        lambda r: torch.zeros(8, 24)
    ),
    "W_v too, in a ring": lambda: posembed.RollingPositionalEmbedding(window=4, dim=8).before_queries_keys(
        lambda r: torch.zeros(4, 24), torch.arange(3)
    ),
    "half a head": lambda: posembed.Alibi(4.0),
    "half a token": lambda: posembed.Alibi(4)(1.5),
    "fewer than none": lambda: posembed.Alibi(4)(-1),
}


@together("call", NEVER_SILENT)
def test_what_would_broadcast_or_fit_by_accident_is_refused(call: str) -> None:
    with pytest.raises(ArgumentError):
        NEVER_SILENT[call]()


@pytest.mark.parametrize("name", ["Alibi", "T5Bias", "KerpleLog", "Fire"])
def test_one_row_of_positions_serves_every_sequence_of_a_score_mod(name: str) -> None:
    layer, ids = LAYERS[name].make(SMALL), torch.arange(6)[None]
    mod, score = layer.score_mod(ids, ids), torch.zeros(())
    shared = layer.score_mod(ids[0], ids[0])
    for batch in (0, 3):
        indices = [torch.tensor(i) for i in (batch, 1, 5, 2)]
        assert torch.equal(mod(score, *indices), shared(score, *indices))


@together("dtype", [torch.uint16, torch.uint32, torch.uint64])
@together("name", [name for name, case in LAYERS.items() if case.positioned])
def test_wide_unsigned_positions(name: str, dtype: torch.dtype) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(SMALL).eval(), case.arguments(SMALL)
    length = arguments[0].shape[-2 if arguments[0].is_floating_point() else -1]
    ids = torch.arange(length)
    wide = layer(*arguments, position_ids=ids)
    assert_same(tensors(layer(*arguments, position_ids=ids.to(dtype))), tensors(wide))


@together("name", [name for name in LAYERS if "Called" not in name])
def test_training_positions_are_on_the_cpu_whatever_the_default_device(name: str) -> None:
    layer = LAYERS[name].make(SMALL)
    encoding = getattr(layer, "encoding", layer)
    if not isinstance(encoding, posembed.PositionEncoding) or name == "LearnedGridEmbedding":
        return
    length = 4
    torch.set_default_device("meta")
    try:
        drawn = encoding.training_positions(2, length, torch.Generator("cpu").manual_seed(0))
    finally:
        torch.set_default_device(None)
    assert not drawn.is_meta
