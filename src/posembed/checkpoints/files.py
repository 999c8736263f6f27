"""A checkpoint as it lies on a disk: which files hold its weights, and the settings that stand beside them.

A folder as transformers, sentence-transformers, timm or open_clip write it, a hub name, or one bare file of
weights. Nothing is written here and no value is read: that is for ``write.py`` and for whoever needs a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from posembed.checkpoints.hub import download, looks_like_a_hub_name
from posembed.checkpoints.json_files import read_json
from posembed.checkpoints.pickles import read_pickle
from posembed.checkpoints.tensor_files import AnyTensor, read_header, reading
from posembed.checkpoints.weight_names import PICKLES, WEIGHTS
from posembed.errors import CheckpointError

PART_OF_A_MODEL = re.compile(r".*-\d+-of-\d+\.safetensors$|adapter")

FileState = tuple[int, int, int]


@dataclass(frozen=True)
class WeightFile:
    """One file of weights: its tensors by key, still on the disk, and what else it holds.

    state: ``file_state`` from before the file was opened.
    """

    path: Path
    tensors: Mapping[str, AnyTensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    state: FileState = (0, 0, 0)


@dataclass(frozen=True)
class Checkpoint:
    """A model's files.

    root: the folder or the bare file that was named.
    folder: where config.json and the weights lie (inside root for some sentence encoders); None for a bare file.
    weights: the files of weights; more than one where it is sharded.
    index: the file that says which shard holds what, where there is one.
    """

    root: Path
    folder: Path | None
    weights: tuple[WeightFile, ...]
    index: Path | None = None

    @cached_property
    def tensors(self) -> dict[str, AnyTensor]:
        return {key: tensor for file in self.weights for key, tensor in file.tensors.items()}

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """The config that belongs to the weights, open_clip's own or config.json; None where there is none."""
        return self.settings(self.config_name)

    @property
    def config_name(self) -> str:
        own = "open_clip_config.json"
        if self.folder is None or not (self.folder / own).exists():
            return "config.json"
        # Such a folder may hold the same model for transformers too, with names of its own.
        of_transformers = self.weights[0].path.name.startswith(("model", "pytorch_model"))
        return "config.json" if of_transformers and (self.folder / "config.json").exists() else own

    def settings(self, name: str) -> dict[str, Any] | None:
        """A JSON object beside the weights, or None. Raises CheckpointError where it is there and broken."""
        if self.folder is None or not (self.folder / name).exists():
            return None
        return read_json(self.folder / name)


def open_checkpoint(source: str | Path) -> Checkpoint:
    """The checkpoint at a path, or under a hub name (fetched into huggingface_hub's cache).

    Raises:
        CheckpointError: nothing there, no weights, or files that cannot be read, contradict each other, or want
            to run code.
    """
    path = Path(source)
    try:
        if path.is_dir():
            return open_folder(path)
        if path.exists():
            return open_bare_file(path)
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read: {error.strerror or error}") from error
    if looks_like_a_hub_name(str(source)):
        return open_folder(download(str(source)))
    raise CheckpointError(f"{path}: expected a folder, a weights file or a hub name (owner/model); not there")


def open_bare_file(path: Path) -> Checkpoint:
    if path.suffix != ".safetensors" and path.suffix not in PICKLES:
        known = ", ".join((".safetensors", *PICKLES))
        raise CheckpointError(f"{path}: expected a folder or a weights file ({known})")
    return Checkpoint(root=path, folder=None, weights=(open_weights(path),))


def open_folder(root: Path) -> Checkpoint:
    folder = transformer_folder(root)
    path = weights_path(folder)
    if path.name.endswith(".index.json"):
        return Checkpoint(root, folder, open_shards(path), index=path)
    return Checkpoint(root, folder, (open_weights(path),))


def transformer_folder(root: Path) -> Path:
    """``root``, or the folder that sentence-transformers' modules.json names for its first module."""
    if not (root / "modules.json").exists():
        return root
    modules = read_json(root / "modules.json", expected=list)
    first = modules[0] if modules and isinstance(modules[0], dict) else {}
    name = first.get("path", "")
    if not isinstance(name, str) or (name and not is_plain_name(name)):
        raise CheckpointError(f"{root / 'modules.json'}: names the folder {name!r}, outside its own; not followed")
    return root / name


def weights_path(folder: Path) -> Path:
    """The weights file or the index that a loader would take, or the only safetensors file that is there."""
    for name in WEIGHTS:
        if (folder / name).exists():
            return folder / name
    found = sorted(path.name for path in folder.iterdir() if path.suffix == ".safetensors")
    if parts := [name for name in found if PART_OF_A_MODEL.match(name)]:
        raise CheckpointError(
            f"{folder}: holds {parts[0]}, only a part of a model; expected model.safetensors or the index of all "
            "shards; fetch the rest of the model, or merge the adapter into it"
        )
    if len(found) == 1:
        return folder / found[0]
    reason = f"several weights files and no index ({', '.join(found[:4])})" if found else "no weights"
    raise CheckpointError(f"{folder}: {reason}; expected model.safetensors, an index of shards, or pytorch_model.bin")


def open_weights(path: Path) -> WeightFile:
    state = file_state(path)
    if path.suffix in PICKLES:
        tensors, others = read_pickle(path)
        return WeightFile(path, tensors, {"format": "pt"}, others, state)
    return WeightFile(path, *read_header(path), state=state)


def file_state(path: Path) -> FileState:
    """What changes when a file is written to or replaced."""
    with reading(path):
        found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def open_shards(index: Path) -> tuple[WeightFile, ...]:
    """The shards that an index names: each must lie beside it and hold the keys that it should."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: expected a weight_map from tensor names to file names")
    shards = []
    seen: dict[str, str] = {}
    for name in sorted(set(weight_map.values())):
        if not is_plain_name(name) or Path(name).suffix not in (".safetensors", *PICKLES):
            raise CheckpointError(f"{index}: names {name!r} as a shard; expected a weights file in its own folder")
        if not (index.parent / name).exists():
            raise CheckpointError(f"{index}: names the shard {name}, which is not there; fetch the rest of the model")
        shard = open_weights(index.parent / name)
        for key in shard.tensors:
            if key in seen:
                raise CheckpointError(f"{index}: {key!r} lies in {seen[key]} and in {name}; expected it once")
            seen[key] = name
        shards.append(shard)
    for key, name in weight_map.items():
        if seen.get(key) != name:
            raise CheckpointError(f"{index}: says that {name} holds {key!r}; it does not")
    return tuple(shards)


def is_plain_name(name: str) -> bool:
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}
