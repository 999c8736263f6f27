"""Every public layer with its parameters, from the meta device to two gloo processes (FSDP2) and in DDP.

The test starts this file as two processes; each checks what it sees and ends with 0.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from every_layer import EACH_KIND, LAYERS, SMALL, Size, is_usual, loss_of, tensors
from posembed.errors import PositionError
from together import together
from tolerance import assert_close, assert_same
from two_processes import WORLD_SIZE, be_both, is_whole, start_both

LEARNED = [name for name, case in LAYERS.items() if list(case.make(SMALL).parameters())]


def reset(layer: nn.Module) -> None:
    """As whoever starts from the meta device does."""
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


@together("name", LEARNED)
def test_from_meta_it_starts_as_it_is_built(name: str) -> None:
    size = Size(2, 300, 64)
    torch.manual_seed(0)
    built = LAYERS[name].make(size)
    with torch.device("meta"):
        layer = LAYERS[name].make(size)
    layer.to_empty(device="cpu")
    for parameter in layer.parameters():
        parameter.data.fill_(float("nan"))
    torch.manual_seed(1)
    reset(layer)
    for (key, ours), (_, theirs) in zip(layer.named_parameters(), built.named_parameters(), strict=True):
        for what in (torch.mean, lambda p: p.square().mean().sqrt()):
            spread = theirs.detach().square().mean().sqrt() / min(theirs.numel(), 4000) ** 0.5
            found, expected = (what(each.detach()).item() for each in (ours, theirs))
            assert found == pytest.approx(expected, rel=0.05, abs=float(6 * spread)), key  # other random numbers
    torch.manual_seed(1)
    once = {key: p.detach().clone() for key, p in layer.named_parameters()}
    reset(layer)
    assert_same(dict(layer.named_parameters()), once)


def main(rank: int) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "DTensor random operators")  # nn.Linear's own start on a CPU
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for name in LEARNED if is_whole() else filter(is_usual, LEARNED):
        case = LAYERS[name]
        torch.manual_seed(rank)  # the processes' generators differ, and what they agree on must not
        with torch.device("meta"):
            sharded = case.make(SMALL).eval()
        fully_shard(sharded, mesh=mesh)
        sharded.to_empty(device="cpu")
        reset(sharded)
        whole = case.make(SMALL).eval()
        whole.load_state_dict({key: value.full_tensor() for key, value in sharded.state_dict().items()})
        torch.manual_seed(7)
        arguments = case.arguments(SMALL)
        alone, together = whole(*arguments), sharded(*arguments)
        assert_close(tensors(together), tensors(alone), msg=name)
        loss_of(alone).backward()
        loss_of(together).backward()
        for (key, ours), (_, theirs) in zip(sharded.named_parameters(), whole.named_parameters(), strict=True):
            if theirs.grad is not None and ours.grad is not None:
                assert_close(ours.grad.full_tensor(), theirs.grad, msg=f"{name} {key}")
        if name not in EACH_KIND and not is_whole():
            continue
        replicated = copy.deepcopy(whole)
        replicated.zero_grad()
        replicated = DistributedDataParallel(replicated)
        assert_same(tensors(replicated(*arguments)), tensors(alone), msg=name)

    sharded = LAYERS["LearnedPositionalEmbedding"].make(SMALL)
    fully_shard(sharded, mesh=mesh)
    with pytest.raises(PositionError, match="has no row"):
        sharded(torch.zeros(1, 1, SMALL.dim), offset=1000)


def test_sharded_it_is_whole(tmp_path: Path) -> None:
    start_both(__file__, tmp_path / "store")


if __name__ == "__main__":
    be_both(main)
