"""Classifies the files of a model's folder, by their names and by the files that list other files.

A copy leaves out everything that may hold the old table: weights in other formats, training state, other models in
subfolders, and binary files of unknown kinds. The command names each file that it leaves out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from posembed.errors import CheckpointError
from posembed.modelfiles.json_files import read_json
from posembed.modelfiles.raw_files import reading

if TYPE_CHECKING:
    from posembed.modelfiles.checkpoint import Checkpoint

PICKLES = (".bin", ".pt", ".pth", ".pyth", ".ckpt", ".tar")
RECORD = "posembed.json"
"""The name of the record of resizes and fine-tunings, in a folder or in an archive of torch.save."""

# In a loader's order of preference: a single file before an index of shards, safetensors before pickles.
WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
    "open_clip_model.safetensors", "open_clip_pytorch_model.bin",
    "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors.index.json",
    "diffusion_pytorch_model.bin", "diffusion_pytorch_model.bin.index.json",
)  # fmt: skip
OF_SENTENCES = "config_sentence_transformers.json"
SENTENCE_ENCODER = "SentenceTransformer"
NO_SENTENCE_ENCODERS = ("CrossEncoder", "SparseEncoder", "MultiVectorEncoder")
OPEN_CLIP = "open_clip_config.json"
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""The files of a tokenizer's tokens, besides those whose names end in .model."""
OF_DEEPSPEED = (
    "a part of a checkpoint of DeepSpeed's ZeRO, whose optimizer keeps the weights again in other files; merge them "
    "with the script beside them, python zero_to_fp32.py . NEW, and resize NEW"
)
IN_PARTS = {
    "zero_to_fp32.py": OF_DEEPSPEED,
    "mp_rank_*_model_states.pt": OF_DEEPSPEED,
    "common.pt": "a checkpoint of Megatron-Core in parts for its own code; repeat the training command with "
    "--ckpt-convert-format torch --ckpt-convert-save NEW, and resize each model_optim_rng.pt in NEW",
    "__*.metadata": "each rank wrote its own metadata; load it in your training script, and save it with "
    "torch.distributed.checkpoint.save(..., use_collectives=True)",
}
"""Advice for folders that hold a model in parts, by a pattern that matches one of their files."""
SHARD = re.compile(r"-\d+-of-\d+(?=\.\w+$)")
PART_OF_A_MODEL = re.compile(r".*-\d+-of-\d+\.safetensors$|adapter")

# Matches any part of a name between its dots: model.onnx.data, model.onnx_data_1, variables.data-00000-of-00001.
EXPORT = re.compile(
    r"onnx([_-]data.*)?|data-\d.*|ort|h5|hdf5|keras|pb|tflite|msgpack|ot|gguf|ggml|mlmodel|mar|nemo|engine|npz|pte|pt2"
    r"|pdparams|pdopt|pdmodel|pdiparams|distcp|pkl|pickle|joblib"
)

# Files that mislead without the weights they describe: a loader would take the model that adapter_config.json names.
DESCRIPTION = re.compile(r"adapter_config\.json|checkpoint|.*\.index\.json|.*\.ckpt\.(index|meta)")
# Files that hold no table, binary or not: vocabularies, pictures, sounds, voices.
HARMLESS = (
    ".model", ".spm", ".vocab", ".tiktoken", ".npy", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico",
    ".wav", ".mp3", ".flac", ".ogg", ".mp4", ".txt", ".md", ".json", ".jsonl", ".py",
)  # fmt: skip
# These are mostly folders. In worktrees and submodules, .git is a file that points to the folder.
VERSION_CONTROL = (".git", ".hg", ".svn", ".bzr", ".jj", ".dvc")
SAMPLE = 1 << 16


def is_export(name: str) -> bool:
    return any(map(EXPORT.fullmatch, name.lower().split(".")[1:]))


def is_weights(name: str) -> bool:
    """Returns whether a file holds weights, for PyTorch or another framework."""
    return Path(name).suffix in (".safetensors", *PICKLES) or is_export(name)


