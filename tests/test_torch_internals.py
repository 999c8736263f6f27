"""Each private name of PyTorch that posembed uses means what ``torch_internals`` says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as modules

from posembed import torch_internals
from together import together
from tolerance import assert_close


def test_transforms_are_active() -> None:
    seen = []

    def looking(x: Tensor) -> Tensor:
        seen.append(torch_internals.transforms_are_active())
        return x.sum()

    looking(torch.ones(2))
    torch.func.vmap(looking)(torch.ones(2, 2))
    torch.func.grad(looking)(torch.ones(2))
    assert seen == [False, True, True]


def test_holds_several_gradients() -> None:
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda gradient: seen.append(torch_internals.holds_several_gradients(gradient)))
    torch.autograd.grad(y, x, torch.ones(2), retain_graph=True)
    torch.autograd.grad(y, x, torch.eye(2), is_grads_batched=True)
    assert seen == [False, True]


def test_softmax_gradient() -> None:
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weights, gradient = scores.softmax(-1), torch.randn(3, 5, dtype=torch.float64)
    found = torch_internals.softmax_gradient(gradient, weights.detach())
    assert_close(found, torch.autograd.grad(weights, scores, gradient)[0])


@pytest.mark.filterwarnings("ignore:`torch.jit")  # by which PyTorch loads its own forward mode
def test_forward_mode_is_active() -> None:
    assert not torch_internals.forward_mode_is_active()
    with forward_ad.dual_level():
        assert torch_internals.forward_mode_is_active()
    assert not torch_internals.forward_mode_is_active()


def test_without_draws() -> None:
    with torch_internals.WithoutDraws():
        filled = [torch.zeros(3).normal_(), torch.zeros(3).uniform_(1, 2)]
        assert nn.Linear(2, 3)(torch.ones(1, 2)).shape == (1, 3)
    assert not torch.cat(filled[:2]).any()
    assert torch.zeros(3).uniform_(1, 2).all()


def test_is_being_recorded() -> None:
    seen = []

    def looking(x: Tensor) -> Tensor:
        seen.append(torch_internals.is_being_recorded())
        return x + (2 if torch_internals.is_being_recorded() else 1)

    assert float(looking(torch.zeros(()))) == 1
    assert float(torch.compile(lambda x: x + (2 if torch_internals.is_being_recorded() else 1), backend="eager")(
        torch.zeros(()))) == 2  # fmt: skip
    assert seen == [False]


def test_without_memory() -> None:
    with torch_internals.without_memory():
        rows = torch.randn(10**9, 10**9, generator=torch.Generator().manual_seed(0), device="cpu")
        layer = nn.Embedding(10**9, 10**9)
    assert rows.shape == layer.weight.shape == (10**9, 10**9)


HOOKS: dict[str, Callable[[nn.Module], object]] = {
    "forward": lambda m: m.register_forward_hook(lambda *_: None),
    "forward pre": lambda m: m.register_forward_pre_hook(lambda *_: None),
    "backward": lambda m: m.register_full_backward_hook(lambda *_: None),
    "backward pre": lambda m: m.register_full_backward_pre_hook(lambda *_: None),
    "all forward": lambda m: modules.register_module_forward_hook(lambda *_: None),
    "all forward pre": lambda m: modules.register_module_forward_pre_hook(lambda *_: None),
    "all backward": lambda m: modules.register_module_full_backward_hook(lambda *_: None),
    "all backward pre": lambda m: modules.register_module_full_backward_pre_hook(lambda *_: None),
}


@together("hook", HOOKS)
def test_a_hook_is_seen_and_its_removal(hook: str) -> None:
    module = nn.Embedding(3, 2)
    assert torch_internals.runs_forward_alone(module)
    handle = HOOKS[hook](module)
    try:
        assert not torch_internals.runs_forward_alone(module)
    finally:
        handle.remove()
    assert torch_internals.runs_forward_alone(module)


def test_a_patched_method_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Embedding(3, 2)
    module.forward = partial(module.forward)
    assert not torch_internals.runs_forward_alone(module)
    compiled = nn.Embedding(3, 2)
    compiled.compile(backend="eager")
    assert not torch_internals.runs_forward_alone(compiled)
    other = nn.Embedding(3, 2)
    monkeypatch.setattr(nn.Module, "__call__", lambda *_: None)
    assert not torch_internals.runs_forward_alone(other)


@pytest.mark.parametrize("bias", [True, False])
def test_one_row_has_a_product_of_its_own_where_nothing_watches(bias: bool) -> None:
    layer, x = nn.Linear(48, 80, bias=bias), torch.randn(1, 1, 48)
    with torch.no_grad():
        ours = torch_internals.linear_of_one_row(x, layer.weight, layer.bias)
        assert (ours is not None) == torch.backends.mkldnn.is_available()
        if ours is not None:
            assert_close(ours, layer(x))
        for other in (x.expand(1, 2, 48), x.double(), x.bfloat16()):
            assert torch_internals.linear_of_one_row(other, layer.weight, layer.bias) is None
        with torch.autocast("cpu", torch.bfloat16):
            assert torch_internals.linear_of_one_row(x, layer.weight, layer.bias) is None
    assert torch_internals.linear_of_one_row(x, layer.weight, layer.bias) is None  # gradients are being recorded


def test_storage_info() -> None:
    info = torch_internals.storage_info("__0_0.distcp", 3, 5)
    assert (info.relative_path, info.offset, info.length, info.transform_descriptors) == ("__0_0.distcp", 3, 5, None)
