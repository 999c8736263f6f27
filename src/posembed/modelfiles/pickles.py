"""Reads and writes weights in ``.bin``, ``.pt``, ``.pth`` and ``.ckpt`` files: pickles, read without running code."""

from __future__ import annotations

import datetime
import io
import pathlib
import pickle
import re
import shlex
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import torch

from posembed.errors import CheckpointError
from posembed.modelfiles.folders import OF_DEEPSPEED, RECORD
from posembed.modelfiles.raw_files import create, open_file
from posembed.modelfiles.training_files import NAMESPACES, Place, Tree, leaves, replaced, still_tied, tree_of
from posembed.words import brief

SCRIPT = "constants.pkl"
"""A file that archives of TorchScript contain, but archives of torch.save do not."""
PROTOCOL = re.compile(rb"\x80([\x04\x05])\x95")
"""Matches the beginning of a pickle of protocol 4 or 5, also in an archive of torch.save."""
ENUMERATION = re.compile(r"(\w+\.)+enums\.\w+")
"""Matches the names of enumerations, such as megatron.core.enums.ModelType, whose code may not be installed."""
GETATTR = ("builtins.getattr", "__builtin__.getattr")  # by the protocol of the pickle
MOST_EXPANDED = 2**30
"""The maximum size in bytes of a tensor that is larger than its file because it repeats stored values."""


class Member:
    """Stands for a member of an enumeration, with its value. Each enumeration becomes a subclass with its name."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[type[Member], tuple[Any]]:
        return type(self), (self.value,)


@cache
def enumeration(name: str) -> type[Member]:
    module, _, own = name.rpartition(".")
    return type(own, (Member,), {"__module__": module})


class Named(Member):
    """Stands for a member that is stored by its name, as Python 3.11.0 to 3.11.3 store it."""

    def __init__(self, kind: type[Member], name: str) -> None:
        super().__init__(name)
        self.kind = kind

    def __reduce__(self) -> Any:
        return getattr, (self.kind, self.value)

    def __repr__(self) -> str:
        return f"{self.kind.__module__}.{self.kind.__name__}.{self.value}"


def member(kind: Any, name: Any) -> Named:
    """Reads what ``getattr`` would read of an enumeration. Raises UnpicklingError for anything else."""
    if not (isinstance(kind, type) and issubclass(kind, Member) and isinstance(name, str)):
        raise pickle.UnpicklingError(f"GLOBAL getattr of {kind!r:.80}")
    return Named(kind, name)


PythonPickler: Any = pickle._Pickler  # with methods that can be overridden


class Pickler(PythonPickler):
    """Writes members of enumerations by name. pickle itself would look up the names in modules that may be missing."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if not (isinstance(obj, type) and issubclass(obj, Member)):
            super().save_global(obj, name)
            return
        self.write(pickle.GLOBAL + f"{obj.__module__}\n{obj.__name__}\n".encode())
        self.memoize(obj)


OWN = ModuleType("pickle")
"""Replaces the module pickle in torch.save, for files with members of enumerations. pickle itself is faster."""
vars(OWN).update({**vars(pickle), "Pickler": Pickler})


def save(value: Any, file: IO[bytes]) -> None:
    """Saves a value as torch.save does, including members of enumerations."""
    parts = (part for place, each in leaves(value) for part in (*place, each))
    rare = (part for part in parts if isinstance(part, Member | type | set | frozenset))
    torch.save(value, file, pickle_module=OWN if any(map(has_members, rare)) else pickle)


def has_members(value: Any) -> bool:
    if isinstance(value, set | frozenset):
        return any(map(has_members, value))
    return isinstance(value, Member) or (isinstance(value, type) and issubclass(value, Member))


def harmless() -> list[Any]:
    """Returns the types, besides those of PyTorch, that hold values and run no code: settings, paths, times, and the
    numbers and arrays of numpy."""
    import numpy as np

    kinds = {type(np.dtype(code)) for code in "?bhilqBHILQefdUS"}
    makers = {"scalar": np.float64(0).__reduce__()[0], "_reconstruct": np.zeros(0).__reduce__()[0]}
    modules = ("numpy.core.multiarray", "numpy._core.multiarray")  # numpy before 2, and since
    made = [(maker, f"{module}.{name}") for module in modules for name, maker in makers.items()]
    paths = (pathlib.PurePosixPath, pathlib.PosixPath, pathlib.PureWindowsPath, pathlib.WindowsPath)
    times = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone)
    return [*NAMESPACES, *paths, *times, io.BytesIO, np.dtype, np.ndarray, *kinds, *made]


