"""Wraps each private name of PyTorch that posembed needs in one function.

tests/test_torch_internals.py checks that every function works in the installed PyTorch.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as modules
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext


def transforms_are_active() -> bool:
    """Returns whether the caller runs inside a torch.func transform (vmap, grad, jvp, ...)."""
    return torch._C._are_functorch_transforms_active()


def holds_several_gradients(gradient: Tensor) -> bool:
    """Returns whether this is a batch of gradients, computed by one backward pass with ``is_grads_batched``."""
    return torch._C._functorch.is_legacy_batchedtensor(gradient)


def forward_mode_is_active() -> bool:
    """Returns whether forward-mode derivatives (torch.autograd.forward_ad) are being computed."""
    return forward_ad._current_level >= 0


def a_function_mode_watches() -> bool:
    """Returns whether any TorchFunctionMode is active, except the one that sets the default device."""
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def is_being_recorded() -> bool:
    """Returns whether operations are being recorded to run elsewhere: compiled, exported or traced."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


class WithoutDraws(TorchFunctionMode):
    """A context that skips drawing random initial values, so that a large module is built fast and uses no memory.

    On the meta device, PyTorch would import torch._dynamo to draw the values, which takes seconds.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return args[0] if func in (Tensor.normal_, Tensor.uniform_) else func(*args, **(kwargs or {}))


def without_memory() -> AbstractContextManager[Any]:
    """Returns a context in which every new tensor has a shape, but neither values nor memory, on any device.

    The meta device would not do: code that asks for device="cpu" would still allocate.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # it takes a second to import

    return FakeTensorMode()


def storage_info(file: str, start: int, length: int) -> Any:
    """Returns a value's entry in torch.distributed.checkpoint's metadata: its file, and its bytes in that file."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo  # it takes a second to import

    return _StorageInfo(file, start, length)


def linear_of_one_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
    """Computes F.linear of a single row x (..., D) with oneDNN. Returns None if only F.linear itself is correct.

    With more rows, F.linear is as fast. With one row, as in each step of decoding one sequence, MKL takes 1.2 to 1.6
    times as long as oneDNN (AMD EPYC, widths 768 to 3,072).
    """
    plain = (
        type(x) is Tensor
        and not is_being_recorded()
        and x.numel() == x.shape[-1]
        and not torch.is_grad_enabled()
        and x.dtype == weight.dtype == torch.float32
        and x.is_cpu
        and type(weight) in (Tensor, nn.Parameter)
        and not (transforms_are_active() or a_function_mode_watches())
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
    )
    if not plain:
        return None
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def softmax_gradient(gradient: Tensor, weights: Tensor) -> Tensor:
    """Returns the gradient of the scores (..., N), given the gradient of weights = softmax(scores), in one pass."""
    return torch._softmax_backward_data(gradient, weights, -1, weights.dtype)


def runs_forward_alone(module: nn.Module) -> bool:
    """Returns whether calling the module runs its class's methods and nothing else.

    Hooks on the module or on all modules, a method replaced on the instance (accelerate's offloading replaces
    ``forward``) and a compiled call make this False.
    """
    kind = type(module)
    return (
        not any(getattr(module, own) or getattr(modules, of_all) for own, of_all in _HOOKS)
        and module._compiled_call_impl is None
        and (kind.__call__, kind._call_impl) == _CALLS
        and not any(callable(getattr(kind, name, None)) for name in vars(module))
    )


def is_as_written(kind: type, name: str) -> bool:
    """Returns whether a method comes from the file that defines its class, and not from a patch."""
    owner = next(c for c in kind.__mro__ if name in vars(c))
    method: Any = getattr(owner, name)
    if isinstance(method, FunctionType) and method.__globals__["__name__"] == "posembed.arguments":
        method = method.__wrapped__  # type: ignore[attr-defined]
    code = getattr(method, "__code__", None)
    return code is not None and code.co_filename == sys.modules[owner.__module__].__file__


_KINDS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
_HOOKS = tuple((f"_{kind}", f"_global_{kind}") for kind in _KINDS)
_UNPATCHED = is_as_written(nn.Module, "__call__") and is_as_written(nn.Module, "_call_impl")
_CALLS = (nn.Module.__call__, nn.Module._call_impl) if _UNPATCHED else ()
