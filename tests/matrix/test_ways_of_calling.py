"""Every public layer under what people wrap around layers: checkpointing, autocast, compile, export, torch.func,
hooks, patches, offloading, parametrization, inference mode, another default dtype."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest
import torch
from accelerate import cpu_offload, dispatch_model
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from every_layer import EACH_KIND, LAYERS, SMALL, Size, is_usual, loss_of, tensors
from together import asked, together
from tolerance import assert_close, assert_same

ABOVE_ALL = Size(8, 257, 512)
BOTH = [SMALL, ABOVE_ALL]
EVERY = together("name", LAYERS)
EVERY_SIZE = together(
    "name, size", list(product(LAYERS, BOTH)), usual=lambda name, size: size == SMALL or name in EACH_KIND
)
DROPS = [name for name, case in LAYERS.items() if case.dropout]
DROPPING = together("name", DROPS)
DROPPING_SIZE = together(
    "name, size", list(product(DROPS, BOTH)), usual=lambda name, size: size == SMALL or name in EACH_KIND
)
DIFFERENTIABLE = [name for name, case in LAYERS.items() if list(case.make(SMALL).parameters()) or not case.reads_tokens]


def with_gradients(layer: nn.Module, arguments: tuple, run=None) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What a call gives, and the gradients of the parameters."""
    result = (layer if run is None else run)(*arguments)
    parameters = [p for p in layer.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss_of(result), parameters, allow_unused=True) if parameters else ()
    return tensors(result), [g for g in gradients if g is not None]


@DROPPING_SIZE
@together("reentrant", [False, True])
def test_activation_checkpointing_from_the_first_step(name: str, size: Size, reentrant: bool) -> None:
    """The recomputed forward takes the same path and drops the same elements."""
    case = LAYERS[name]
    layer, arguments = case.make(size, dropout=0.5).train(), case.arguments(size)
    arguments = tuple(a.requires_grad_() if a.is_floating_point() else a for a in arguments)
    if reentrant:  # which needs an input that requires a gradient
        anchor = torch.ones(1, requires_grad=True)

        def run(*a):
            return checkpoint(lambda anchor, *a: layer(*a) * anchor, anchor, *a, use_reentrant=True)
    else:

        def run(*a):
            return checkpoint(layer, *a, use_reentrant=False)

    def gradients(call) -> list[torch.Tensor | None]:
        torch.manual_seed(3)
        layer.zero_grad()
        result = call(*arguments)
        loss_of(result).backward()
        return [result.detach(), *(p.grad for p in layer.parameters() if p.grad is not None)]

    first, second = gradients(run), gradients(layer)
    assert_same(first, second)


@EVERY_SIZE
def test_inference_mode_and_no_grad(name: str, size: Size) -> None:
    """The same numbers as with gradients, but not the same bits: ``matmul`` then takes another kernel."""
    case = LAYERS[name]
    layer, arguments = case.make(size).eval(), case.arguments(size)
    expected = [t.detach() for t in tensors(layer(*arguments))]
    for without_gradients in (torch.no_grad, torch.inference_mode):
        with without_gradients():
            result = [t.clone() for t in tensors(layer(*arguments))]
        assert_close(result, expected, terms=ABOVE_ALL.dim)


@EVERY_SIZE
def test_autocast_and_half_precision(name: str, size: Size) -> None:
    """The dtypes of the plain definition, and its numbers as far as the dtype tells them apart."""
    case = LAYERS[name]
    layer, arguments = case.make(size).eval(), case.arguments(size)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, plain = tensors(layer(*arguments)), tensors(case.definition(layer, *arguments))
    for mine, theirs in zip(ours, plain, strict=True):
        if mine.shape[0] != 4:  # a bias is computed in float32 whatever autocast says
            assert mine.dtype == theirs.dtype
        assert_close(mine.float(), theirs.float(), dtype=torch.bfloat16)
    half = case.make(size).to(torch.bfloat16).eval()
    narrow = tuple(a.to(torch.bfloat16) if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments)
    expected = case.definition(half.float(), *(a.float() if torch.is_tensor(a) and a.is_floating_point() else a
                                               for a in narrow))  # fmt: skip
    for mine, theirs in zip(tensors(half.to(torch.bfloat16)(*narrow)), tensors(expected), strict=True):
        assert mine.dtype in (torch.bfloat16, torch.float32)
        assert_close(mine.float(), theirs, dtype=torch.bfloat16)


