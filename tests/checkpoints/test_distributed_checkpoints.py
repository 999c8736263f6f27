"""Folders of torch.distributed.checkpoint: read without running them, and written for PyTorch's own loader."""

from __future__ import annotations

import argparse
import enum
import io
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from posembed import inspect_checkpoint, resize_checkpoint
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.distributed import METADATA, Unread
from posembed.modelfiles.training_files import leaves
from together import together
from two_processes import be_both, start_both

ROWS, DIM = 16, 8
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:TypedStorage is deprecated")


class Model(nn.Module):
    """The head has the shape of the table, so that only names tell their moments apart."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(60, DIM), nn.Embedding(rows, DIM)
        self.head = nn.Linear(DIM, ROWS, bias=False)
        self.register_buffer("position_ids", torch.arange(rows)[None])

    def forward(self) -> Tensor:
        return self.head(self.wte(self.position_ids) + self.wpe(self.position_ids)).logsumexp(-1).sum()


def trained(model: Model) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def named(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def beside() -> dict[str, Any]:
    return {
        "args": {"block_size": ROWS, "betas": (0.9, 0.95), "nothing": None},
        "ns": argparse.Namespace(max_positions=ROWS, dtype=torch.bfloat16, seed=np.int64(3)),
        "snapshots": [{"steps": torch.tensor(3)}, 5, {"half": torch.ones(3, dtype=torch.bfloat16)}],
        "rng": torch.get_rng_state(),
        "losses": io.BytesIO(b"12"),
    }


def save(state: dict[str, Any], folder: Path) -> Path:
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


def load(folder: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    dcp.load(wanted, checkpoint_id=folder, no_dist=True)
    return wanted


def contents(folder: Path) -> dict[Any, Any]:
    """Returns all values of a folder, by place."""
    tree = open_checkpoint(folder).weights[0].tree
    assert tree is not None
    return {place: value.read() if isinstance(value, Unread) else value for place, value in leaves(tree.root)}


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, io.BytesIO):
        return one.getvalue() == two.getvalue()
    return type(one) is type(two) and one == two


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = Model(ROWS)
    return save({**named(model, trained(model)), **beside()}, tmp_path / "old")


def test_pytorch_loads_the_result_into_a_longer_model(folder: Path, tmp_path: Path) -> None:
    """The model, its optimizer and all that is beside them; longer and back again is what it was."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    said = resize_checkpoint(folder, tmp_path / "long", length=40)
    assert not said.left_out
    assert {repr(setting) for setting in said.settings} == {
        "old: args.block_size: 16 -> 40",
        "old: ns.max_positions: 16 -> 40",
    }
    model = Model(40)
    optimizer = trained(model)
    old, new = contents(folder), load(tmp_path / "long", {**named(model, optimizer), **beside()})
    set_state_dict(model, optimizer, model_state_dict=new["model"], optim_state_dict=new["optimizer"])
    assert torch.equal(model.wpe.weight[:ROWS], old["model", "wpe.weight"])
    assert torch.equal(model.position_ids, torch.arange(40)[None])
    assert (new["args"], new["ns"].max_positions, new["ns"].seed) == ({**beside()["args"], "block_size": 40}, 40, 3)
    moment = optimizer.state[model.wpe.weight]["exp_avg"]
    assert torch.equal(moment[:ROWS], old["optimizer", "state", "wpe.weight", "exp_avg"])
    assert not moment[ROWS:].any()
    optimizer.step()
    changed = {place for place, value in contents(tmp_path / "long").items() if not equal(old[place], value)}
    moments = {("optimizer", "state", "wpe.weight", name) for name in ("exp_avg", "exp_avg_sq")}
    sizes = {("args", "block_size"), ("ns", "max_positions")}
    assert changed == {("model", "wpe.weight"), ("model", "position_ids"), *sizes, *moments}
    resize_checkpoint(tmp_path / "long", tmp_path / "back", length=ROWS)
    assert all(equal(value, old[place]) for place, value in contents(tmp_path / "back").items())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_optimizer_may_be_flattened(tmp_path: Path) -> None:
    """Its entries then have names such as ``state.wpe.weight.exp_avg``."""
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    model, longer = Model(ROWS), Model(40)
    weights, moments = get_state_dict(model, trained(model), options=flat)
    save({"model": weights, "optimizer": moments}, tmp_path / "old")
    optimizer = trained(longer)
    state = dict(zip(("model", "optimizer"), get_state_dict(longer, optimizer, options=flat), strict=True))
    assert not resize_checkpoint(tmp_path / "old", tmp_path / "new", length=40).left_out
    loaded = load(tmp_path / "new", state)["optimizer"]
    assert torch.equal(loaded["state.wpe.weight.exp_avg"][:ROWS], moments["state.wpe.weight.exp_avg"])
    assert torch.equal(loaded["state.head.weight.exp_avg"], moments["state.head.weight.exp_avg"])
    said = resize_checkpoint(tmp_path / "old", tmp_path / "dropped", length=40, optimizer="drop")
    assert said.left_out == {"optimizer": "it was asked for"}


