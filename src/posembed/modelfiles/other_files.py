"""The files of a checkpoint besides its weights: which of them a resized copy keeps, and which it leaves out.

A copy leaves out everything that may hold the old table: weights in other formats, training state, other models in
subfolders, and binary files of unknown kinds. Each is named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint
from posembed.modelfiles.folders import is_weights, read_modules
from posembed.modelfiles.raw_files import reading

# Files that mislead without the weights they describe: a loader takes the model that adapter_config.json names.
DESCRIPTION = re.compile(r"adapter_config\.json|checkpoint|.*\.index\.json|.*\.ckpt\.(index|meta)")
# Files that hold no table, binary or not: vocabularies, pictures, sounds, a voice.
HARMLESS = (
    ".model", ".spm", ".vocab", ".tiktoken", ".npy", ".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico",
    ".wav", ".mp3", ".flac", ".ogg", ".mp4", ".txt", ".md", ".json", ".jsonl", ".py",
)  # fmt: skip
# Mostly folders; in a worktree and in a submodule, files that lead to the folder.
VERSION_CONTROL = (".git", ".hg", ".svn", ".bzr", ".jj", ".dvc")
SAMPLE = 1 << 16


def other_files(checkpoint: Checkpoint) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """Returns the paths that a copy keeps besides the weights, and the names of what it leaves out.

    Raises CheckpointError for links out of the checkpoint.
    """
    if checkpoint.folder is None:
        return (), ()
    root = checkpoint.root
    with reading(root):
        for path in checkpoint.weights_paths:
            refuse_link_outside(root, path)
        modules = {root / folder for _, folder in read_modules(root)} - {root, checkpoint.folder}
        entries = [path for path in walk(root, root, ()) if path not in checkpoint.weights_paths]
        weights = {path for path in entries if is_weights(path.name) and modules.isdisjoint(path.parents)}
        # Settings in the folder of another model's weights (onnx/config.json) belong to that model.
        other_models = {path.parent for path in weights} - {root, checkpoint.folder}
        kept, left_out = [], []
        for path in entries:
            if path in weights or path.parent in other_models or is_left_out(path, modules):
                left_out.append(f"{path.relative_to(root)}{'/' if path.is_dir() else ''}")
            else:
                refuse_link_outside(root, path)
                kept.append(path)
        return tuple(kept), tuple(left_out)


def walk(root: Path, folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yields every file in order, also behind links to folders, and hidden folders (.git, .cache) themselves."""
    here, names = folder.resolve(), sorted(os.listdir(folder))
    for name in names:
        path = folder / name
        if not path.is_dir() or name.startswith("."):
            yield path
            continue
        refuse_link_outside(root, path)
        if path.resolve() in (*above, here):
            raise CheckpointError(f"{path}: a link to a folder that it is in; remove it from the checkpoint")
        yield from walk(root, path, (*above, here))


def is_left_out(path: Path, modules: set[Path]) -> bool:
    """Whether a file that is not known as weights is left out all the same."""
    in_module = not modules.isdisjoint(path.parents)
    if path.name in VERSION_CONTROL or (DESCRIPTION.fullmatch(path.name) and not in_module):
        return True
    if not path.is_file():
        return path.exists()  # a hidden folder, a pipe; a link that leads nowhere is refused later
    if path.suffix.lower() in HARMLESS or in_module:
        return False
    with path.open("rb") as file:
        return b"\0" in file.read(SAMPLE)


def refuse_link_outside(root: Path, path: Path) -> None:
    """Refuses a link that leads neither into the checkpoint nor into the blobs of the hub cache around it."""
    if not path.is_symlink():
        return
    if not path.exists():
        raise CheckpointError(f"{path}: a link that leads nowhere; fetch the rest of the model, or remove the link")
    root, target = root.resolve(), path.resolve()
    caches = (snapshots.parent / "blobs" for snapshots in root.parents if snapshots.name == "snapshots")
    if not any(place in target.parents for place in (root, *caches)):
        raise CheckpointError(
            f"{path}: a link to {target}, outside of the checkpoint, is not copied; put a copy of that file there"
        )
