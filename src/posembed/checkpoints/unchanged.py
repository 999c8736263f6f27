"""Says why tables stay as they are that no size in a config changes: which need no resize, and what the others are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from torch import nn

from posembed.checkpoints.families import reason_without_table
from posembed.checkpoints.rebuild import Shape, shapes_of
from posembed.tables.modules import is_table_name, parent

UNCHANGED = "no length or image size in config.json changes its shape"
OF_TIMM = (
    f"{UNCHANGED}: timm builds this part of the model, and config.json gives no size of it. posembed resizes such "
    "tables in models of timm alone"
)
ROTATION = re.compile(r"Rotary|R[oO]PE|Rope")  # classes of layers
OF_WINDOW = re.compile(r"(^|\.)relative_position_bias_table$")
BUFFER = f"{UNCHANGED}: it is a buffer, which the model does not train"


def why_unchanged(model: nn.Module, name: str) -> str:
    """Returns why a table is not resized that no config field changes. name: its name in the model, or ""."""
    if name in dict(model.named_buffers()):
        return BUFFER
    return OF_TIMM if name and is_in_timm(model, name) else UNCHANGED


def why_no_table(model: nn.Module) -> str:
    """Returns why a model of transformers without a table needs no resize; "" if unknown."""
    if reason := reason_without_table(model):
        return reason
    layer = next((type(part).__name__ for part in model.modules() if ROTATION.search(type(part).__name__)), "")
    return f"the model rotates queries and keys instead ({layer}), so it needs no resize" if layer else ""


def is_in_timm(model: nn.Module, name: str) -> bool:
    """Returns whether timm's code holds a parameter of a model."""
    return type(model.get_submodule(parent(name))).__module__.partition(".")[0] == "timm"


def other_tables(model: nn.Module, names: Mapping[str, str], changing: Iterable[str]) -> list[str]:
    """Returns the keys of tensors that have a table's name, but neither the shape of rows nor a size that changes.

    names: the name of each key in the model.
    """
    shapes = shapes_of(model)

    def is_table(key: str, shape: Shape) -> bool:
        if OF_WINDOW.search(key) and is_in_timm(model, names[key]):
            return True
        return is_table_name(key) and len(shape) > 3 and sum(size > 1 for size in shape) > 1

    return [key for key, name in names.items() if key not in changing and is_table(key, shapes[name])]
