"""Files of mixed-precision training, which hold the parameters a second time: the new table is never overwritten."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posembed import resize_checkpoint
from posembed.errors import CheckpointError
from posembed.modelfiles.pickles import load_without_running
from posembed.modelfiles.training_files import leaves
from together import together

ROWS, DIM, NEW = 16, 8, 24


class Model(nn.Module):
    """Without a twin, only the table has its shape."""

    def __init__(self, rows: int, *, twin: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(30, DIM), nn.Embedding(rows, DIM)
        self.out = nn.Linear(DIM, ROWS if twin else 30, bias=False)

    def forward(self) -> Tensor:
        ids = torch.arange(self.wpe.num_embeddings)
        return self.out(self.wte(ids) + self.wpe(ids)).logsumexp(-1).sum()


class Mixed:
    """A model in half precision, and an optimizer of its parameters in float32: one for each, or all in a row."""

    def __init__(self, rows: int, dtype: torch.dtype, *, flat: bool = False, twin: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Model(rows, twin=twin).to(dtype)
        self.parameters = list(self.model.parameters())
        copies = [each.detach().float() for each in self.parameters]
        copies = [torch.cat([each.flatten() for each in copies])] if flat else [each.clone() for each in copies]
        self.copies, self.flat = [nn.Parameter(each) for each in copies], flat
        self.optimizer = torch.optim.AdamW(self.copies, lr=0.01)

    def step(self) -> None:
        self.model().backward()
        gradients = [each.grad.float() for each in self.parameters]  # type: ignore[union-attr]
        gradients = [torch.cat([each.flatten() for each in gradients])] if self.flat else gradients
        for copy, gradient in zip(self.copies, gradients, strict=True):
            copy.grad = gradient
        self.optimizer.step()
        new = self.copies[0].split([each.numel() for each in self.parameters]) if self.flat else self.copies
        for parameter, copy in zip(self.parameters, new, strict=True):
            parameter.data.copy_(copy.data.view_as(parameter))
            parameter.grad = None


def megatron(mixed: Mixed) -> dict[str, Any]:
    scaler = {"scale": torch.tensor([65536.0]), "growth_tracker": 0}
    kept = {"optimizer": mixed.optimizer.state_dict(), "grad_scaler": scaler, "fp32_from_fp16_params": [mixed.copies]}
    return {"model": mixed.model.state_dict(), "optimizer": kept, "iteration": 7}


def apex(mixed: Mixed) -> dict[str, Any]:
    """As its FP16_Optimizer."""
    kept = {"overflow": False, "optimizer_state_dict": mixed.optimizer.state_dict(), "fp32_from_fp16": [mixed.copies]}
    return {"net": mixed.model.state_dict(), "opt": kept}


def transformer_engine(mixed: Mixed) -> dict[str, Any]:
    kept = mixed.optimizer.state_dict()
    for number, copy in enumerate(mixed.copies):
        kept["state"].setdefault(number, {})["master_param"] = copy.data
    return {"model": mixed.model.state_dict(), "optimizer": kept}


def lightning(mixed: Mixed) -> dict[str, Any]:
    """With the copies as a script of its own saves them, and parts of the weights without names around them."""
    state = {f"net.{key}": value for key, value in mixed.model.state_dict().items()}
    copies = {"master": tuple(each.data for each in mixed.copies), "scale": 2.0}
    return {"state_dict": state, "optimizer_states": [mixed.optimizer.state_dict()], "callbacks": copies}


def in_root(mixed: Mixed) -> dict[str, Any]:
    return {**mixed.model.state_dict(), "optimizer": megatron(mixed)["optimizer"]}


def deepspeed(mixed: Mixed) -> dict[str, Any]:
    """As its FP16_Optimizer without ZeRO, of which each part is all parameters in a row."""
    kept = {"optimizer_state_dict": mixed.optimizer.state_dict(), "fp32_groups_flat": mixed.copies, "clip_grad": 1.0}
    return {"module": mixed.model.state_dict(), "optimizer": kept, "param_shapes": None, "global_steps": 2}


def fairseq(mixed: Mixed) -> dict[str, Any]:
    state = {**mixed.optimizer.state_dict(), "loss_scale": 2.0}
    return {"model": mixed.model.state_dict(), "last_optimizer_state": state, "optimizer_history": [{"num_updates": 2}]}


def resized(file: Any, folder: Path, **how: Any) -> tuple[Any, Any]:
    torch.save(file, folder / "old.pt")
    before = (folder / "old.pt").read_bytes()
    said = resize_checkpoint(folder / "old.pt", folder / "new.pt", length=NEW, **{"table": table_of(file), **how})
    assert (folder / "old.pt").read_bytes() == before
    return said, load_without_running(folder / "new.pt")


def table_of(file: Any) -> str:
    return "net.wpe.weight" if "state_dict" in file else "wpe.weight"


def tables_in(file: Any) -> list[Tensor]:
    """Returns the float tensors with the table's width and its old or new number of rows."""
    shapes = ((ROWS, DIM), (NEW, DIM))
    return [each for _, each in leaves(file) if isinstance(each, Tensor) and tuple(each.shape) in shapes]


SEPARATE = (megatron, apex, transformer_engine, lightning, in_root)


