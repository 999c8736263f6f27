"""One safetensors file: its header read with distrust, its tensors read one by one or copied as bytes.

The format (github.com/huggingface/safetensors): eight bytes with the header's length, a JSON header that gives
each tensor's dtype, shape and byte range, then the bytes themselves, end to end. Nothing here is allocated on a
header's word: every range is held against the file's own size first.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import Tensor

from posembed.errors import CheckpointError
from posembed.files import flush_open, reason

# A header of 32 MB names about 300,000 tensors. Python's own objects cost up to 24 times the text they came from,
# so a larger one could not be read in 1 GiB.
LARGEST_HEADER = 32_000_000
COPY_CHUNK = 16 * 2**20
COPY_PIECE = 256 * 2**20  # a stop is looked for after each

BITS = {
    "C64": 64, "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip

TORCH_DTYPES = {
    "C64": torch.complex64, "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64,
    "F32": torch.float32, "I32": torch.int32, "U32": torch.uint32,
    "F16": torch.float16, "BF16": torch.bfloat16, "I16": torch.int16, "U16": torch.uint16,
    "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that lies in a file: what its header says of it, held against the file's size, and no value."""

    dtype: str
    shape: tuple[int, ...]
    path: Path
    start: int
    stop: int

    def read(self) -> Tensor:
        """The values, in memory of their own. Raises CheckpointError where the file ends early."""
        if self.dtype not in TORCH_DTYPES:
            raise CheckpointError(f"{self.path}: a tensor of dtype {self.dtype} cannot be read as numbers here")
        if self.start == self.stop:
            return torch.empty(self.shape, dtype=TORCH_DTYPES[self.dtype])
        with open_file(self.path) as file:
            file.seek(self.start)
            raw = bytearray(self.stop - self.start)
            count = file.readinto(raw)
        if count != len(raw):
            raise CheckpointError(f"{self.path}: the file was cut short while it was being read; try again")
        return torch.frombuffer(raw, dtype=TORCH_DTYPES[self.dtype]).reshape(self.shape)


AnyTensor = StoredTensor | Tensor


def values_of(tensor: AnyTensor) -> Tensor:
    """The values, read from the file where they lie in one."""
    return tensor.read() if isinstance(tensor, StoredTensor) else tensor


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Every OSError inside the block becomes a CheckpointError that names its file, or else ``path``, and why."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read: {reason(error)}") from error


@contextmanager
def open_file(path: Path) -> Iterator[BufferedReader]:
    """``path``, open for reading. Errors as for ``reading``."""
    with reading(path):
        if not path.is_file():  # a pipe or a device would be waited for, for ever
            raise CheckpointError(f"{path}: expected a file; {'this is none' if path.exists() else 'not there'}")
        with path.open("rb") as file:
            yield file


# --- reading ---------------------------------------------------------------------------------------------------


def read_header(path: Path) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """What a safetensors file holds: its tensors by key, in the order of their bytes, and its metadata.

    Raises:
        CheckpointError: the file is not safetensors, is cut short, or its header contradicts the file or itself.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if len(head) < 8:
            raise broken(path, f"{size} bytes are too few for a header")
        (length,) = struct.unpack("<Q", head)
        if length > size - 8:
            raise broken(path, f"the header says that it is {length} bytes long, in a file of {size} bytes")
        if length > LARGEST_HEADER:
            raise broken(path, f"a header of {length} bytes is beyond the {LARGEST_HEADER} that are read")
        text = file.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise broken(path, f"its header is not a JSON object ({str(error)[:80]})") from error
    if not isinstance(header, dict):
        raise broken(path, "its header is not a JSON object")

    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise broken(path, "its __metadata__ is not a mapping from text to text")
    tensors = {key: stored_tensor(path, key, entry, 8 + length, size) for key, entry in header.items()}
    tensors = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)))
    end = 8 + length
    for key, tensor in tensors.items():
        if tensor.start != end:
            word = "overlaps the tensor before it" if tensor.start < end else "leaves a gap before it"
            raise broken(path, f"{key!r} {word} (bytes {tensor.start} to {tensor.stop}, expected from {end})")
        end = tensor.stop
    if end != size:
        raise broken(path, f"its tensors end at byte {end}, the file at {size}")
    return tensors, metadata


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a name stands twice")
    return mapping


def stored_tensor(path: Path, key: str, entry: Any, data_start: int, size: int) -> StoredTensor:
    """One header entry, checked against itself and the file."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise broken(path, f"the entry of {key!r} does not give dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise broken(path, f"{key!r} has the unknown dtype {str(dtype)[:40]!r}")
    if not is_list_of_sizes(shape) or not is_list_of_sizes(offsets) or len(offsets) != 2:
        raise broken(path, f"the shape or the data_offsets of {key!r} are not lists of sizes")
    start, stop = offsets
    if not start <= stop <= size - data_start:
        raise broken(path, f"{key!r} reaches from byte {start} to {stop}; {size - data_start} bytes are there")
    bits = math.prod(shape) * BITS[dtype]
    if bits != 8 * (stop - start):
        raise broken(path, f"{key!r}, {dtype} of shape {shape}, needs {bits / 8:g} bytes; it has {stop - start}")
    return StoredTensor(dtype, tuple(shape), path, data_start + start, data_start + stop)


