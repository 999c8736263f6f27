"""The base of all input layers: what a model declares, and how a checkpoint becomes its layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.errors import ArgumentError
from posembed.inputs.weights import Weights, open_fairseq, open_model
from posembed.tables.families import FAMILIES, Family
from posembed.tables.layout import TableLayout


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The parts of an input layer and where checkpoints keep them.

    Args:
        families: the model types (``model_type`` of config.json) that have the layer. None means fairseq's own files.
        prefix: what checkpoints put before the layer's names of its tensors; "{side}" becomes the side of the model.
        keys: the layer's name of a tensor -> its keys in checkpoints, best first, if they are not prefix + name.
        optional: parts that not every checkpoint has.
        settings: argument of the constructor -> names of that setting in a model's config.
        tokens, positions, types, norm, dropout, projection: the layer's names of its parts; None for a part it lacks.
            ``projection`` widens narrow token rows.
        layout: the layout of the position table, if ``posembed.tables.families`` does not know these models.
        zero_padding: whether the result is zero at padding.
        family: what is known of the models' position table; not an argument.
    """

    families: tuple[str, ...] | None
    prefix: str = ""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tokens: str = ""
    positions: str = ""
    types: str | None = None
    norm: str | None = None
    dropout: str | None = None
    projection: str | None = None
    layout: TableLayout | None = None
    zero_padding: bool = False
    family: Family = field(init=False)

    def __post_init__(self) -> None:
        known = FAMILIES.get(self.families[0] if self.families else "fairseq", Family())
        family = known if self.layout is None else Family(line=self.layout, grid=self.layout)
        object.__setattr__(self, "family", family)


class InputLayer(nn.Module):
    """An input layer that can be loaded from a checkpoint by its declaration."""

    declaration: ClassVar[Declaration]

    @classmethod
    def from_checkpoint(cls, source: str | Path, *, side: Literal["encoder", "decoder"] | None = None) -> Self:
        """Loads the layer, in ``eval`` mode and its stored dtype, from a model's folder, hub name or fairseq file.

        Args:
            side: "encoder" or "decoder" for a model with both. None means the encoder.

        Raises:
            ArgumentError: a side for a model that has only one.
            CheckpointError: no such model, a model of another family, or files that cannot be read.
        """
        declared = getattr(cls, "declaration", None)
        if declared is None:
            raise ArgumentError(f"{cls.__name__} is a base of input layers; call from_checkpoint of a model's layer")
        if side and "{side}" not in declared.prefix:
            raise ArgumentError(f"{cls.__name__} belongs to models of one side; got side={side!r}: leave it out")
        weights = cls._open(source)
        names = {
            name: tuple(
                key.format(side=side or "encoder") for key in declared.keys.get(name, (declared.prefix + name,))
            )
            for name in cls._tensor_names()
        }
        optional = [name for name in names if name.partition(".")[0] in declared.optional]
        tensors = weights.read(names, optional=optional)
        with torch.device("meta"):
            layer = cls(**cls._arguments(weights, tensors))
        return weights.fill(layer, tensors)

    @classmethod
    def _open(cls, source: str | Path) -> Weights:
        families = cls.declaration.families
        return open_fairseq(source) if families is None else open_model(source, families=families)

    @classmethod
    def _tensor_names(cls) -> list[str]:
        """Returns the layer's names of its tensors."""
        raise NotImplementedError

    @classmethod
    def _arguments(cls, weights: Weights, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Returns the constructor's arguments: those that the model's config sets; a subclass adds the sizes."""
        return {
            argument: next(weights.config[name] for name in names if name in weights.config)
            for argument, names in cls.declaration.settings.items()
            if any(name in weights.config for name in names)
        }
