"""The names of weights files."""

from __future__ import annotations

import re
from pathlib import Path

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


def is_plain_name(name: str) -> bool:
    """Whether a name stays in its own folder."""
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}
