"""A result is an ordinary tensor: it owns its memory, and changing it in place changes nothing else."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import torch
from torch.nn import functional as F

from every_layer import EACH_KIND, LAYERS, SIZES, SMALL, Size, loss_of, tensors
from together import together
from tolerance import assert_close, assert_same

ABOVE_ALL = Size(8, 257, 512)
BOTH = [SMALL, ABOVE_ALL]
OTHERS = [name for name in LAYERS if name != "NoPosition"]  # which returns its input
IN_PLACE = {
    "+=": lambda t: t.add_(1),
    "*=": lambda t: t.mul_(3),
    "relu_": lambda t: t.relu_(),
    "dropout": lambda t: F.dropout(t, 0.5, training=True, inplace=True),
    "slice": lambda t: t[..., :1].zero_(),
}


@together("name, size", list(product(OTHERS, SIZES[:6])), usual=lambda name, size: size == SMALL or name in EACH_KIND)
def test_it_owns_its_memory(name: str, size: Size) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(size), case.arguments(size)
    kept = {t.untyped_storage().data_ptr() for t in layer.state_dict().values()}
    kept |= {a.untyped_storage().data_ptr() for a in arguments if isinstance(a, torch.Tensor)}
    results = tensors(layer(*arguments)) + tensors(layer(*arguments))
    for result in results:
        assert not result._is_view()  # FSDP2 loses its hook on a view that is changed in place
        assert result.untyped_storage().nbytes() == result.nbytes  # nothing larger is kept alive
        assert result.untyped_storage().data_ptr() not in kept
        assert result.untyped_storage().resizable()
        assert len({t.untyped_storage().data_ptr() for t in results}) == len(results)


@together(
    "name, size, how",
    list(product(OTHERS, BOTH, IN_PLACE)),
    usual=lambda name, size, how: size == SMALL or (name in EACH_KIND and how in ("+=", "slice")),
)
def test_it_may_be_changed_in_place(name: str, size: Size, how: str) -> None:
    """With gradients, and without them, when nothing but the result may change."""
    case = LAYERS[name]
    layer, arguments = case.make(size), case.arguments(size)
    inputs = [a.requires_grad_() for a in arguments if isinstance(a, torch.Tensor) and a.is_floating_point()]
    results = tensors(layer(*arguments))
    for result in results:
        IN_PLACE[how](result)
    if results[0].requires_grad:
        loss_of(tuple(results)).backward()
    before = copy.deepcopy(layer.state_dict()), [i.detach().clone() for i in inputs]
    with torch.no_grad():
        first = [t.clone() for t in tensors(layer(*arguments))]
        for result in tensors(layer(*arguments)):
            IN_PLACE[how](result)
        again = tensors(layer(*arguments))
    assert_same(layer.state_dict(), before[0])
    assert_same([i.detach() for i in inputs], before[1])
    assert_same(again, first)


@together("name", [name for name, case in LAYERS.items() if case.positioned])
def test_rows_alone_are_no_part_of_the_table(name: str) -> None:
    """``layer(token_ids)``, ``layer.rows(...)`` and ``layer.consecutive_rows(...)`` give copies."""
    layer = LAYERS[name].make(SMALL).eval()
    before = copy.deepcopy(layer.state_dict())
    calls = []
    if name in ("LearnedPositionalEmbedding", "ExtendedPositionalEmbedding", "SampledPositionalEmbedding"):
        calls += [lambda: layer(torch.zeros(1, 5, dtype=torch.int64)), lambda: layer.consecutive_rows(5)]
        calls += [lambda: layer(torch.zeros(1, 5, dtype=torch.int64), torch.arange(5))]
    if "Grid" in name:
        calls += [layer.rows]
    elif hasattr(layer, "rows"):
        calls += [lambda: layer.rows(torch.arange(5))]
    with torch.no_grad():
        for call in calls:
            call().add_(1)
    assert_same(layer.state_dict(), before)


@together("name, size", list(product(LAYERS, BOTH)), usual=lambda name, size: size == SMALL or name in EACH_KIND)
def test_layouts_and_no_tokens(name: str, size: Size) -> None:
    """Transposed, strided and expanded inputs, and inputs of no sequence or of no token."""
    case = LAYERS[name]
    layer = case.make(size).eval()
    arguments = case.arguments(size)
    expected = tensors(layer(*arguments))
    given = [a for a in arguments if isinstance(a, torch.Tensor)]
    if not given:
        return
    transposed = [a.transpose(0, 1).contiguous().transpose(0, 1) for a in given]
    strided = [torch.stack((a, a), dim=-1)[..., 0] for a in given]
    for changed in (transposed, strided):
        assert_close(tensors(layer(*changed)), expected)
    one = [a[:1] for a in given]
    many = tensors(layer(*(a.expand(3, *a.shape[1:]) for a in one)))
    for ours, alone in zip(many, tensors(layer(*one)), strict=True):
        assert_close(ours, alone.expand_as(ours))
    assert [t.shape[1:] for t in tensors(layer(*(a[:0] for a in given)))] == [t.shape[1:] for t in expected]
    if case.positioned and "Grid" not in name:
        nothing = [a[:, :0] if a.dim() < 4 else a[:, :, :0] for a in given]
        assert all(t.numel() == 0 for t in tensors(layer(*nothing)))


@together("name", LAYERS)
def test_copies_and_state_dicts(name: str) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(SMALL).eval(), case.arguments(SMALL)
    expected = tensors(layer(*arguments))
    assert layer.state_dict().keys() == {key for key, _ in layer.named_parameters()}  # formulas are not saved
    other = case.make(SMALL).eval()
    other.load_state_dict(layer.state_dict())
    copies = [copy.deepcopy(layer), other]
    if "Called" not in type(layer).__name__:
        copies.append(pickle.loads(pickle.dumps(layer)))
    for twin in copies:
        assert_same(tensors(twin(*arguments)), expected)
        assert (type(twin), str(twin)) == (type(layer), str(layer))
        assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in layer.parameters()}
