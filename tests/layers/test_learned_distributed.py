"""Two gloo processes give one process's numbers: DDP, FSDP2, and a sequence divided between them.

The test starts this file as two processes; each checks what it sees and ends with 0.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from posembed import LearnedPositionalEmbedding, positions
from posembed.errors import PositionError
from posembed.tables import PADDING, TableLayout
from tolerance import assert_close
from two_processes import WORLD_SIZE, be_both, start_both

BATCH, LENGTH, DIM = 4, 8, 6


class Model(nn.Module):
    """Tokens, positions numbered by a mask, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, DIM)
        self.positions = LearnedPositionalEmbedding(max_len=11, dim=DIM, dropout=0, std=1.0, layout=TableLayout.OPT)
        self.head = nn.Linear(DIM, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        ids = positions.from_token_ids(tokens, pad_id=0, padding=PADDING)
        return self.head(self.positions(self.tokens(tokens), ids)) + self.head(self.positions(self.tokens(tokens)))


def trained(model: nn.Module, batches: list[Tensor]) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for tokens in batches:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def check_data_parallel(rank: int, model: nn.Module, batches: list[Tensor], reference: dict[str, Tensor]) -> None:
    mine = [tokens.chunk(WORLD_SIZE)[rank] for tokens in batches]

    replicated = trained(DistributedDataParallel(copy.deepcopy(model)), mine)
    assert_close(replicated.module.state_dict(), reference)

    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    for start_on_meta in (False, True):
        sharded = copy.deepcopy(model)
        if start_on_meta:
            sharded = sharded.to("meta")
        fully_shard(sharded.positions, mesh=mesh)  # 13 rows over two processes
        fully_shard(sharded, mesh=mesh)
        assert isinstance(sharded.positions.weight, DTensor)
        if start_on_meta:
            sharded.to_empty(device="cpu")
            set_model_state_dict(sharded, model.state_dict(), options=StateDictOptions(full_state_dict=True))
        trained(sharded, mine)
        whole = get_model_state_dict(sharded, options=StateDictOptions(full_state_dict=True))
        assert_close(whole, reference)
        try:
            sharded(torch.ones(1, 12, dtype=torch.int64))
        except PositionError:
            continue
        raise AssertionError("position 11 was read")


def check_sequence_parallel(rank: int, layer: LearnedPositionalEmbedding) -> None:
    torch.manual_seed(1)
    x, upstream = torch.randn(BATCH, LENGTH, DIM), torch.randn(BATCH, LENGTH, DIM)
    whole = layer(x)
    whole.backward(upstream)
    for shard in (positions.contiguous_shard, positions.zigzag_shard):
        twin = copy.deepcopy(layer)
        twin.weight.grad = None
        ids = shard(LENGTH, rank, WORLD_SIZE)
        out = twin(x[:, ids], ids)
        assert torch.equal(out, whole[:, ids])
        out.backward(upstream[:, ids])
        dist.all_reduce(twin.weight.grad)
        assert_close(twin.weight.grad, layer.weight.grad)


def main(rank: int) -> None:
    torch.manual_seed(0)
    model = Model()
    batches = [torch.randint(1, 20, (BATCH, LENGTH)) for _ in range(3)]
    for tokens in batches:
        tokens[0, :3] = 0
        tokens[-1, 5:] = 0
    reference = trained(copy.deepcopy(model), batches).state_dict()
    check_data_parallel(rank, model, batches, reference)
    check_sequence_parallel(rank, copy.deepcopy(model.positions))


@pytest.mark.whole  # tests/matrix/test_sharded.py runs each layer in two processes
def test_two_processes_give_one_processs_numbers(tmp_path: Path) -> None:
    start_both(__file__, tmp_path / "store")


if __name__ == "__main__":
    be_both(main)
