"""A changed copy of a checkpoint: whole, or not there at all. The original is never opened for writing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from torch import Tensor

from posembed.checkpoints.earlier import RECORD, hashes_of, stamp, why_not_replaced
from posembed.checkpoints.families import is_table_name
from posembed.checkpoints.files import Checkpoint, WeightFile, file_state
from posembed.checkpoints.json_files import json_text, read_json
from posembed.checkpoints.other_files import OtherFiles, other_files
from posembed.checkpoints.tensor_files import AnyTensor, byte_count, copy_file, copy_mode, write_tensors
from posembed.checkpoints.weight_names import PICKLES
from posembed.errors import CheckpointError
from posembed.files import reason, whole_or_absent

# One shard is flushed to the disk while others are still copied, by the kernel and outside of Python's lock.
COPIES_AT_ONCE = 4


def write_checkpoint(
    checkpoint: Checkpoint,
    out: Path,
    *,
    tensors: Mapping[str, Tensor | None],
    documents: Mapping[Path, str],
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Copy ``checkpoint`` to ``out`` with other tensors (None takes one out) and other documents.

    Untouched tensors and files are copied as bytes, shard by shard; pickles become safetensors. ``documents``
    gives whole new texts by their path inside the checkpoint; ``metadata`` is put into the header of a bare file.

    Raises:
        CheckpointError: ``out`` exists (without ``overwrite``) or cannot be written. The disk is as it was.
    """
    with started_copy(checkpoint, out, overwrite=overwrite) as copy:
        copy.finish(tensors=tensors, documents=documents, metadata=metadata)


@contextmanager
def started_copy(checkpoint: Checkpoint, out: Path, *, overwrite: bool = False) -> Iterator[StartedCopy]:
    """A copy that grows while the caller still finds out what changes; it must be finished inside the block.

    Shards without a tensor named like a position table are copied from the start. An error inside the block stops
    them and leaves nothing.
    """
    others = other_files(checkpoint)
    read = [*others.kept.values(), *([checkpoint.index] if checkpoint.index else [])]
    states = {path: file_state(path) for path in read} | {file.path: file.state for file in checkpoint.weights}
    refuse_unsafe_place(checkpoint, out)
    refuse_full_disk(checkpoint, others, out)
    try:
        with whole_or_absent(out, refusal=why_not_replaced if overwrite else None) as place:
            pool = ThreadPoolExecutor(COPIES_AT_ONCE)
            copy = StartedCopy(checkpoint, others, place, pool)
            try:
                yield copy
            finally:
                copy.stop.set()
                pool.shutdown(cancel_futures=True)
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


class StartedCopy:
    def __init__(self, checkpoint: Checkpoint, others: OtherFiles, place: Path, pool: ThreadPoolExecutor) -> None:
        self.checkpoint, self.others, self.place, self.pool = checkpoint, others, place, pool
        self.stop = Event()
        self.started: dict[Path, Future[None]] = {}
        if checkpoint.folder is None:
            return
        place.mkdir(mode=0o700)  # nobody else reads along before every file has its own permissions
        self.inside = place / checkpoint.folder.relative_to(checkpoint.root)
        self.inside.mkdir(exist_ok=True)
        for file in checkpoint.weights:
            if file.path.suffix == ".safetensors" and not any(map(is_table_name, file.tensors)):
                target = self.inside / file.path.name
                self.started[file.path] = pool.submit(copy_file, file.path, target, stop=self.stop)

    def finish(
        self,
        *,
        tensors: Mapping[str, Tensor | None],
        documents: Mapping[Path, str],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Arguments as for ``write_checkpoint``."""
        checkpoint, place = self.checkpoint, self.place
        if checkpoint.folder is None:
            (file,) = checkpoint.weights
            write_tensors(place, edited(file, tensors), {**file.metadata, **(metadata or {})})
            return
        weights = [self.pool.submit(self.write_weights, file, tensors) for file in checkpoint.weights]
        for relative, source in self.others.kept.items():
            if relative not in documents:
                (place / relative).parent.mkdir(parents=True, exist_ok=True)
                copy_file(source, place / relative)
        for relative, text in documents.items():
            write_text(place / relative, text)
        if checkpoint.index is not None:
            write_text(self.inside / index_name(checkpoint.index.name), new_index(checkpoint, tensors))
        for written in weights:
            written.result()

    def copy_modes(self) -> None:
        """Give what was written, and every folder, the permissions of what it was made from."""
        checkpoint, place = self.checkpoint, self.place
        if checkpoint.folder is None:
            copy_mode(checkpoint.root, place)
            return
        for file in checkpoint.weights:
            copy_mode(file.path, self.inside / safetensors_name(file.path.name))
        if checkpoint.index is not None:
            copy_mode(checkpoint.index, self.inside / index_name(checkpoint.index.name))
        for path in place.rglob("*"):
            original = checkpoint.root / path.relative_to(place)
            if original.exists():
                copy_mode(original, path)
        copy_mode(checkpoint.root, place)

    def write_weights(self, file: WeightFile, tensors: Mapping[str, Tensor | None]) -> None:
        target = self.inside / safetensors_name(file.path.name)
        changed = tensors.keys() & file.tensors.keys()
        if file.path in self.started:
            self.started[file.path].result()
            if not changed:
                return
            target.unlink()
        if changed or file.path.suffix != ".safetensors":
            write_tensors(target, edited(file, tensors), file.metadata)
        else:
            copy_file(file.path, target)


def refuse_unsafe_place(checkpoint: Checkpoint, out: Path) -> None:
    """Refuse to write into the checkpoint, around it, or where there is no folder."""
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
    """Refuse before the first byte where a copy cannot fit, not counting the rows that are added."""
    needed = others.size + sum(byte_count(tensor) for tensor in checkpoint.tensors.values())
    try:
        disk = shutil.disk_usage(out.parent)
    except OSError:  # the write itself will tell
        return
    if 0 < disk.free < needed:  # some network file systems report 0
        raise CheckpointError(f"{out}: needs {needed / 1e6:,.1f} MB; {disk.free / 1e6:,.1f} MB of that disk are free")


def edited(file: WeightFile, tensors: Mapping[str, Tensor | None]) -> dict[str, AnyTensor]:
    result = {}
    for key, old in file.tensors.items():
        new = tensors.get(key, old)
        if new is not None:
            result[key] = new
    return result


def safetensors_name(name: str) -> str:
    """``pytorch_model-00001-of-00002.bin`` -> ``model-00001-of-00002.safetensors``; others keep their stem."""
    if not name.endswith(PICKLES):
        return name
    return Path(name.replace("pytorch_model", "model")).with_suffix(".safetensors").name


def index_name(name: str) -> str:
    return "model.safetensors.index.json" if name == "pytorch_model.bin.index.json" else name


def new_index(checkpoint: Checkpoint, tensors: Mapping[str, Tensor | None]) -> str:
    assert checkpoint.index is not None
    metadata = read_json(checkpoint.index).get("metadata")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    kept = {file.path: edited(file, tensors) for file in checkpoint.weights}
    metadata["total_size"] = sum(byte_count(tensor) for file in kept.values() for tensor in file.values())
    if type(metadata.get("total_parameters")) is int:
        metadata["total_parameters"] += sum(
            (0 if new is None else new.numel()) - numel(checkpoint.tensors[key]) for key, new in tensors.items()
        )
    weight_map = {key: safetensors_name(path.name) for path, file in kept.items() for key in file}
    return json_text({"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))})


def numel(tensor: AnyTensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)
