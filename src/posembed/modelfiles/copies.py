"""Writes a changed copy of a checkpoint, complete or not at all. The original is never opened for writing.

A copy can be recognized later, so that ``--overwrite`` never deletes anybody's work. Its record keeps the time of the
resize and, for a folder, each file's hash. All files get that time as their modification time, in even whole seconds,
which every file system can store. Files that are added or changed later differ from the record.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from posembed.errors import CheckpointError
from posembed.files import reason, whole_or_absent
from posembed.modelfiles.checkpoint import Checkpoint, WeightFile, open_weights
from posembed.modelfiles.folders import PICKLES, RECORD, other_files
from posembed.modelfiles.json_files import json_text, read_json
from posembed.modelfiles.raw_files import copy_file, copy_mode, file_state, open_file, write_text
from posembed.modelfiles.safetensors import AnyTensor, byte_count, tensor_sha256, values_of, write_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from posembed.modelfiles.training_files import Place

MOST_NAMED = 5
# Above 64 MB, only evenly spaced blocks of a file are hashed: hashing all bytes would take as long as the copy.
BLOCK, BLOCKS = 1 << 16, 1 << 10
Changes: TypeAlias = "Mapping[str, Tensor | None]"  # new values of tensors by key; None removes a tensor


@contextmanager
def whole_copy(checkpoint: Checkpoint, out: Path, *, overwrite: bool = False) -> Iterator[Copy]:
    """Yields a Copy for the caller to write. Renames it to ``out`` at the end of the block; removes it after an error.

    Raises CheckpointError, and leaves the disk unchanged, if ``out`` exists (without ``overwrite``) or cannot be
    written, or if a file of the checkpoint changes during the block.
    """
    kept, _ = other_files(checkpoint)
    states = {path: file_state(path) for path in (*kept, *checkpoint.weights_paths)}
    states |= {file.path: file.state for file in checkpoint.weights}
    refuse_unsafe_place(checkpoint, out)
    refuse_full_disk(checkpoint, kept, out)
    try:
        with whole_or_absent(out, refusal=why_not_replaced if overwrite else None) as place:
            copy = Copy(checkpoint, kept, place, keeps_form=keeps_form(checkpoint, out))
            yield copy
            for path, state in states.items():
                if not path.exists() or file_state(path) != state:
                    raise CheckpointError(f"{path}: changed while it was read; try again when nothing writes to it")
            if (record := place / RECORD).is_file():
                hashes = {str(path.relative_to(place)): fingerprint(path) for path in files_of(place) if path != record}
                text = json_text({**read_json(record), "files": hashes})
                record.unlink()
                write_text(record, text)
            stamp(place)
            copy.copy_modes()
    except FileExistsError as error:
        remedy = "" if overwrite else "; choose another name, or pass --overwrite (overwrite=True)"
        raise CheckpointError(f"{out}: {error.strerror}{remedy}") from error
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written: {reason(error)}; nothing was left there") from error


def keeps_form(checkpoint: Checkpoint, out: Path) -> bool:
    """Whether a copy has the checkpoint's form: a file of torch.save, or a torch.distributed.checkpoint folder."""
    file = checkpoint.weights[0]
    if checkpoint.folder is not None or file.tree is None:
        return False
    return out.suffix not in (".safetensors", *PICKLES) if file.parts else out.suffix in PICKLES