def is_list_of_sizes(value: Any) -> bool:
    # At most 64 dimensions of at most 2**63: their product stays small enough to be computed at once.
    return (
        isinstance(value, list)
        and len(value) <= 64
        and all(type(number) is int and 0 <= number < 2**63 for number in value)
    )


def broken(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a whole safetensors file: {reason}; fetch or save it again")


# --- writing ---------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, AnyTensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file. A StoredTensor is copied from its file as bytes, in the kernel where it can be.

    An OSError of ``path`` passes through: the caller adds which copy this file is a part of.
    """
    # The widest dtypes first, as safetensors itself does, so that every tensor stays aligned to its own width.
    ordered = sorted(tensors.items(), key=lambda item: -BITS[dtype_name(item[1])])
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for key, tensor in ordered:
        start, end = end, end + byte_count(tensor)
        header[key] = {"dtype": dtype_name(tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(
            "a tensor's name or the metadata holds half a character (a lone surrogate), which safetensors cannot "
            "store; rename it"
        ) from error
    text += b" " * (-len(text) % 8)

    with create(path) as file:
        write_all(file, struct.pack("<Q", len(text)) + text)
        for _, tensor in ordered:
            if isinstance(tensor, Tensor):
                write_all(file, tensor_bytes(tensor))
            else:
                copy_bytes(tensor.path, tensor.start, tensor.stop, file)
        flush_open(file.fileno())


def copy_file(source: Path, target: Path, *, stop: Event | None = None) -> None:
    """A whole file, copied as ``write_tensors`` copies tensors, and on the disk at the end; less at a stop."""
    with open_file(source) as original:
        size = os.fstat(original.fileno()).st_size
    with create(target) as file:
        for start in range(0, size, COPY_PIECE):
            if stop is not None and stop.is_set():
                return
            copy_bytes(source, start, min(start + COPY_PIECE, size), file)
        flush_open(file.fileno())
    copy_mode(source, target)


def create(path: Path) -> FileIO:
    """A new file that only its owner can read, until ``copy_mode`` has given it the permissions it should have."""
    return FileIO(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600))


def copy_mode(source: Path, target: Path) -> None:
    """Give ``target`` the permissions of ``source``; its owner may read it, and change it if it is a folder."""
    if os.name == "posix":
        with reading(source):
            mode = source.stat().st_mode & 0o777 | (0o700 if source.is_dir() else 0o400)
        with suppress(PermissionError):  # file systems without permissions
            os.chmod(target, mode)


def dtype_name(tensor: AnyTensor) -> str:
    if isinstance(tensor, StoredTensor):
        return tensor.dtype
    if tensor.dtype not in DTYPE_NAMES:
        raise CheckpointError(f"a tensor of {tensor.dtype} has no place in a safetensors file")
    return DTYPE_NAMES[tensor.dtype]


def byte_count(tensor: AnyTensor) -> int:
    if isinstance(tensor, StoredTensor):
        return tensor.stop - tensor.start
    return tensor.numel() * tensor.element_size()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The values as they lie in a file (little-endian, row by row)."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def copy_bytes(source: Path, start: int, stop: int, target: RawIOBase) -> None:
    """Append bytes ``start`` to ``stop`` of ``source`` to ``target``, at most a chunk of them in memory.

    Raises:
        CheckpointError: ``source`` cannot be read.
        OSError: ``target`` cannot be written.
    """
    while start < stop:
        count = copy_in_kernel(source, start, stop - start, target.fileno())
        if count == 0:
            with open_file(source) as file:
                file.seek(start)
                chunk = file.read(min(COPY_CHUNK, stop - start))
            write_all(target, chunk)
            count = len(chunk)
        if count == 0:
            raise CheckpointError(f"{source}: the file was cut short while it was being copied; try again")
        start += count


def copy_in_kernel(source: Path, start: int, count: int, target: int) -> int:
    """How many bytes the kernel copied; 0 if it did not, for whatever reason: reading and writing then tell it."""
    if not hasattr(os, "copy_file_range"):
        return 0
    with open_file(source) as file:
        try:
            return os.copy_file_range(file.fileno(), target, min(count, 2**30), start)
        except OSError:
            return 0


def write_all(file: RawIOBase, data: bytes | memoryview) -> None:
    """All of ``data``: one call to an unbuffered file may write less."""
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) or 0 :]
