"""Weights in a ``.bin``, ``.pt``, ``.pth`` or ``.ckpt`` file: a pickle, read without running its code."""

from __future__ import annotations

import argparse
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posembed.errors import CheckpointError
from posembed.modelfiles.raw_files import open_file
from posembed.modelfiles.safetensors import can_be_stored
from posembed.words import brief

# The names of the weights in files where training scripts save other things too.
USUAL_NAMES = ("state_dict", "model_state_dict", "model", "module")


def read_pickle(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...], dict[str, Any]]:
    """Reads a file of torch.save. Returns its state dict, the names of all other entries, and any fairseq settings.

    The values stay in the file, mapped into memory, until they are used; files from before torch 1.6 are read whole.
    Raises CheckpointError for a file that torch.save did not write, that would run code, or that has no state dict.
    """
    loaded = load_without_running(path)
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path}: expected a state dict (names and tensors), found a {type(loaded).__name__}")
    weights, name = find_state_dict(path, loaded)
    others = [str(key) for key in loaded if name is not None and key != name]
    tensors: dict[str, Tensor] = {}
    size = path.stat().st_size
    for key, value in weights.items():
        if not isinstance(value, Tensor):
            others.append(str(key))
            continue
        if not isinstance(key, str) or value.layout != torch.strided or not can_be_stored(value.dtype):
            raise CheckpointError(f"{path}: {key!r} ({value.dtype}, {value.layout}) cannot be stored in safetensors")
        if value.numel() * value.element_size() > size:
            raise CheckpointError(f"{path}: {key!r} claims {value.numel()} values, but the file has {size} bytes")
        tensors[key] = value.detach()
    settings = loaded.get("args")
    return tensors, tuple(others), vars(settings) if isinstance(settings, argparse.Namespace) else {}


def load_without_running(path: Path) -> Any:
    with open_file(path) as file:
        zipped = file.read(4) == b"PK\3\4"  # the test that torch uses
    if zipped:  # torch.save does not compress, so a compressed record means damage or a zip bomb
        try:
            with zipfile.ZipFile(path) as archive:
                records = archive.infolist()
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
            raise not_a_saved_file(path, str(error)) from error
        if any(record.compress_type or record.file_size != record.compress_size for record in records):
            raise not_a_saved_file(path, "its records are compressed")
    try:
        # fairseq keeps its settings in a Namespace, which holds values and runs nothing.
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")  # a warning about pickle protocols, meant for developers
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # a damaged pickle can raise nearly anything
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused is None:
            raise not_a_saved_file(path, type(error).__name__) from error
        why = f"this pickle needs more than tensors ({refused[1]}) and could run code, so it was not loaded"
        raise CheckpointError(f"{path}: {why}; save its state_dict alone, best as safetensors") from error


def find_state_dict(path: Path, loaded: dict[Any, Any]) -> tuple[dict[Any, Any], str | None]:
    """Returns the state dict, and its name if it is an entry of another dict."""
    if any(isinstance(value, Tensor) for value in loaded.values()):
        return loaded, None
    dicts = {key: value for key, value in loaded.items() if isinstance(value, dict)}
    inner = {key: value for key, value in dicts.items() if any(isinstance(item, Tensor) for item in value.values())}
    for name in (*USUAL_NAMES, *(inner if len(inner) == 1 else ())):
        if name in inner:
            return inner[name], name
    found = f"several: {', '.join(map(repr, inner))}" if inner else f"only {', '.join(map(repr, loaded)) or 'nothing'}"
    raise CheckpointError(f"{path}: expected one state dict (names and tensors), found {brief(found)}")


def not_a_saved_file(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a whole file of torch.save ({reason}); fetch or save it again")