@dataclass(frozen=True)
class Copy:
    """A copy of ``checkpoint`` at ``place``. kept: the files to copy, other than weights. keeps_form: the result of the
    function of this name."""

    checkpoint: Checkpoint
    kept: tuple[Path, ...]
    place: Path
    keeps_form: bool = False

    def write(
        self,
        *,
        tensors: Changes,
        documents: Mapping[Path, str],
        metadata: Mapping[str, str] | None = None,
        beside: Mapping[Place, Any] | None = None,
    ) -> None:
        """Writes all files. Unchanged tensors and files are copied byte for byte; pickles in folders become
        safetensors.

        documents: complete new texts of files, by path in the checkpoint. metadata: entries to add to a single file's
        header. beside: new values besides the weights of a pickle, by place.
        """
        if self.checkpoint.folder is None:
            (file,) = self.checkpoint.weights
            if not self.keeps_form:
                write_tensors(self.place, edited(file, tensors), {**file.metadata, **(metadata or {})})
                return
            assert file.tree is not None
            changes = {**file.tree.changes(file.tree.model, tensors), **(beside or {})}
            record = (metadata or {}).get("posembed", "{}")
            if not file.parts:
                from posembed.modelfiles.pickles import write_pickle

                write_pickle(self.place, file.tree, changes, record)
                return
            from posembed.modelfiles.distributed import write_distributed

            self.place.mkdir(mode=0o700, exist_ok=True)
            write_distributed(self.place, file.path, file.tree, changes)
            self.write_others({Path(RECORD): record})
            return
        self.place.mkdir(mode=0o700, exist_ok=True)  # private until the files get their permissions
        for file in self.checkpoint.weights:
            target = self.place_of(file.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.path.suffix != ".safetensors" or not tensors.keys().isdisjoint(file.tensors):
                write_tensors(target, edited(file, tensors), file.metadata)
            else:
                copy_file(file.path, target)
        self.write_others(documents)
        if (index := self.checkpoint.index) is not None:
            write_text(self.place_of(index), new_index(self.checkpoint, index, tensors))

    def write_others(self, documents: Mapping[Path, str]) -> None:
        texts = {self.place / path: text for path, text in documents.items()}
        for path in self.kept:
            if self.place_of(path) not in texts:
                copy_file(path, self.place_of(path))
        for target, text in texts.items():
            write_text(target, text)

    def place_of(self, path: Path) -> Path:
        name = safetensors_name(path.name) if path in self.checkpoint.weights_paths else path.name
        return (self.place / path.relative_to(self.checkpoint.root)).with_name(name)

    def copy_modes(self) -> None:
        root, place = self.checkpoint.root, self.place
        if place.is_dir():
            originals = {self.place_of(path): path for path in self.checkpoint.weights_paths}
            for path in place.rglob("*"):
                original = originals.get(path, root / path.relative_to(place))
                if original.exists():
                    copy_mode(original, path)
        copy_mode(root, place)


def refuse_unsafe_place(checkpoint: Checkpoint, out: Path) -> None:
    try:
        root, target = checkpoint.root.resolve(), out.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name with a zero byte
        raise CheckpointError(f"{out}: not a path to write to ({reason(error)}); choose another name") from error
    if target == root or root in target.parents or target in root.parents:
        raise CheckpointError(f"{out}: must be outside {checkpoint.root} and must not contain it; choose another path")
    if checkpoint.folder is None and out.suffix != ".safetensors" and not keeps_form(checkpoint, out):
        formats = ", ".join((".safetensors", *(PICKLES if checkpoint.weights[0].tree else ())))
        written = (
            "folder is written as a folder, or as .safetensors" if root.is_dir() else f"file is written as {formats}"
        )
        raise CheckpointError(f"{out}: this {written}; give it a name that ends so")
    if not out.parent.is_dir():
        raise CheckpointError(f"{out}: the folder {out.parent} does not exist; create it first")


def refuse_full_disk(checkpoint: Checkpoint, kept: tuple[Path, ...], out: Path, *, copies: int = 1) -> None:
    """Refuses copies that cannot fit on the disk, before anything is written. Added rows are not counted."""
    needed = sum(path.stat().st_size for path in kept) + sum(map(byte_count, checkpoint.tensors.values()))
    needed *= copies
    try:
        disk = shutil.disk_usage(out.parent)
    except OSError:  # writing will then report it
        return
    if 0 < disk.free < needed:  # some network file systems report 0
        raise CheckpointError(f"{out}: needs {needed / 1e6:,.1f} MB; {disk.free / 1e6:,.1f} MB of that disk are free")


def edited(file: WeightFile, tensors: Changes) -> dict[str, AnyTensor]:
    after = {key: tensors.get(key, old) for key, old in file.tensors.items()}
    return {key: tensor for key, tensor in after.items() if tensor is not None}


def safetensors_name(name: str) -> str:
    """Returns ``model-1-of-2.safetensors`` for ``pytorch_model-1-of-2.bin``. Other names keep their stem."""
    name = name if name.startswith("diffusion_") else name.replace("pytorch_model", "model")  # diffusers keeps its own
    if name.endswith(".bin.index.json"):
        return name.replace(".bin.index", ".safetensors.index")
    return f"{Path(name).stem}.safetensors" if name.endswith(PICKLES) else name


def new_index(checkpoint: Checkpoint, index: Path, tensors: Changes) -> str:
    metadata = read_json(index).get("metadata")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    kept = {file.path: edited(file, tensors) for file in checkpoint.weights}
    metadata["total_size"] = sum(byte_count(tensor) for file in kept.values() for tensor in file.values())
    if type(metadata.get("total_parameters")) is int:
        metadata["total_parameters"] += sum(
            (0 if new is None else new.numel()) - math.prod(checkpoint.tensors[key].shape)
            for key, new in tensors.items()
        )
    weight_map = {key: safetensors_name(path.name) for path, file in kept.items() for key in file}
    return json_text({"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))})


def stamp(place: Path) -> None:
    """Sets the modification time of a file, or of all files of a folder, to the recorded time of the last resize."""
    with suppress(
        KeyError, IndexError, TypeError, ValueError, OSError, CheckpointError
    ):  # --overwrite then refuses to replace this copy, which is safe
        seconds = last_resize(place)["time"]
        for path in files_of(place):
            os.utime(path, (seconds, seconds))


def files_of(place: Path) -> list[Path]:
    inside = [Path(folder, name) for folder, _, names in os.walk(place) for name in names]
    return inside if place.is_dir() else [place]


def recorded(root: Path, name: str) -> list[dict[str, Any]]:
    """Returns the "resizes" or "tunings" in a folder's record, as ``name`` says, without damaged entries; none without
    a record. Raises CheckpointError if the record is not JSON."""
    given = read_json(root / RECORD).get(name) if (root / RECORD).exists() else None
    return [entry for entry in given if isinstance(entry, dict)] if isinstance(given, list) else []


def last_resize(place: Path) -> dict[str, Any]:
    """Returns the last entry of the record. Raises KeyError, IndexError, TypeError or ValueError if it has no entry, or
    if the checkpoint was fine-tuned since: a resize must not overwrite hours of training."""
    record: Any = read_json(place / RECORD) if place.is_dir() else json.loads(open_weights(place).metadata["posembed"])
    last = dict(record["resizes"][-1])
    if any(tuning["time"] >= last["time"] for tuning in record.get("tunings", [])):
        raise ValueError("fine-tuned since")
    return last


def fingerprint(path: Path) -> str:
    """Returns the SHA-256 of a file's size and bytes; for a large file, of its size and evenly spaced blocks."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        for start in range(0, size, max(BLOCK, -(-size // BLOCKS))):
            file.seek(start)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def why_not_replaced(place: Path) -> str | None:
    """Returns why a resize may not replace ``place``; None if it is an unchanged earlier resize."""
    try:
        others = foreign_entries(place) if place.is_dir() else changes_of_file(place)
    except (OSError, CheckpointError):
        others = ["files that cannot be read"]
    if not others:
        return None
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    found = f"{', '.join(others[:MOST_NAMED])}{more}"
    return f"it is not an unchanged earlier resize; found {found}; choose another name, or remove it yourself"


def foreign_entries(root: Path) -> list[str]:
    """Returns the names of entries that differ from an earlier resize: changed files, links, empty folders."""
    record = root / RECORD
    hashes, seconds = {}, None
    with suppress(KeyError, IndexError, TypeError, ValueError, CheckpointError):
        hashes, seconds = {**read_json(record)["files"]}, last_resize(root)["time"]
    found = []
    for path in (root, *root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir() and not path.is_symlink():
            if not os.listdir(path) and path != root:  # raises OSError for an unreadable folder, which rglob skips
                found.append(f"{name}/")
        elif not has_time(path, seconds) or (path != record and hashes.get(name) != fingerprint(path)):
            found.append(name)
    return sorted(found)


def changes_of_file(path: Path) -> list[str]:
    """Returns [] if a file's time and tables match the resize in its metadata, or else a description of the file."""
    tensors = open_weights(path).tensors
    with suppress(KeyError, IndexError, TypeError, ValueError, RecursionError):
        last = last_resize(path)
        hashes = {change["key"]: change["sha256"][1] for change in last["tensors"] if change["sha256"][1] is not None}
        if has_time(path, last["time"]) and all(
            tensor_sha256(values_of(tensors[key])) == hashes[key] for key in hashes
        ):
            return []
    return ["a file that no resize wrote, or that was changed since"]


def has_time(path: Path, seconds: Any) -> bool:
    state = path.lstat()
    return stat.S_ISREG(state.st_mode) and type(seconds) is int and state.st_mtime_ns == seconds * 10**9
