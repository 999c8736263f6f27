"""Reads a model's weights by their keys, without building the model.

Only the requested tensors are read. From the hub, only the files that hold them are fetched.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import find_settings, open_checkpoint
from posembed.modelfiles.json_files import read_json
from posembed.modelfiles.safetensors import values_of


def read_tensors(
    source: str | Path, names: Mapping[str, tuple[str, ...]], *, optional: Collection[str] = ()
) -> dict[str, Tensor]:
    """Reads tensors into new memory. Returns them under the layer's names.

    ``names`` maps each of these names to the keys under which models store the tensor. A model with a head puts a
    prefix before all keys (``bert.``, ``model.``), which is found automatically. Tensors in ``optional`` may be
    missing.
    """
    required = {name: keys for name, keys in names.items() if name not in optional}
    wanted = ", ".join(" or ".join(keys) for keys in required.values())

    def keys_in(held: Collection[str]) -> dict[str, str]:
        """Maps the layer's names to the model's keys, under the one prefix that has all required keys."""

        def find(prefix: str, keys: tuple[str, ...]) -> str | None:
            return next((prefix + key for key in keys if prefix + key in held), None)

        first = next(iter(required.values()))
        behind = {key.removesuffix(end) for key in held for end in first if f".{key}".endswith(f".{end}")}
        prefixes = [prefix for prefix in sorted(behind) if all(find(prefix, keys) for keys in required.values())]
        if not prefixes:
            some = ", ".join(list(held)[:4])
            raise CheckpointError(
                f"{source}: expected the tensors {wanted}, with no prefix or one shared prefix; found {len(held)} "
                f"tensors, such as {some}. Is it a model of another family?"
            )
        if len(prefixes) > 1:
            raise CheckpointError(
                f"{source}: expected one model; found {wanted} behind each of "
                f"{', '.join(map(repr, prefixes))}. Save the intended one on its own"
            )
        found = {name: find(prefixes[0], keys) for name, keys in names.items()}
        return {name: key for name, key in found.items() if key is not None}

    checkpoint = open_checkpoint(source, wanted=lambda held: keys_in(held).values())
    keys = keys_in(checkpoint.tensors)
    return {name: values_of(checkpoint.tensors[key]).clone() for name, key in keys.items()}


def model_config(source: str | Path, *, families: tuple[str, ...]) -> dict[str, Any]:
    """Reads the config.json of a model that transformers saved, by its folder or hub name.

    If the config has a ``model_type``, it must be one of ``families``. The tensors' keys do not show the type: RoBERTa
    has BERT's keys, but another layout of rows.
    """
    if Path(source).is_file():
        open_checkpoint(source)  # raises its own error for a broken file
        raise CheckpointError(
            f"{source}: expected a model's folder or hub name; got a file. Give {Path(source).parent}"
        )
    path = find_settings(source, "config.json")
    if path is None:
        raise CheckpointError(
            f"{source}: expected a config.json; found none (without a network, only hub models that were fetched "
            "before can be read)"
        )
    config = read_json(path)
    family = config.get("model_type")
    if family is not None and family not in families:
        raise CheckpointError(
            f"{source}: expected a model of type {' or '.join(families)}; this is {family!r}. Use the input "
            "layer of its own family"
        )
    place = config.get("position_embedding_type", "absolute")
    if place != "absolute":
        raise CheckpointError(
            f"{source}: its positions enter in attention (position_embedding_type={place!r}), not at the input"
        )
    return config


def fairseq_settings(path: str | Path) -> Mapping[str, Any]:
    """Reads a model's settings from a fairseq checkpoint, a file that holds them next to the tensors."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: expected a file that fairseq or torch.save wrote; found none")
    tree = open_checkpoint(path).weights[0].tree
    settings = None if tree is None else tree.root.get("args")
    return vars(settings) if isinstance(settings, argparse.Namespace) else {}
