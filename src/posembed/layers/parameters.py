"""Values of parameters: initial ones, also where FSDP2 shards them as DTensors, and others in a copy of a layer."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

LayerT = TypeVar("LayerT", bound=nn.Module)


@torch.no_grad()
def fill_(parameter: Tensor, values: Tensor) -> None:
    """Copies values, of the parameter's whole shape, into it. In a sharded one each process keeps its shard.

    Every process computes all values and those of the first process count, so that random values agree.
    """
    values = values.to(parameter.device, parameter.dtype)
    data = parameter.data
    if type(data) is not Tensor:
        from torch.distributed.tensor import DTensor, distribute_tensor

        if isinstance(data, DTensor):
            values = distribute_tensor(values.contiguous(), data.device_mesh, data.placements)
    parameter.copy_(values)


def copy_with(layer: LayerT, **parameters: Tensor) -> LayerT:
    """Returns a copy of a layer in which these parameters have other values, of any shape."""
    changed = copy.deepcopy(layer)
    for name, values in parameters.items():
        old = getattr(layer, name)
        values = values.detach().to(old.device, old.dtype)
        setattr(changed, name, nn.Parameter(values, requires_grad=old.requires_grad))
    return changed
