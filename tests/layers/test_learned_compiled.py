"""The learned table under torch.compile, torch.export and onnxruntime: the same numbers and the same errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from posembed import LearnedPositionalEmbedding, positions
from posembed.errors import ArgumentError, PositionError
from posembed.tables import PADDING, TableLayout
from together import together
from tolerance import assert_close

MAX_LEN, DIM = 32, 8


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layer_of(**options) -> LearnedPositionalEmbedding:
    torch.manual_seed(0)
    return LearnedPositionalEmbedding(max_len=MAX_LEN, dim=DIM, layout=TableLayout.OPT, **options).eval()


WAYS: dict[str, Callable[[int], dict]] = {
    "consecutive": lambda length: {},
    "offset": lambda length: {"offset": length % 7},
    "offset of each": lambda length: {"offset": torch.tensor([0, 1, 2])},
    "ids": lambda length: {"position_ids": torch.arange(length)},
    "ids of each": lambda length: {"position_ids": torch.arange(length, dtype=torch.int32).repeat(3, 1)},
}


@pytest.mark.parametrize("way", WAYS)
def test_one_graph_two_compilations_and_our_error(way: str) -> None:
    layer = layer_of()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for length in range(5, 9):
        x = torch.randn(3, length, DIM)
        options = WAYS[way](length)
        assert torch.equal(compiled(x, **options), layer(x, **options))
    assert counter.frame_count <= 2

    x = torch.zeros(3, MAX_LEN + 9, DIM)
    options = WAYS[way](MAX_LEN + 9)
    with pytest.raises(PositionError) as eager:
        layer(x, **options)
    with pytest.raises(PositionError) as in_graph:
        compiled(x, **options)
    assert str(in_graph.value) == str(eager.value)


needs_a_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor writes C++")


@needs_a_compiler
@together(
    "ids, backend",
    list(product([torch.arange(5), torch.tensor([[4, 3, PADDING, 1, 0]] * 3), None], ["aot_eager", "inductor"])),
    usual=lambda ids, backend: ids is not None and (ids.dim() == 2) == (backend == "inductor"),
)
@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_compiled_training_is_eager_training(ids: Tensor | None, backend: str) -> None:
    layer, twin = layer_of(dropout=0), layer_of(dropout=0)
    compiled = torch.compile(twin.train(), fullgraph=True, backend=backend)
    x, upstream = torch.randn(3, 5, DIM), torch.randn(3, 5, DIM)
    layer(x, ids).backward(upstream)
    out = compiled(x, ids)
    out.backward(upstream)
    assert torch.equal(out, layer(x, ids))
    assert_close(twin.weight.grad, layer.weight.grad)
    if ids is not None:
        with pytest.raises(PositionError, match="position 37 has no row"):
            compiled(x, ids + 33)


def test_unchecked_ids_leave_no_check_in_the_graph() -> None:
    graphs = []

    def keep(graph: torch.fx.GraphModule, _) -> Callable:
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    x, ids = torch.zeros(1, 5, DIM), torch.arange(5)
    for check_ids in (True, False):
        torch._dynamo.reset()
        torch.compile(layer_of(check_ids=check_ids), fullgraph=True, backend=keep)(x, ids)
    assert {target for target in graphs[0] - graphs[1] if "every_position_has_a_row" in target}
    assert not {target for target in graphs[1] if "posembed" in target}


def test_positions_are_made_and_checked_in_the_graph() -> None:
    layer = layer_of()

    def model(x: Tensor, mask: Tensor) -> Tensor:
        return layer(x, positions.from_mask(mask, padding=PADDING))

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, mask = torch.randn(2, 5, DIM), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    assert torch.equal(compiled(x, mask), model(x, mask))
    with pytest.raises(ArgumentError, match="padding; got 2"):
        compiled(x, 2 * mask)
    with pytest.raises(ArgumentError, match="row 0 of the mask holds only padding"):
        compiled(x, 0 * mask)


DIGITS = torch.tensor([1, 2])
MADE: dict[str, tuple[Callable[..., Tensor], tuple]] = {
    "from_token_ids": (lambda t: positions.from_token_ids(t, 0), (torch.tensor([[0, 4, 5], [6, 7, 0]]),)),
    "from_cu_seqlens": (lambda b: positions.from_cu_seqlens(b, 5), (torch.tensor([0, 3, 5], dtype=torch.int32),)),
    "from_segment_ids": (positions.from_segment_ids, (torch.tensor([[1, 1, 2, 2], [3, 4, 4, 4]]),)),
    "consecutive": (lambda o: positions.consecutive(3, o), (torch.tensor([2, 4]),)),
    "sliding": (lambda o: positions.sliding(3, o, 5), (torch.tensor([0, 9]),)),
    "zigzag_shard": (lambda x: x[positions.zigzag_shard(8, 1, 2)], (torch.arange(8),)),
    "keep": (lambda x: positions.keep_head_and_tail(x, 4, head=1), (torch.arange(12).view(2, 6),)),
    "abacus": (lambda t: positions.abacus(t, DIGITS), (torch.tensor([[0, 1, 2, 0, 2]]),)),
    "coupled": (lambda t: positions.coupled(t, DIGITS, 3), (torch.tensor([[0, 1, 2, 3, 2]]),)),
}


@together("name", MADE)
def test_every_function_of_positions_is_one_graph(name: str) -> None:
    function, arguments = MADE[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*arguments), function(*arguments))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: positions.shifted(2, 5, max_shift=9),
        lambda: positions.randomized(2, 5, max_len=9),
        lambda: positions.skipped(2, 5, max_len=9),
    ],
)
def test_samplers_are_one_graph(draw: Callable[[], Tensor]) -> None:
    compiled = torch.compile(draw, fullgraph=True, backend="eager")
    torch.manual_seed(0)
    ids = compiled()
    torch.manual_seed(0)
    assert torch.equal(ids, draw())


def test_checks_have_no_values_to_look_at_on_meta_and_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode

    assert positions.check_positions(torch.empty(3, dtype=torch.int64, device="meta"), 2).is_meta
    assert positions.from_mask(torch.empty(2, 3, device="meta")).shape == (2, 3)
    with FakeTensorMode():
        ids = torch.arange(5)
        layer = LearnedPositionalEmbedding(max_len=MAX_LEN, dim=DIM)
        assert layer.train()(torch.randn(2, 5, DIM), ids).shape == (2, 5, DIM)


# Exported programs


class Padded(nn.Module):
    """A layer that numbers the tokens by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = layer_of()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x, positions.from_mask(mask, padding=PADDING))