@EVERY
def test_another_default_dtype_changes_nothing(name: str) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(SMALL).eval(), case.arguments(SMALL)
    expected = tensors(layer(*arguments))
    for dtype in (torch.float64, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            result = tensors(layer(*arguments))
        finally:
            torch.set_default_dtype(torch.float32)
        assert [t.dtype for t in result] == [t.dtype for t in expected]
        assert_same(result, expected)


@together("name", [n for n, case in LAYERS.items() if case.contract in ("input", "rotation", "text", "images")])
def test_shapes_on_the_meta_device(name: str) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(SMALL).eval(), case.arguments(SMALL)
    expected = [(t.shape, t.dtype) for t in tensors(layer(*arguments))]
    result = tensors(layer.to("meta")(*(a.to("meta") if torch.is_tensor(a) else a for a in arguments)))
    assert [(t.shape, t.dtype) for t in result] == expected
    assert all(t.is_meta for t in result)


COMPILED_ELSEWHERE = ("ExtendedPositionalEmbedding", "SampledPositionalEmbedding", "KerpleLog", "KerplePower",
                      "SinusoidalGridEmbedding", "NoPosition", "BertInput", "LearnedPositionalEmbedding", "OPTInput",
                      "LearnedGridEmbedding", "RollingPositionalEmbedding", "AxialRotaryEmbedding",
                      "BilevelEncoding", "SequentialPositionalEmbedding", "RotaryEmbedding", "PolarEmbedding", "T5Bias",
                      "AveragedPositionalEmbedding", "Tupe",
                      "Fox", "Cable", "Cope", "Dape", "HouseholderPath", "RobertaInput")  # fmt: skip
"""Layers with a test of their own, or one of another of their kind, or in a decoder (nn/test_ways_of_running.py)."""


@together("name", LAYERS, usual=lambda name: is_usual(name) and name not in COMPILED_ELSEWHERE)
def test_compiled_whole(name: str) -> None:
    case = LAYERS[name]
    layer = case.make(Size(2, 9, 8)).eval()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager" if asked["whole"] else "eager", dynamic=True)
    for size in (Size(2, 9, 8), Size(3, 9, 8)):
        arguments = case.arguments(size)
        ours, gradients = with_gradients(layer, arguments, compiled)
        plain, expected = with_gradients(layer, arguments)
        assert_close(ours, plain)
        assert_close(gradients, expected)


EXPORTED_ELSEWHERE = ("LearnedPositionalEmbedding", "ExtendedPositionalEmbedding", "BilevelEncoding", "RotaryEmbedding",
                      "T5Bias", "Tupe", "BertInput", "RobertaInput")  # fmt: skip
"""Layers with a test of their own, or in an encoder (nn/test_ways_of_running.py)."""


@together("name", LAYERS, usual=lambda name: is_usual(name) and name not in EXPORTED_ELSEWHERE)
def test_exported(name: str) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(SMALL).eval(), case.arguments(SMALL)
    exported = torch.export.export(layer, arguments).module()
    assert_close(tensors(exported(*arguments)), tensors(layer(*arguments)))


@EVERY
@together("how", ["plain", "ids", "offsets"])
def test_gradients_of_each_sample(name: str, how: str) -> None:
    """vmap over grad: the gradients of each sample are those of the sample alone.

    The squares have weights, because a rotation does not change their sum.
    """
    case = LAYERS[name]
    tensors_alone = all(isinstance(a, torch.Tensor) for a in case.arguments(SMALL))
    if not tensors_alone or (how != "plain" and not case.positioned) or (how == "offsets" and "Grid" in name):
        return
    layer = case.make(SMALL._replace(length=9)).eval()
    whole = "Grid" in name or name in ("ViTInput", "DeiTInput")
    arguments = case.arguments(Size(3, 9 if whole else 5, 8))
    parameters = {key: p.detach() for key, p in layer.named_parameters()}
    batch, length = arguments[0].shape[0], arguments[0].shape[-2 if arguments[0].is_floating_point() else -1]
    more = {"plain": (), "ids": (torch.randint(3, (batch, length)),), "offsets": (torch.arange(batch),)}[how]

    def loss(parameters: dict[str, torch.Tensor], *sample: torch.Tensor) -> torch.Tensor:
        given = [a[None] for a in sample[: len(arguments)]]
        kwargs = {"ids": lambda p: {"position_ids": p[None]}, "offsets": lambda o: {"offset": o}}
        extra = kwargs[how](sample[-1]) if how != "plain" else {}
        result = torch.func.functional_call(layer, parameters, tuple(given), extra)
        return sum((t.square() * torch.linspace(1, 2, t.numel()).view(t.shape)).sum() for t in tensors(result))

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, *[0] * (len(arguments) + len(more))))
    together = each(parameters, *arguments, *more) if parameters else None
    values = torch.func.vmap(loss, in_dims=(None, *[0] * (len(arguments) + len(more))))(parameters, *arguments, *more)
    for i in range(batch):
        sample = [a[i] for a in (*arguments, *more)]
        assert_close(values[i], loss(parameters, *sample))
        if together is not None:
            alone = torch.func.grad(loss)(parameters, *sample)
            assert_close({key: g[i] for key, g in together.items()}, alone, depth=2)


