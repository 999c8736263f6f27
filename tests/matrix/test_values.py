"""Every public layer has the values and gradients of its plain definition, below and above every threshold."""

from __future__ import annotations

from itertools import product

import torch

from every_layer import LAYERS, SIZES, SMALL, Size, is_usual, loss_of, public_layers, tensors
from together import together
from tolerance import assert_close


def test_every_public_layer_is_here() -> None:
    assert set(LAYERS) == public_layers()


def runs_usually(name: str, size: Size) -> bool:
    """Layers of one kind run by turns around the threshold of pieces, around that of large pages, and at real sizes."""
    turn = SIZES.index(size) // 2
    whose = name in ("LearnedPositionalEmbedding", "RotaryEmbedding", "BertInput", "ViTInput")
    if turn == len(SIZES) // 2 - 1:  # what takes longest
        return name == "LearnedPositionalEmbedding" or (size != SIZES[-1] and whose)
    return is_usual(name, size) and (turn == 0 or whose or (list(LAYERS).index(name) + turn) % 3 == 0)


@together("name, size", list(product(LAYERS, SIZES)), usual=runs_usually)
def test_values_and_gradients(name: str, size: Size) -> None:
    case = LAYERS[name]
    layer = case.make(size).train()
    arguments = [
        a.detach().requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in case.arguments(size)
    ]
    result, expected = layer(*arguments), case.definition(layer, *arguments)
    assert len(tensors(result)) == len(tensors(expected))
    for ours, plain in zip(tensors(result), tensors(expected), strict=True):
        assert (ours.shape, ours.dtype) == (plain.shape, plain.dtype)
        assert_close(ours, plain, depth=2)
    leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    leaves += [p for p in layer.parameters() if p.requires_grad]
    if not leaves:
        return
    gradients = [
        torch.autograd.grad(loss_of(outcome), leaves, allow_unused=True, retain_graph=outcome is result)
        for outcome in (result, expected)
    ]
    partial_sum = torch.tensor(
        size.batch * size.length / size.dim
    ).sqrt()  # the largest before the loss's weights cancel
    for ours, plain in zip(*gradients, strict=True):
        assert_close(ours, plain, depth=2, scale=[*gradients[1], partial_sum])


@together("name", [name for name, case in LAYERS.items() if case.positioned])
@together("how", ["offset", "offsets", "shared ids", "one row", "own ids", "int32", "uint8", "strided"])
def test_positions(name: str, how: str) -> None:
    """With as many sequences as tokens, so that (B,) and (L,) cannot be told apart by their shapes."""
    case, length = LAYERS[name], 5
    layer = case.make(SMALL._replace(length=length + 4)).eval()
    arguments = case.arguments(Size(length, length, SMALL.dim))
    length = arguments[0].shape[-2] if arguments[0].is_floating_point() else length
    batch = arguments[0].shape[0]
    ids = torch.randint(3, (batch, length))
    kwargs = {
        "offset": {"offset": 2},
        "offsets": {"offset": torch.arange(batch) % 3},
        "shared ids": {"position_ids": ids[0]},
        "one row": {"position_ids": ids[:1]},
        "own ids": {"position_ids": ids},
        "int32": {"position_ids": ids.int()},
        "uint8": {"position_ids": ids.to(torch.uint8)},
        "strided": {"position_ids": ids.repeat(1, 2)[:, ::2]},
    }[how]
    result, expected = layer(*arguments, **kwargs), case.definition(layer, *arguments, **kwargs)
    for ours, plain in zip(tensors(result), tensors(expected), strict=True):
        assert_close(ours, plain)
