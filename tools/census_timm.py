"""Compares resized models of timm with what timm itself makes of the old file, where it can load it at the new size."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

ROUNDING = 1e-3  # relative: timm computes where old differences lie in float32
LARGE, SMALLER = 448, 256  # a larger default size of images is made smaller


def unlike_timm(old: nn.Module, new: nn.Module, out: Path, call: dict[str, Any]) -> Iterator[str]:
    """Yields what is wrong with a resized file: it has other shapes than the model, or other tables than timm's own."""
    stored = load_file(out / "model.safetensors")
    shapes = {name: tensor.shape for name, tensor in new.state_dict().items()}
    for name in shapes.keys() | stored.keys():
        if name not in stored or name not in shapes or stored[name].shape != shapes[name]:
            yield f"{name}: the model at the new size does not load it as it is"
    load = getattr(sys.modules[type(new).__module__], "checkpoint_filter_fn", None)
    if load is None:
        return
    try:
        with torch.no_grad():
            own = load({name: tensor.clone() for name, tensor in old.state_dict().items()}, new)
    except Exception:
        return  # timm cannot load the old file
    tables = [name for name in call["resized"] if name in own and own[name].shape == shapes[name]]
    call["by_timm"] = len(tables)
    for name in tables:
        apart = float((own[name] - stored[name]).norm() / own[name].norm())
        if apart > ROUNDING:
            yield f"{name}: {100 * apart:.2g}% from what timm makes of it"