@together(("wrap", "dtype", "steps"), [
    (wrap, dtype, steps) for wrap in SEPARATE for dtype in (torch.float16, torch.bfloat16) for steps in (2, 0)
], usual=lambda wrap, dtype, steps: dtype == torch.float16)  # fmt: skip
def test_the_float32_copy_follows(
    wrap: Callable[[Mixed], dict[str, Any]], dtype: torch.dtype, steps: int, tmp_path: Path
) -> None:
    """With its own values, which are more exact than those of the model; the next step goes on from them."""
    old, new = Mixed(ROWS, dtype), Mixed(NEW, dtype)
    for _ in range(steps):
        old.step()
    said, file = resized(wrap(old), tmp_path)
    assert not said.left_out
    found = tables_in(file)
    assert {tuple(each.shape) for each in found} == {(NEW, DIM)}
    state = next(
        each for each in (file, *file.values()) if isinstance(each, dict) and any("wpe.weight" in k for k in each)
    )
    weight = next(value for key, value in state.items() if key.endswith("wpe.weight"))
    (copy,) = (each for each in found if each.dtype == torch.float32 and torch.equal(each.to(dtype), weight))
    assert torch.equal(copy[:ROWS], old.copies[1])
    new.copies[1].data.copy_(copy)
    new.step()
    assert (new.model.wpe.weight - weight).abs().max() < 0.03


@together(("wrap", "steps"), [(deepspeed, 2), (deepspeed, 0), (fairseq, 2)])
def test_all_parameters_in_a_row_are_left_out(
    wrap: Callable[[Mixed], dict[str, Any]], steps: int, tmp_path: Path
) -> None:
    old = Mixed(ROWS, torch.float16, flat=True)
    for _ in range(steps):
        old.step()
    said, file = resized(wrap(old), tmp_path)
    (left,) = said.left_out
    assert left in ("optimizer", "last_optimizer_state")
    assert set(file) == {*wrap(old)} - {left}


@pytest.mark.parametrize("wrap", SEPARATE[:2])
def test_moments_of_two_parameters_of_one_shape_leave_the_copies_out_with_them(
    wrap: Callable[[Mixed], dict[str, Any]], tmp_path: Path
) -> None:
    old = Mixed(ROWS, torch.float16, twin=True)
    old.step()
    said, file = resized(wrap(old), tmp_path)
    assert len(said.left_out) == 1
    assert len(tables_in(file)) == 2  # the table, and the output layer


def test_a_copy_among_the_moments_says_which_are_the_tables(tmp_path: Path) -> None:
    old = Mixed(ROWS, torch.float16, twin=True)
    old.step()
    said, file = resized(transformer_engine(old), tmp_path)
    assert not said.left_out
    shapes = [tuple(each["exp_avg"].shape) for each in file["optimizer"]["state"].values()]
    assert shapes == [(30, DIM), (NEW, DIM), (ROWS, DIM)]


def test_dropping_the_optimizer_drops_its_copies(tmp_path: Path) -> None:
    for wrap in SEPARATE:
        folder = tmp_path / wrap.__name__
        folder.mkdir()
        said, file = resized(wrap(Mixed(ROWS, torch.float16)), folder, optimizer="drop")
        assert set(said.left_out.values()) == {"it was asked for"}
        assert len(tables_in(file)) == 1


@pytest.mark.parametrize("twin", [False, True])
def test_a_file_that_is_itself_the_state_of_an_optimizer_keeps_its_model(twin: bool, tmp_path: Path) -> None:
    old = Mixed(ROWS, torch.float16, twin=twin)
    old.step()
    said, file = resized({**old.optimizer.state_dict(), "model": old.model.state_dict(), "epoch": 3}, tmp_path)
    assert set(said.left_out) == ({"state"} if twin else set())
    assert set(file) == {"state", "param_groups", "model", "epoch"} - set(said.left_out)
    assert len(file["model"]["wpe.weight"]) == NEW


def test_values_in_a_row_are_found_wherever_they_are(tmp_path: Path) -> None:
    """Other numbers stay, and a table of zeros is in no row of them."""
    old = Mixed(ROWS, torch.float16, flat=True)
    beside = {"losses": torch.randn(5000), "snapshot": {"row": old.copies[0].data}, "zeros": torch.zeros(5000)}
    said, file = resized({"model": old.model.state_dict(), **beside}, tmp_path)
    assert set(said.left_out) == {"snapshot.row"}
    assert (set(file), file["snapshot"]) == ({"model", *beside}, {})
    old.model.wpe.weight.data.zero_()
    said, file = resized({"model": old.model.state_dict(), **beside}, tmp_path, overwrite=True)
    assert not said.left_out


@pytest.mark.parametrize("name", ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt", ""])
def test_parts_of_zero_are_refused_with_the_script_that_merges_them(name: str, tmp_path: Path) -> None:
    old = Mixed(ROWS, torch.float16, flat=True)
    shapes = [OrderedDict((key, value.shape) for key, value in old.model.named_parameters())]
    torch.save(
        {"module": old.model.state_dict(), "optimizer": None, "param_shapes": shapes},
        tmp_path / "mp_rank_00_model_states.pt",
    )
    state = {"zero_stage": 2, "single_partition_of_fp32_groups": old.copies}
    torch.save({"optimizer_state_dict": state}, tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    with pytest.raises(CheckpointError, match=r"python zero_to_fp32\.py \. NEW"):
        resize_checkpoint(tmp_path / name, tmp_path.parent / "out.pt", length=NEW)
