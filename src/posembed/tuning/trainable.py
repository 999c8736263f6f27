"""What a fine-tuning trains, as parametrizations of a model's own weights.

The model keeps its code: ``module.weight`` is computed from the trained parameters each time. Frozen values are never
given to the optimizer, so their bytes cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from posembed.checkpoints.edit import Edit
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint
from posembed.modelfiles.safetensors import values_of
from posembed.tuning.settings import TuneSettings

ATTENTION = ("attn", "attention")
"""Parts of the names of modules whose matrices LoRA changes."""


class NewRows(nn.Module):
    """A table whose rows after the first ``kept`` are a parameter of their own: (kept, D) and (N - kept, D) -> (N, D).

    In tables with dimensions before the rows, these stay as they are.
    """

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept = kept

    def forward(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.cat([old, new], dim=-2)

    def right_inverse(self, table: Tensor) -> tuple[Tensor, Tensor]:
        return table[..., : self.kept, :].clone(), table[..., self.kept :, :].clone()


class LowRank(nn.Module):
    """A matrix W (A, B) plus the product of two trained matrices (A, R) and (R, B) (LoRA, arXiv:2106.09685).

    The second starts at zero, so the matrix starts unchanged.
    """

    def __init__(self, shape: torch.Size, rank: int, draw: torch.Generator) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(shape[0], rank, generator=draw) / rank**0.5)
        self.up = nn.Parameter(torch.zeros(rank, shape[1]))

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix + self.down @ self.up


@dataclass(frozen=True, eq=False)
class Trainable:
    """A model whose chosen parameters are trained.

    keys: the keys in the checkpoint's files of each of the model's weights, by the weight's name. groups: the trained
    parameters for an optimizer, each group with its learning rate.
    """

    model: nn.Module
    keys: Mapping[str, list[str]]
    groups: list[dict[str, Any]]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def changed(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        """Returns the weights that differ from those of the checkpoint, by key, in the dtypes of its files."""
        found = {}
        for name, keys in self.keys.items():
            path, _, own = name.rpartition(".")
            value = getattr(self.model.get_submodule(path), own).detach().cpu()
            for key in keys:
                before = values_of(checkpoint.tensors[key])
                if not torch.equal(after := value.to(before.dtype), before):
                    found[key] = after.clone()
        return found


def trainable(model: Any, checkpoint: Checkpoint, settings: TuneSettings, edit: Edit | None) -> Trainable:
    """Chooses what is trained. The model computes in float32, without dropout.

    edit: the resize that made the checkpoint; None without new rows. Raises CheckpointError if a weight that would be
    trained is not in the files under a name of its own.
    """
    keys = keys_of(model.float(), checkpoint)
    model.requires_grad_(False)
    without_dropout(model)
    if settings.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    by_key = {key: name for name, of_name in keys.items() for key in of_name}
    tables = {} if edit is None else {change.key: change.kept for change in edit.tables}
    if missing := [key for key in tables if key not in by_key]:
        raise CheckpointError(f"{checkpoint.root}: {missing[0]} is not a weight of the model that transformers loads")
    everything = settings.train == "all" or (edit is None and settings.train != "lora")
    if everything:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in keys)
    fast: list[nn.Parameter] = []
    slow_tables: list[nn.Parameter] = []
    for key, kept in tables.items():
        module, name = owner_of(model, by_key[key])
        parametrize.register_parametrization(module, name, NewRows(kept), unsafe=True)
        old, new = (getattr(module.parametrizations[name], f"original{part}") for part in (0, 1))
        old.requires_grad_(settings.train in ("all", "table"))
        fast.append(new.requires_grad_())
        slow_tables.append(old)
    if settings.train == "lora":
        draw = torch.Generator().manual_seed(settings.seed)
        for module, name in attention_matrices(model):
            change = LowRank(getattr(module, name).shape, settings.rank, draw)
            parametrize.register_parametrization(module, name, change)
            fast += [change.down, change.up]
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    quick = {id(parameter) for parameter in fast}
    groups = [
        {"params": [each for each in chosen if id(each) not in quick], "lr": settings.learning_rate},
        {"params": [each for each in chosen if id(each) in quick], "lr": settings.rows_learning_rate},
    ]
    return Trainable(model, keys, [group for group in groups if group["params"]])


def keys_of(model: nn.Module, checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Returns the keys of each parameter in the files: keys that end in its name, or that it ends in, of equal values.

    Tied weights have several keys.
    """
    names: dict[str, list[str]] = {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for key, stored in checkpoint.tensors.items():
        for name, parameter in parameters.items():
            alike = f".{key}".endswith(f".{name}") or f".{name}".endswith(f".{key}")
            same_shape = alike and tuple(stored.shape) == tuple(parameter.shape)
            if same_shape and torch.equal(values_of(stored).to(parameter.dtype), parameter.detach().cpu()):
                names.setdefault(name, []).append(key)
    return names


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, own = name.rpartition(".")
    return model.get_submodule(path), own


def attention_matrices(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Returns the modules with a matrix inside a model's attention, and the matrix's name."""
    return [
        (module, "weight")
        for path, module in model.named_modules()
        if any(part in path.lower() for part in ATTENTION)
        and isinstance(getattr(module, "weight", None), nn.Parameter)
        and module.weight.ndim == 2
    ]


def without_dropout(model: nn.Module) -> None:
    """Turns all dropout of a model off. A fine-tuning of few steps does not overfit, and needs no random state."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if "drop" in name and type(value) is float:
                setattr(module, name, 0.0)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
