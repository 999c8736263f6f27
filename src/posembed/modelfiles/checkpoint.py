"""Opens a model on disk: finds the files that hold its weights, and the settings that belong to them.

The model is a folder in the format of transformers, sentence-transformers, timm or open_clip, a hub name (fetched into
huggingface_hub's cache), a folder of torch.distributed.checkpoint, or one file of weights. Only headers are read here.
"""

from __future__ import annotations

import glob
import re
import shlex
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posembed.errors import CheckpointError
from posembed.files import reason
from posembed.modelfiles.folders import (
    OF_DEEPSPEED,
    OPEN_CLIP,
    PICKLES,
    RECORD,
    WEIGHTS,
    not_needed,
    read_modules,
    read_weight_map,
    refuse_parts,
    weights_path,
)
from posembed.modelfiles.json_files import json_text, read_json
from posembed.modelfiles.raw_files import FileState, file_state, open_file, read_record, reading
from posembed.modelfiles.safetensors import AnyTensor, read_header

if TYPE_CHECKING:
    from posembed.modelfiles.training_files import Tree

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SECONDS_TO_ANSWER = 10
OF_LFS = b"version https://git-lfs"

OTHER_FORMATS = {
    ".npz": "an archive of numpy, as big_vision writes it; load it with timm, and save that model's state_dict",
    ".msgpack": "weights of Flax; load them in transformers before release 5 with from_flax=True, and save the model",
    ".h5": "weights of Keras; load them in transformers before release 5 with from_tf=True, and save the model",
    ".keras": "a model of Keras; convert it to PyTorch first",
    ".gguf": "a model for llama.cpp; resize the checkpoint that it was made from, and convert that again",
    ".onnx": "an exported graph; resize the checkpoint that it was exported from, and export that again",
    "_optim_states.pt": OF_DEEPSPEED,
}
"""Advice for files that hold no PyTorch weights of a model, by the ending of their names."""
PIPELINE = (
    "a pipeline of diffusers; resize its model, {folder}/transformer, to a new folder, and put that in its place. "
    "text_encoder and tokenizer stay as they are: only their own table has their length, which is resized the same way"
)

Wanted = Callable[[Collection[str]], Iterable[str]]  # chooses the tensors to read


