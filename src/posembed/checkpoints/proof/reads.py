"""Determines by gradients which rows of its tables a small copy of a model reads, and in which order.

Token i of a text reads the row of position i, and an image, a video or a sound reads all rows. The cells of the input
read the rows in order if each row has the gradient of its cell at the output of the layer that makes the cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from posembed.checkpoints.position_tables import PositionTable, Size, TableSize
from posembed.checkpoints.proof.answers import TOLERANCE, floats_in
from posembed.checkpoints.proof.copies import undisturbed
from posembed.checkpoints.proof.inputs import (
    LONGEST_TEXT,
    SHORT_TEXTS,
    Misread,
    NotTried,
    image_inputs,
    inputs_of,
    text_inputs,
)
from posembed.checkpoints.responses import WINDOWED
from posembed.errors import ArgumentError
from posembed.tables.layout import TableLayout, are_sides
from posembed.words import last_line

MOST_CELLS = 1024  # the maximum number of cells to compare with all others
IN_ORDER = 0.9  # the share of cells whose gradients are nearest to those of the same cell
BLOCK = 2  # the side of a block of patches, in models that merge patches
UNORDERED = ("group", "query")  # axes of object queries: the whole model shows whether it runs with others
IN_PART = ("coordinate", "number", "distance", *UNORDERED)  # axes of which an input reads only some rows
CELLS = (nn.Conv2d, nn.Conv3d, nn.Linear, nn.ReLU, nn.MaxPool2d)  # a ReLU makes those of a ResNet, a pool NesT's


def refuse_misread(model: nn.Module, tables: Mapping[str, TableSize], image: Size | None = None) -> None:
    """Runs a copy. Raises Misread if it does not read all rows of its tables in order, or NotTried if it does not run.

    image: the (height, width) of an image in pixels, if it is known.
    """
    held = {name: model.get_parameter(name).requires_grad_() for name in tables}  # fixed sinusoids do not
    lines = {name: size for name, size in tables.items() if not size.layout.axes}
    others = {name: size for name, size in tables.items() if size.layout.axes}
    with undisturbed():
        if lines:
            refuse_misread_text(model, lines)
        if not others:
            return
        failure: Exception | None = None
        for inputs in chain(image_inputs(model, image) if image else (), inputs_of(model)):
            try:
                read, made = gradients(model, inputs, [held[name] for name in others], CELLS)
            except Exception as error:
                failure = failure or error
                continue
            if not any(bool(gradient.any()) for gradient in read) and not all(map(is_unread, others.values())):
                failure = NotTried("it reads none of the rows for the inputs that were tried")
                continue
            try:
                problems = [wrong_rows(size, rows, made) for size, rows in zip(others.values(), read, strict=True)]
            except (ArgumentError, RuntimeError) as error:  # its table has another size than planned
                failure = failure or error
                continue
            for name, problem in zip(others, problems, strict=True):
                if problem:
                    raise Misread(problem if len(others) == 1 else f"{name}: {problem}")
            return
    raise NotTried(f"{type(model).__name__}: {last_line(failure)}" if failure else "it takes no input that is known")


def refuse_misread_text(model: nn.Module, tables: Mapping[str, TableSize]) -> None:
    """Raises Misread if token i of a text does not read the row of position i, in a text of full length and in a short
    one. Raises NotTried if the model reads no such texts."""
    held, full = list(map(model.get_parameter, tables)), min([LONGEST_TEXT, *(size.length for size in tables.values())])
    failure = None
    for tokens in (full, *(short for short in SHORT_TEXTS if short < full)):
        try:
            read, _ = gradients(model, text_inputs(model, tokens), held)
        except Exception as error:  # a shorter text may still show which rows are read
            failure = error if tokens == full else failure
            continue
        for size, gradient in zip(tables.values(), read, strict=True):
            refuse_wrong_line(size.layout.front, gradient, tokens)
        if tokens < full:
            break
    if failure is not None:
        raise NotTried(f"{type(model).__name__}: {last_line(failure)}")


def refuse_wrong_line(front: int, gradient: Tensor, tokens: int) -> None:
    rows, expected = gradient.flatten(0, -2).any(dim=1).nonzero().flatten().tolist(), range(front, front + tokens)
    if not rows:
        raise NotTried("it reads none of its rows for a text alone")
    # Front rows may be read for padding; the row of a padding index is read but gets no gradient.
    if set(rows) - set(range(front)) - set(expected) or len(set(expected) - set(rows)) > 1:
        found, wanted = (f"rows {min(each)} to {max(each)}, {len(each)} in all" for each in (rows, expected))
        raise Misread(f"a text of {tokens} tokens reads {found}, instead of {wanted}")


def gradients(
    model: nn.Module, inputs: Mapping[str, Any], tensors: Sequence[Tensor], kinds: tuple[type[nn.Module], ...] = ()
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Returns the gradients of a run with respect to tensors, and to the outputs of all layers of some kinds. The sums
    over the outputs of each layer that was called several times come last.

    One of these layers turns patches into cells. Where a table is added to its output, both have the same gradient.
    """
    made: dict[nn.Module, list[Tensor]] = {}
    hooks = [
        layer.register_forward_hook(lambda layer, _inputs, output: made.setdefault(layer, []).append(output))
        for layer in model.modules()
        if isinstance(layer, kinds)
    ]
    try:
        total = random_total(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    outputs = [output for each in made.values() for output in each if output.requires_grad]
    found = torch.autograd.grad(total, (*tensors, *outputs), allow_unused=True, materialize_grads=True)
    of_outputs = dict(zip(map(id, outputs), found[len(tensors) :], strict=True))
    # A layer that cuts several images makes the cells of a row together.
    together = (
        torch.stack([of_outputs[id(output)] for output in each]).sum(dim=0)
        for each in made.values()
        if len(each) > 1 and all(output.requires_grad and output.shape == each[0].shape for output in each)
    )
    return found[: len(tensors)], (*of_outputs.values(), *together)


def random_total(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Returns a random linear function of a model's finite outputs. MAE's loss is NaN if no patches are hidden."""
    outputs = [each for each in floats_in(model(**inputs)) if each.requires_grad and each.isfinite().all()]
    return torch.stack([(output * torch.randn_like(output)).sum() for output in outputs]).sum()


def wrong_rows(size: TableSize, gradient: Tensor, made: Sequence[Tensor]) -> str:
    """Returns the problem if a gradient shows that a model does not read every row of a table in order, or ""."""
    layout = size.layout
    rows = layout.rows_in(gradient)
    cells = layout.split(rows)[1]
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
    apart = len(layout.axes) == 1 or len(layout.dims) > 1  # no order to be shown
    if apart or any(axis.relative for axis in layout.axes):
        return ""
    orders = [cells, *([rows] if layout.front or layout.tail else [])]  # MAE's decoder reads class token and patches
    if layout.grid and not any(side % BLOCK for side in layout.grid):
        height, width = (side // BLOCK for side in layout.grid)  # Qwen's patches come in blocks, which it merges
        orders.append(cells.unflatten(0, (height, BLOCK, width, BLOCK)).transpose(1, 2).flatten(0, 3))
    names = " x ".join(str(axis.size) for axis in layout.axes)
    in_order = any(shows_order(each, made) for each in orders)
    return "" if in_order else f"the cells of its input do not read the cells of a {names} grid, row by row"


def is_unread(size: TableSize) -> bool:
    """Returns whether a table affects no output: it has no columns, or only one bias, the same for all scores."""
    return not size.table.width or (size.length == 1 and size.layout.axes[0].relative)


def in_window(table: PositionTable) -> bool:
    return all(WINDOWED.search(cells.field.path[-1]) for cells in table.cells)


def used_along_axes(used: Tensor, layout: TableLayout) -> list[Tensor]:
    """Returns a mask of used rows for each axis, or [no row] if the used rows are not all combinations of these."""
    grid = used.reshape(layout.shape)
    along = [grid.any(dim=1 - dim) for dim in range(2)] if grid.dim() == 2 else [grid]
    whole = grid.dim() == 1 or torch.equal(grid, along[0][:, None] & along[1])
    return along if whole else [torch.zeros_like(used)]


def is_around_zero(used: Tensor) -> bool:
    """Returns whether the used rows of differences along one axis are consecutive and include difference 0."""
    rows = used.nonzero().flatten()
    return len(rows) > 0 and bool(used[len(used) // 2]) and len(rows) == int(rows[-1] - rows[0]) + 1


def shows_order(cells: Tensor, made: Sequence[Tensor]) -> bool:
    """Returns whether the gradients of the cells (N, D) match those at some layer's output (``made``), cell by cell.

    A norm layer in between changes gradients, most of all small ones. In another order, few cells would match.
    """
    for output in made:
        flat = output.flatten(2).transpose(1, 2) if output.dim() > 3 else output  # (B, N, D), or (N, 1, D)
        if flat.shape[-1] != cells.shape[1] or flat.numel() % cells.numel():
            continue
        here = flat.reshape(-1, *cells.shape).sum(dim=0)
        some = torch.linspace(0, len(cells) - 1, min(len(cells), MOST_CELLS)).long()
        if torch.allclose(here, cells, rtol=TOLERANCE, atol=TOLERANCE * float(cells.abs().max())):
            return True
        nearest = (normalize(cells[some]) @ normalize(here).T).argmax(dim=1)
        if (nearest == some).double().mean() > IN_ORDER:
            return True
    return False
