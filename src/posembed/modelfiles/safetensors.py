"""Reads and writes safetensors files. Tensors are read one by one, or copied byte for byte.

Headers are read and bytes are copied without torch, so that a copy can start before torch is imported.

The format (github.com/huggingface/safetensors): eight bytes with the header's length, a JSON header with each tensor's
dtype, shape and byte range, then the tensors' bytes, end to end. The safetensors library checks the header.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from safetensors import SafetensorError, safe_open

from posembed.errors import CheckpointError
from posembed.files import flush_open, reason
from posembed.modelfiles.raw_files import copy_bytes, create, open_file, write_all

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# A header of 32 MB lists about 300,000 tensors. As Python objects it takes up to 24 times the memory of its text, so a
# larger header could not be read within 1 GiB.
LARGEST_HEADER = 32_000_000

# The names of dtypes in safetensors and in torch.
TORCH_DTYPES = {
    "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64", "F32": "float32", "I32": "int32",
    "U32": "uint32", "F16": "float16", "BF16": "bfloat16", "I16": "int16", "U16": "uint16", "I8": "int8", "U8": "uint8",
    "BOOL": "bool", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
DTYPE_NAMES = {f"torch.{theirs}": name for name, theirs in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, as described by the checked header, without its values."""

    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    stop: int

    def read(self) -> Tensor:
        """Reads the values into new memory. Raises CheckpointError if the file ends early."""
        import torch

        if self.dtype not in TORCH_DTYPES:
            raise CheckpointError(f"{self.path}: a tensor of dtype {self.dtype} cannot be read as numbers")
        dtype = getattr(torch, TORCH_DTYPES[self.dtype])
        if self.start == self.stop:
            return torch.empty(self.shape, dtype=dtype)
        with open_file(self.path) as file:
            file.seek(self.start)
            raw = bytearray(self.stop - self.start)
            count = file.readinto(raw)
        if count != len(raw):
            raise CheckpointError(f"{self.path}: the file was cut short while it was being read; try again")
        return torch.frombuffer(raw, dtype=dtype).reshape(self.shape)


AnyTensor: TypeAlias = "StoredTensor | Tensor"


def values_of(tensor: AnyTensor) -> Tensor:
    return tensor.read() if isinstance(tensor, StoredTensor) else tensor


def first_rows(tensor: AnyTensor, number: int) -> Tensor:
    """Returns the first rows of a tensor (N, D) without reading the others."""
    if not isinstance(tensor, StoredTensor):
        return tensor[:number]
    rows = min(number, tensor.shape[0])
    stop = tensor.start + rows * (tensor.stop - tensor.start) // max(tensor.shape[0], 1)
    return replace(tensor, shape=(rows, tensor.shape[1]), stop=stop).read()


def dtype_name(tensor: AnyTensor) -> str:
    """Returns the dtype's name in safetensors. Raises CheckpointError for a dtype that the format does not support."""
    if isinstance(tensor, StoredTensor):
        return tensor.dtype
    if not can_be_stored(tensor.dtype):
        raise CheckpointError(f"a tensor of {tensor.dtype} cannot be stored in a safetensors file")
    return DTYPE_NAMES[str(tensor.dtype)]


def can_be_stored(dtype: torch.dtype) -> bool:
    return str(dtype) in DTYPE_NAMES


def byte_count(tensor: AnyTensor) -> int:
    return math.prod(tensor.shape) * bits(dtype_name(tensor)) // 8


def bits(dtype: str) -> int:
    """Returns the number of bits of a value, from the dtype's name: 4 for F4, 8 for F8_E4M3."""
    return 8 if dtype == "BOOL" else int(re.findall(r"\d+", dtype)[0])


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Returns the values as stored in a file (little-endian, row by row)."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def tensor_sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor_bytes(tensor)).hexdigest()


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Returns a file's tensors by key, in the order of their bytes, and its metadata.

    Raises CheckpointError if the file is not safetensors or ends early, or if its header is inconsistent.
    """
    try:
        with open_file(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if LARGEST_HEADER < length <= os.fstat(file.fileno()).st_size:
                raise SafetensorError(f"a header of {length} bytes is above the limit of {LARGEST_HEADER}")
            with safe_open(path, framework="np"):  # checks every entry against the others and the file's size
                header = json.loads(file.read(length))
    except (SafetensorError, UnicodeDecodeError, json.JSONDecodeError) as error:
        why = f"not a whole safetensors file ({reason(error)})"
        raise CheckpointError(f"{path}: {why}; fetch or save it again") from error
    metadata: dict[str, str] = header.pop("__metadata__", None) or {}
    tensors = {}
    for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = (8 + length + at for at in entry["data_offsets"])
        tensors[key] = StoredTensor(entry["dtype"], tuple(entry["shape"]), path, start, stop)
    return tensors, metadata


def write_tensors(path: Path, tensors: Mapping[str, AnyTensor], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file. A StoredTensor is copied from its file byte for byte, by the kernel if possible.

    An OSError from writing ``path`` is not converted, so that the caller can name the copy.
    """
    # The widest dtypes come first, as in safetensors itself, so that every tensor is aligned to its width.
    ordered = sorted(tensors.items(), key=lambda item: -bits(dtype_name(item[1])))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for key, tensor in ordered:
        start, end = end, end + byte_count(tensor)
        header[key] = {"dtype": dtype_name(tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"a tensor's name is not valid Unicode, which safetensors requires ({error})") from error
    text += b" " * (-len(text) % 8)

    with create(path) as file:
        write_all(file, struct.pack("<Q", len(text)) + text)
        for _, tensor in ordered:
            if isinstance(tensor, StoredTensor):
                copy_bytes(tensor.path, tensor.start, tensor.stop, file)
            else:
                write_all(file, tensor_bytes(tensor))
        flush_open(file.fileno())