@dataclass(frozen=True)
class WeightFile:
    """One file of weights: its tensors by key, which stay on the disk, and its other contents.

    metadata: the metadata of a safetensors header. tree: all contents of a pickle. state: the ``file_state`` from
    before the file was opened. parts: the files of a folder of torch.distributed.checkpoint, which is read as one file.
    """

    path: Path
    tensors: Mapping[str, AnyTensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    tree: Tree | None = None
    state: FileState = (0, 0, 0)
    parts: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A model's files.

    root: the given folder or file. folder: the folder of config.json and the weights (in some sentence encoders, a
    subfolder of root); None for a file, and for a folder of torch.distributed.checkpoint. weights: the weights files,
    several if sharded. index: the file that lists which shard holds which tensor. model_type: the model's type, if it
    is known although the config does not state it.
    """

    root: Path
    folder: Path | None
    weights: tuple[WeightFile, ...]
    index: Path | None = None
    model_type: str = ""

    @cached_property
    def tensors(self) -> dict[str, AnyTensor]:
        return {key: tensor for file in self.weights for key, tensor in file.tensors.items()}

    @cached_property
    def weights_paths(self) -> list[Path]:
        paths = [path for file in self.weights for path in file.parts or (file.path,)]
        return paths + ([self.index] if self.index else [])

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """The config that belongs to the weights, from open_clip_config.json or config.json; None if there is none."""
        exists = self.folder is not None and (self.folder / self.config_name).exists()
        added = {"model_type": self.model_type} if self.model_type else {}
        return self.settings(self.config_name) | added if exists else None

    @property
    def config_name(self) -> str:
        if self.folder is None or not (self.folder / OPEN_CLIP).exists():
            return "config.json"
        # Such a folder may also hold the same model for transformers, under other names.
        of_transformers = self.weights[0].path.name.startswith(("model", "pytorch_model"))
        return "config.json" if of_transformers and (self.folder / "config.json").exists() else OPEN_CLIP

    def settings(self, name: str) -> dict[str, Any]:
        """Reads a JSON object from a file in the folder of the weights; {} if the file does not exist."""
        path = None if self.folder is None else self.folder / name
        return dict(read_json(path)) if path is not None and path.exists() else {}


def open_checkpoint(source: str | Path, *, wanted: Wanted | None = None) -> Checkpoint:
    """Opens the checkpoint at a path or with a hub name (owner/model).

    With ``wanted``, opens only the shards that hold the chosen tensors, and fetches no others from the Hub. Raises
    CheckpointError if the path or its weights are missing, or if files cannot be read, contradict each other or would
    run code.
    """
    path = path_here(source)
    path = download(str(source), wanted=wanted) if path is None else path
    with reading(path):
        if path.is_dir():
            folder = model_folder(path)
            if (folder / ".metadata").is_file():
                refuse_parts(folder)
                return Checkpoint(folder, None, (open_distributed(folder),))
            weights = weights_path(folder)
            if weights.suffix == ".json":
                return Checkpoint(path, folder, open_shards(weights, wanted), index=weights)
            return Checkpoint(path, folder, (open_weights(weights),))
        if why := next((why for end, why in OTHER_FORMATS.items() if path.name.endswith(end)), None):
            raise CheckpointError(f"{path}: {why}")
        if path.suffix not in (known := (".safetensors", *PICKLES)):
            raise CheckpointError(f"{path}: expected a folder or a weights file ({', '.join(known)})")
        return Checkpoint(path, None, (open_weights(path),))


def find_settings(source: str | Path, name: str) -> Path | None:
    """Returns the path of a settings file of a model, or None if it has no such file. Fetches only this file."""
    root = path_here(source)
    if root is None:
        return download_file(str(source), name)
    with reading(root):
        path = model_folder(root) / name
        return path if path.exists() else None


def model_folder(root: Path) -> Path:
    """Returns the folder of the config and the weights: ``root``, or a sentence encoder's first module folder."""
    if (root / "model_index.json").is_file():
        raise CheckpointError(f"{root}: {PIPELINE.format(folder=shlex.quote(str(root)))}")
    modules = read_modules(root)
    return root / modules[0][1] if modules else root


def path_here(source: str | Path) -> Path | None:
    path = Path(source)
    with reading(path):
        if path.exists():
            return path
    if HUB_NAME.fullmatch(str(source)) and not str(source).endswith((".safetensors", *PICKLES)):
        return None
    raise CheckpointError(f"{path}: expected a folder, a weights file or a hub name (owner/model); it is not there")


def open_weights(path: Path) -> WeightFile:
    state = file_state(path)
    with open_file(path) as file:
        if file.read(len(OF_LFS)) == OF_LFS:
            raise CheckpointError(f"{path}: a pointer of Git LFS, which stands for the file; run git lfs pull there")
    if path.suffix in PICKLES or (path.suffix == ".partial" and zipfile.is_zipfile(path)):
        from posembed.modelfiles.pickles import read_pickle  # imports torch, which safetensors do not need

        tree = read_pickle(path)
        tensors = {key: tensor.detach() for key, tensor in tree.tensors(tree.model).items()}
        return WeightFile(path, tensors, {"format": "pt", "posembed": read_record(path, RECORD)}, tree, state)
    return WeightFile(path, *read_header(path), state=state)


def open_distributed(folder: Path) -> WeightFile:
    from posembed.modelfiles.distributed import read_distributed  # imports torch

    state = file_state(folder)
    tree, parts = read_distributed(folder)
    record = json_text(read_json(folder / RECORD)) if (folder / RECORD).exists() else "{}"
    return WeightFile(folder, tree.tensors(tree.model), {"format": "pt", "posembed": record}, tree, state, parts)


def open_shards(index: Path, wanted: Wanted | None) -> tuple[WeightFile, ...]:
    """Opens the shards that an index names. Each must hold exactly the keys that the index lists for it."""
    weight_map = read_weight_map(index)
    needed = {weight_map[key] for key in (weight_map if wanted is None else wanted(weight_map))}
    shards = []
    seen: dict[str, str] = {}
    for name in sorted(needed):
        if not (index.parent / name).exists():
            raise CheckpointError(f"{index}: names the shard {name}, which is not there; fetch the rest of the model")
        shard = open_weights(index.parent / name)
        for key in shard.tensors:
            if key in seen:
                raise CheckpointError(f"{index}: {key!r} is in {seen[key]} and in {name}; expected it once")
            seen[key] = name
        shards.append(shard)
    for key, name in weight_map.items():
        if name in needed and seen.get(key) != name:
            raise CheckpointError(f"{index}: lists {key!r} in {name}, which does not hold it")
    return tuple(shards)


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Turns errors of huggingface_hub in the block into a CheckpointError with advice."""
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        yield
    except CheckpointError:
        raise
    except GatedRepoError as error:
        raise CheckpointError(f"{name}: accept this model's terms on the Hub first, and set a token") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise CheckpointError(f"{name}: not a file or folder here, nor a model that you can see on the Hub") from error
    except Exception as error:  # no network: each HTTP client of huggingface_hub raises its own errors
        why = f"not a file or folder here, and the Hugging Face Hub cannot be reached ({reason(error)})"
        raise CheckpointError(f"{name}: {why}; give the folder of a model on this machine") from error


def download_file(name: str, file: str) -> Path | None:
    """Returns the path of one file of a model, or None if it has no such file. Raises the errors of ``download``."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with hub_errors(name):
        try:
            return Path(hf_hub_download(name, file))
        except EntryNotFoundError:  # also raised without a network, if the file is not in the cache
            return None


def download(name: str, *, wanted: Wanted | None = None) -> Path:
    """Fetches a model into huggingface_hub's cache, except files already there, and returns its folder.

    With ``wanted``, fetches only config.json and the weights files that hold the chosen tensors. Raises CheckpointError
    if the model does not exist or cannot be accessed, or if there is neither a network nor an earlier copy.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    with hub_errors(name):
        try:
            siblings = HfApi().model_info(name, timeout=SECONDS_TO_ANSWER).siblings or []
            files = [sibling.rfilename for sibling in siblings]
            if wanted is None:
                path = download_file(name, "modules.json") if "modules.json" in files else None
                modules = [folder for _, folder in read_modules(path.parent) if folder.parts] if path else []
                ignored = not_needed(files, modules)
            else:
                chosen = next((file for file in WEIGHTS if file in files), "")
                needed = {"config.json", chosen}
                if chosen.endswith(".index.json") and (index := download_file(name, chosen)) is not None:
                    weight_map = read_weight_map(index)
                    needed |= {weight_map[key] for key in wanted(weight_map)}
                ignored = [file for file in files if file not in needed]
            return Path(snapshot_download(name, ignore_patterns=[glob.escape(file) for file in ignored]))
        except (CheckpointError, RepositoryNotFoundError, HFValidationError):  # the Hub has answered
            raise
        except Exception:
            with suppress(Exception):
                return Path(snapshot_download(name, local_files_only=True))
            raise
