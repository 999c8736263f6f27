"""Initial values of parameters that may be sharded over processes (FSDP2 makes each a DTensor)."""

from __future__ import annotations

import torch
from torch import Tensor


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
