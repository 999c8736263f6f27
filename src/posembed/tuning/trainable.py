"""What a fine-tuning trains, as parametrizations of a model's own weights.

The model keeps its code: ``module.weight`` is computed from the trained parameters each time. Frozen values are never
given to the optimizer, so their bytes cannot change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from posembed.checkpoints.find import find_tables
from posembed.checkpoints.plan import Edit
from posembed.checkpoints.sources.configs import source_of
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint
from posembed.modelfiles.safetensors import AnyTensor, values_of
from posembed.tuning.draws import pieces
from posembed.tuning.settings import Existing, TuneSettings
from posembed.tuning.settings import LowRank as Rank

MOST_DRAWN = 128
"""The largest number of positions whose movement is reported."""
ATTENTION = ("attn", "attention")
"""Parts of the names of modules whose matrices LoRA changes."""


class NewRows(nn.Module):
    """A table whose rows after the first ``kept`` are a parameter of their own: (kept, D) and (N - kept, D) -> (N, D).

    If a table has dimensions before the rows, these dimensions are not split.
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

    def __init__(self, matrix: Tensor, rank: int, draw: torch.Generator) -> None:
        super().__init__()
        down = torch.randn(len(matrix), rank, generator=draw) / rank**0.5
        self.down = nn.Parameter(down.to(matrix.device))
        self.up = nn.Parameter(matrix.new_zeros(rank, matrix.shape[1]))

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix + self.down @ self.up


@dataclass(frozen=True, eq=False)
class Trainable:
    """A model whose chosen parameters are trained.

    keys: maps each weight's name (before tables were split into old and new rows) to its key in the files.
    groups: the trained parameters for an optimizer, each group with its learning rate.
    """

    model: nn.Module
    keys: Mapping[str, str]
    groups: list[dict[str, Any]]

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def changed(self, checkpoint: Checkpoint) -> dict[str, Tensor]:
        """Returns the weights that differ from those of the checkpoint, by key, in the dtypes of its files."""
        found = {}
        for name, key in self.keys.items():
            before, value = values_of(checkpoint.tensors[key]), getattr(*owner_of(self.model, name)).detach().cpu()
            if not torch.equal(after := value.to(before.dtype), before):
                found[key] = after.clone()
        return found


def trainable(
    model: Any, checkpoint: Checkpoint, settings: TuneSettings, edit: Edit, *, resized: bool, seed: int
) -> Trainable:
    """Chooses what is trained. The model computes in float32, without dropout.

    edit: a resize. resized: True if the checkpoint is the result of the resize, False if it is the source, without new
    rows. seed: for the initial values of low-rank changes. Raises CheckpointError if a weight to train is not in the
    files under a name of its own.
    """
    keys = keys_of(model.float(), checkpoint)
    model.requires_grad_(False)
    without_dropout(model)
    if settings.checkpointing:
        save_activations(model)
    by_key = {key: name for name, key in keys.items()}
    tables = [(by_key.get(change.key), change) for change in edit.tables]
    stored = {id(model.get_parameter(name)): name for name in reversed(keys)}  # of tied weights, one name is enough
    weights = (stored.get(id(each), name) for name, each in model.named_parameters())
    slow = [name for name in weights if "pooler" not in name] if settings.train == "all" else []
    slow += [name or change.key for name, change in tables if settings.train == "table"]
    matrices = attention_matrices(model) if settings.train == "lora" else []
    if settings.train == "lora" and not matrices:
        raise CheckpointError(
            f"{checkpoint.root}: no attention matrix is known, which lora would change; give --train all"
        )
    unknown = [name for name in slow + matrices if name not in keys]
    unknown += [change.key for name, change in tables if not name]
    if unknown:
        raise CheckpointError(
            f"{checkpoint.root}: {unknown[0]} is not in its files under the name that transformers gives it; save the "
            "model again with transformers"
        )
    for name in slow:
        model.get_parameter(name).requires_grad_()
    fast: list[nn.Parameter] = []
    for name, change in tables if resized else []:
        fast.append(new_rows(*owner_of(model, str(name)), kept=change.kept))
    if settings.train == "lora":
        draw = torch.Generator().manual_seed(seed)
        for matrix in matrices:
            module, name = owner_of(model, matrix)
            changed = LowRank(getattr(module, name), settings.part(Rank).rank, draw)
            parametrize.register_parametrization(module, name, changed)
            fast += changed.parameters()
    of_slow = [each for each in model.parameters() if each.requires_grad and all(each is not one for one in fast)]
    groups = [
        {"params": of_slow, "lr": settings.part(Existing).learning_rate},
        {"params": fast, "lr": settings.rows_learning_rate},
    ]
    return Trainable(model, keys, [group for group in groups if group["params"]])


