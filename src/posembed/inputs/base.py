"""The base of all input layers: the declaration of a layer, and loading it from a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.arguments import ChecksCalls, checks_arguments
from posembed.errors import ArgumentError, CheckpointError
from posembed.inputs.weights import fairseq_settings, model_config, read_tensors
from posembed.tables.families import FAMILIES, Family
from posembed.tables.layout import TableLayout

SETTINGS: Mapping[str, tuple[str, ...]] = {
    "dropout": ("hidden_dropout_prob", "embd_pdrop", "embed_dropout", "dropout"),
    "eps": ("layer_norm_eps",),
    "image_size": ("image_size",),
    "pad_id": ("pad_token_id",),
    "scale": ("scale_embedding",),
}
"""Maps a constructor argument to its names in model configs, in the order in which they are tried."""


@checks_arguments
@dataclass(frozen=True, kw_only=True)
class Declaration:
    """The parts of an input layer and where checkpoints keep them.

    Args:
        families: the model types (``model_type`` of config.json) that have the layer. None means fairseq's own files.
        prefix: the prefix of the layer's tensor names in checkpoints; "{side}" becomes "encoder" or "decoder".
        keys: maps a tensor's name in the layer to its keys in checkpoints, best first. The default is prefix + name.
        optional: the names of parts that some checkpoints lack.
        settings: maps a constructor argument to its names in model configs. Entries for other arguments are ignored.
        tokens, positions, types, norm, dropout, projection: the names of the layer's parts, or None if the layer lacks
            them. ``projection`` maps narrower token rows to the model's width.
        layout: the layout of the position table, if ``posembed.tables.families`` does not know these models.
        zero_padding: whether the output is zero at padding.
        family: the layouts of the models' position tables, derived from ``layout`` or ``families`` (do not pass it).

    Examples:
        >>> from posembed.inputs import BertInput
        >>> BertInput.declaration.families
        ('bert', 'electra', 'albert', 'distilbert')
    """

    families: tuple[str, ...] | None
    prefix: str = ""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SETTINGS)
    tokens: str = "embed_tokens"
    positions: str = "embed_positions"
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


class InputLayer(ChecksCalls, nn.Module):
    """An input layer that can be loaded from a checkpoint by its declaration."""

    declaration: ClassVar[Declaration]

    def __init__(self, *args: Any, **sizes: Any) -> None:
        self._require_declaration()
        super().__init__(*args, **sizes)

    @classmethod
    def _require_declaration(cls) -> None:
        if getattr(cls, "declaration", None) is None:
            raise ArgumentError(
                f"{cls.__name__} is a base class: use a model's layer, such as BertInput, or declare a subclass"
            )

    @classmethod
    def from_checkpoint(cls, source: str | Path, *, side: Literal["encoder", "decoder"] | None = None) -> Self:
        """Loads the layer from a model's folder, hub name or fairseq file, in ``eval`` mode and the stored dtype.

        Args:
            side: "encoder" or "decoder", for a model that has both. None means the encoder.

        Raises:
            ArgumentError: a side for a model that has only one.
            CheckpointError: no such model, a model of another family, or files that cannot be read.
        """
        cls._require_declaration()
        declared = cls.declaration
        if side and "{side}" not in declared.prefix:
            raise ArgumentError(f"{cls.__name__} belongs to models with one side; got side={side!r}: leave it out")
        config = cls._config(source)
        names = {
            name: tuple(
                key.format(side=side or "encoder") for key in declared.keys.get(name, (declared.prefix + name,))
            )
            for name in cls._tensor_names()
        }
        optional = [name for name in names if name.partition(".")[0] in declared.optional]
        tensors = read_tensors(source, names, optional=optional)
        with torch.device("meta"):
            layer = cls(**cls._arguments(config, tensors))
        try:
            layer.load_state_dict(tensors, assign=True)
        except RuntimeError as error:
            raise CheckpointError(f"{source}: its tensors do not fit together: {error}") from error
        return layer.eval()

    @classmethod
    def _config(cls, source: str | Path) -> Mapping[str, Any]:
        """Returns the settings of the model, which must belong to a declared family."""
        families = cls.declaration.families
        return fairseq_settings(source) if families is None else model_config(source, families=families)

    @classmethod
    def _tensor_names(cls) -> list[str]:
        """Returns the names of the layer's tensors."""
        raise NotImplementedError

    @classmethod
    def _arguments(cls, config: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Returns the constructor's arguments that the model's config sets. A subclass adds the sizes."""
        taken = inspect.signature(cls).parameters
        found = {
            argument: [config[name] for name in names if name in config]
            for argument, names in cls.declaration.settings.items()
            if argument in taken
        }
        return {argument: values[0] for argument, values in found.items() if values}
