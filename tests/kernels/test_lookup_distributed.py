"""An input layer whose tables are sharded over two gloo processes (FSDP2) trains as it does in one.

The test starts this file twice; each process checks what it sees and ends with 0.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from posembed.inputs import BertInput
from posembed.kernels import operator, pieces

WORLD_SIZE = 2


def trained(model: nn.Module, batches: list[Tensor]) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for ids in batches:
        optimizer.zero_grad()
        model(ids).square().mean().backward()
        optimizer.step()
    return model


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    pieces.PIECE = 8
    calls = []
    body_for = operator._body_for
    operator._body_for = lambda request: (calls.append(request), body_for(request))[1]
    torch.manual_seed(0)
    layer = BertInput(20, 9, 6, dropout=0.0)
    layer(torch.ones(1, 1, dtype=torch.int64))  # the first call in training compares the tables' scales
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
        torch.testing.assert_close(whole, reference, rtol=0, atol=1e-5)
        assert len(calls) == (0 if tables_alone else 2 * len(batches)), "a table with hooks of its own is called"
    dist.barrier()  # neither leaves while the other still talks to it
    dist.destroy_process_group()


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    import posembed

    source = Path(posembed.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(tmp_path / "store")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(WORLD_SIZE)
    ]
    try:
        said = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * WORLD_SIZE, "\n".join(said)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    os._exit(0)  # all is checked; PyTorch's own threads may abort an interpreter that shuts down
