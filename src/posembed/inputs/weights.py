"""A model's weights by its own keys, without building the model: only the requested tensors are read.

From the hub, only the files that hold them are fetched.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from posembed.errors import CheckpointError
from posembed.inputs.files import Fetch, files_of, load_pickle, read_json, read_tensors, state_dict_of, tensor_keys

Layer = TypeVar("Layer", bound=nn.Module)

# In a loader's order of preference: a whole file wins over an index of shards.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
FAIRSEQ_PAD_ID = 1  # in every dictionary that fairseq makes


@dataclass(frozen=True)
class Weights:
    """The location of a model's tensors, and its settings.

    source: the model as the caller named it, for messages.
    config: the model's own settings.
    files: tensor key -> the name of the file that holds it.
    fetch: finds a file by its name.
    """

    source: str
    config: Mapping[str, Any]
    files: Mapping[str, str]
    fetch: Fetch

    def setting(self, *names: str, default: Any) -> Any:
        """Returns the first of these settings that the config has."""
        return next((self.config[name] for name in names if name in self.config), default)

    def read(self, names: Mapping[str, tuple[str, ...]], *, optional: Collection[str] = ()) -> dict[str, Tensor]:
        """Reads tensors, named as the layer names them.

        Args:
            names: the layer's name -> the keys under which models store that tensor, without the prefix that a
                model with a head puts before all keys (``bert.``, ``model.``), which is found automatically.
            optional: the layer's names of tensors that not every model has.

        Raises:
            CheckpointError: a missing tensor, or several models in the checkpoint.
        """
        keys = self._keys(names, optional)
        tensors: dict[str, Tensor] = {}
        for file in sorted({self.files[key] for key in keys.values()}):
            path = self.fetch(file)
            if path is None:
                raise CheckpointError(f"{self.source}: {file} is missing; fetch the rest of the model")
            tensors |= read_tensors(path, [key for key in keys.values() if self.files[key] == file])
        return {name: tensors[key] for name, key in keys.items()}

    def fill(self, layer: Layer, tensors: Mapping[str, Tensor]) -> Layer:
        """Gives these weights to a layer built on the meta device and returns it in ``eval`` mode."""
        try:
            layer.load_state_dict(tensors, assign=True)
        except RuntimeError as error:
            raise CheckpointError(f"{self.source}: its tensors do not fit together: {error}") from error
        return layer.eval()

    def _keys(self, names: Mapping[str, tuple[str, ...]], optional: Collection[str]) -> dict[str, str]:
        """Maps the layer's names to keys of this checkpoint, under the one prefix that has all required keys."""
        required = [name for name in names if name not in optional]
        prefixes = [
            prefix
            for prefix in _prefixes(self.files, names[required[0]])
            if all(self._find(prefix, names[name]) for name in required)
        ]
        wanted = ", ".join(" or ".join(names[name]) for name in required)
        if not prefixes:
            some = ", ".join(list(self.files)[:4])
            raise CheckpointError(
                f"{self.source}: expected tensors {wanted}, alone or all behind one prefix; found {some}, ... "
                f"({len(self.files)} in all). Is it a model of another family?"
            )
        if len(prefixes) > 1:
            raise CheckpointError(
                f"{self.source}: expected one model; found {wanted} behind each of "
                f"{', '.join(map(repr, prefixes))}. Save the one that is meant on its own"
            )
        found = {name: self._find(prefixes[0], keys) for name, keys in names.items()}
        return {name: key for name, key in found.items() if key is not None}

    def _find(self, prefix: str, keys: tuple[str, ...]) -> str | None:
        return next((prefix + key for key in keys if prefix + key in self.files), None)


def open_model(source: str | Path, *, families: tuple[str, ...]) -> Weights:
    """Opens the weights of a model that transformers saved, by its folder or hub name.

    Args:
        families: the model types (``model_type`` of config.json) that have the requested input layer. Keys do not
            show the type: RoBERTa's are BERT's, but its rows are read differently.

    Raises:
        CheckpointError: no such model, a model of another family, or files that cannot be read.
    """
    fetch = files_of(source)
    path = fetch("config.json")
    if path is None:
        raise CheckpointError(
            f"{source}: expected a config.json; there is none (and of hub models only those that were fetched "
            "before, where there is no network)"
        )
    config = read_json(path)
    family = config.get("model_type")
    if family is not None and family not in families:
        raise CheckpointError(
            f"{source}: expected a model of type {' or '.join(families)}; this is {family!r}. Take the input "
            "layer of its own family"
        )
    place = config.get("position_embedding_type", "absolute")
    if place != "absolute":
        raise CheckpointError(
            f"{source}: its positions enter in attention (position_embedding_type={place!r}), not at the input"
        )
    return Weights(str(source), config, _file_of_each_tensor(str(source), fetch), fetch)


def open_fairseq(path: str | Path) -> Weights:
    """Opens the weights of a model that fairseq saved: one file, with the settings next to the tensors."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: expected a file that fairseq or torch.save wrote; it is not there")
    loaded = load_pickle(path)
    settings = loaded.get("args") or argparse.Namespace()
    files = dict.fromkeys(state_dict_of(loaded), path.name)
    return Weights(str(path), vars(settings), files, lambda name: path.with_name(name))


def _file_of_each_tensor(source: str, fetch: Fetch) -> dict[str, str]:
    """Maps tensor keys to file names, from the one file of weights or from the index of its shards."""
    for name in WEIGHT_FILES:
        path = fetch(name)
        if path is not None:
            return _weight_map(path) if path.suffix == ".json" else dict.fromkeys(tensor_keys(path), name)
    raise CheckpointError(f"{source}: expected one of {', '.join(WEIGHT_FILES)}; there is none")


def _weight_map(index: Path) -> dict[str, str]:
    """Maps tensor keys to the shards that hold them, files in the folder of the index."""
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise CheckpointError(f"{index}: expected a weight_map from tensor names to file names; there is none")
    for name in shards.values():
        if Path(name).name != name:
            raise CheckpointError(f"{index}: expected the names of files beside it; got {name!r}")
    return shards


def _prefixes(keys: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Returns the prefixes before any of these endings: nothing, or names that end in a dot."""
    endings_found = ((key, ending) for key in keys for ending in endings if f".{key}".endswith(f".{ending}"))
    return sorted({key.removesuffix(ending) for key, ending in endings_found})