BATCH, LENGTH = torch.export.Dim("batch"), torch.export.Dim("length", max=MAX_LEN)


def mask_of(length: int) -> Tensor:
    return (torch.arange(length) >= torch.tensor([[0], [2], [length - 1]])).long()


EXPORTED: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple], tuple]] = {
    "consecutive": (layer_of, lambda length: (), ()),
    "ids": (layer_of, lambda length: (torch.arange(length),), ({0: LENGTH},)),
    "ids of each": (layer_of, lambda length: (torch.arange(length).repeat(3, 1),), ({0: BATCH, 1: LENGTH},)),
    "mask": (Padded, lambda length: (mask_of(length),), ({0: BATCH, 1: LENGTH},)),
}


@together(
    "name, strict",
    list(product(EXPORTED, [True, False])),
    usual=lambda name, strict: strict == (name in ("ids", "mask")),
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_exported_with_a_dynamic_length(name: str, strict: bool) -> None:
    make, more, shapes = EXPORTED[name]
    module = make().eval()
    dynamic = ({0: BATCH, 1: LENGTH}, *shapes)
    program = torch.export.export(
        module, (torch.randn(3, 7, DIM), *more(7)), dynamic_shapes=dynamic, strict=strict
    ).module()
    for length in (7, 13, MAX_LEN):
        x = torch.randn(3, length, DIM)
        assert torch.equal(program(x, *more(length)), module(x, *more(length)))
    if name.startswith("ids"):
        with pytest.raises(RuntimeError, match="posembed requires that every position has a row"):
            program(torch.randn(3, 7, DIM), *(ids + MAX_LEN for ids in more(7)))


def test_an_export_without_a_longest_length_is_told_it() -> None:
    unbounded = torch.export.Dim("length")
    with pytest.raises(Exception, match=f"max={MAX_LEN}"):
        torch.export.export(layer_of(), (torch.randn(3, 7, DIM),), dynamic_shapes=({1: unbounded},))


@together("name", EXPORTED, usual=lambda name: name == "mask")  # which reads ids
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")
def test_onnxruntime_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    make, more, shapes = EXPORTED[name]
    module = make().eval()
    program = torch.onnx.export(
        module,
        (torch.randn(3, 7, DIM), *more(7)),
        dynamic_shapes=({0: BATCH, 1: LENGTH}, *shapes),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(tmp_path / "layer.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(tmp_path / "layer.onnx", options)

    def run(*inputs: Tensor) -> Tensor:
        named = zip(session.get_inputs(), inputs, strict=True)
        return torch.from_numpy(session.run(None, {i.name: tensor.numpy() for i, tensor in named})[0])

    for length in (7, 13, MAX_LEN):
        x = torch.randn(3, length, DIM)
        assert torch.equal(run(x, *more(length)), module(x, *more(length)))
    with pytest.raises(Exception, match=r"(?i)out of|bounds|broadcast|shape|dimension"):
        run(torch.randn(3, MAX_LEN + 9, DIM), *more(MAX_LEN + 9))
