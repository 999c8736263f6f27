"""Weights in a ``.bin``, ``.pt``, ``.pth`` or ``.ckpt`` file: a pickle, read without running what it says."""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posembed.checkpoints.tensor_files import DTYPE_NAMES, open_file
from posembed.errors import CheckpointError

# Where training scripts keep the weights when they save more than those.
USUAL_NAMES = ("state_dict", "model_state_dict", "model", "module")


def read_pickle(path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The state dict in a file that torch.save wrote, and the names of what else lies there.

    The values stay in the file, mapped into memory, until they are looked at (not in files of the format from
    before torch 1.6, which cannot be mapped).

    Raises:
        CheckpointError: not a file of torch.save, a pickle that wants to run code, or no state dict inside.
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
        if not isinstance(key, str) or value.layout != torch.strided or value.dtype not in DTYPE_NAMES:
            raise CheckpointError(f"{path}: {key!r} ({value.dtype}, {value.layout}) has no place in safetensors")
        if value.numel() * value.element_size() > size:
            raise CheckpointError(f"{path}: {key!r} says that it has {value.numel()} values, in {size} bytes of file")
        tensors[key] = value.detach()
    return tensors, tuple(others)


def load_without_running(path: Path) -> Any:
    with open_file(path) as file:
        zipped = file.read(4) == b"PK\3\4"  # how torch itself tells
    if zipped:
        refuse_compressed_records(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch speaks to developers here, of pickle protocols
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # a damaged pickle makes its reader raise nearly anything
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused is None:
            raise not_a_saved_file(path, type(error).__name__) from error
        raise CheckpointError(
            f"{path}: this pickle wants more than tensors ({refused[1]}) and could run code, so it was "
            "not loaded; save its state_dict alone, best as safetensors"
        ) from error


def refuse_compressed_records(path: Path) -> None:
    """torch.save compresses nothing, so a compressed record is damage or a zip bomb."""
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise not_a_saved_file(path, str(error)) from error
    for record in records:
        if record.compress_type != zipfile.ZIP_STORED or record.file_size != record.compress_size:
            raise not_a_saved_file(path, f"its record {record.filename!r} is compressed")


def find_state_dict(path: Path, loaded: dict[Any, Any]) -> tuple[dict[Any, Any], str | None]:
    """The state dict, and its name where it lies inside another dict."""
    if any(isinstance(value, Tensor) for value in loaded.values()):
        return loaded, None
    inner = {
        key: value
        for key, value in loaded.items()
        if isinstance(value, dict) and any(isinstance(item, Tensor) for item in value.values())
    }
    for name in USUAL_NAMES:
        if name in inner:
            return inner[name], name
    if len(inner) == 1:
        ((name, weights),) = inner.items()
        return weights, name
    found = f"several: {', '.join(map(repr, inner))}" if inner else f"only {', '.join(map(repr, loaded)) or 'nothing'}"
    raise CheckpointError(f"{path}: expected one state dict (names and tensors), found {found[:200]}")


def not_a_saved_file(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a whole file of torch.save ({reason}); fetch or save it again")