@pytest.mark.parametrize("prefix", ["", "optimizer.", "critic."])
def test_an_optimizer_may_be_flattened_among_the_weights(prefix: str, tmp_path: Path) -> None:
    """As torchtitan saves it."""
    model = Model(ROWS)
    weights, moments = get_state_dict(
        model, trained(model), options=StateDictOptions(flatten_optimizer_state_dict=True)
    )
    state = {**weights, **{f"{prefix}{key}": value for key, value in moments.items()}}
    save(state, tmp_path / "old")
    assert not resize_checkpoint(tmp_path / "old", tmp_path / "new", length=40).left_out
    longer = {key: torch.zeros(40, DIM) if "wpe" in key and "avg" in key else value for key, value in state.items()}
    loaded = load(tmp_path / "new", {**longer, **Model(40).state_dict()})
    for name in ("exp_avg", "exp_avg_sq"):
        key = f"{prefix}state.wpe.weight.{name}"
        assert torch.equal(loaded[key][:ROWS], moments[f"state.wpe.weight.{name}"])
        assert not loaded[key][ROWS:].any()
    said = resize_checkpoint(tmp_path / "old", tmp_path / "dropped", length=40, optimizer="drop")
    assert set(said.left_out) == {prefix.removesuffix(".") or "optimizer"}
    assert set(contents(tmp_path / "dropped")) == {(key,) for key in weights}


def test_an_optimizer_is_dropped_and_safetensors_hold_the_weights(folder: Path, tmp_path: Path) -> None:
    said = resize_checkpoint(folder, tmp_path / "new", length=40, optimizer="drop")
    assert said.left_out == {"optimizer": "it was asked for"}
    old, new = contents(folder), contents(tmp_path / "new")
    assert old.keys() - new.keys() == {place for place in old if place[0] == "optimizer"}
    assert sum(path.stat().st_size for path in (tmp_path / "new").glob("*.distcp")) < sum(
        path.stat().st_size for path in folder.glob("*.distcp")
    )
    [report] = inspect_checkpoint(folder).tables
    assert (report.table.key, report.table.length) == ("wpe.weight", ROWS)
    said = resize_checkpoint(folder, tmp_path / "new.safetensors", length=40)
    assert {f"old: {name}" for name in ("optimizer", *beside())} == set(said.left_out)
    assert load_file(tmp_path / "new.safetensors").keys() == Model(ROWS).state_dict().keys()


def test_names_of_the_output_and_what_is_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"this folder is written as a folder, or as \.safetensors"):
        resize_checkpoint(folder, tmp_path / "new.pt", length=40)
    resize_checkpoint(folder, tmp_path / "new", length=40, dry_run=True)
    assert not (tmp_path / "new").exists()
    (folder / "config.yaml").write_text("block_size: 16\n")
    (folder / "other.distcp").write_bytes(b"\0\1")
    for length in (40, 50):
        said = resize_checkpoint(folder, tmp_path / "step-1.5", length=length, overwrite=True)
    assert said.left_out == {"other.distcp": "it may hold the old table"}
    assert (tmp_path / "step-1.5" / "config.yaml").read_text() == "block_size: 16\n"
    (tmp_path / "link").symlink_to(folder)
    resize_checkpoint(tmp_path / "link", tmp_path / "of-link", length=40)
    (tmp_path / "step-1.5" / "__0_0.distcp").chmod(0o600)
    with (tmp_path / "step-1.5" / "__0_0.distcp").open("ab") as file:
        file.write(b"more")
    for out, overwrite in (("of-link", False), ("step-1.5", True), ("old", True)):
        with pytest.raises(CheckpointError, match=r"exists|not an unchanged|must be outside"):
            resize_checkpoint(folder, tmp_path / out, length=60, overwrite=overwrite)