def rows_moved(
    before: Checkpoint, after: Checkpoint, keys: Collection[str], *, old: int = 0, most: int = MOST_DRAWN
) -> dict[int, float]:
    """Returns how far each row of a position table of sequences moved, relative to its norm before, by position.

    keys: the tables that a resize changed, of which the first is measured. The result is empty if none of them is for
    sequences, as in image models. old: the number of positions before the resize. With more than ``most`` positions,
    neighbours are averaged, old and new rows separately, under their middle position. Rows of zeros are left out.
    """
    found = find_tables(before.config, before.tensors).understood if before.config is not None else ()
    tables = [table for table in found if table.key in keys and not table.layout.axes and table.kind == "learned"]
    if not tables:
        return {}
    (_, then, _), (_, now, _) = (
        tables[0].layout.split(tables[0].values(each.tensors).float()) for each in (before, after)
    )
    moved, norms = (now - then).norm(dim=-1), then.norm(dim=-1)
    at_once = max(1, -(-len(moved) // most))
    parts = pieces(min(old, len(moved)), at_once)
    parts += [slice(old + part.start, old + part.stop) for part in pieces(len(moved) - old, at_once)]
    shares = {(part.start + part.stop) // 2: (moved[part] / norms[part])[norms[part] > 0] for part in parts}
    return {middle: share.mean().item() for middle, share in shares.items() if len(share)}


def save_activations(model: Any) -> None:
    """Makes a model compute its activations again in the backward pass. Raises ArgumentError if it cannot."""
    if not model.supports_gradient_checkpointing:
        raise ArgumentError(f"checkpointing: {type(model).__name__} does not support it; leave it out")
    # Version 5 of transformers has another name for it.
    new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
    getattr(model, new if hasattr(model, new) else old)({"use_reentrant": False})


def new_rows(module: Any, name: str, *, kept: int) -> nn.Parameter:
    """Splits a module's table after its first ``kept`` rows. Returns the parameter of the other rows, which is trained.
    The first rows are trained if the table was trained."""
    trained = getattr(module, name).requires_grad
    parametrize.register_parametrization(module, name, NewRows(kept), unsafe=True)
    parts = module.parametrizations[name]
    parts.original0.requires_grad_(trained)
    return parts.original1.requires_grad_()


def keys_of(model: Any, checkpoint: Checkpoint) -> dict[str, str]:
    """Returns the key of each parameter in the files. Leaves out parameters with other names or values in the files.

    A model without its head, or with one, differs from the files in the prefix of its names. transformers also renames
    the weights of some families on loading.
    """
    prefix, found = f"{model.base_model_prefix}.", dict[str, str]()
    renamed = source_of(model.config).loaded_names(model, checkpoint.tensors)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        keys = (name, prefix + name, name.removeprefix(prefix), renamed.get(name, name))
        equal = [key for key in keys if key in checkpoint.tensors and holds(checkpoint.tensors[key], parameter)]
        if equal:
            found[name] = equal[0]
    return found


def holds(stored: AnyTensor, parameter: Tensor) -> bool:
    """Returns whether a tensor in a file has the values of a parameter."""
    same_shape = tuple(stored.shape) == tuple(parameter.shape)
    return same_shape and torch.equal(values_of(stored).to(parameter.dtype), parameter.detach().cpu())


def owner_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, own = name.rpartition(".")
    return model.get_submodule(path), own


def attention_matrices(model: nn.Module) -> list[str]:
    """Returns the names of the matrices inside a model's attention."""
    return [
        f"{path}.weight"
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
