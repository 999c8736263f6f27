"""Reads and writes folders of torch.distributed.checkpoint, as FSDP2 writes them: one tree of values, in pieces.

The file ``.metadata`` lists the entries and, for each piece of an entry, its file, start and length. A piece is a whole
file of ``torch.save`` inside another file, and holds a block of a tensor or any other value. A tensor is read only when
its values are needed. A copy keeps the pieces of unchanged entries byte for byte. A file of ``torch.save`` beside them,
such as Lightning's ``meta.pt``, is one more entry, with the file's name, and so is a file of settings.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posembed.errors import CheckpointError
from posembed.files import reason
from posembed.modelfiles.folders import PICKLES, refuse_link_outside
from posembed.modelfiles.json_files import json_text, read_json
from posembed.modelfiles.pickles import load_without_running, save, tree_in
from posembed.modelfiles.raw_files import copy_bytes, copy_file, create, open_file, read_bytes, write_all
from posembed.modelfiles.training_files import FLAT, Place, Tree, at, replaced
from posembed.torch_internals import storage_info

METADATA = ".metadata"
LARGEST_METADATA = 2**28
SETTINGS = ("config.json", "params.json", "model_args.json")
PARTS = {"state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"}
ZIP = b"PK\3\4"
INERT = re.compile(r"torch\.distributed\.checkpoint\.(metadata|filesystem)|pathlib(\._local)?")
"""Matches modules whose objects become a ``StandIn``. Python 3.11.0 also saved enum members as calls of getattr."""
DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
FIELDS: tuple[Any, ...] = (Tensor.shape, Tensor.dtype, Tensor.ndim, Tensor.layout, Tensor.requires_grad)
KNOWN = {Tensor.numel, Tensor.dim, Tensor.size, Tensor.element_size, Tensor.is_floating_point}.union(
    each.__get__ for each in FIELDS
)
"""The methods and properties of a tensor that do not need its values."""


class StandIn:
    """Stands for an object of a pickle: holds the values that the object was saved with, but none of its code."""

    state: Any = None

    def __new__(cls, *_: Any) -> StandIn:
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Inert(pickle.Unpickler):
    """Reads the pickle ``.metadata`` without running any code in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.BytesIO(read_bytes(path, most=LARGEST_METADATA)))
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if INERT.fullmatch(module) or (module, name) == ("builtins", "getattr"):
            return StandIn
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if (module, name) in (("torch", "Size"), ("torch.serialization", "_get_layout")):
            return tuple
        why = f"it needs more than PyTorch's own planner writes ({module}.{name}) and could run code"
        raise CheckpointError(f"{self.path}: {why}; save it with that planner")


@dataclass(frozen=True)
class Piece:
    """A torch.save file inside a file. offsets, sizes: of the tensor block that it holds; offsets: None for other
    values."""

    path: Path
    start: int
    stop: int
    offsets: tuple[int, ...] | None = None
    sizes: tuple[int, ...] = ()

    def read(self) -> Any:
        with open_file(self.path) as file:
            file.seek(self.start)
            return load_without_running(self.path, file.read(self.stop - self.start))


@dataclass(frozen=True)
class Entry:
    """A value of a folder: its place in the nested contents, and its pieces. shape, dtype: only for tensors."""

    place: Place
    pieces: tuple[Piece, ...]
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32

    def read(self) -> Any:
        return self.pieces[0].read() if self.shape is None else Unread.of(self.shape, self.dtype, self.pieces)


