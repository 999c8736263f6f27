"""What is found in a checkpoint: its position tables, and what hangs on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from posembed.checkpoints.tensor_files import AnyTensor
from posembed.tables.layout import TableLayout

FieldPath = tuple[str, ...]
"""Where a field stands in a config: ("text_config", "max_position_embeddings")."""

Config = Mapping[str, Any]
"""What config.json says."""

Tensors = Mapping[str, AnyTensor]
"""The tensors of a model by key, in files or in memory."""

FieldValue = int | tuple[int, int]


class NotUnderstood(Exception):  # noqa: N818 - never leaves this folder
    """Why a tensor that changes with a length is not taken for a table of positions."""


@dataclass(frozen=True, kw_only=True)
class FoundTable:
    """One position table of a checkpoint.

    key: its name in the files. parameter: its name in the model that transformers builds.
    shape: as stored, (N, D) or (1, N, D). dtype: safetensors' name for it.
    layout: how its rows are read; None where that is not understood, and ``doubt`` says why.
    kind: "learned", or "sinusoidal" for fixed sines and cosines.
    found_by: "config" (the model was rebuilt from it), "family" (known of open_clip and timm) or "name" (a guess,
        which is resized only when it is named).
    config_field, config_value: the field that says its length, and what it says; None where there is none.
    patch: (height, width) in pixels of one cell of a grid.
    """

    key: str
    shape: tuple[int, ...]
    dtype: str
    layout: TableLayout | None
    kind: str = "learned"
    found_by: str = "name"
    config_field: FieldPath | None = None
    config_value: FieldValue | None = None
    patch: tuple[int, int] | None = None
    parameter: str = ""
    doubt: str = ""

    @property
    def rows(self) -> int:
        return self.shape[-2] if len(self.shape) > 1 else 0

    @property
    def width(self) -> int:
        return self.shape[-1]

    @property
    def length(self) -> int | None:
        """How many positions a person may feed; None where it is not known how the rows are read."""
        return None if self.layout is None else self.layout.length(self.rows)


@dataclass(frozen=True)
class Found:
    """The position tables of a checkpoint, in the order of its files, and what else a new length touches.

    buffers: by config field, tensors that are no parameters and change shape with it; keys of the files.
    blocked: by config field, why no table of that field can be resized.
    keys: names of the model's tensors -> keys of the files, where transformers renames them.
    stale: tensors that the model no longer keeps, though old files hold them: position ids, causal masks.
    model, known: the model on the meta device and its config object, where transformers knows it.
    """

    tables: tuple[FoundTable, ...]
    buffers: Mapping[FieldPath, tuple[str, ...]] = field(default_factory=dict)
    blocked: Mapping[FieldPath, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    stale: tuple[str, ...] = ()
    model: nn.Module | None = None
    known: Any = None
