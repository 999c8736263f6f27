"""Files of training scripts: any wrapping goes in and comes out again, with everything else in it as it was."""

from __future__ import annotations

import argparse
import enum
import io
import random
import shlex
import sys
import zipfile
from collections import OrderedDict
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from posembed import inspect_checkpoint, resize_checkpoint
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.pickles import load_without_running, save
from posembed.modelfiles.training_files import DROPPED, at, leaves, nodes, replaced, tree_of
from posembed.plots.source import of_checkpoint
from together import together

ROWS, DIM = 16, 8


def weights(rows: int = ROWS, *, prefix: str = "", seed: int = 0) -> OrderedDict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    found = OrderedDict(
        wte=torch.randn(30, DIM, generator=draw),
        wpe=torch.randn(rows, DIM, generator=draw),
        mask=torch.ones(rows, rows).tril().view(1, 1, rows, rows),
        head=torch.randn(2 * DIM, DIM, generator=draw),
    )
    names = {"wte": "wte.weight", "wpe": "wpe.weight", "mask": "h.0.attn.bias", "head": "h.0.mlp.weight"}
    return OrderedDict((f"{prefix}{names[name]}", value) for name, value in found.items())


def unmasked() -> dict[str, Tensor]:
    return {key: value for key, value in weights().items() if not key.endswith(".bias")}


def nested(flat: dict[str, Tensor]) -> dict[str, Any]:
    """Returns a state dict with a dictionary for each part of its keys, as in Megatron's files."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        *above, name = key.split(".")
        inside = found
        for each in above:
            inside = inside.setdefault(each, {})
        inside[name] = value
    return found


SETTINGS = {"block_size": ROWS, "n_layer": 1, "n_embd": DIM, "vocab_size": 30, "dropout": 0.1, "bias": False}
WRAPPINGS: dict[str, Any] = {
    "bare": weights(),
    "state_dict": {"epoch": 3, "state_dict": weights(prefix="module."), "arch": "gpt"},
    "nanogpt": {
        "model": weights(prefix="_orig_mod.transformer."),
        "model_args": SETTINGS,
        "iter_num": 7,
        "best_val_loss": torch.tensor(1.5),  # of no dimension, beside the model
        "config": {**SETTINGS, "batch_size": ROWS, "out_dir": "out"},
    },
    "namespace": {"args": argparse.Namespace(max_positions=ROWS, lr=[0.1], arch="gpt"), "model": weights()},
    "lightning": {
        "state_dict": weights(prefix="model."),
        "hyper_parameters": {"max_length": ROWS, "betas": (0.9, 0.95)},
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": ROWS}}}},
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5), "best_k_models": {}}},
    },
    "arrays": {
        "model": unmasked(),
        "names": np.array(["a", "bc"]),
        "max_len": np.array([ROWS, 2]),
        "seed": np.array(3),
    },
    "deeper": {"trainer": {"agent": {"net": weights(), "steps": np.float64(2.5), "dtype": torch.bfloat16}}},
    "megatron": {
        "args": argparse.Namespace(max_position_embeddings=ROWS, seq_length=ROWS, params_dtype=torch.float16),
        "model": {"language_model": {"embedding": nested(unmasked())}, "lm_head": {"bias": torch.zeros(30)}},
        "rng_state": [{"random_rng_state": random.getstate(), "np_rng_state": np.random.RandomState(0).get_state()}],
    },
    "ema": {"model": weights(), "ema": weights(seed=1), "updates": 9},
    "students": {"teacher": {"backbone": weights()}, "student": {"backbone": weights(seed=2)}},
    "copies in a list": {"model": weights(), "snapshots": [weights(seed=3), weights(seed=4)]},
}


def assert_same(one: Any, two: Any) -> None:
    """Asserts that two files hold the same values of the same types in the same order."""
    assert type(one) is type(two)
    if isinstance(one, Tensor):
        assert one.dtype == two.dtype
        assert torch.equal(one, two)
    elif isinstance(one, dict):
        assert list(one) == list(two)
        for name in one:
            assert_same(one[name], two[name])
    elif isinstance(one, argparse.Namespace):
        assert_same(vars(one), vars(two))
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, two, strict=True)
    elif isinstance(one, list | tuple):
        assert len(one) == len(two)
        for each, other in zip(one, two, strict=True):
            assert_same(each, other)
    else:
        assert one == two


def read(path: Path) -> Any:
    return load_without_running(path)


def resized(folder: Path, file: Any, **arguments: Any) -> tuple[Any, Any]:
    """Saves a file, resizes it, and returns what was reported and what the new file holds."""
    torch.save(file, folder / "old.pt")
    said = resize_checkpoint(folder / "old.pt", folder / "new.pt", overwrite=True, **arguments)
    return said, read(folder / "new.pt")


SUFFIXES = [".pt", ".pth.tar", ".ckpt"]


@together(
    "name, suffix",
    list(product(WRAPPINGS, SUFFIXES)),
    usual=lambda name, suffix: [*WRAPPINGS].index(name) % 3 == SUFFIXES.index(suffix),
)
def test_what_is_beside_the_weights_stays(name: str, suffix: str, tmp_path: Path) -> None:
    """Longer and back again is the file that it was; between, only the tables, masks and lengths differ."""
    paths = [tmp_path / f"{each}{suffix}" for each in ("old", "long", "back")]
    torch.save(WRAPPINGS[name], paths[0])
    resized = resize_checkpoint(paths[0], paths[1], length=2 * ROWS)
    assert not resized.left_out
    old, long = read(paths[0]), read(paths[1])
    assert [place for place, _ in leaves(old)] == [place for place, _ in leaves(long)]
    for place, value in leaves(long):
        before = at(old, place)
        if isinstance(before, Tensor) and ROWS in before.shape and "wpe" in str(place):
            assert torch.equal(value[:ROWS], before)
            assert len(value) == 2 * ROWS
        elif isinstance(before, Tensor) and before.ndim == 4:
            assert torch.equal(value, torch.ones(value.shape).tril())
            assert value.shape[-1] == 2 * ROWS
        elif place[-1] in ("block_size", "max_positions", "max_length", "max_position_embeddings", "seq_length"):
            assert (before, value) == (ROWS, 2 * ROWS)
        else:
            assert_same(before, value)
    resize_checkpoint(paths[1], paths[2], length=ROWS)
    assert_same(old, read(paths[2]))


def test_a_project_finds_its_enumerations_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Megatron's args. Their code is not needed to resize the file, and not run."""
    for name in ("megatron", "megatron.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType("megatron.core.enums")
    module.ModelType = enum.Enum("ModelType", "encoder decoder", module=module.__name__)  # type: ignore[attr-defined]
    args = {"max_position_embeddings": ROWS, "seq_length": ROWS, "position_embedding_type": module.ModelType.decoder}
    with monkeypatch.context() as there:
        there.setitem(sys.modules, module.__name__, module)
        torch.save({"args": argparse.Namespace(**args), "model": unmasked()}, tmp_path / "old.pt")
    seen, write = set(sys.modules), io.BytesIO.write

    class Watched(io.BytesIO):
        def write(self, data: Any) -> int:
            assert module.__name__ not in sys.modules
            return write(self, data)

    save(load_without_running(tmp_path / "old.pt"), Watched())
    resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", length=40)
    assert module.__name__ not in set(sys.modules) - seen
    monkeypatch.setitem(sys.modules, module.__name__, module)
    new = torch.load(tmp_path / "new.pt", weights_only=False)
    assert vars(new["args"]) == {**args, "max_position_embeddings": 40, "seq_length": 40}
    resize_checkpoint(tmp_path / "new.pt", tmp_path / "newer.pt", length=50)
    assert sys.modules[module.__name__] is module


class ByName:
    """Stored as Python 3.11.0 to 3.11.3 store a member of an enumeration, or as a pickle that reads something else."""

    def __init__(self, of: Any, name: str) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> Any:
        return getattr, (self.of, self.name)


def test_enumerations_may_be_stored_by_the_names_of_their_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("megatron.core.enums")
    module.ModelType = enum.Enum("ModelType", "encoder decoder", module=module.__name__)  # type: ignore[attr-defined]
    for name in ("megatron", "megatron.core", "megatron.core.enums"):
        monkeypatch.setitem(sys.modules, name, module if name.endswith("enums") else ModuleType(name))
    kind = module.ModelType.decoder
    args = {"kind": ByName(module.ModelType, "decoder"), "seq_length": ROWS, "of": {kind: {kind}}}
    torch.save({"args": args, "model": unmasked()}, tmp_path / "old.pt")
    resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", length=40)
    resize_checkpoint(tmp_path / "new.pt", tmp_path / "newer.pt", length=50)
    new = torch.load(tmp_path / "newer.pt", weights_only=False)
    assert new["args"] == {"kind": kind, "seq_length": 50, "of": {kind: {kind}}}
    for of, name in ((torch.Tensor, "fill_"), ("text", "upper"), (module.ModelType, 7)):  # anything else is not read
        torch.save({"args": {**args, "other": ByName(of, name)}, "model": unmasked()}, tmp_path / "bad.pt")
        with pytest.raises(CheckpointError):
            resize_checkpoint(tmp_path / "bad.pt", tmp_path / "out.pt", length=40)


def test_a_module_loads_its_resized_file_strictly(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self, block_size: int) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(30, DIM), nn.Embedding(block_size, DIM)

    for wrap in (lambda state: state, lambda state: {"model": state, "model_args": {"block_size": ROWS}}):
        torch.save(wrap(Model(ROWS).state_dict()), tmp_path / "old.pt")
        resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", length=40, overwrite=True)
        loaded = torch.load(tmp_path / "new.pt", weights_only=True)
        Model(40).load_state_dict(loaded.get("model", loaded))


def trained(rows: int, kind: Any, **settings: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.ModuleDict({"wte": nn.Embedding(30, DIM), "wpe": nn.Embedding(rows, DIM), "out": nn.Linear(DIM, 30)})
    optimizer = kind(model.parameters(), lr=0.1, **settings)
    for _ in range(2):
        ids = torch.arange(rows) % 30
        model["out"](model["wte"](ids) + model["wpe"](torch.arange(rows))).logsumexp(-1).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(torch.optim.AdamW, {}), (torch.optim.AdamW, {"amsgrad": True}), (torch.optim.SGD, {"momentum": 0.9})],
)
@pytest.mark.parametrize("length", [24, 10])
def test_an_optimizer_keeps_what_it_knows_of_old_rows(tmp_path: Path, kind: Any, settings: Any, length: int) -> None:
    model, optimizer = trained(ROWS, kind, **settings)
    file = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    _, loaded = resized(tmp_path, file, length=length)
    other, again = trained(length, kind, **settings)
    other.load_state_dict(loaded["model"])
    again.load_state_dict(loaded["optimizer"])
    again.step()
    moments = optimizer.state[model["wpe"].weight]
    for name, moment in again.state_dict()["state"][1].items():
        if torch.is_tensor(moment) and moment.ndim:
            assert moment.shape == (length, DIM), name
            assert torch.equal(loaded["optimizer"]["state"][1][name][:10], moments[name][:10]), name
            assert not loaded["optimizer"]["state"][1][name][ROWS:].any()