def has_vocabulary(folder: Path) -> bool:
    """Returns whether a folder holds the tokens of a tokenizer. Without them, transformers returns an empty tokenizer
    of the family, or one whose tokens are the bytes or characters of a text."""
    held = (path for path in folder.iterdir() if path.is_file())
    return any(path.name in VOCABULARIES or path.suffix == ".model" for path in held)


def loaded_instead(files: Iterable[str], new: Collection[str]) -> tuple[str, ...]:
    """Returns the files of a folder that a loader may take for a model's weights instead of its own files, ``new``."""
    folders = {Path(file).parent for file in new if is_weights(file)}

    def loaded(path: Path) -> bool:
        return path.parent in folders and SHARD.sub("", path.name) in WEIGHTS

    return tuple(file for file in files if file not in new and loaded(Path(file)))


def read_modules(root: Path) -> list[tuple[str, Path]]:
    """Returns the kind and folder (relative to ``root``) of each module in modules.json, or [] without it."""
    path = root / "modules.json"
    if not path.exists():
        return []
    modules = []
    for module in read_json(path, expected=list):
        described = module if isinstance(module, dict) else {}
        kind, folder = str(described.get("type", "")).rpartition(".")[2], described.get("path", "")
        if not isinstance(folder, str) or set(folder) & {"\\", "\0"} or ".." in Path(folder).parts or folder[:1] == "/":
            raise CheckpointError(f"{path}: expected only subfolders; got {folder!r}, which is not followed")
        modules.append((kind, Path(folder)))
    return modules


def sentence_class(root: Path) -> str:
    """Returns the class of sentence-transformers that a folder with modules.json is for, such as CrossEncoder; "" for a
    folder without it. Before version 6, only sentence encoders had modules.json."""
    if not (root / "modules.json").exists():
        return ""
    settings = root / OF_SENTENCES
    named = read_json(settings).get("model_type") if settings.exists() else None
    return named if named in NO_SENTENCE_ENCODERS else SENTENCE_ENCODER


def read_weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: expected a weight_map from tensor names to file names")
    for name in weight_map.values():
        if set(name) & {"/", "\\", "\0"} or Path(name).suffix not in (".safetensors", *PICKLES):
            raise CheckpointError(f"{index}: the shard {name!r} must be a weights file in the same folder as the index")
    return weight_map


def refuse_parts(folder: Path) -> None:
    for pattern, why in IN_PARTS.items():
        if any(folder.glob(pattern)):
            raise CheckpointError(f"{folder}: {why}")


def weights_path(folder: Path) -> Path:
    """Returns the weights file or the index that a loader would choose, or else the only safetensors file."""
    for name in WEIGHTS:
        if (folder / name).exists():
            return folder / name
    found = sorted(path.name for path in folder.iterdir() if path.suffix == ".safetensors")
    if parts := [name for name in found if PART_OF_A_MODEL.match(name)]:
        remedy = "fetch the rest of the model with its index of shards, or merge the adapter into it"
        raise CheckpointError(f"{folder}: holds {parts[0]}, only a part of a model; {remedy}")
    if len(found) == 1:
        return folder / found[0]
    refuse_parts(folder)
    reason = f"several weights files and no index ({', '.join(found[:4])})" if found else "no weights"
    raise CheckpointError(f"{folder}: {reason}; expected model.safetensors, an index of shards, or pytorch_model.bin")


def not_needed(files: list[str], modules: list[Path]) -> list[str]:
    """Returns the weights that a resized copy leaves out: weights for other programs or models, and second copies.

    A pickle is a second copy if a loader takes the weights of the same folder from safetensors. Neither an
    ``adapter_model.safetensors`` nor safetensors in other folders count. modules: the folders of the model.
    """
    paths = [Path(file) for file in files]

    def is_needed(path: Path) -> bool:
        if not is_weights(path.name):
            return True
        siblings = {other.name for other in paths if other.parent == path.parent}
        chosen = next((name for name in WEIGHTS if name in siblings), "")
        in_model = path.parent == Path() or not set(modules).isdisjoint(path.parents)
        return in_model and not is_export(path.name) and not (path.suffix in PICKLES and ".safetensors" in chosen)

    return [file for file, path in zip(files, paths, strict=True) if not is_needed(path)]


