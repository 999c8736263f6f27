"""Runs small copies of a model at its old and its new size, to check tables along axes before a resize is written.

Every row of a table must be read at both sizes, the model must run at both, and the cells of an image, a video or a
sound must be in the order that the layout says. If the model itself reads images of the new size with its old table,
its answers are compared with those of a copy whose table is resized.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from posembed.checkpoints.choose import WINDOWED, Target
from posembed.checkpoints.found import PositionTable, TableSize
from posembed.checkpoints.rebuild import is_of_timm, last_line, models_around
from posembed.checkpoints.trials.inputs import inputs_of
from posembed.checkpoints.trials.small_copies import (
    FEW_CELLS,
    MOST_CELLS,
    MOST_CELLS_OF_TIMM,
    TOLERANCE,
    NotTried,
    TooLarge,
    copies,
    fitted,
    has_many_cells,
    in_part,
    may_be_smaller,
    random_total,
    undisturbed,
)
from posembed.tables.layout import TableLayout, are_sides

TRUE = "one at the old and one at the new size"
IN_PART = ("coordinate", "number", "distance")  # axes of which an input reads only some rows
NOT_IN_ORDER = "the cells of its input do not read its rows in order"
BLOCK = 2  # the side of a block of patches, in models that merge patches
CELLS = (nn.Conv2d, nn.Conv3d, nn.Linear, nn.ReLU, nn.MaxPool2d)  # a ReLU makes those of a ResNet, a pool NesT's
CELLS_AS_INPUT = ("patch_embeds",)
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer


@dataclass(frozen=True)
class CopiesRead:
    """What runs of small copies showed: the reason to refuse a resize, or "", and of what size the copies were."""

    problem: str = ""
    sizes: str = TRUE


def remedy_for_window(target: Target) -> str:
    larger = "; if the window is larger than its smallest map, first set a larger image_size in config.json"
    return larger if target.of_window else ""


def refused(old_model: nn.Module, new_model: nn.Module, target: Target, changes: Sequence[TableSize]) -> CopiesRead:
    """Runs small copies with tables along axes. Raises NotTried if no copy could be run."""
    remedy = remedy_for_window(target)
    for change in () if is_of_timm(old_model.config) else changes:
        for layout in (change.table.layout, change.layout):
            if len(layout.axes) == 2 and layout.axes[0].relative and len(set(layout.shape)) > 1:
                return CopiesRead(
                    f"no run shows in which order the model reads the differences of a grid of "
                    f"{' x '.join(str(axis.size) for axis in layout.axes)} (transformers' BEiT exchanges height and "
                    "width); pass a square size"
                )
    objection, failure = CopiesRead(), None
    sizes = list(cells_to_try(target, old_model))
    for few in sizes:  # other sizes may leave cells of a stage over
        try:
            found = refused_by_copies(old_model, new_model, target, changes, remedy, few)
        except NotTried as reason:
            failure = failure or reason
            if isinstance(reason, TooLarge) and sizes == [None] and may_be_smaller(target):
                sizes.extend(FEW_CELLS)
            continue
        if not found.problem:
            return found
        objection = objection if objection.problem else found
        if few is None:
            break
    if failure is not None and not objection.problem:
        raise failure
    return objection


def refused_by_copies(
    old_model: nn.Module,
    new_model: nn.Module,
    target: Target,
    changes: Sequence[TableSize],
    remedy: str,
    few: tuple[int, int] | None,
) -> CopiesRead:
    """Runs the copies of ``refused``. few: cells along an axis, before and after; None for the true sizes."""
    first, reasons = changes[0].table, []
    for path, narrow, few_layers in product(models_around(old_model, first.parameter), (True, False), (True, False)):
        models = [model.get_submodule(path) for model in (old_model, new_model)]
        tables = in_part(path, changes)
        try:
            old, new = copies(models, target, first, narrow=narrow, few_layers=few_layers, few=few)
        except NotTried as reason:
            reasons.append(reason)
            continue
        held = {name for name, _ in old.named_parameters()}
        if not {NUMBER.sub("*", name) for name in tables} <= {NUMBER.sub("*", name) for name in tables.keys() & held}:
            reasons.append(NotTried("its layer is not among the few of a small copy"))
            continue
        try:
            found = unread(old, {name: change.table.as_it_is() for name, change in tables.items()})
        except TooLarge:
            raise
        except NotTried as reason:
            reasons.append(reason)
            continue
        try:
            if problem := found or unread(new, tables):
                return CopiesRead(problem)
        except TooLarge:
            raise
        except NotTried as reason:
            return CopiesRead(
                f"a small copy of the model runs at its own size, but not at the new one ({reason}){remedy}"
            )
        return CopiesRead(sizes=sizes_of_copies(target, old_model, narrow=narrow, few=few))
    raise reasons[0] if reasons else NotTried("no model of transformers contains it")


def sizes_of_copies(target: Target, model: nn.Module, *, narrow: bool, few: tuple[int, int] | None) -> str:
    """Returns which sizes ``copies`` gives to the old and to the new copy, in words."""
    if is_of_timm(model.config):
        return "with images of half the size" if narrow and has_many_cells(target, MOST_CELLS_OF_TIMM) else TRUE
    if few is None and not has_many_cells(target):
        return TRUE
    before, after = few or FEW_CELLS[0]
    return f"one with {before} and one with {after} cells along an axis"


def cells_to_try(target: Target, model: nn.Module) -> tuple[tuple[int, int] | None, ...]:
    """Returns the numbers of cells along an axis to try: the true ones first, unless they take too long. Some models
    read images of a few sizes alone, and interpolate their table to them (LW-DETR)."""
    if has_many_cells(target):
        return FEW_CELLS
    of_images = target.table.layout.grid is not None and not is_of_timm(model.config)
    return (None, *FEW_CELLS) if of_images else (None,)


def why_unread(model: nn.Module, table: PositionTable) -> str:
    """Returns why a small copy of a model on the meta device does not read the cells that a table's layout says, or
    "" if it reads them."""
    size, field = table.as_it_is(), table.cells[0].field
    value = field.value if isinstance(field.value, int) else list(field.value)
    target, why = Target((size,), (size.length, size.length), value, on=field), ""
    tries = product(models_around(model, table.parameter), cells_to_try(target, model), (True, False))
    for path, few, narrow in tries:
        part = model.get_submodule(path)
        try:
            copy, _ = copies((part, part), target, table, narrow=narrow, few_layers=True, few=few)
            return unread(copy, {table.parameter.removeprefix(f"{path}."): size})
        except TooLarge as reason:
            why = why or str(reason)
        except NotTried as reason:
            why = why or f"small copies of the model fail at their own size ({reason})"
    return why


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
            if not any(bool(gradient.any()) for gradient in read) and not all(map(is_unread, tables.values())):
                failure = NotTried("it reads none of the rows for the inputs that were tried")
                continue
            for name, gradient in zip(held, read, strict=True):
                size = tables[name]
                size = replace(size, layout=fitted(size.layout, size.table, model, name))
                if problem := wrong_rows(size, gradient, projected):
                    return problem if len(held) == 1 else f"{name}: {problem}"
            return ""
    raise NotTried(f"{type(model).__name__}: {last_line(failure)}" if failure else "it takes no input that is known")


def gradients_and_cells(
    model: nn.Module, inputs: Mapping[str, Any], tensors: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns the gradients of a run with respect to tensors, and to the outputs of all layers that may make cells. The
    sum of the outputs' gradients follows for a layer that was called several times.

    Patches become cells in one of these layers. Where a table is added to its output, both have the same gradient.
    """
    made: dict[nn.Module, list[Tensor]] = {}
    cells = [inputs[name].requires_grad_() for name in CELLS_AS_INPUT if name in inputs]
    layers = [module for module in model.modules() if isinstance(module, CELLS)]
    hooks = [
        layer.register_forward_hook(lambda layer, _inputs, output: made.setdefault(layer, []).append(output))
        for layer in layers
    ]
    try:
        total = random_total(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    outputs = [output for each in (*made.values(), cells) for output in each if output.requires_grad]
    found = torch.autograd.grad(total, (*tensors, *outputs), allow_unused=True, materialize_grads=True)
    of_outputs = dict(zip(map(id, outputs), found[len(tensors) :], strict=True))
    # A layer that cuts several images (SegGPT's prompt and image) makes the cells of a row together.
    together = (
        torch.stack([of_outputs[id(output)] for output in each]).sum(dim=0)
        for each in made.values()
        if len(each) > 1 and all(output.requires_grad and output.shape == each[0].shape for output in each)
    )
    return found[: len(tensors)], (*of_outputs.values(), *together)


def wrong_rows(size: TableSize, gradient: Tensor, projected: Sequence[Tensor]) -> str:
    """Returns an objection if a gradient shows that a model does not read every row of a table in its order, or ""."""
    layout = size.layout
    rows = layout.rows_in(gradient)
    cells = rows[layout.front : len(rows) - layout.tail]
    used = cells.any(dim=1)
    if is_unread(size):
        return ""
    if are_sides(layout.axes):
        return "" if used[layout.axes[0].size] else "it does not read the row of difference 0 where that row should be"
    if (name := layout.axes[0].name) in IN_PART:
        first = name != "coordinate" and bool(used[: int(used.sum())].all())  # as many as the input has
        return "" if used[-1] or first else f"the largest {name} does not read the last row"
    if in_window(size.table) and all(map(is_around_zero, used_along_axes(used, layout))):
        return ""  # of a window that is larger than the map, no two cells are farthest apart
    if len(layout.axes) == 1 and layout.axes[0].relative and is_around_zero(used) and (used[0] or used[-1]):
        return ""  # of pooled keys (MViTv2): the smallest difference is that of the first query and the last key
    if not used.all():
        return f"the model reads {int(used.sum())} of its {len(cells)} rows"
    apart = len(layout.axes) == 1 or (len(layout.dims) > 1 and layout.blocks is None)  # no order to be shown
    if apart or any(axis.relative for axis in layout.axes):
        return ""
    if layout.columns is not None:  # of all tiles together, whose patches come from one layer
        cells = cells.unflatten(1, (-1, layout.columns)).sum(dim=1)
    merged = [cells, *([rows] if layout.front or layout.tail else [])]  # MAE's decoder reads class token and patches
    side = math.isqrt(len(cells))  # of a copy with few cells
    sides = layout.grid if layout.grid and math.prod(layout.grid) == len(cells) else (side, side)
    if layout.grid and math.prod(sides) == len(cells) and not any(side % BLOCK for side in sides):
        height, width = (side // BLOCK for side in sides)  # Qwen's patches come in blocks, which it merges
        grid = cells.unflatten(0, (height, BLOCK, width, BLOCK))
        merged.append(grid.transpose(1, 2).flatten(0, 3))
    in_order = any(shows_order(each, projected) for each in merged)
    return "" if in_order else NOT_IN_ORDER


def is_unread(size: TableSize) -> bool:
    """Returns whether a table has no columns, or one bias for all scores, which changes no attention."""
    return not size.table.width or (size.length == 1 and size.layout.axes[0].relative)


def in_window(table: PositionTable) -> bool:
    return all(WINDOWED.search(cells.field.path[-1]) for cells in table.cells)


def used_along_axes(used: Tensor, layout: TableLayout) -> list[Tensor]:
    """Returns which rows are used along each axis, or [no row] if the rows used are not all combinations of these."""
    if len(used) != math.prod(layout.shape):  # of a copy with smaller windows
        return [torch.zeros_like(used)]
    grid = used.reshape(layout.shape)
    along = [grid.any(dim=1 - dim) for dim in range(2)] if grid.dim() == 2 else [grid]
    whole = grid.dim() == 1 or torch.equal(grid, along[0][:, None] & along[1])
    return along if whole else [torch.zeros_like(used)]


def is_around_zero(used: Tensor) -> bool:
    """Returns whether the rows used of differences along one axis are neighbours of each other and of no difference."""
    rows = used.nonzero().flatten()
    return len(rows) > 0 and bool(used[len(used) // 2]) and len(rows) == int(rows[-1] - rows[0]) + 1


def shows_order(cells: Tensor, projected: Sequence[Tensor]) -> bool:
    """Returns whether the gradients at the cells (N, D) are those at the output of a layer, cell by cell."""
    for output in projected:
        flat = output.flatten(2).transpose(1, 2) if output.dim() > 3 else output  # (B, N, D), or (N, 1, D)
        if flat.shape[-1] != cells.shape[1] or flat.numel() % cells.numel():
            continue
        here = flat.reshape(-1, *cells.shape).sum(dim=0)
        some = torch.linspace(0, len(cells) - 1, min(len(cells), MOST_CELLS)).long()
        nearest = (normalize(cells[some]) @ normalize(here).T).argmax(dim=1)
        if torch.allclose(here, cells, rtol=TOLERANCE, atol=TOLERANCE * float(cells.abs().max())) or torch.equal(
            nearest, some
        ):
            return True
    return False
