"""A model's files in a folder or on the hub, and readers for each.

Pickles are loaded with ``weights_only``, so that none of their code runs.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from posembed.errors import CheckpointError
from posembed.files import reason

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
Fetch = Callable[[str], Path | None]
"""Maps a file name of the model to its path, or to None if there is no such file."""


def files_of(source: str | Path) -> Fetch:
    """Returns the function that finds files of this model, a folder or hub name, by name."""
    folder = Path(source)
    if folder.is_dir():
        return lambda name: folder / name if (folder / name).is_file() else None
    if folder.exists():
        raise CheckpointError(f"{source}: expected a model's folder or hub name; got a file. Give {folder.parent}")
    if not HUB_NAME.fullmatch(str(source)):
        raise CheckpointError(f"{source}: expected a model's folder or hub name (owner/model); it is not there")
    return lambda name: _fetch_from_hub(str(source), name)


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file of settings."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {reason(error)}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({error}); fetch or save it again") from error
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path}: expected a JSON object; got a {type(settings).__name__}")
    return settings


def tensor_keys(path: Path) -> list[str]:
    """Returns the keys of the tensors in a file of weights."""
    if path.suffix == ".safetensors":
        with _open_safetensors(path) as file:
            return list(file.keys())
    return list(state_dict_of(load_pickle(path)))


def read_tensors(path: Path, keys: Iterable[str]) -> dict[str, Tensor]:
    """Reads these tensors of one file into their own memory: the file may be rewritten while they are in use."""
    if path.suffix == ".safetensors":
        with _open_safetensors(path) as file:
            return {key: file.get_tensor(key).clone() for key in keys}
    state_dict = state_dict_of(load_pickle(path))
    return {key: state_dict[key].clone() for key in keys}


def load_pickle(path: Path) -> dict[str, Any]:
    """Loads a file written by torch.save, memory-mapped rather than read, except files from before torch 1.6."""
    try:
        # fairseq keeps its settings in a Namespace, which holds values and runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {reason(error)}") from error
    except Exception as error:  # reading a damaged pickle can raise nearly anything
        raise CheckpointError(
            f"{path}: not a file of tensors that can be loaded without running its code; save the model's "
            "state dict alone, best as safetensors"
        ) from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path}: expected a state dict; got a {type(loaded).__name__}")
    return loaded


def state_dict_of(loaded: dict[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors by key; fairseq keeps them under "model", next to its settings."""
    state_dict = loaded["model"] if isinstance(loaded.get("model"), dict) else loaded
    return {key: value for key, value in state_dict.items() if isinstance(value, Tensor)}


def _open_safetensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {reason(error)}") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error}); fetch or save it again") from error


def _fetch_from_hub(model: str, name: str) -> Path | None:
    """Returns the path of a hub file, fetched if it is not in the cache; None if the model has no such file."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        return Path(hf_hub_download(model, name))
    except EntryNotFoundError:  # also without a network, if the file is not in the cache
        return None
    except GatedRepoError as error:
        raise CheckpointError(f"{model}: its terms must be accepted on the hub first, and a token set") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise CheckpointError(f"{model}: neither a folder here nor a model that the hub shows you") from error
    except HfHubHTTPError as error:
        raise CheckpointError(f"{model}: the hub did not give {name} ({error})") from error
