"""Private names of PyTorch that posembed cannot do without, each behind a function with a test of its own.

tests/test_torch_internals.py shows for each that it means what it says in the installed PyTorch.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as modules


def transforms_are_active() -> bool:
    """Whether a torch.func transform (vmap, grad, jvp, ...) runs the code that asks."""
    return torch._C._are_functorch_transforms_active()


def forward_mode_is_active() -> bool:
    """Whether forward-mode derivatives (torch.autograd.forward_ad) are being computed."""
    return forward_ad._current_level >= 0


def is_being_recorded() -> bool:
    """Whether operations are recorded to be run elsewhere: compiled, exported or traced."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def runs_forward_alone(module: nn.Module) -> bool:
    """Whether calling the module is calling its class's methods and nothing else.

    False with any hook on the module or on all modules, with a method replaced on the instance (accelerate's
    offloading replaces ``forward``), and with a compiled call.
    """
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
        modules._global_forward_hooks,
        modules._global_forward_pre_hooks,
        modules._global_backward_hooks,
        modules._global_backward_pre_hooks,
    )
    kind = type(module)
    return (
        not any(hooks)
        and module._compiled_call_impl is None
        and kind.__call__ is _CALL
        and not any(callable(getattr(kind, name, None)) for name in vars(module))
    )


_CALL = nn.Module.__call__