def test_files_of_torch_save_beside_the_shards(folder: Path, tmp_path: Path) -> None:
    """Lightning keeps all but weights and optimizers in meta.pt. What cannot be read without running it is left out."""
    meta = {"hyper_parameters": {"block_size": ROWS, "lr": 0.1}, "epoch": 3, "best": torch.tensor(2.5)}
    torch.save(meta, folder / "meta.pt")
    torch.save({"seen": 5}, folder / "data.pt")
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text(json.dumps({"n_positions": ROWS, "vocab_size": 30}))
    weights = Model(ROWS).state_dict()
    torch.save({"averaged": weights}, folder / "swa.pt")
    torch.save(Model(ROWS), folder / "whole.pt")
    said = resize_checkpoint(folder, tmp_path / "new", length=40)
    assert said.left_out == {"whole.pt": "it may hold the old table"}
    assert "old: meta.pt.hyper_parameters.block_size: 16 -> 40" in map(repr, said.settings)
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == {"n_positions": 40, "vocab_size": 30}
    assert (tmp_path / "new" / "tokenizer_config.json").read_text() == (folder / "tokenizer_config.json").read_text()
    new = torch.load(tmp_path / "new" / "meta.pt", weights_only=True)
    assert new == {**meta, "hyper_parameters": {"block_size": 40, "lr": 0.1}}
    assert (tmp_path / "new" / "data.pt").read_bytes() == (folder / "data.pt").read_bytes()
    longer = Model(40)
    longer.load_state_dict(torch.load(tmp_path / "new" / "swa.pt", weights_only=True)["averaged"])
    assert torch.equal(longer.wpe.weight[:ROWS], weights["wpe.weight"])
    assert load(tmp_path / "new", {"model": Model(40).state_dict()})["model"]["wpe.weight"].shape == (40, DIM)
    assert contents(tmp_path / "new").keys() == contents(folder).keys()
    resize_checkpoint(folder, tmp_path / "new", length=50, overwrite=True)


def test_a_state_dict_alone_and_a_planner_without_nesting(tmp_path: Path) -> None:
    model = Model(ROWS)
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    save(model.state_dict(), tmp_path / "flat")
    dcp.save(model.state_dict(), checkpoint_id=tmp_path / "plain", planner=planner, no_dist=True)
    for name in ("flat", "plain"):
        resize_checkpoint(tmp_path / name, tmp_path / f"{name}-40", length=40)
        longer = Model(40)
        longer.load_state_dict(load(tmp_path / f"{name}-40", longer.state_dict()))
        assert torch.equal(longer.wpe.weight[:ROWS], model.wpe.weight), name
        assert torch.equal(longer.head.weight, model.head.weight), name


def test_enumerations_as_python_3_11_0_saved_them(folder: Path, tmp_path: Path) -> None:
    class Saver(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            return (getattr, (type(obj), obj.name)) if isinstance(obj, enum.Enum) else NotImplemented

    said = pickle.loads((folder / METADATA).read_bytes())
    with (folder / METADATA).open("wb") as file:
        Saver(file).dump(said)
    assert b"getattr" in (folder / METADATA).read_bytes()
    resize_checkpoint(folder, tmp_path / "new", length=40)
    assert contents(tmp_path / "new").keys() == contents(folder).keys()


class Shell:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (os.environ["RAN"],)


def rewritten(folder: Path, change: Callable[[Any], object]) -> None:
    said = pickle.loads((folder / METADATA).read_bytes())
    change(said)
    (folder / METADATA).write_bytes(pickle.dumps(said))


def first(said: Any, kind: type = Tensor) -> Any:
    tensors = {key: info for key, info in said.storage_data.items() if (key.offset is not None) == (kind is Tensor)}
    return next(iter(tensors.values()))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "runs code": (lambda at: rewritten(at, lambda said: setattr(said, "planner_data", Shell())), r"posix\.mkdir"),
    "more than PyTorch writes": (
        lambda at: rewritten(at, lambda said: setattr(said, "extra", 3)),
        "holds extra, which PyTorch's own planner does not write",
    ),
    "runs code in an entry": (
        lambda at: shutil.rmtree(at) or save({"model": Model(ROWS).state_dict(), "more": Shell()}, at),
        "could run code",
    ),
    "no file": (lambda at: (at / "__0_0.distcp").unlink(), "it is not there"),
    "cut short": (lambda at: os.truncate(at / "__0_0.distcp", 20_000), "ends early|another format"),
    "no metadata": (lambda at: (at / METADATA).write_bytes(b""), "not whole"),
    "half of the metadata": (lambda at: os.truncate(at / METADATA, 900), "not whole"),
    "elsewhere": (
        lambda at: rewritten(at, lambda said: setattr(first(said), "relative_path", "../old/__0_0.distcp")),
        "not a name in this folder",
    ),
    "a link out": (
        lambda at: (
            (at / "__0_0.distcp").rename(at.parent / "it") and (at / "__0_0.distcp").symlink_to(at.parent / "it")
        ),
        "a link to .*, outside the checkpoint",
    ),
    "twice": (lambda at: rewritten(at, lambda said: setattr(first(said), "offset", 0)), "two values are at byte"),
    "a byte twice": (
        lambda at: rewritten(at, lambda said: setattr(first(said), "length", first(said).length + 1)),
        "two values are at byte",
    ),
    "negative": (lambda at: rewritten(at, lambda said: setattr(first(said), "offset", -3)), "cannot be read"),
    "not its data": (lambda at: rewritten(at, lambda said: said.storage_data.clear()), "not whole .KeyError"),
    "another planner": (
        lambda at: rewritten(at, lambda said: said.planner_data.update({"model.wpe.weight": (1.5,)})),
        "the place of 'model.wpe.weight'",
    ),
    "one place": (
        lambda at: rewritten(at, lambda said: said.planner_data.update({"model.wpe.weight": ("model", "wte.weight")})),
        "is there twice",
    ),
    "larger": (
        lambda at: rewritten(
            at, lambda said: setattr(said.state_dict_metadata["model.wpe.weight"], "size", torch.Size((2**40, DIM)))
        ),
        "claims more values",
    ),
    "a part": (
        lambda at: rewritten(
            at, lambda said: setattr(said.state_dict_metadata["model.wpe.weight"], "size", torch.Size((ROWS + 1, DIM)))
        ),
        "lists no data for a part",
    ),
    "another shape": (
        lambda at: rewritten(
            at,
            lambda said: setattr(
                said.state_dict_metadata["model.wpe.weight"].chunks[0], "sizes", torch.Size((ROWS, DIM - 1))
            ),
        ),
        "holds another tensor",
    ),
    "compressed": (
        lambda at: rewritten(at, lambda said: setattr(first(said), "transform_descriptors", ["stream.zstd"])),
        "compressed",
    ),
}


