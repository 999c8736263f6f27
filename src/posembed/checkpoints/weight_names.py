"""What files of weights are called."""

from __future__ import annotations

import re

PICKLES = (".bin", ".pt", ".pth", ".ckpt")

# In the order in which a loader prefers them: a single file beside an index wins, safetensors before pickles.
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.bin",
)

# Any part of a name between its dots: model.onnx.data, model.onnx_data_1, variables.data-00000-of-00001.
EXPORT = re.compile(
    r"onnx([_-]data.*)?|data-\d.*|ort|h5|hdf5|keras|pb|tflite|msgpack|ot|gguf|ggml|mlmodel|mar|nemo|engine|npz|pte|pt2"
    r"|pdparams|pdopt|pdmodel|pdiparams|distcp|pkl|pickle|joblib"
)


def is_export(name: str) -> bool:
    """Whether a file holds weights for another program than PyTorch."""
    return any(map(EXPORT.fullmatch, name.lower().split(".")[1:]))