def other_files(checkpoint: Checkpoint) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Returns the paths of the other files that a copy keeps, and the names of the files that it leaves out.

    Raises CheckpointError for links that lead out of the checkpoint. Weights may be links: they are read as tensors.
    """
    if not checkpoint.root.is_dir():
        return (), ()
    root, folder = checkpoint.root, checkpoint.folder or checkpoint.root
    with reading(root):
        modules = {root / module for _, module in read_modules(root)} - {root, folder}
        entries = [path for path in walk(root, root, ()) if path not in checkpoint.weights_paths]
        weights = {path for path in entries if is_weights(path.name) and modules.isdisjoint(path.parents)}
        # Settings in the folder of another model's weights (onnx/config.json) belong to that model.
        other_models = {path.parent for path in weights} - {root, folder}
        of_open_clip = any(path.name.startswith("open_clip") for path in weights)  # which its config describes
        kept, left_out = [], []
        for path in entries:
            described = of_open_clip and path.name == OPEN_CLIP != checkpoint.config_name
            if path in weights or path.parent in other_models or described or is_left_out(path, modules):
                left_out.append(f"{path.relative_to(root)}{'/' if path.is_dir() else ''}")
            else:
                refuse_link_outside(root, path)
                kept.append(path)
        return tuple(kept), tuple(left_out)


def walk(root: Path, folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yields every file in order, following links to folders. Yields hidden folders (.git), but not their files."""
    here, names = folder.resolve(), sorted(os.listdir(folder))
    for name in names:
        path = folder / name
        if not path.is_dir() or name.startswith("."):
            yield path
            continue
        refuse_link_outside(root, path)
        if path.resolve() in (*above, here):
            raise CheckpointError(f"{path}: a link to a folder that contains it; remove it from the checkpoint")
        yield from walk(root, path, (*above, here))


def is_left_out(path: Path, modules: set[Path]) -> bool:
    in_module = not modules.isdisjoint(path.parents)
    if path.name in VERSION_CONTROL or (DESCRIPTION.fullmatch(path.name) and not in_module):
        return True
    if not path.is_file():
        return path.exists()  # a hidden folder or a pipe; a broken link is refused later
    if path.suffix.lower() in HARMLESS or in_module:
        return False
    with path.open("rb") as file:
        return b"\0" in file.read(SAMPLE)


def refuse_link_outside(root: Path, path: Path) -> None:
    """Refuses a link that leads nowhere, or to a file that belongs to no model. A copy must not hold private files that
    a downloaded model links to."""
    if not path.is_symlink():
        return
    if not path.exists():
        raise CheckpointError(f"{path}: a link that leads nowhere; fetch the rest of the model, or remove the link")
    if not leads_to_model(root, path):
        outside = f"a link to {path.resolve()}, outside the checkpoint"
        raise CheckpointError(f"{path}: {outside}; replace it with a copy of that file")


def leads_to_model(root: Path, path: Path) -> bool:
    """Returns whether a path leads into the checkpoint, into the blobs of the hub cache around it, or to the same
    relative path in the folder of another model."""
    home, target = root.resolve(), path.resolve()
    caches = (snapshots.parent / "blobs" for snapshots in home.parents if snapshots.name == "snapshots")
    if any(place in target.parents for place in (home, *caches)):
        return True
    other = linked_model(root, path)
    return other is not None and leads_to_model(*other)


def linked_model(root: Path, path: Path) -> tuple[Path, Path] | None:
    """Returns the folder of another model that a link leads to, and the path there, if this path has the same name in
    both folders; None for any other link. The folder of a model is recognised by its weights."""
    if not path.is_symlink():
        return None
    inside, written = path.absolute().relative_to(root.absolute()), path.absolute().parent / path.readlink()
    target = Path(os.path.normpath(written))
    if target.parts[-len(inside.parts) :] != inside.parts:
        return None
    if target.parent.resolve() != written.parent.resolve():  # ".." behind a link leads elsewhere than it reads
        return None
    folder = target.parents[len(inside.parts) - 1]
    return (folder, target) if any((folder / name).is_file() for name in WEIGHTS) else None
