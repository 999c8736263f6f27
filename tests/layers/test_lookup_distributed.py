"""An input layer whose tables are sharded over two gloo processes (FSDP2) trains as it does in one.

The test starts this file as two processes; each checks what it sees and ends with 0.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from posembed.inputs import BertInput
from posembed.layers import lookup
from tolerance import assert_close
from two_processes import WORLD_SIZE, be_both, start_both


def trained(model: nn.Module, batches: list[Tensor]) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids in batches:
        optimizer.zero_grad()
        model(ids).square().mean().backward()
        optimizer.step()
    return model


def main(rank: int) -> None:
    lookup.PIECE = 8
    calls = []
    forward, backward = lookup.forward, lookup.backward
    lookup.forward = lambda *arguments: (calls.append("forward"), forward(*arguments))[1]
    lookup.backward = lambda *arguments: (calls.append("backward"), backward(*arguments))[1]
    torch.manual_seed(0)
    layer = BertInput(vocab_size=20, max_len=9, dim=6, dropout=0.0)
    model = nn.Sequential(layer, nn.Linear(6, 4))
    batches = [torch.randint(1, 20, (4, 8)) for _ in range(3)]
    reference = trained(copy.deepcopy(model), batches).state_dict()
    assert len(calls) == 2 * len(batches), "the lookup and its gradient"
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for tables_alone in (False, True):
        calls.clear()
        sharded = copy.deepcopy(model)
        if tables_alone:
            fully_shard(sharded[0].word_embeddings, mesh=mesh)
            fully_shard(sharded[0].position_embeddings, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        trained(sharded, [ids.chunk(WORLD_SIZE)[rank] for ids in batches])
        whole = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
        assert_close(whole, reference)
        assert len(calls) == (0 if tables_alone else 2 * len(batches)), "a table with hooks of its own is called"


@pytest.mark.whole  # tests/matrix/test_sharded.py runs each layer in two processes
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    start_both(__file__, tmp_path / "store")


if __name__ == "__main__":
    be_both(main)
