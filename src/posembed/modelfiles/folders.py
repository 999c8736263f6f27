"""Which files of a model's folder hold what, by their names and by the files that list others."""

from __future__ import annotations

import re
from pathlib import Path

from posembed.errors import CheckpointError
from posembed.modelfiles.json_files import read_json

PICKLES = (".bin", ".pt", ".pth", ".ckpt")

# In a loader's order of preference: a single file wins over an index of shards, safetensors over pickles.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)
PART_OF_A_MODEL = re.compile(r".*-\d+-of-\d+\.safetensors$|adapter")

# Matches any part of a name between its dots: model.onnx.data, model.onnx_data_1, variables.data-00000-of-00001.
EXPORT = re.compile(
    r"onnx([_-]data.*)?|data-\d.*|ort|h5|hdf5|keras|pb|tflite|msgpack|ot|gguf|ggml|mlmodel|mar|nemo|engine|npz|pte|pt2"
    r"|pdparams|pdopt|pdmodel|pdiparams|distcp|pkl|pickle|joblib"
)


def is_export(name: str) -> bool:
    """Whether a file holds weights for a program other than PyTorch."""
    return any(map(EXPORT.fullmatch, name.lower().split(".")[1:]))


def is_weights(name: str) -> bool:
    """Whether a file holds weights, for PyTorch or for another program."""
    return Path(name).suffix in (".safetensors", *PICKLES) or is_export(name)


def read_modules(root: Path) -> list[tuple[str, Path]]:
    """Returns the kind and the folder, relative to ``root``, of each module of a sentence encoder; [] for others."""
    path = root / "modules.json"
    if not path.exists():
        return []
    modules = []
    for module in read_json(path, expected=list):
        described = module if isinstance(module, dict) else {}
        kind, folder = str(described.get("type", "")).rpartition(".")[2], described.get("path", "")
        if not isinstance(folder, str) or set(folder) & {"\\", "\0"} or ".." in Path(folder).parts or folder[:1] == "/":
            raise CheckpointError(f"{path}: expected folders inside its own; got {folder!r}, which is not followed")
        modules.append((kind, Path(folder)))
    return modules


def read_weight_map(index: Path) -> dict[str, str]:
    """Returns the names of tensors -> names of shards, as an index gives them."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: expected a weight_map from tensor names to file names")
    for name in weight_map.values():
        if set(name) & {"/", "\\", "\0"} or Path(name).suffix not in (".safetensors", *PICKLES):
            raise CheckpointError(f"{index}: names {name!r} as a shard; expected a weights file in its own folder")
    return weight_map


def weights_path(folder: Path) -> Path:
    """Returns the weights file or the index that a loader would take, or else the only safetensors file."""
    for name in WEIGHTS:
        if (folder / name).exists():
            return folder / name
    found = sorted(path.name for path in folder.iterdir() if path.suffix == ".safetensors")
    if parts := [name for name in found if PART_OF_A_MODEL.match(name)]:
        raise CheckpointError(
            f"{folder}: holds {parts[0]}, only a part of a model; expected model.safetensors or the index of all "
            "shards; fetch the rest of the model, or merge the adapter into it"
        )
    if len(found) == 1:
        return folder / found[0]
    reason = f"several weights files and no index ({', '.join(found[:4])})" if found else "no weights"
    raise CheckpointError(f"{folder}: {reason}; expected model.safetensors, an index of shards, or pytorch_model.bin")


def not_needed(files: list[str], modules: list[Path]) -> list[str]:
    """Returns the weights that a resized copy leaves out: for other programs, of other models, second copies.

    A pickle is a second copy if a loader takes the weights of the same folder from safetensors. An
    ``adapter_model.safetensors`` or safetensors in other folders do not make it one. modules: folders of the model.
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
