"""Runs small copies of a model at its old and its new size, to check tables along axes before a resize is written.

Every row of a table must be read at both sizes, the model must run at both, and the cells of an image, a video or a
sound must be in the order that the layout says. If the model itself reads images of the new size with its old table,
its answers are compared with those of a copy whose table is resized.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from posembed.checkpoints.choose import WINDOWED, Target
from posembed.checkpoints.found import ConfigField, PositionTable, TableSize, pair
from posembed.checkpoints.rebuild import last_line, models_around, takes_text
from posembed.checkpoints.trial import (
    LOUDER,
    MOST_CELLS,
    SHORT_TEXT,
    TOLERANCE,
    NotTried,
    TooLarge,
    image_inputs,
    random_total,
    small_copy,
    text_inputs,
    undisturbed,
)
from posembed.errors import ArgumentError
from posembed.tables.layout import TableLayout
from posembed.tables.resize import changed_axes, resize_table, takes
from posembed.tables.resize_methods import kernels_of

FEW_CELLS = (12, 16)  # cells along an axis of a copy whose true size would take too long
SAME = 1e-5  # relative differences below this are rounding
BLOCK = 2  # the side of a block of patches, in models that merge patches
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer
SMOOTH = 3  # waves of random tables


def refused(old_model: nn.Module, new_model: nn.Module, target: Target, changes: Sequence[TableSize]) -> str:
    """Returns the reason to refuse the resize of tables along axes, or "". Raises NotTried if no copy could be run."""
    first, reasons = changes[0].table, []
    windowed = target.field is not None and WINDOWED.search(target.field.path[-1])
    remedy = "; if the window is larger than its smallest map, first set a larger image_size in config.json" * bool(
        windowed
    )
    for change in changes:
        for layout in (change.table.layout, change.layout):
            if len(layout.axes) == 2 and layout.axes[0].relative and len(set(layout.shape)) > 1:
                return (
                    f"no run shows in which order the model reads the differences of a grid of "
                    f"{' x '.join(str(axis.size) for axis in layout.axes)} (transformers' BEiT exchanges height and "
                    "width); pass a square size"
                )
    for path, narrow, few_layers in product(models_around(old_model, first.parameter), (True, False), (True, False)):
        models = [model.get_submodule(path) for model in (old_model, new_model)]
        tables = {change.table.parameter.removeprefix(f"{path}.".removeprefix(".")): change for change in changes}
        try:
            old, new = copies(models, target, first, narrow=narrow, few_layers=few_layers)
        except NotTried as reason:
            reasons.append(reason)
            continue
        held = {name for name, _ in old.named_parameters()}
        if not {NUMBER.sub("*", name) for name in tables} <= {NUMBER.sub("*", name) for name in tables.keys() & held}:
            reasons.append(NotTried("its layer is not among the few of a small copy"))
            continue
        try:
            found = unread(old, tables)
        except TooLarge:
            raise
        except NotTried as reason:
            reasons.append(reason)
            continue
        try:
            if problem := found or unread(new, tables):
                return problem
        except NotTried as reason:
            return f"a small copy of the model runs at its own size, but not at the new one ({reason}){remedy}"
        problem = fails_whole(*models)
        return problem and problem + remedy
    raise reasons[0] if reasons else NotTried("no model of transformers contains it")


def fails_whole(old_model: nn.Module, new_model: nn.Module) -> str:
    """Runs the whole models on the meta device, which computes only shapes: a copy of few layers may lack the stage in
    which a new window does not fit. Returns an objection if only the old model runs, or ""."""
    failures = []
    for model in (old_model, new_model):
        failure: Exception | None = None
        with undisturbed(), torch.no_grad(), torch.device("meta"):
            for inputs in inputs_of(model):
                try:
                    model(**inputs)
                    failure = None
                    break
                except Exception as error:  # each model raises its own errors
                    failure = error
        failures.append(failure)
    before, after = failures
    if before is not None or after is None:
        return ""
    return f"the model runs at its own size, but not at the new one ({type(new_model).__name__}: {last_line(after)})"


def copies(
    models: Sequence[nn.Module], target: Target, table: PositionTable, *, narrow: bool, few_layers: bool
) -> list[nn.Module]:
    """Builds small copies of the old and the new model. Images of many cells are made smaller in both."""
    values: tuple[Any, ...] = (None, None)
    field = target.field
    cells = max(change.length for change in target.changes)
    if field is not None and cells > MOST_CELLS and not WINDOWED.search(field.path[-1]):
        values = smaller(table, field)
    with undisturbed():
        try:
            made = []
            for model, value in zip(models, values, strict=True):
                setting = None if field is None or value is None else (field, value)
                made.append(small_copy(model, narrow=narrow, few_layers=few_layers, setting=setting))
            return made
        except NotTried:
            raise
        except Exception as error:
            raise NotTried(f"{type(models[0]).__name__}: {last_line(error)}") from error


def smaller(table: PositionTable, field: ConfigField) -> tuple[Any, ...]:
    """Returns two values of a field that give few cells."""
    cells = [each for each in table.cells if each.field == field]
    values = [[each.value(few) for each in cells] for few in FEW_CELLS]
    return tuple(sides[0] if isinstance(field.value, int) else sides for sides in values)


def unread(model: nn.Module, tables: Mapping[str, TableSize]) -> str:
    """Runs a copy. Returns an objection if it does not read every row of its tables, or "". Raises NotTried."""
    held = {name: parameter for name, parameter in model.named_parameters() if name in tables}
    for parameter in held.values():
        parameter.requires_grad = True
    failure: Exception | None = None
    with undisturbed():
        for inputs in inputs_of(model):
            try:
                read, projected = gradients_and_cells(model, inputs, list(held.values()))
            except Exception as error:
                failure = failure or error
                continue
            for name, gradient in zip(held, read, strict=True):
                if problem := wrong_rows(tables[name].table, gradient, projected):
                    return problem if len(held) == 1 else f"{name}: {problem}"
            return ""
    raise NotTried(f"{type(model).__name__}: {last_line(failure)}" if failure else "it takes no input that is known")


def gradients_and_cells(
    model: nn.Module, inputs: Mapping[str, Any], tensors: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns the gradients of a run with respect to tensors, and to the outputs of all convolutions and linear layers.

    Patches become cells in one of these layers. Where a table is added to its output, both have the same gradient.
    """
    outputs: list[Tensor] = []
    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Conv3d | nn.Linear)]
    hooks = [layer.register_forward_hook(lambda _layer, _inputs, output: outputs.append(output)) for layer in layers]
    try:
        total = random_total(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    outputs = [output for output in outputs if output.requires_grad]
    found = torch.autograd.grad(total, (*tensors, *outputs), allow_unused=True, materialize_grads=True)
    return found[: len(tensors)], found[len(tensors) :]


def wrong_rows(table: PositionTable, gradient: Tensor, projected: Sequence[Tensor]) -> str:
    """Returns an objection if a gradient shows that a model does not read every row of a table in its order, or ""."""
    layout = table.layout
    rows = layout.rows_in(gradient)
    cells = rows[layout.front : len(rows) - layout.tail]
    used = cells.any(dim=1)
    if not cells.shape[1] or (len(cells) == 1 and layout.axes[0].relative):
        return ""  # nothing to read, or one bias for all scores, which changes no attention
    if layout.axes[0].name == "coordinate":
        return "" if used[-1] else "the largest coordinate does not read the last row"
    if not used.all():
        return f"the model reads {int(used.sum())} of its {len(cells)} rows"
    apart = len(layout.axes) == 1 or len(layout.dims) > 1  # no order to be shown
    if apart or any(axis.relative for axis in layout.axes):
        return ""
    merged = [cells]
    if layout.grid and len(cells) % (BLOCK * BLOCK) == 0:  # Qwen's patches come in blocks, which it merges
        grid = cells.unflatten(0, (math.isqrt(len(cells)) // BLOCK, BLOCK, -1, BLOCK))
        merged.append(grid.transpose(1, 2).flatten(0, 3))
    in_order = any(shows_order(each, projected) for each in merged)
    return "" if in_order else "the cells of its input do not read its rows in order"


def shows_order(cells: Tensor, projected: Sequence[Tensor]) -> bool:
    """Returns whether the gradients at the cells (N, D) are those at the output of a layer, cell by cell."""
    for output in projected:
        flat = output.flatten(2).transpose(1, 2) if output.dim() > 3 else output  # (B, N, D)
        if flat.shape[-2:] != cells.shape:
            continue
        here = flat.reshape(-1, *cells.shape).sum(dim=0)
        some = torch.linspace(0, len(cells) - 1, min(len(cells), MOST_CELLS)).long()
        nearest = (normalize(cells[some]) @ normalize(here).T).argmax(dim=1)
        if torch.allclose(here, cells, rtol=TOLERANCE, atol=TOLERANCE * float(cells.abs().max())) or torch.equal(
            nearest, some
        ):
            return True
    return False


def inputs_of(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a model: patches, a sound, an image or a video, or a text with boxes."""
    accepted, config = signature(model.forward).parameters, cast(Any, model.config)
    area, side = getattr(config, "num_patches", None), getattr(config, "patch_size", None)
    if {"pixel_values", "spatial_shapes"} <= set(accepted) and type(area) is int and type(side) is int:
        grid, channels = math.isqrt(area), getattr(config, "num_channels", 3)
        texts = text_inputs(model, SHORT_TEXT) if takes_text(model) else {}
        mask = {name: torch.ones(1, area) for name in ("pixel_attention_mask", "attention_mask") if name in accepted}
        yield {
            **texts,
            **dict(list(mask.items())[:1]),
            "pixel_values": torch.randn(1, area, channels * side * side),
            "spatial_shapes": torch.tensor([[grid, grid]]),
        }
    if {"hidden_states", "grid_thw"} <= set(accepted) and type(side) is int:
        height = math.isqrt(getattr(config, "num_position_embeddings", 0) or 0)
        columns = getattr(config, "in_channels", 3) * getattr(config, "temporal_patch_size", 1) * side * side
        if height:
            yield {
                "hidden_states": torch.randn(height * height, columns),
                "grid_thw": torch.tensor([[1, height, height]]),
            }
    if "input_values" in accepted and type(getattr(config, "num_mel_bins", None)) is int:
        yield {"input_values": torch.randn(1, config.max_length, config.num_mel_bins)}
    largest = getattr(config, "max_2d_position_embeddings", None)
    if "bbox" in accepted and type(largest) is int:
        inputs = text_inputs(model, SHORT_TEXT)
        corner = torch.linspace(0, largest - 1, SHORT_TEXT).long()
        box = torch.stack([torch.zeros_like(corner), torch.zeros_like(corner), corner, corner], dim=-1)
        yield {**inputs, "bbox": box[None]}
    for name in ("pretrain_image_size", "image_size", "img_size", "input_size"):
        if (size := pair(getattr(config, name, None))) is not None:
            yield from image_inputs(model, size)


@dataclass(frozen=True)
class OwnReading:
    """How far a resized copy is from the model's own reading of its old table at the new size.

    apart: the norm of the difference of their first outputs, relative to the norm of the output. same: a method that
    gives the model's own answers; "" if there is none.
    """

    apart: float
    same: str = ""


def own_reading(old_model: nn.Module, new_model: nn.Module, target: Target, method: str | None) -> OwnReading | None:
    """Compares a resized copy with the model's own reading of its old table at the new size.

    Both are small copies with the same weights. The old copy gets an input of the new size, and interpolates its table
    (``interpolate_pos_encoding``, or always); the new copy has the tables that ``method`` gives. The tables are smooth
    and random. Returns None if the model cannot read another size, or no copy could be run.
    """
    table = target.table
    axes = table.layout.axes
    windowed = target.image_size is None and any(axis.relative for axis in axes)
    if not axes or windowed or axes[0].name == "coordinate" or table.kind == "sinusoidal":
        return None
    kernels = kernels_of(changed_axes(table.layout, target.changes[0].layout))
    for path in models_around(old_model, table.parameter):
        models = [model.get_submodule(path) for model in (old_model, new_model)]
        tables = {
            change.table.parameter.removeprefix(f"{path}.".removeprefix(".")): change for change in target.changes
        }
        with undisturbed():
            try:
                old, new = copies(models, target, table, narrow=True, few_layers=True)
                with torch.no_grad():
                    pair_up(old, new, tables, waves=0, loud=True)
                    if (difference(old, new, tables, method) or 0) > SAME:
                        return None  # it depends on the size beyond its tables, so its answers compare nothing
                    pair_up(old, new, tables, waves=SMOOTH)
                    apart = difference(old, new, tables, method)
                    if apart is None:
                        return None
                    others = kernels.methods if apart > SAME else ()
                    same = (name for name in others if gives_same(old, new, tables, name))
                    return OwnReading(apart, next(same, ""))
            except Exception:  # the model reads inputs of its own size alone
                continue
    return None


def pair_up(
    old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], *, waves: float, loud: bool = False
) -> None:
    """Gives both copies the same weights, and the old one smooth tables. Without waves, all their cells are equal."""
    into = dict(new.named_parameters())
    for name, parameter in old.named_parameters():
        if name in tables:
            layout = tables[name].table.layout
            parameter.copy_(layout.stored(smooth(layout, parameter, waves=waves), like=parameter))
        else:
            # Initial weights are so small that biases of attention would not change an answer.
            into[name].copy_(parameter.mul_(LOUDER if loud and parameter.dim() > 1 else 1))


def difference(old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], method: str | None) -> float | None:
    """Resizes the tables of the old copy into the new one, and returns how far their answers are apart. Returns None if
    no answer depends on the tables, such as one to a text alone."""
    into, held = dict(new.named_parameters()), dict(old.named_parameters())
    resized = {}
    for name, change in tables.items():
        if name in held:
            sizes = {axis.name: axis.size for axis in change.layout.axes}
            named = method if takes(change.table.layout, change.layout, method) else None
            resized[name] = resize_table(held[name], sizes=sizes, layout=change.table.layout, method=named)
    asks = "interpolate_pos_encoding" in signature(old.forward).parameters
    for inputs in inputs_of(new):
        answers = []
        for model, scale, more in (
            (old, 1, {"interpolate_pos_encoding": True} if asks else {}),
            (new, 0, {}),
            (new, 1, {}),
        ):
            if model is new:
                for name, rows in resized.items():
                    into[name].copy_(scale * rows)
            torch.default_generator.manual_seed(0)  # some models shuffle their patches
            answers.append(first_of(model(**inputs, **more)))
        own, without, ours = answers
        if own.shape == ours.shape and not torch.equal(without, ours):
            return float((own - ours).norm() / own.norm())
    return None


def gives_same(old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], method: str) -> bool:
    try:
        apart = difference(old, new, tables, method)
    except ArgumentError:  # such as truncate for more frames
        return False
    return apart is not None and apart < SAME


def first_of(outputs: Any) -> Tensor:
    """Returns the first output of a model."""
    return next(value for value in outputs.values() if isinstance(value, Tensor))


def smooth(layout: TableLayout, like: Tensor, *, waves: float = SMOOTH) -> Tensor:
    """Returns random rows (N, D) that change slowly along each axis, for a table in this layout."""
    rows = layout.rows_in(torch.zeros_like(like))
    front, _, tail = layout.split(rows)
    total = torch.zeros(*layout.shape, rows.shape[1])
    for dim, size in enumerate(layout.shape):
        along = torch.sin(torch.arange(size)[:, None] / max(size, 1) * waves + 6 * torch.rand(rows.shape[1]))
        total += along.reshape(*(size if at == dim else 1 for at in range(len(layout.shape))), -1)
    return torch.cat([torch.randn_like(front), total.flatten(0, -2), torch.randn_like(tail)])