def read_pickle(path: Path) -> Tree:
    """Reads a file of torch.save: its contents, and where the model is in them.

    The values stay in the file, mapped into memory, until they are used; files from before torch 1.6 are read whole.
    Raises CheckpointError for a file that torch.save did not write, that would run code, or that has no state dict.
    """
    tree = tree_in(path, load_without_running(path))
    size = path.stat().st_size
    for key, value in tree.tensors(tree.model).items():
        if value.numel() * value.element_size() > max(size, MOST_EXPANDED):
            raise CheckpointError(f"{path}: {key!r} claims {value.numel()} values, but the file has {size} bytes")
    return tree


def tree_in(path: Path, loaded: Any) -> Tree:
    """Finds the model in the contents of a file or a folder. Raises CheckpointError if there is no model."""
    if isinstance(loaded, dict) and loaded.get("param_shapes"):
        raise CheckpointError(f"{path}: {OF_DEEPSPEED}")
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path}: expected a state dict (names and tensors), found a {type(loaded).__name__}")
    try:
        tree = tree_of(loaded)
    except RecursionError as error:
        raise CheckpointError(
            f"{path}: one of its dictionaries or lists holds itself; save its state_dict alone"
        ) from error
    if tree is None or not tree.places(tree.model):
        import numpy as np

        found = f"only {', '.join(map(repr, loaded)) or 'nothing'}"
        if any(isinstance(value, np.ndarray) for _, value in leaves(loaded)):
            found += ", with numpy's arrays; make tensors of them with torch.from_numpy"
        raise CheckpointError(f"{path}: expected one state dict (names and tensors), found {brief(found)}")
    if tree.twice:
        raise CheckpointError(f"{path}: holds {min(tree.twice)!r} twice, nested and with dots; save one of them")
    return tree


def write_pickle(path: Path, tree: Tree, changes: Mapping[Place, Any], record: str) -> None:
    """Writes a file of torch.save with new values at some places. record: a text to store in the archive, in a file
    that torch.load ignores. An OSError from writing is not converted."""
    with create(path) as file:
        try:
            save(replaced(tree.root, still_tied(tree.root, changes)), file)
        except RuntimeError as error:  # PyTorch does not say why it cannot write
            raise OSError("PyTorch cannot write there; the disk may be full") from error
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"archive/{RECORD}", record)


def load_without_running(path: Path, part: bytes | None = None) -> Any:
    """Reads a file of torch.save, or ``part``, the bytes of such a file inside another one."""

    def opened() -> AbstractContextManager[IO[bytes]]:
        return open_file(path) if part is None else io.BytesIO(part)

    with opened() as file:
        zipped = file.read(4) == b"PK\3\4"  # the test that torch uses
    if zipped:  # torch.save does not compress, so a compressed record means damage or a zip bomb
        try:
            with opened() as file, zipfile.ZipFile(file) as archive:
                records = archive.infolist()
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
            raise not_a_saved_file(path, str(error)) from error
        if any(record.filename.endswith(f"/{SCRIPT}") for record in records):
            code = f"import torch; torch.save(torch.jit.load({str(path)!r}).state_dict(), 'weights.pt')"
            raise CheckpointError(
                f"{path}: a TorchScript program, which only running it can read; if you trust it, extract its weights, "
                f"and give those: python -c {shlex.quote(code)}"
            )
        if any(record.compress_type or record.file_size != record.compress_size for record in records):
            raise not_a_saved_file(path, "its records are compressed")
    try:
        with warnings.catch_warnings(), ExitStack() as stack:
            warnings.simplefilter("ignore")  # a warning about pickle protocols, meant for developers
            needed = []
            if zipped:
                with opened() as file:
                    needed = torch.serialization.get_unsafe_globals_in_checkpoint(file)
            members: list[Any] = [(enumeration(name), name) for name in needed if ENUMERATION.fullmatch(name)]
            members += [(member, name) for name in needed if members and name in GETATTR]
            stack.enter_context(torch.serialization.safe_globals([*harmless(), *members]))
            whole = path if part is None else io.BytesIO(part)
            return torch.load(whole, map_location="cpu", weights_only=True, mmap=zipped and part is None)
    except Exception as error:  # a damaged pickle can raise nearly anything
        with opened() as file:
            newer = PROTOCOL.search(file.read(8192))
        if newer is not None:
            why = f"a pickle of protocol {newer[1][0]}, and PyTorch reads none above 3 without running code"
            raise CheckpointError(
                f"{path}: {why}; if you trust it, load it and save it with no pickle_protocol"
            ) from error
        refused = re.search(r"(?:GLOBAL |unrecognized function |but got <class ')([\w.]+)", str(error))
        if refused is None:
            raise not_a_saved_file(path, type(error).__name__) from error
        why = f"this pickle needs more than tensors ({refused[1]}) and could run code, so it was not loaded"
        raise CheckpointError(f"{path}: {why}; save its state_dict alone, best as safetensors") from error


def not_a_saved_file(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: not a whole file of torch.save ({reason}); fetch or save it again")
