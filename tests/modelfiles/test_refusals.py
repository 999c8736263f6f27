"""Files that cannot be used are refused by ``posembed.inputs`` and by ``posembed inspect`` in the same words."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import posembed
from posembed.errors import CheckpointError
from posembed.inputs import GPT2Input
from together import together

TENSORS = {"wte.weight": torch.zeros(10, 4), "wpe.weight": torch.ones(6, 4)}


class RunsCode:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("it-ran",)


def shards(folder: Path, **weight_map: Any) -> None:
    for number, (key, tensor) in enumerate(TENSORS.items()):
        save_file({key: tensor}, folder / f"model-{number}.safetensors")
    names = {key: f"model-{number}.safetensors" for number, key in enumerate(TENSORS)}
    index = {"weight_map": {**names, **weight_map}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def truncated(folder: Path) -> None:
    save_file(TENSORS, folder / "model.safetensors")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])


def compressed(folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", "0" * 10_000)


def without_a_shard(folder: Path) -> None:
    shards(folder)
    (folder / "model-1.safetensors").unlink()


def two_sets(folder: Path) -> None:
    for name in ("first", "second"):
        save_file(TENSORS, folder / f"{name}.safetensors")


def a_tensor_in_two_shards(folder: Path) -> None:
    shards(folder)
    save_file(TENSORS, folder / "model-1.safetensors")


def pickled(content: Any, **how: Any) -> Callable[[Path], Any]:
    return lambda folder: torch.save(content, folder / "pytorch_model.bin", **how)


def bytes_of_a_pickle(content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / "pytorch_model.bin").write_bytes(content)


def a_shard_called(name: Any) -> Callable[[Path], Any]:
    return lambda folder: shards(folder, **{"wpe.weight": name})


def named(name: str) -> Callable[[Path], Any]:
    return lambda folder: save_file(TENSORS, folder / name)


TABLE, OLD = TENSORS["wpe.weight"], {"_use_new_zipfile_serialization": False}
OF_A_PICKLE: dict[str, Callable[[Path], Any]] = {
    "one key twice": pickled({"a": {"b": TABLE}, "a.b": TABLE}),
    "a sparse tensor": pickled({"a": TABLE.to_sparse()}),
    "an expanded tensor": pickled({"a": torch.ones(1).expand(10**9)}),
    "nothing": bytes_of_a_pickle(b""),
    "half a zip": bytes_of_a_pickle(b"PK\3\4" + b"\0" * 40),
    "an empty list": bytes_of_a_pickle(b"\x80\x02]."),
    "a pickle of pickle": bytes_of_a_pickle(pickle.dumps(RunsCode())),
}
PARTS = ("model-00001-of-00004.safetensors", "model-00004-of-00004.safetensors", "adapter.safetensors",
         "diffusion_pytorch_model-1-of-2.safetensors", "adapter_model.safetensors")  # fmt: skip


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no weights": (lambda folder: None, "no weights"),
    "truncated safetensors": (truncated, "not a whole safetensors file"),
    "empty safetensors": (lambda folder: (folder / "model.safetensors").touch(), "not a whole safetensors file"),
    "a pipe": (lambda folder: os.mkfifo(folder / "model.safetensors"), "expected a file"),
    "pickle with code": (pickled({"wte.weight": RunsCode()}), "could run code"),
    "old pickle with code": (pickled({"wte.weight": RunsCode()}, **OLD), "could run code, so it was not loaded"),
    "pickle of a list": (pickled([1, 2]), "expected a state dict"),
    "pickle without tensors": (pickled({"epoch": 3}), "state dict"),
    "zip bomb": (compressed, "are compressed"),
    "no pickle": (bytes_of_a_pickle(b"hello"), "not a whole file"),
    **{f"pickle: {name}": (make, "pytorch_model.bin: ") for name, make in OF_A_PICKLE.items()},
    "two sets of weights": (two_sets, "several weights files and no index"),
    "GGUF alone": (lambda folder: (folder / "model.gguf").write_bytes(b"GGUF"), "no weights"),
    **{f"{name} alone": (named(name), f"holds {name}, only a part") for name in PARTS},
    "a missing shard": (without_a_shard, "not there; fetch the rest"),
    **{
        f"a shard called {name}": (a_shard_called(name), "in the same folder as the index")
        for name in ("../x.safetensors", "/etc/passwd", "..", "x.json")
    },
    "a shard that is not there": (a_shard_called("model-7.safetensors"), "not there"),
    "an index that lies": (a_shard_called("model-0.safetensors"), "does not hold it"),
    "a number for a shard": (a_shard_called(3), "weight_map"),
    "a tensor in two shards": (a_tensor_in_two_shards, "expected it once"),
    "a list for an index": (
        lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": []}'),
        "expected a weight_map",
    ),
    "an index of nothing": (
        lambda folder: (folder / "model.safetensors.index.json").write_text("{}"),
        "expected a weight_map",
    ),
    "a broken config": (
        lambda folder: (save_file(TENSORS, folder / "model.safetensors"), (folder / "config.json").write_text("{")),
        "not JSON",
    ),
    "a config that is a list": (
        lambda folder: (save_file(TENSORS, folder / "model.safetensors"), (folder / "config.json").write_text("[]")),
        "expected an object",
    ),
    "modules outside": (
        lambda folder: (folder / "modules.json").write_text('[{"path": "../elsewhere"}]'),
        "expected only subfolders",
    ),
}


def refusal(call: Callable[[Any], Any], source: Any) -> str:
    with pytest.raises(CheckpointError) as refused:
        call(source)
    return str(refused.value)


@together("name", BAD)
def test_both_refuse_a_bad_folder_in_the_same_words(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    make, reason = BAD[name]
    make(tmp_path)
    said = refusal(GPT2Input.from_checkpoint, tmp_path)
    assert said == refusal(posembed.inspect_checkpoint, tmp_path)
    assert reason in said
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("./not/here", "not there"),
        ("a/b/c", "not there"),
        ("owner/model.safetensors", "not there"),
        ("notes.txt", "expected a folder or a weights file"),
        ("model.gguf", "a model for llama.cpp"),
        ("cut.safetensors", "not a whole safetensors file"),
        ("code.pt", "could run code"),
    ],
)
def test_both_refuse_a_bad_name_or_file_in_the_same_words(
    source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("notes.txt", "model.gguf"):
        Path(name).write_bytes(b"GGUF")
    Path("cut.safetensors").write_bytes(b"\1" * 20)
    torch.save({"a": RunsCode()}, "code.pt")
    said = refusal(GPT2Input.from_checkpoint, source)
    assert said == refusal(posembed.inspect_checkpoint, source)
    assert reason in said


@pytest.mark.parametrize("error", ["unreachable", "unknown", "gated"])
def test_both_refuse_a_hub_name_in_the_same_words(error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    kinds = {"unreachable": OSError, "unknown": errors.RepositoryNotFoundError, "gated": errors.GatedRepoError}

    def refused(*args: Any, **arguments: Any) -> None:
        raised = kinds[error].__new__(kinds[error])
        raised.args = ("Name or service not known",)
        raise raised

    for name in ("hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, refused)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refused)
    said = refusal(GPT2Input.from_checkpoint, "someone/a-model")
    assert said == refusal(posembed.inspect_checkpoint, "someone/a-model")
    assert ("Hub cannot be reached" in said) == (error == "unreachable")


def test_both_read_weights_behind_a_link(tmp_path: Path) -> None:
    source, elsewhere = tmp_path / "source", tmp_path / "elsewhere.safetensors"
    source.mkdir()
    (source / "config.json").write_text('{"model_type": "gpt2", "n_positions": 6, "n_embd": 4, "n_head": 2}')
    save_file(TENSORS, elsewhere)
    (source / "model.safetensors").symlink_to(elsewhere)
    assert torch.equal(GPT2Input.from_checkpoint(source).wpe.weight, TENSORS["wpe.weight"])
    assert posembed.inspect_checkpoint(source).tables[0].table.rows == 6
    posembed.resize_checkpoint(source, tmp_path / "out", length=8)
    assert not (tmp_path / "out" / "model.safetensors").is_symlink()
