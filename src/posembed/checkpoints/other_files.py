"""The files of a checkpoint that are not its weights: what a resized copy keeps, and what it goes without."""

from __future__ import annotations

import os
from pathlib import Path

from posembed.checkpoints.files import PICKLES, WEIGHTS, Checkpoint, read_json

# Copies of the weights for other programs: they hold the old table.
EXPORTS = (".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".gguf", ".mlmodel")


def copied_files(checkpoint: Checkpoint) -> list[tuple[Path, Path]]:
    """What is copied as it is: each file, and its path inside the checkpoint."""
    return [(path, relative) for path, relative, kept in other_files(checkpoint) if kept]


def left_out_files(checkpoint: Checkpoint) -> list[str]:
    """What a resized copy goes without: weights in other formats and training state, which hold the old table."""
    return [str(relative) for _, relative, kept in other_files(checkpoint) if not kept]


def other_files(checkpoint: Checkpoint) -> list[tuple[Path, Path, bool]]:
    if checkpoint.folder is None:
        return []
    own = {file.path for file in checkpoint.weights} | {checkpoint.index}
    modules = module_folders(checkpoint.root)
    found = []
    for folder, subfolders, names in os.walk(checkpoint.root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))  # .git, .cache
        for name in sorted(names):
            path = Path(folder, name)
            relative = path.relative_to(checkpoint.root)
            if path not in own and path.is_file():
                found.append((path, relative, is_kept(checkpoint, path, relative, modules)))
    return found


def is_kept(checkpoint: Checkpoint, path: Path, relative: Path, modules: set[str]) -> bool:
    if path.name in WEIGHTS and path.parent == checkpoint.folder:
        return False  # an index or a pickle beside the file that wins
    if path.suffix not in (*EXPORTS, ".safetensors", *PICKLES):
        return True
    return path.parent != checkpoint.folder and relative.parts[0] in modules and path.suffix not in EXPORTS


def module_folders(root: Path) -> set[str]:
    """The folders of sentence-transformers' further modules (dense), whose weights belong to the model."""
    if not (root / "modules.json").exists():
        return set()
    modules = read_json(root / "modules.json", expected=list)
    return {str(module.get("path")) for module in modules if isinstance(module, dict)}