def test_an_optimizer_is_left_out_if_its_table_is_not_known(tmp_path: Path) -> None:
    """Or if that is asked for. Two parameters of one shape cannot be told apart by it."""
    model, optimizer = trained(30, torch.optim.AdamW)  # as many positions as tokens
    file = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}
    said, new = resized(tmp_path, file, length=40)
    assert said.left_out == {"optimizer": "it is not known which of its values belong to the table"}
    assert list(new) == ["model", "step"]
    model, optimizer = trained(ROWS, torch.optim.AdamW)
    file = {"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}
    assert resized(tmp_path, file, length=40, optimizer="drop")[0].left_out == {"optimizer_states": "it was asked for"}


def test_settings_say_which_rows_are_reserved(tmp_path: Path) -> None:
    """fairseq's tables have two more rows than positions. Without settings, the user says it."""
    state = {
        "encoder.embed_tokens.weight": torch.randn(30, DIM),
        "encoder.embed_positions.weight": torch.randn(18, DIM),
    }
    torch.save({"args": argparse.Namespace(max_positions=16), "model": state}, tmp_path / "said.pt")
    torch.save({"model": state}, tmp_path / "silent.pt")
    for name, given in {"said": {}, "silent": {"reserved": 2}}.items():
        resize_checkpoint(tmp_path / f"{name}.pt", tmp_path / f"{name}-32.pt", length=32, **given)
        new = torch.load(tmp_path / f"{name}-32.pt", weights_only=False)["model"]["encoder.embed_positions.weight"]
        old = state["encoder.embed_positions.weight"]
        assert torch.equal(new, torch.cat((old, old[2:])))
    [report] = inspect_checkpoint(tmp_path / "said.pt").tables
    assert (report.table.length, of_checkpoint(str(tmp_path / "said.pt"), None)[1].reserved) == (16, 2)


@pytest.mark.parametrize(
    "settings",
    [{"max_position_embeddings": 18, "max_seq_length": 16}, {"max_position_embeddings": 18, "pad_token_id": 1}],
)
def test_settings_that_allow_two_readings_are_asked_for(tmp_path: Path, settings: dict[str, int]) -> None:
    state = {"wte.weight": torch.randn(30, DIM), "wpe.weight": torch.randn(18, DIM)}
    file = {"model": state, "config": settings}
    with pytest.raises(CheckpointError, match="its 18 rows may be as many positions, or fewer after 2"):
        resized(tmp_path, file, length=32)
    for reserved in (0, 2):
        rows = resized(tmp_path, file, length=32, reserved=reserved)[1]["model"]["wpe.weight"]
        assert torch.equal(rows, torch.cat((state["wpe.weight"], state["wpe.weight"][reserved:]))[: 32 + reserved])


def test_numbers_that_are_no_length_of_the_table_stay(tmp_path: Path) -> None:
    others = {"hop_length": 16, "win_length": 16, "max_word_len": 16, "num_positive": 16}
    settings = {"block_size": 16, **others}
    file = {"model": {"wpe.weight": torch.randn(16, DIM)}, "config": settings}
    assert resized(tmp_path, file, length=32)[1]["config"] == {"block_size": 32, **others}


def vit(side: int, *, height: int | None = None, prefix: int = 1) -> dict[str, Tensor]:
    height = side if height is None else height
    return {
        "cls_token": torch.randn(1, 1, DIM),
        "pos_embed": torch.randn(1, prefix + height * side, DIM),
        "patch_embed.proj.weight": torch.randn(DIM, 3, 16, 16),
    }


def of_sides(**sides: int) -> dict[str, Any]:
    """Returns the settings of encoders of so many patches on each side, of 16 x 16 and of 8 x 8 pixels."""
    size = {"a": 16, "b": 8}
    return {each: {"img_size": size[each] * n, "grid_size": (n, n), "num_patches": n * n} for each, n in sides.items()}


TWO = {f"{name}.{key}": tensor for name, side in (("a", 4), ("b", 8)) for key, tensor in vit(side).items()}
TWO["b.patch_embed.proj.weight"] = torch.randn(DIM, 3, 8, 8)
VIDEO = {"pos_embed": torch.randn(1, 32, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, 2, 8, 8)}
CLIP = {"img_size": 32, "num_frames": 4, "num_patches": 32, "grid_size": [2, 4, 4], "spatial_grid_size": [4, 4]}
LARGER = {"img_size": 64, "num_patches": 128, "grid_size": [2, 8, 8], "spatial_grid_size": [8, 8]}
LINEAR = {"visual.pos_embed": torch.randn(1, 16, DIM)}
DETR = {"resolution": 64, "positional_encoding_size": 4, "num_patches": 16, "grid_size": (4, 4), "depth": 4}
LARGE_DETR = {"resolution": 96, "positional_encoding_size": 6, "num_patches": 36, "grid_size": (6, 6), "depth": 4}
# The weights, their settings, what is asked for, and the settings that differ afterwards.
FOLLOWING: tuple[tuple[dict[str, Tensor], dict[str, Any], dict[str, Any], dict[str, Any]], ...] = (
    (vit(4), {"img_size": 64, "resolution": 63, "n_pos": 64}, {"image_size": 96}, {"img_size": 96}),
    (vit(4), {"crop": {"image_size": [64, 64]}}, {"image_size": 96}, {"crop": {"image_size": [96, 96]}}),
    (vit(4), {"input_size": (3, 64, 64)}, {"image_size": 96}, {"input_size": (3, 96, 96)}),
    (vit(4), {"img_size": np.int64(64)}, {"image_size": 96}, {"img_size": np.int64(96)}),
    (
        vit(4),
        {"img_size": [np.int64(64), np.int32(64)]},
        {"image_size": (96, 64)},
        {"img_size": [np.int64(96), np.int32(64)]},
    ),
    (weights(), {"max_len": np.int32(ROWS)}, {"length": 40}, {"max_len": np.int32(40)}),
    (vit(4), DETR, {"image_size": 96}, LARGE_DETR),  # RF-DETR resamples to positional_encoding_size on each side
    (
        vit(4),
        {"IMG_SIZE": 64, "gridSize": 4, "numPatches": 16},
        {"image_size": 96},
        {"IMG_SIZE": 96, "gridSize": 6, "numPatches": 36},
    ),
    (TWO, of_sides(a=4, b=8), {"image_size": 128}, of_sides(a=8, b=16)),
    (VIDEO, CLIP, {"old_grid": (2, 4, 4), "frames": 8}, {"num_frames": 8, "num_patches": 64, "grid_size": [4, 4, 4]}),
    (VIDEO, CLIP, {"old_grid": (2, 4, 4), "image_size": 64}, LARGER),
    (LINEAR, {"max_len": 16, "block_size": 16}, {"grid": (6, 5)}, {}),  # 16 patches, and texts of 16 tokens
    *(  # two rows are reserved; a name of two words, such as eval_end, is no length
        (unmasked(), {name: ROWS - 2, "evalEnd": ROWS - 2, "N_SILENT": ROWS - 2}, {"length": 40}, {name: 40})
        for name in ("MAX_LEN", "maxLen", "MaxLen", "position_embedding_size", "POS_SIZE", "maxSeqLength", "blockSize")
    ),
)


@together("case", FOLLOWING)
def test_settings_follow(case: tuple[Any, ...], tmp_path: Path) -> None:
    """As each project spells them, in dictionaries within dictionaries and in objects."""
    model, settings, size, changed = case
    for wrap in (dict, lambda given: {"MODEL": given}, lambda given: SimpleNamespace(**given)):
        said, new = resized(tmp_path, {"model": model, "cfg": wrap(settings)}, **size)
        assert_same(new["cfg"], wrap({**settings, **changed}))
        [(key, table)] = [(each.key, new["model"][each.key]) for each in said.edit.tables][:1]
        assert table.shape != model[key].shape


def test_sizes_of_images_may_be_tensors_beside_the_weights(tmp_path: Path) -> None:
    sizes = {"image_size": torch.tensor([64, 64]), "img_size": torch.tensor([3, 64, 64], dtype=torch.int32)}
    _, new = resized(tmp_path, {"model": vit(4), **sizes, "std": torch.tensor([64.5, 64.5])}, image_size=96)
    wanted = {"image_size": torch.tensor([96, 96]), "img_size": torch.tensor([3, 96, 96], dtype=torch.int32)}
    assert_same({name: new[name] for name in wanted}, wanted)
    assert new["std"].tolist() == [64.5, 64.5]


def test_grids_that_are_not_square(tmp_path: Path) -> None:
    for name in ("img_size", "resolution"):
        with pytest.raises(CheckpointError, match=rf"cfg\.{name} is one number, so the new size must be square"):
            resized(tmp_path, {"model": vit(4), "cfg": {name: 64}}, image_size=(96, 64))
    sound = vit(11, height=3, prefix=2)
    assert resized(tmp_path, sound, grid=(3, 5), old_grid=(3, 11))[1]["pos_embed"].shape == (1, 17, DIM)
    for wrong in ({"old_grid": (5, 11)}, {"old_grid": (3, 11), "reserved": 1}):
        with pytest.raises(CheckpointError, match="has 35 rows, not"):
            resized(tmp_path, sound, grid=(3, 5), **wrong)


def test_a_number_beside_the_weights_of_openais_clip_follows(tmp_path: Path) -> None:
    state = {"positional_embedding": torch.randn(77, DIM), "visual.positional_embedding": torch.randn(50, DIM)}
    state |= {"visual.conv1.weight": torch.randn(DIM, 3, 32, 32), "context_length": torch.tensor(77)}
    torch.save({**state, "input_resolution": torch.tensor(224)}, tmp_path / "clip.pt")
    resize_checkpoint(tmp_path / "clip.pt", tmp_path / "long.pt", length=248)
    resize_checkpoint(tmp_path / "long.pt", tmp_path / "large.pt", image_size=336)
    new = torch.load(tmp_path / "large.pt", weights_only=True)
    assert (new["context_length"], new["input_resolution"]) == (torch.tensor(248), torch.tensor(336))
    assert new["visual.positional_embedding"].shape == (101, DIM)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    state = weights()
    _, new = resized(tmp_path, {"model": {**state, "lm_head.weight": state["wte.weight"]}, "ema": state}, length=40)
    assert new["model"]["lm_head.weight"].data_ptr() == new["model"]["wte.weight"].data_ptr()
    assert new["ema"]["wte.weight"].data_ptr() == new["model"]["wte.weight"].data_ptr()


def test_safetensors_hold_the_weights_alone(tmp_path: Path) -> None:
    torch.save(WRAPPINGS["nanogpt"], tmp_path / "old.pt")
    with pytest.raises(ArgumentError, match=r"--optimizer .* is for a file of torch\.save that is written as one"):
        resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.safetensors", length=40, optimizer="keep")
    resized = resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.safetensors", length=40)
    names = ("model_args.block_size", "iter_num", "best_val_loss", "config.out_dir")
    assert {f"old.pt: {name.split('.')[0]}" for name in names} == set(resized.left_out)
    with pytest.raises(CheckpointError, match=r"this file is written as \.safetensors; give it a name that ends so"):
        resize_checkpoint(tmp_path / "new.safetensors", tmp_path / "new.pt", length=60)


def test_overwrite_knows_its_own_files(tmp_path: Path) -> None:
    torch.save(WRAPPINGS["nanogpt"], tmp_path / "old.pt")
    for length in (40, 50):
        resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", length=length, overwrite=True)
    torch.save(WRAPPINGS["nanogpt"], tmp_path / "mine.pt")
    resize_checkpoint(tmp_path / "old.pt", tmp_path / "changed.pt", length=40)
    torch.save(torch.load(tmp_path / "changed.pt", weights_only=False), tmp_path / "changed.pt")
    for name in ("mine", "changed"):
        before = (tmp_path / f"{name}.pt").read_bytes()
        with pytest.raises(CheckpointError, match="it is not an unchanged earlier resize"):
            resize_checkpoint(tmp_path / "old.pt", tmp_path / f"{name}.pt", length=60, overwrite=True)
        assert (tmp_path / f"{name}.pt").read_bytes() == before


def test_files_that_hold_no_weights_of_pytorch_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Program(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    with pytest.warns((DeprecationWarning, FutureWarning), match="torch.jit"):
        torch.jit.save(torch.jit.script(Program()), tmp_path / "it's a clip.pt")
    for name in ("a.npz", "a.msgpack", "a.h5", "a.gguf", "a.onnx"):
        (tmp_path / name).touch()
    expected = {
        "it's a clip.pt": "a TorchScript program, .* extract its weights",
        "a.npz": "an archive of numpy, as big_vision writes it",
        "a.msgpack": "weights of Flax",
        "a.h5": "weights of Keras",
        "a.gguf": "resize the checkpoint that it was made from",
        "a.onnx": "resize the checkpoint that it was exported from",
    }
    for name, message in expected.items():
        with pytest.raises(CheckpointError, match=message) as raised:
            resize_checkpoint(tmp_path / name, tmp_path / "out.pt", length=40)
        if name.endswith(".pt"):  # the line that it names, as a shell reads it
            *_, code = shlex.split(str(raised.value).rpartition("give those: ")[2])
            monkeypatch.chdir(tmp_path)
            with pytest.warns((DeprecationWarning, FutureWarning), match=r"torch\.jit"):
                exec(code)
            assert Path("weights.pt").is_file()


def test_a_tree_is_replaced_without_changing_the_original() -> None:
    root = {"a": [1, (2, torch.ones(2))], "n": argparse.Namespace(x=1), "b": OrderedDict(c=3, d=4)}
    new = replaced(root, {("a", 1, 0): 5, ("n", "x"): 6, ("b", "c"): DROPPED})
    assert (new["a"][1][0], new["n"].x, dict(new["b"])) == (5, 6, {"d": 4})
    assert (root["a"][1][0], root["n"].x, dict(root["b"])) == (2, 1, {"c": 3, "d": 4})
    assert new["a"][1][1] is root["a"][1][1]
    assert type(new["b"]) is OrderedDict
    for trains in (True, False):
        parameter = nn.Parameter(torch.ones(2), requires_grad=trains)
        other = replaced({"w": parameter}, {("w",): torch.zeros(3)})["w"]
        assert (type(other), other.requires_grad, len(other)) == (nn.Parameter, trains, 3)
    assert next(place for place, _ in nodes(root)) == ()
    assert tree_of({"epoch": 1, "opt": {"state": {0: {"m": torch.ones(3)}}, "param_groups": []}}) is None


def test_an_optimizer_beside_the_model_is_left_out_alone(tmp_path: Path) -> None:
    """One that is left out takes nothing else with it: not the model, but all optimizers of a list."""
    model, optimizer = trained(ROWS, torch.optim.AdamW)
    state, moments = model.state_dict(), optimizer.state_dict()
    files: dict[str, Any] = {
        "trainer.optimizer": {"trainer": {"model": state, "optimizer": moments, "step": 2}, "epoch": 1},
        "trainer.optimizers": {"trainer": {"model": state, "optimizers": [moments, moments]}, "epoch": 1},
        "optimizer": {"model": state, "optimizer": {"optimizer": moments, "fp32_from_fp16_params": [[torch.ones(2)]]}},
    }
    for entry, file in files.items():
        said, new = resized(tmp_path, file, length=40, optimizer="drop")
        assert set(said.left_out) == {entry}
        left = {place for place, _ in leaves(file) if ".".join(map(str, place)).startswith(f"{entry}.")}
        assert {place for place, _ in leaves(new)} == {place for place, _ in leaves(file)} - left


def test_an_optimizer_without_moments_stays(tmp_path: Path) -> None:
    for state in ({}, {0: {"momentum_buffer": None}}, {0: {"step": torch.tensor(1.0)}}, {"step": 3}, [1, 2]):
        optimizer = {"state": state, "param_groups": [{"lr": 0.1, "params": [0, 1, 2]}]}
        _, new = resized(tmp_path, {"model": weights(), "optimizer": optimizer}, length=40)
        assert_same(new["optimizer"], optimizer)


def test_tensors_beside_the_weights_are_neither_weights_nor_settings(tmp_path: Path) -> None:
    """The state of a random generator stands beside the model; a list of lengths has a setting's name."""
    model, optimizer = trained(ROWS, torch.optim.AdamW)
    beside = {"rng_state": torch.get_rng_state(), "data": {"lengths": torch.tensor([ROWS]), "pos": torch.ones(2, 2)}}
    file = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "ema": model.state_dict(), **beside}
    said, new = resized(tmp_path, file, length=40)
    assert not said.left_out
    assert_same({name: new[name] for name in beside}, beside)
    assert new["optimizer"]["state"][1]["exp_avg"].shape == new["ema"]["wpe.weight"].shape == (40, DIM)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_an_average_is_known_under_a_wrappers_names(prefix: str, tmp_path: Path) -> None:
    """AveragedModel puts ``module.`` before its names."""
    for one, two in (("", prefix), (prefix, "")):
        average = {"n_averaged": torch.tensor(3), **weights(prefix=two, seed=1)}
        file = {"model": weights(prefix=one), "model_ema": average}
        said, held = resized(tmp_path, file, length=40, table=f"{one}wpe.weight")
        new = held["model_ema"]
        assert set(said.beside.copies) == {"model_ema"}
        assert list(new) == list(average)
        assert torch.equal(new[f"{two}wpe.weight"][:ROWS], average[f"{two}wpe.weight"])
        assert new[f"{two}h.0.attn.bias"].shape == (1, 1, 40, 40)


def test_the_size_of_patches_is_not_known_behind_several_convolutions(tmp_path: Path) -> None:
    """A hybrid's first kernel is that of its ResNet, and no patch."""
    hybrid = {"pos_embed": vit(4)["pos_embed"], "patch_embed.backbone.stem.weight": torch.randn(DIM, 3, 7, 7)}
    hybrid["cls_token"] = torch.randn(1, 1, DIM)
    for name, side in {"backbone.conv": 3, "proj": 1}.items():  # either is enough
        state = {**hybrid, f"patch_embed.{name}.weight": torch.randn(DIM, DIM, side, side)}
        with pytest.raises(ArgumentError, match="the patch size of pos_embed in pixels is unknown"):
            resized(tmp_path, {"model": state, "args": {"img_size": 64}}, image_size=128)
    necked = {**vit(4), "neck.0.weight": torch.randn(DIM, DIM, 3, 3), "neck.1.weight": torch.randn(DIM, DIM, 3, 3)}
    assert resized(tmp_path, necked, image_size=128)[1]["pos_embed"].shape == (1, 65, DIM)


def test_what_looks_like_the_table_and_stays_is_named(tmp_path: Path) -> None:
    """Averages without names, a small part of the weights, and the predictor of I-JEPA, whose table is narrower."""
    layers = {f"h.{i}.weight": torch.ones(3) for i in range(20)}
    beside = {
        "ema.shadow_params.1": {"ema": {"shadow_params": list(weights(seed=1).values())[:2]}},
        "trainable.wpe.weight": {"trainable": {"wpe.weight": torch.randn(ROWS, DIM)}},
        "predictor.pos_embed": {"predictor": {"pos_embed": torch.randn(ROWS, DIM // 2)}},
    }
    for name, value in beside.items():
        said, new = resized(tmp_path, {"model": {**weights(), **layers}, **value}, length=40)
        assert said.beside.remarks == (f"{name}: looks like a table of the old size, and stays as it is",)
        assert f"{name}: looks like a table of the old size, and stays as it is" in repr(said)
        assert_same({each: new[each] for each in value}, value)


def test_nesting_without_an_end_is_refused_or_ignored(tmp_path: Path) -> None:
    file: dict[str, Any] = {"model": weights()}
    torch.save(file, tmp_path / "old.pt")
    with zipfile.ZipFile(tmp_path / "old.pt", "a") as archive:
        archive.writestr("old/posembed.json", "[" * 100_000)
    for _ in range(2):  # a record that cannot be read is no record
        resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", length=40, overwrite=True)
    with pytest.raises(CheckpointError, match="it is not an unchanged earlier resize"):
        resize_checkpoint(tmp_path / "new.pt", tmp_path / "old.pt", length=50, overwrite=True)
    file["self"] = [file]
    torch.save(file, tmp_path / "endless.pt")
    with pytest.raises(CheckpointError, match="holds itself"):
        resize_checkpoint(tmp_path / "endless.pt", tmp_path / "newer.pt", length=40)


def test_a_tensor_beside_the_model_is_no_weight(tmp_path: Path) -> None:
    """Such as the weights of classes in a loss. Nor is it one in a state dict, if safetensors have no such tensors."""
    sparse = torch.eye(3).to_sparse()
    file = {"model": {**weights(), "adjacency": sparse}, "class_weights": torch.ones(30), "args": {"block_size": ROWS}}
    said, new = resized(tmp_path, file, length=40)
    assert [change.key for change in said.edit.tables] == ["wpe.weight"]
    assert (new["args"], list(new)) == ({"block_size": 40}, list(file))
    assert torch.equal(new["model"]["adjacency"].to_dense(), torch.eye(3))
    left = resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.safetensors", length=40).left_out
    assert "old.pt: model.adjacency" in left


def test_a_tensor_may_repeat_the_values_of_the_file(tmp_path: Path) -> None:
    state = {**weights(), "scale": torch.ones(1).expand(1000, 1000)}
    assert resized(tmp_path, state, length=40)[1]["scale"].stride() == (0, 0)
    with pytest.raises(CheckpointError, match="'scale' claims 4294967296 values"):
        resized(tmp_path, {**weights(), "scale": torch.ones(1).expand(2**16, 2**16)}, length=40)


def test_tied_tables_stay_tied(tmp_path: Path) -> None:
    """The sides of one model share a table, and a copy of the model its memory."""
    table = torch.randn(ROWS, DIM)
    state = {"wte.weight": torch.randn(30, DIM)} | {f"{side}.wpe.weight": table for side in ("encoder", "decoder")}
    _, new = resized(tmp_path, {"model": state, "ema": dict(state), "args": {"block_size": ROWS}}, length=40)
    held = {
        new[model][f"{side}.wpe.weight"].data_ptr() for model in ("model", "ema") for side in ("encoder", "decoder")
    }
    assert len(held) == 1
    assert (tmp_path / "new.pt").stat().st_size < (tmp_path / "old.pt").stat().st_size + 2 * 4 * 40 * DIM


@pytest.mark.parametrize("zipped", [True, False])
def test_pickles_of_newer_protocols_are_called_so(zipped: bool, tmp_path: Path) -> None:
    for protocol in (3, 4, 5):
        kinds = {"pickle_protocol": protocol, "_use_new_zipfile_serialization": zipped}
        torch.save({"model": weights(), "step": 3}, tmp_path / "old.pt", **kinds)
        with pytest.raises(CheckpointError, match=f"protocol {protocol}") if protocol > 3 else nullcontext():
            resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", length=40)


def test_sizes_in_other_forms_follow_or_are_named(tmp_path: Path) -> None:
    sizes = {"img_size": [64], "input_size": (64, 64, 3), "imgsz": 64, "im_size": torch.tensor([64, 64, 3])}
    named = {"image_res": "64x64", "resolution": [64.0, 64.0], "crop": {"image_size": {"height": 64, "width": 64}}}
    other = {"image_size_name": "512x512", "input_res": None}
    for state, size in ((vit(4), {"image_size": 96}), ({"pos_embed": vit(4)["pos_embed"]}, {"grid": (6, 6)})):
        torch.save({"model": state, "cfg": {**sizes, **named, **other}}, tmp_path / "old.pth")
        said = repr(resize_checkpoint(tmp_path / "old.pth", tmp_path / "new.pth", **size, overwrite=True))
        follow = "image_size" in size
        new = read(tmp_path / "new.pth")["cfg"]
        large = {"img_size": [96], "input_size": (96, 96, 3), "imgsz": 96, "im_size": torch.tensor([96, 96, 3])}
        assert_same(new, {**(large if follow else sizes), **named, **other})
        stay = {"image_res", "resolution", "crop.image_size"} if follow else set(sizes)
        lines = [line for line in said.splitlines() if "looks like a setting of the old size" in line]
        assert {line.partition(":")[0].removeprefix("cfg.") for line in lines} == stay
    torch.save({"model": vit(4), "cfg": {"img_size": [64]}}, tmp_path / "old.pth")
    with pytest.raises(CheckpointError, match=r"cfg\.img_size is one number, so the new size must be square"):
        resize_checkpoint(tmp_path / "old.pth", tmp_path / "tall.pth", image_size=(96, 64))


def test_an_optimizer_of_other_parameters_stays(tmp_path: Path) -> None:
    """Also one that keeps something unknown, if another optimizer of the file has the table."""
    model, optimizer = trained(ROWS, torch.optim.AdamW)
    critic, second = trained(9, torch.optim.AdamW)
    unknown = {"state": {0: {"left": torch.ones(3, 3)}}, "param_groups": [{"params": [0]}]}
    beside = {"critic": {"other." + key: value for key, value in critic.state_dict().items()}}
    for others, left in (([second.state_dict()], {}), ([unknown], {})):
        file = {"model": model.state_dict(), **beside, "optimizers": [optimizer.state_dict(), *others]}
        said, held = resized(tmp_path, file, length=40)
        new = held["optimizers"]
        assert said.left_out == left
        assert new[0]["state"][1]["exp_avg"].shape == (40, DIM)
        assert_same(new[1], others[0])
    said, _ = resized(tmp_path, {"model": model.state_dict(), "optimizers": [unknown]}, length=40)
    assert set(said.left_out) == {"optimizers"}


def of_shapes() -> dict[str, Tensor]:
    """Returns a state dict in which only the table has its shape."""
    return {key: value for key, value in unmasked().items() if "mlp" not in key}


OTHER_NETWORKS: dict[str, Any] = {
    "a table too": {"pos_embed.weight": (ROWS, DIM), "head.weight": (5, DIM)},
    "the same names": {"wpe.weight": (ROWS, DIM), "wte.weight": (3, 4)},
    "one tensor": {"centers": (ROWS, DIM)},
}


def adam(shapes: dict[str, tuple[int, ...]], by: str) -> dict[str, Any]:
    """Returns the state of an optimizer that numbers its parameters, that knows their names too, or only the names."""
    states = [{"exp_avg": torch.randn(shape), "step": torch.tensor(2.0)} for shape in shapes.values()]
    numbers: Any = list(shapes) if by == "names" else list(range(len(shapes)))
    group = {"params": numbers, "lr": 0.1} | ({"param_names": list(shapes)} if by == "both" else {})
    return {"state": dict(zip(numbers, states, strict=True)), "param_groups": [group]}


@together(("other", "by", "frozen"), list(product(OTHER_NETWORKS, ("numbers", "both", "names"), (False, True))))
def test_the_optimizer_of_another_network_is_never_resized(other: str, by: str, frozen: bool, tmp_path: Path) -> None:
    """Nor is the model's own, if its shapes could also be those of the other network."""
    own = {key: tuple(value.shape) for key, value in of_shapes().items() if not (frozen and key == "wpe.weight")}
    shapes = OTHER_NETWORKS[other]
    file = {
        "model": of_shapes(),
        "critic": {key: torch.randn(shape) for key, shape in shapes.items()},
        "optimizer": adam(own, by),
        "critic_optimizer": adam(shapes, by),
    }
    said, new = resized(tmp_path, file, length=40)
    assert_same(new["critic"], file["critic"])
    if "critic_optimizer" in new:  # else one of its tensors may be the model's table
        assert_same(new["critic_optimizer"], file["critic_optimizer"])
    state = new.get("optimizer", {"state": {}})["state"]
    assert {tuple(each["exp_avg"].shape) for each in state.values()} <= {*own.values(), (40, DIM)} - {(ROWS, DIM)}
    assert set(said.left_out) == {"optimizer", "critic_optimizer"} - set(new)
    if by != "numbers" or frozen:
        assert "optimizer" in new


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq", "mu", "v"])
def test_moments_by_the_names_of_the_weights_are_no_average(name: str, tmp_path: Path) -> None:
    for entry, how in product(("optimizer", "adam"), ({}, {"optimizer": "drop"})):
        for moments in (of_shapes(), list(of_shapes().values())):
            zeros = {key: value * 0 for key, value in of_shapes().items()}
            held = {entry: {"step": 3, name: moments, "nu": zeros}}
            said, new = resized(tmp_path, {"model": weights(seed=1), **held}, length=40, **how)
            why = "it was asked for" if how else "it is not known which of its values belong to the table"
            assert said.left_out == {entry: why}
            assert set(new) == {"model"}


def test_new_rows_start_where_the_optimizer_starts(tmp_path: Path) -> None:
    """As the state of Adagrad says. Those of RMSprop start at zero in PyTorch, and at one in timm."""
    model, optimizer = trained(ROWS, torch.optim.Adagrad, initial_accumulator_value=0.5)
    _, new = resized(tmp_path, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, length=40)
    moment = new["optimizer"]["state"][1]["sum"]
    assert torch.equal(moment[:ROWS], optimizer.state[model["wpe"].weight]["sum"])
    assert torch.equal(moment[ROWS:], torch.full((24, DIM), 0.5))
    states = []
    for start in (None, [0.5]):
        states.append(optimizer.state_dict())
        states[-1]["param_groups"] = [{**states[-1]["param_groups"][0], "initial_accumulator_value": start}]
    model, optimizer = trained(ROWS, torch.optim.RMSprop)
    for state in (*states, optimizer.state_dict()):
        said, _ = resized(tmp_path, {"model": model.state_dict(), "optimizer": state}, length=40)
        assert set(said.left_out) == {"optimizer"}


@pytest.mark.parametrize("by", ["numbers", "names"])
def test_an_optimizer_that_keeps_more_than_means_is_left_out(by: str, tmp_path: Path) -> None:
    """Also if it keeps that only of other parameters, as Adafactor does of large ones, or deeper inside."""
    shapes = {key: tuple(value.shape) for key, value in of_shapes().items()}
    for more in ({"exp_avg_sq_row": torch.ones(2 * DIM)}, {"preconditioners": {0: torch.ones(DIM, DIM)}}):
        for key in (*shapes,):
            optimizer = adam(shapes, by)
            optimizer["state"][key if by == "names" else [*shapes].index(key)] |= more
            said, _ = resized(tmp_path, {"model": of_shapes(), "optimizer": optimizer}, length=40)
            assert set(said.left_out) == {"optimizer"}
    rest = {key: shape for key, shape in shapes.items() if "wpe" not in key}
    for each in (optimizer := adam(rest, "names"))["state"].values():
        each["hessian"] = each.pop("exp_avg")
    _, new = resized(tmp_path, {"model": of_shapes(), "optimizer": optimizer}, length=40)
    assert_same(new["optimizer"], optimizer)  # its names say that it does not train the table


@pytest.mark.parametrize("means", [True, False])
@pytest.mark.parametrize("by", ["both", "names"])
def test_names_of_parameters_that_are_not_the_weights_say_nothing(by: str, means: bool, tmp_path: Path) -> None:
    """As of an inner model, or for some of them only: then one of them may be the table, under another name."""
    shapes = {key: tuple(value.shape) for key, value in of_shapes().items()}
    for more in ({}, {"head.weight": (7, DIM)}):  # a name that the model has too, for another tensor
        optimizer = adam({**shapes, **more}, by)
        for each in optimizer["state"].values():
            each |= {} if means else {"exp_avg_sq_row": torch.ones(3)}
        model = {f"net.{key}": value for key, value in of_shapes().items()} | {"head.weight": torch.ones(5, DIM)}
        for beside in ({}, {"average of net": of_shapes()}):  # with the names that the optimizer has
            said, _ = resized(tmp_path, {"model": model, "optimizer": optimizer, **beside}, length=40)
            assert set(said.left_out) == {"optimizer"}
    for part in ({"weight": (5, DIM)}, {key: shape for key, shape in shapes.items() if "wpe" not in key}):
        if means:  # moments of other shapes are not the table's, whatever their names
            _, new = resized(tmp_path, {"model": model, "optimizer": adam(part, by)}, length=40)
            assert "optimizer" in new
    optimizer = adam(shapes, "numbers")
    optimizer["state"]["average"] = {"short": 0.0}
    _, new = resized(tmp_path, {"model": of_shapes(), "optimizer": optimizer}, length=40)
    assert new["optimizer"]["state"][[*shapes].index("wpe.weight")]["exp_avg"].shape == (40, DIM)


@pytest.mark.parametrize("how", [{}, {"optimizer": "drop"}])
def test_the_state_of_an_optimizer_of_another_form_is_left_out_whole(how: dict[str, str], tmp_path: Path) -> None:
    """As Lookahead's, which has two states."""
    optimizer = adam({key: tuple(value.shape) for key, value in of_shapes().items()}, "numbers")
    state = {"fast_state": optimizer["state"], "slow_state": {0: {}}, "param_groups": optimizer["param_groups"]}
    for name in ("optimizer", "opt"):
        said, new = resized(tmp_path, {"model": of_shapes(), name: state}, length=40, **how)
        assert (set(said.left_out), set(new)) == ({name}, {"model"})
    settings = {"param_groups": [{"lr": 0.1}], "block_size": ROWS, "weights of classes": torch.ones(3)}
    for file in (
        {"model": of_shapes(), **settings},
        {"model": of_shapes(), "args": settings},
        {"t": {"model": of_shapes(), **settings}},
    ):
        said, _ = resized(tmp_path, file, length=40)  # settings of an optimizer are no optimizer
        assert not said.left_out


@pytest.mark.parametrize("method", [None, "linear", "hierarchical"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_follow_every_unchanged_row(method: str | None, dtype: torch.dtype, tmp_path: Path) -> None:
    """Such as the rows behind the positions, which a longer table has at other places."""
    state = {key: value.to(dtype) for key, value in of_shapes().items()}
    optimizer = adam({key: tuple(value.shape) for key, value in state.items()}, "numbers")
    before, old = state["wpe.weight"], optimizer["state"][1]["exp_avg"]
    for length, front, tail in ((24, 0, 2), (8, 0, 2), (24, 2, 1)):
        how = {"length": length, "method": method, "reserved": front, "tail": tail}
        _, new = resized(tmp_path, {"model": state, "optimizer": optimizer}, **how)
        table, moment = new["model"]["wpe.weight"], new["optimizer"]["state"][1]["exp_avg"]
        assert table.shape == moment.shape == (front + length + tail, DIM)
        for row, values in enumerate(table):
            origin = row if row < front + length else row - len(table) + ROWS
            is_there = origin < ROWS - tail or row >= front + length
            kept = is_there and torch.equal(values, before[origin])
            assert torch.equal(moment[row], old[origin] if kept else torch.zeros(DIM)), row
            assert kept or front <= row < front + length


def test_moments_of_differences_stay_in_the_middle(tmp_path: Path) -> None:
    """The center of a window is the same difference in every window. A bias of one head has rows of one number."""
    for heads in (1, 4):
        name = "layers.0.attn.relative_position_bias_table"
        state = {"patch_embed.proj.weight": torch.randn(DIM, 3, 4, 4), name: torch.randn(49, heads)}
        optimizer = adam({key: tuple(value.shape) for key, value in state.items()}, "numbers")
        file = {"model": state, "optimizer": optimizer}
        _, new = resized(tmp_path, file, window=6, table=name, method="extend")
        moment = new["optimizer"]["state"][1]["exp_avg"].view(11, 11, heads)
        assert torch.equal(moment[2:9, 2:9], optimizer["state"][1]["exp_avg"].view(7, 7, heads))
        assert int((moment != 0).all(-1).sum()) == 49


def test_a_flattened_optimizer_among_the_weights_is_left_out(tmp_path: Path) -> None:
    """Or in an entry of its own. A model may have a part that is called state."""
    own = {**unmasked(), "state.wpe.weight": torch.randn(3, DIM)}
    flat = {f"state.{key}.{name}": value + 1 for key, value in own.items() for name in ("exp_avg", "momentum_buffer")}
    flat |= {f"state.{key}.step": torch.tensor(2.0) for key in own}
    flat |= {f"param_groups.{key}.lr": 0.1 for key in own}
    for prefix in ("", "optimizer."):
        held = {f"{prefix}{key}": value for key, value in flat.items()}
        left = {f"{prefix}state", f"{prefix}param_groups"}
        for file, entries in (({**own, **held}, left), ({"model": own, "optim": held}, {"optim"})):
            said, new = resized(tmp_path, file, length=40, table="wpe.weight")
            assert set(said.left_out) == entries
            assert set(new.get("model", new)) == set(own)


def test_settings_that_hold_the_length_by_accident_may_stay(tmp_path: Path) -> None:
    settings = {"block_size": ROWS, "data": {"max_len": ROWS}}
    _, new = resized(tmp_path, {"model": weights(), "args": settings}, length=40, keep=["args.data.max_len"])
    assert new["args"] == {"block_size": 40, "data": {"max_len": ROWS}}
    with pytest.raises(
        ArgumentError, match=r"max_len is no setting .* these do: args\.block_size, args\.data\.max_len"
    ):
        resize_checkpoint(tmp_path / "old.pt", tmp_path / "no.pt", length=40, keep=["max_len"])
    with pytest.raises(ArgumentError, match=r"args\.block_size is no setting .* these do: none"):
        resize_checkpoint(tmp_path / "old.pt", tmp_path / "no.safetensors", length=40, keep=["args.block_size"])


def test_a_number_that_cannot_hold_its_new_size_is_refused_unless_it_is_kept(tmp_path: Path) -> None:
    for number in (torch.tensor(ROWS, dtype=torch.uint8), np.uint8(ROWS)):
        torch.save({"model": unmasked(), "args": {"max_len": number}}, tmp_path / "old.pt")
        with pytest.raises(CheckpointError, match=r"args\.max_len cannot hold 300 in its (torch\.)?uint8.*--keep"):
            resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", length=300)
        assert not (tmp_path / "new.pt").exists()
        resize_checkpoint(
            tmp_path / "old.pt", tmp_path / f"{type(number).__name__}.pt", length=300, keep=["args.max_len"]
        )
        assert_same(read(tmp_path / f"{type(number).__name__}.pt")["args"], {"max_len": number})
    file = {"model": vit(4), "args": {"img_size": 64, "grid_size": [4, 4]}}
    _, new = resized(tmp_path, file, grid=(6, 4), keep=["args.img_size"])
    assert new["args"] == {"img_size": 64, "grid_size": [6, 4]}


def test_numbers_among_the_tensors_follow_in_every_format(tmp_path: Path) -> None:
    """As in OpenAI's CLIP, whose context_length also says how many rows are reserved."""
    numbers = {"context_length": torch.tensor(ROWS - 2), "visual.input_resolution": torch.tensor([64, 64])}
    visual = {f"visual.{key}": tensor for key, tensor in vit(4).items()}
    held = {**unmasked(), **visual, **numbers}
    save_file(held, tmp_path / "old.safetensors")
    torch.save({"model": held, "args": {"max_len": ROWS - 2}}, tmp_path / "old.pt")
    for old, new in (("safetensors", "safetensors"), ("pt", "safetensors"), ("pt", "pt")):
        out = tmp_path / f"{old}.{new}"
        for size, wanted in (({"length": 40}, [40, [64, 64]]), ({"image_size": 96}, [ROWS - 2, [96, 96]])):
            said = resize_checkpoint(tmp_path / f"old.{old}", out, **size, overwrite=True)
            tensors = load_file(out) if new == "safetensors" else read(out)["model"]
            assert [tensors[key].tolist() for key in numbers] == wanted, (old, new)
            assert any(setting.after in (40, [96, 96]) for setting in said.settings)
            assert set(tensors) == set(held)
    resize_checkpoint(tmp_path / "old.safetensors", tmp_path / "kept.safetensors", length=40, keep=["context_length"])
    assert load_file(tmp_path / "kept.safetensors")["context_length"] == ROWS - 2


def test_vocabularies_counts_and_states_are_no_settings(tmp_path: Path) -> None:
    """Neither do they say how many rows are reserved. States are named if they hold the old size."""
    words = [f"word{i}" for i in range(ROWS - 2)] + ["len", "possible", "max_len"]
    others = {
        "char_to_ix": {word: at for at, word in enumerate(words)},
        "stoi": {"len": ROWS, "context": ROWS - 2},
        "label2id": {"pos": ROWS},
        "dataloader": {"pos": ROWS, "rank": b"abc"},
        "lr_scheduler": {"cycle_len": ROWS, "lr": 0.5},
        "metrics": {"len": ROWS, "loss": 0.5},
    }
    settings = {"block_size": ROWS, "possible": ROWS, "calendar": ROWS, "avg_len": ROWS, "post": ROWS}
    settings |= {"dataloader": {"max_len": ROWS}}
    for args in ({}, settings):
        said, new = resized(tmp_path, {"model": weights(), **others, "args": args}, length=40)
        assert {name: new[name] for name in others} == others
        changed = {"block_size": 40} if args else {}
        assert new["args"] == {**args, **changed}
        assert new["model"]["wpe.weight"].shape == (40, DIM)
        states = {"dataloader.pos", "lr_scheduler.cycle_len", "metrics.len"}
        states |= {"args.dataloader.max_len"} if args else set()
        assert {remark.partition(":")[0] for remark in said.beside.remarks} == states


def test_settings_with_an_old_size_follow_or_are_named(tmp_path: Path) -> None:
    line = {"max_token_len": ROWS, "max_seq": ROWS, "run": {"max_len": {"value": ROWS}}, "max-len": ROWS}
    held = {"n_ctx": torch.tensor([ROWS]), "ctx": (ROWS, ROWS), "text_len": torch.tensor(float(ROWS))}
    said, new = resized(tmp_path, {"model": unmasked(), "args": line | held}, length=40)
    longer = {"max_token_len": 40, "max_seq": 40, "run": {"max_len": {"value": 40}}, "max-len": 40}
    assert_same(new["args"], longer | held)
    named = [remark.partition(":")[0] for remark in said.beside.remarks]
    assert named == [f"args.{name}" for name in held]
    rows = {"seq_len": 17, "n_positions": 17, "max_position_embeddings": 17, "seq_length": 16}
    of_video = {"num_frames": 4, "clip_len": 4, "img_size": 32}
    for state, args, size, stay in (
        (vit(4), {"img_size": 64, **rows}, {"image_size": 96}, rows),
        (unmasked(), {"block_size": ROWS}, {"grid": (4, 8), "old_grid": (4, 4)}, {"block_size"}),
        (VIDEO, of_video, {"old_grid": (2, 4, 4), "frames": 8}, {"clip_len"}),
    ):
        said, new = resized(tmp_path, {"model": state, "args": args}, **size)
        assert {remark.partition(":")[0] for remark in said.beside.remarks} == {f"args.{name}" for name in stay}
        assert {name: new["args"][name] for name in stay} == {name: args[name] for name in stay}