class Unread(Tensor):
    """A tensor of a folder. Every operation that needs the values reads them again from the files."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: torch.dtype, pieces: tuple[Piece, ...]) -> Unread:
        unread = torch.empty(shape, dtype=dtype, device="meta").as_subclass(cls)
        unread.pieces = pieces
        return unread

    def read(self) -> Tensor:
        """Reads the values into new memory. Raises CheckpointError if the pieces are not the blocks of this tensor."""
        new, held = torch.empty(self.shape, dtype=self.dtype), torch.zeros(self.shape, dtype=torch.bool)
        for piece in self.pieces:
            block, corner = piece.read(), piece.offsets or ()
            where = tuple(slice(start, start + size) for start, size in zip(corner, piece.sizes, strict=True))
            same = isinstance(block, Tensor) and block.dtype == new.dtype and block.shape == new[where].shape
            if not same or block.shape != piece.sizes:
                raise CheckpointError(f"{piece.path}: holds another tensor than {METADATA} lists; save it again")
            new[where], held[where] = block.detach(), True
        if not held.all():
            raise CheckpointError(f"{self.pieces[0].path.parent}: {METADATA} lists no data for a part of a tensor")
        return new

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.data_ptr:  # no other tensor shares its memory
            return id(args[0])
        if func in KNOWN:
            return super().__torch_function__(func, types, args, kwargs)
        return func(*map(with_values, args), **{name: with_values(each) for name, each in (kwargs or {}).items()})


def with_values(argument: Any) -> Any:
    if type(argument) in (list, tuple):
        return type(argument)(map(with_values, argument))
    return argument.read() if isinstance(argument, Unread) else argument


def read_distributed(root: Path) -> tuple[Tree, tuple[Path, ...]]:
    """Reads a folder of torch.distributed.checkpoint. Returns its contents, nested as they were saved, and the paths of
    its files. A list becomes a dictionary whose keys are the indices.

    Raises CheckpointError for a folder that is incomplete, that would run code, or that has no state dict.
    """
    entries, _ = read_metadata(root)
    contents: dict[Any, Any] = {}
    files = [root / METADATA, *dict.fromkeys(piece.path for entry in entries.values() for piece in entry.pieces)]
    for name, entry in entries.items():
        with checked(root / METADATA):
            inside: Any = contents
            for each in entry.place[:-1]:
                inside = inside.setdefault(each, {})
            if inside.setdefault(entry.place[-1], value := entry.read()) is not value:
                raise ValueError(f"{name!r} is there twice")
    for path in sorted(root.iterdir()):
        read = load_without_running if path.suffix in PICKLES else read_json if path.name in SETTINGS else None
        if read and path.is_file() and not path.is_symlink() and path.name not in contents:
            with suppress(CheckpointError):  # it needs code, or is no whole file: a copy leaves it out
                contents[path.name] = read(path)
                files.append(path)
    return tree_in(root, contents), tuple(files)


def read_metadata(root: Path) -> tuple[dict[str, Entry], dict[str, Any]]:
    """Returns the entries that .metadata lists, by name, and the whole content of .metadata."""
    path = root / METADATA
    with checked(path):
        said = Inert(path).load().state
        if more := said.keys() - PARTS:
            why = f"holds {min(more)}, which PyTorch's own planner does not write"
            raise CheckpointError(f"{path}: {why}; save it with that planner")
        pieces, places, entries = {}, said["planner_data"] or {}, {}
        for key, info in said["storage_data"].items():
            where = key.state.get("offset")
            pieces[key.state["fqn"], where] = piece_of(root, where, **info.state)
        for name, entry in said["state_dict_metadata"].items():
            *above, last = places.get(name, (name,))
            if not {*map(type, (*above, last))} <= {str, int}:
                raise ValueError(f"the place of {name!r} is {(*above, last)!r}")
            place = (*above, last)
            if flat := FLAT.fullmatch(str(last)):
                optimizer, _, part = flat[1].rpartition(".")
                place = (*above, optimizer or "optimizer", part, flat[2], flat[3])
            if entry.state is None:
                entries[name] = Entry(place, (pieces[name, None],))
                continue
            held = {each.state["offsets"]: each.state["sizes"] for each in entry.state["chunks"]}
            blocks = tuple(replace(pieces[name, offsets], sizes=sizes) for offsets, sizes in held.items())
            dtype, layout, *_ = entry.state["properties"].state
            entries[name] = Entry(place, blocks, entry.state["size"], dtype)
            if layout != tuple(str(torch.strided)):
                raise ValueError(f"{name!r} is sparse")
            if math.prod(entry.state["size"]) * dtype.itemsize > sum(each.stop - each.start for each in blocks):
                raise ValueError(f"{name!r} claims more values than its files have")
        ordered = sorted((piece.path, piece.start, piece.stop) for each in entries.values() for piece in each.pieces)
        for (file, _, stop), (following, start, _) in pairwise(ordered):
            if file == following and start < stop:
                raise ValueError(f"two values are at byte {start} of {file.name}")
    return entries, said


@contextmanager
def checked(path: Path) -> Iterator[None]:
    """Turns every error in the block into a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise CheckpointError(f"{path}: not whole ({type(error).__name__}: {reason(error)}); save it again") from error