@contextmanager
def watched(layer: nn.Module, kind: str) -> Iterator[set[str]]:
    """The names of the modules whose hooks, or whose patched forward, have run."""
    seen: set[str] = set()
    handles = []
    for name, module in layer.named_modules():
        note = functools.partial(lambda name, *_: seen.add(name), name)
        if kind == "forward":
            handles.append(module.register_forward_hook(lambda *_, note=note: note()))
        elif kind == "pre-forward":
            handles.append(module.register_forward_pre_hook(lambda *_, note=note: note()))
        elif kind == "backward":
            handles.append(module.register_full_backward_hook(lambda *_, note=note: note()))
        else:
            forward = module.forward
            module.forward = functools.partial(
                lambda note, forward, *a, **k: (note(), forward(*a, **k))[1], note, forward
            )
    yield seen
    for handle in handles:
        handle.remove()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing when")  # where only ids come in
@EVERY_SIZE
@together("kind", ["forward", "pre-forward", "backward", "patched"])
def test_every_module_with_parameters_is_called(name: str, size: Size, kind: str) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(size).eval(), case.arguments(size)
    owners = {
        key for key, m in layer.named_modules() if list(m.parameters(recurse=False)) and key != "encoding"
        and not key.startswith("encoding.")
    }  # fmt: skip
    expected = [t.detach() for t in tensors(layer(*arguments))]
    if type(layer).__name__ == "Called":  # what a method reads, no call shows
        owners = set()
    arguments = tuple(
        a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments
    )
    with watched(layer, kind) as seen:
        result = layer(*arguments)
        if kind == "backward" and tensors(result)[0].requires_grad:
            loss_of(result).backward()
    if kind != "backward" or owners:
        assert owners <= seen
    assert_close([t.detach() for t in tensors(result)], expected)


@EVERY_SIZE
@together("how", ["cpu_offload", "dispatch_model"])
def test_offloaded_by_accelerate(name: str, size: Size, how: str) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(size).eval(), case.arguments(size)
    if type(layer).__name__ == "Called":  # its encoding is read by methods, which accelerate does not know
        return
    expected = [t.detach() for t in tensors(layer(*arguments))]
    if how == "cpu_offload":
        cpu_offload(layer, execution_device=torch.device("cpu"))
    else:
        dispatch_model(layer, {"": "cpu"}, force_hooks=True)
    with torch.no_grad():
        assert_close(tensors(layer(*arguments)), expected)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


@EVERY_SIZE
def test_parametrized_weights_are_read(name: str, size: Size) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(size).eval(), case.arguments(size)
    plain = case.make(size).eval()
    plain.load_state_dict({key: 2 * value for key, value in layer.state_dict().items()})
    for module in list(layer.modules()):
        for key, _ in list(module.named_parameters(recurse=False)):
            parametrize.register_parametrization(module, key, Doubled())
    assert_close(tensors(layer(*arguments)), tensors(plain(*arguments)))


@DROPPING
@together("dropout", [-0.1, 1.5, float("nan")])
def test_dropout_is_a_probability(name: str, dropout: float) -> None:
    from posembed.errors import ArgumentError

    with pytest.raises(ArgumentError, match=r"dropout: expected a (finite )?number of at least 0 and at most 1"):
        LAYERS[name].make(SMALL, dropout=dropout)


@DROPPING_SIZE
def test_dropout_drops_its_share_and_only_in_training(name: str, size: Size) -> None:
    case = LAYERS[name]
    layer, arguments = case.make(size, dropout=0.25), case.arguments(size)
    kept, whole = layer.train()(*arguments), layer.eval()(*arguments)
    dropped = kept == 0
    share = float((dropped & (whole != 0)).float().mean()) / float((whole != 0).float().mean())
    assert abs(share - 0.25) < (0.2 if size == SMALL else 0.01)
    assert_close(kept[~dropped], whole[~dropped] / 0.75)