@together("name", DAMAGE)
def test_what_is_damaged_or_would_run_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    at = save({"model": Model(ROWS).state_dict(), **beside()}, tmp_path / "old")
    damage, why = DAMAGE[name]
    damage(at)
    with pytest.raises(CheckpointError, match=why):
        resize_checkpoint(at, tmp_path / "new", length=40)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "ran").exists()


@pytest.mark.whole
def test_what_two_processes_saved_in_shards(tmp_path: Path) -> None:
    start_both(__file__, tmp_path / "store")


def check_shards(_: int) -> None:
    folder, rank = Path(sys.argv[1]).parent, torch.distributed.get_rank()
    torch.manual_seed(0)
    whole, longer = Model(ROWS + 1), Model(40)  # so that the last shard is shorter, and one empty
    whole.one, longer.one = nn.Linear(DIM, 1), nn.Linear(DIM, 1)
    expected = {name: value.clone() for name, value in whole.state_dict().items()}
    mesh = init_device_mesh("cpu", (2,))
    sharded = fully_shard(whole, mesh=mesh)
    dcp.save({"model": sharded.state_dict(), "block_size": ROWS + 1}, checkpoint_id=folder / "old")
    if rank == 0:
        assert len(list((folder / "old").glob("*.distcp"))) == 2
        held = contents(folder / "old")
        assert all(torch.equal(held["model", name], value) for name, value in expected.items())
        resize_checkpoint(folder / "old", folder / "new", length=40)
    torch.distributed.barrier()
    longer = fully_shard(longer, mesh=mesh)
    state = {"model": longer.state_dict(), "block_size": 0}
    dcp.load(state, checkpoint_id=folder / "new")
    longer.load_state_dict(state["model"])
    assert state["block_size"] == 40
    assert torch.equal(longer.wpe.weight.full_tensor()[: ROWS + 1], expected["wpe.weight"])
    for name in ("head.weight", "one.weight", "one.bias"):
        assert torch.equal(longer.state_dict()[name].full_tensor(), expected[name])


if __name__ == "__main__":
    be_both(check_shards)


def test_folders_in_parts_are_refused_with_what_puts_them_together(folder: Path, tmp_path: Path) -> None:
    """Megatron-Core has names and cuts of its own; without collectives, each rank writes its own metadata."""
    torch.save({"args": argparse.Namespace(max_position_embeddings=ROWS)}, folder / "common.pt")
    with pytest.raises(CheckpointError, match="repeat the training command with --ckpt-convert-format torch"):
        resize_checkpoint(folder, tmp_path / "new", length=40)
    (folder / "common.pt").unlink()
    (folder / METADATA).rename(folder / f"__0{METADATA}")
    with pytest.raises(CheckpointError, match="each rank wrote its own metadata"):
        resize_checkpoint(folder, tmp_path / "new", length=40)