def piece_of(
    root: Path, where: tuple[int, ...] | None, relative_path: str, offset: int, length: int, **more: Any
) -> Piece:
    """Returns a piece. Raises CheckpointError unless it is a whole torch.save file inside a file of this folder."""
    path = root / relative_path
    if path.parent != root or path.name != relative_path:
        raise CheckpointError(f"{root / METADATA}: {relative_path!r} is not a name in this folder")
    refuse_link_outside(root, path)
    with open_file(path) as file:
        file.seek(offset)
        if any(more.values()) or file.read(len(ZIP)) != ZIP:
            raise CheckpointError(f"{path}: compressed, or in another format than that of torch.save; save it without")
        if not 0 < length <= os.fstat(file.fileno()).st_size - offset:
            raise CheckpointError(f"{path}: ends early; fetch or save it again")
    return Piece(path, offset, offset + length, where)


def write_distributed(place: Path, root: Path, tree: Tree, changes: Mapping[Place, Any]) -> None:
    """Writes a copy of the folder ``root`` to ``place`` with new values. Unchanged values keep their bytes and their
    blocks; a changed tensor becomes one block. An OSError from writing is not converted."""
    from torch.distributed.checkpoint import metadata as kinds

    entries, said = read_metadata(root)
    new, values = replaced(tree.root, changes), dict[str, Any]()
    for name, entry in entries.items():
        with suppress(KeyError):  # it is left out
            values[name] = at(new, entry.place)
    changed = {name for name, value in values.items() if value is not at(tree.root, entries[name].place)}
    parts = [(name, piece) for name in values for piece in entries[name].pieces[: 1 if name in changed else None]]
    described: dict[str, Any] = {
        name: kinds.BytesStorageMetadata()
        if entries[name].shape is None
        else kinds.TensorStorageMetadata(kinds.TensorProperties(value.dtype), torch.Size(value.shape), [])
        for name, value in values.items()
    }
    infos: dict[Any, Any] = {}
    parts.sort(key=lambda part: (part[1].path, part[1].start))
    for path, of_file in groupby(parts, lambda part: part[1].path):
        with create(place / path.name) as file:
            for name, piece in of_file:
                start, value, offsets = file.tell(), values[name], None
                if name not in changed:
                    copy_bytes(piece.path, piece.start, piece.stop, file)
                else:
                    save(value.detach().clone() if isinstance(value, Tensor) else value, buffer := io.BytesIO())
                    write_all(file, buffer.getbuffer())
                    if isinstance(value, Tensor):
                        piece = replace(piece, offsets=(0,) * value.ndim, sizes=tuple(value.shape))
                if piece.offsets is not None:
                    offsets = torch.Size(piece.offsets)
                    described[name].chunks.append(kinds.ChunkStorageMetadata(offsets, torch.Size(piece.sizes)))
                infos[kinds.MetadataIndex(name, offsets)] = storage_info(path.name, start, file.tell() - start)
    for name in tree.root.keys() - {entry.place[0] for entry in entries.values()}:
        if new.get(name) is tree.root[name]:
            copy_file(root / name, place / name)
        elif name in new:
            with create(place / name) as file:
                if name in SETTINGS:
                    write_all(file, json_text(new[name]).encode())
                else:
                    save(new[name], file)
    places = said["planner_data"]
    if places is not None:
        places = {name: each for name, each in places.items() if name in values or name not in entries}
    with create(place / METADATA) as file:
        listed = kinds.Metadata(described, places, infos, kinds.StorageMeta(), said.get("version"))
        write_all(file, pickle.dumps(listed))
