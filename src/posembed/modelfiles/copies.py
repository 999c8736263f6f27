"""A changed copy of a checkpoint: whole, or absent. The original is never opened for writing."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from posembed.errors import CheckpointError
from posembed.files import reason, whole_or_absent
from posembed.modelfiles.checkpoint import Checkpoint, WeightFile
from posembed.modelfiles.earlier import RECORD, hashes_of, stamp, why_not_replaced
from posembed.modelfiles.json_files import json_text, read_json
from posembed.modelfiles.names import PICKLES
from posembed.modelfiles.other_files import OtherFiles, other_files
from posembed.modelfiles.raw_files import copy_file, copy_mode, file_state, write_text
from posembed.modelfiles.safetensors import AnyTensor, byte_count, write_tensors

Changes = Mapping[str, Tensor | None]  # the tensors that differ from the original's; None takes one out


@contextmanager
def whole_copy(checkpoint: Checkpoint, out: Path, *, overwrite: bool = False) -> Iterator[Copy]:
    """Gives a copy to ``write`` inside the block. It takes the name ``out`` at the end, and vanishes after an error.

    Raises CheckpointError, with the disk as it was, if ``out`` exists (without ``overwrite``) or cannot be written, or
    if a file of the checkpoint changed during the block.
    """
    others = other_files(checkpoint)
    read = [*others.kept.values(), *([checkpoint.index] if checkpoint.index else [])]
    states = {path: file_state(path) for path in read} | {file.path: file.state for file in checkpoint.weights}
    refuse_unsafe_place(checkpoint, out)
    refuse_full_disk(checkpoint, others, out)
    try:
        with whole_or_absent(out, refusal=why_not_replaced if overwrite else None) as place:
            copy = Copy(checkpoint, others, place)
            yield copy
            for path, state in states.items():
                if not path.exists() or file_state(path) != state:
                    raise CheckpointError(f"{path}: changed while it was read; try again when nothing writes it")
            if (record := place / RECORD).is_file():
                text = json_text({**read_json(record), "files": hashes_of(place)})
                record.unlink()
                write_text(record, text)
            stamp(place)
            copy.copy_modes()
    except FileExistsError as error:
        remedy = "" if overwrite else "; choose another name, or pass --overwrite (overwrite=True)"
        raise CheckpointError(f"{out}: {error.strerror}{remedy}") from error
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written: {reason(error)}; nothing was left there") from error


@dataclass(frozen=True)
class Copy:
    """A copy of ``checkpoint`` that grows at ``place``."""

    checkpoint: Checkpoint
    others: OtherFiles
    place: Path

    def write(
        self,
        *,
        tensors: Changes,
        documents: Mapping[Path, str],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Writes every file. Untouched tensors and files are copied as bytes; pickles become safetensors.

        documents: whole new texts by their path inside the checkpoint. metadata: for the header of a single file.
        """
        checkpoint, place = self.checkpoint, self.place
        if checkpoint.folder is None:
            (file,) = checkpoint.weights
            write_tensors(place, edited(file, tensors), {**file.metadata, **(metadata or {})})
            return
        place.mkdir(mode=0o700)  # nobody else can read along before every file has its own permissions
        self.inside.mkdir(exist_ok=True)
        for file in checkpoint.weights:
            target = self.inside / safetensors_name(file.path.name)
            if file.path.suffix == ".safetensors" and tensors.keys().isdisjoint(file.tensors):
                copy_file(file.path, target)
            else:
                write_tensors(target, edited(file, tensors), file.metadata)
        for relative, source in self.others.kept.items():
            if relative not in documents:
                copy_file(source, place / relative)
        for relative, text in documents.items():
            write_text(place / relative, text)
        if checkpoint.index is not None:
            write_text(
                self.inside / index_name(checkpoint.index.name), new_index(checkpoint, checkpoint.index, tensors)
            )

    @property
    def inside(self) -> Path:
        """The folder of the weights in the copy."""
        return self.place / (self.checkpoint.folder or self.checkpoint.root).relative_to(self.checkpoint.root)

    def copy_modes(self) -> None:
        """Gives each file and folder of the copy the permissions of its original."""
        checkpoint, place = self.checkpoint, self.place
        if checkpoint.folder is not None:
            renamed = {self.inside / safetensors_name(file.path.name): file.path for file in checkpoint.weights}
            if checkpoint.index is not None:
                renamed[self.inside / index_name(checkpoint.index.name)] = checkpoint.index
            for path in place.rglob("*"):
                original = renamed.get(path, checkpoint.root / path.relative_to(place))
                if original.exists():
                    copy_mode(original, path)
        copy_mode(checkpoint.root, place)


def refuse_unsafe_place(checkpoint: Checkpoint, out: Path) -> None:
    """Refuses a place inside the checkpoint or around it, and one in a folder that does not exist."""
    try:
        root, target = checkpoint.root.resolve(), out.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name with a zero byte
        raise CheckpointError(f"{out}: not a place to write to ({error}); choose another name") from error
    if target == root or root in target.parents or target in root.parents:
        raise CheckpointError(f"{out}: expected a place outside of {checkpoint.root}, which is never written to")
    if checkpoint.folder is None and out.suffix != ".safetensors":
        raise CheckpointError(f"{out}: one file of weights is written as safetensors; name it NAME.safetensors")
    if not out.parent.is_dir():
        raise CheckpointError(f"{out}: the folder {out.parent} is not there; make it first")


def refuse_full_disk(checkpoint: Checkpoint, others: OtherFiles, out: Path) -> None:
    """Refuses a copy that cannot fit, before its first byte. The added rows are not counted."""
    needed = others.size + sum(map(byte_count, checkpoint.tensors.values()))
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
    """``pytorch_model-00001-of-00002.bin`` -> ``model-00001-of-00002.safetensors``; others keep their stem."""
    if not name.endswith(PICKLES):
        return name
    return Path(name.replace("pytorch_model", "model")).with_suffix(".safetensors").name


def index_name(name: str) -> str:
    return "model.safetensors.index.json" if name == "pytorch_model.bin.index.json" else name


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
