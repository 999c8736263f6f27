"""Runs small copies of a model before and after a resize, to check which rows of its table the model reads.

Matching shapes do not show that a model works at a new size: some models read a table by coordinates or interpolate
it, and some take only square images. The gradients of one run show which rows are read. Token i of a text must read the
row of position i, and each patch of an image must read the row of its own cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from posembed.checkpoints.choose import Target
from posembed.checkpoints.found import PositionTable, Size, TableSize, pair
from posembed.checkpoints.rebuild import last_line, models_around, takes_text
from posembed.checkpoints.trials.inputs import (
    LONGEST_TEXT,
    image_inputs,
    text_inputs,
)
from posembed.checkpoints.trials.small_copies import (
    LOUDER,
    MOST_CELLS,
    TOLERANCE,
    NotTried,
    TooLarge,
    floats_in,
    random_total,
    small_copy,
    undisturbed,
)
from posembed.errors import CheckpointError
from posembed.tables.layout import TableLayout
from posembed.tables.resize import resize_table

SHORT_TEXTS = (16, 64, 512, 8, 4)  # in tokens; some models accept only lengths that are a multiple of some number
MOST_AHEAD = 2  # rows that a text may read behind that of its last token
LARGEST_GRID = 10_000  # the maximum number of grid cells to try; larger grids are tried in copies with few cells
NO_RUN = "no small copy of its model could be run to check which rows it reads ({})"


@dataclass(frozen=True)
class Reading:
    """A claim to be checked: ``model``, on the meta device, reads its table with the layout and the length of ``size``.
    image: for grids, the (height, width) of an image in pixels. beside: the sizes of tables that change with it."""

    model: nn.Module
    size: TableSize
    image: Size | None
    beside: Sequence[TableSize] = ()


def refuse_misread(old_model: nn.Module, new_model: nn.Module, target: Target) -> list[tuple[TableSize, str]]:
    """Refuses a table if the model reads other rows than planned, or if no run can show which rows a text reads.
    Returns the tables along axes that ``along_axes.py`` must check, with the reason why an image did not ("" without a
    try).

    Two kinds of tables are accepted without a run. The rows of fixed sinusoids in a line follow from a formula at any
    position. If a text model cannot be run even at its own size, the names of its field and inputs must suffice.
    """
    old_image, new_image = target.image_size or (None, None)
    left, unlike, as_planned = [], [], False
    for change in target.changes:
        table, in_line = change.table, not change.layout.axes
        if not is_plain(change):
            left.append((change, ""))
            continue
        if table.kind == "sinusoidal" and in_line:
            continue
        before = Reading(old_model, TableSize(table, table.layout, table.length), old_image)
        after = Reading(new_model, change, new_image, [other for other in target.changes if other.layout.axes])
        try:
            problem = contradiction(before, after)
        except NotTried as reason:
            models = map(old_model.get_submodule, models_around(old_model, table.parameter))
            if in_line and target.is_text and any(map(takes_text, models)):
                continue
            problem = NO_RUN.format(reason)
            if not in_line:
                left.append((change, problem))
                continue
        if not in_line:
            unlike += [(change, problem)] if problem else []
            as_planned = as_planned or not problem
            continue
        if problem:
            raise CheckpointError(f"{table.key}: not resized: {problem}")
    for change, problem in unlike:
        if not as_planned and change.table.kind != "sinusoidal":
            raise CheckpointError(f"{change.table.key}: not resized: {problem}")
        left.append((change, problem))  # it is not read beside the patches, but behind other cells: MAE's decoder
    return left


def is_plain(change: TableSize) -> bool:
    """Returns whether a table holds the positions of a text, or a grid of patches in its rows that is not too large."""
    table = change.table
    return not table.layout.axes or (
        table.layout.grid is not None
        and table.patch is not None
        and max(table.patch) > 1  # the gradient at a pixel shows no order
        and not table.layout.dims
        and max(table.length, change.length) <= LARGEST_GRID
    )


def contradiction(before: Reading, after: Reading) -> str:
    """Runs small copies of both models. Returns the reason to refuse the resize, or "". Raises NotTried if no copy
    could be run."""
    reasons = []
    for path, narrow in product(models_around(before.model, before.size.table.parameter), (True, False)):
        try:
            found = misreading(before, path, narrow=narrow)
        except NotTried as reason:
            reasons.append(reason)
            continue
        try:
            found = found or misreading(after, path, narrow=narrow)
            return found or other_answer(before, after, path, narrow=narrow)
        except TooLarge:
            raise
        except NotTried as reason:
            return f"a small copy of the model runs at its own size, but not at the new one ({reason})"
    raise reasons[0] if reasons else NotTried("no model of transformers contains it")


def reads(model: nn.Module, table: PositionTable) -> bool:
    """Returns whether a small copy of a model on the meta device reads an image's cells as a table's layout says."""
    value = table.cells[0].field.value
    size = TableSize(table, table.layout, table.length)
    for path, narrow in product(models_around(model, table.parameter), (True, False)):
        try:
            return not misreading(Reading(model, size, pair(value)), path, narrow=narrow)
        except NotTried:
            continue
    return False


def misreading(reading: Reading, path: str, *, narrow: bool) -> str:
    """Runs a small copy of the model at ``path``. Returns an objection if it contradicts ``reading``, or "". Raises
    NotTried if it cannot be run."""
    model = reading.model.get_submodule(path)
    with undisturbed():
        try:
            small = small_copy(model, narrow=narrow)
            table = small.get_parameter(reading.size.table.parameter.removeprefix(f"{path}."))
            table.requires_grad = True  # fixed sinusoids do not require gradients
            if reading.image is None:
                return wrong_line(small, table, reading.size)
            return wrong_grid(small, table, reading.size, reading.image)
        except TooLarge:
            raise
        except Exception as error:  # each model raises its own errors
            raise NotTried(f"{type(model).__name__}: {last_line(error)}") from error


def other_answer(before: Reading, after: Reading, path: str, *, narrow: bool) -> str:
    """Returns an objection if the output for a text changes although it reads the same rows, or "". This happens in
    DeBERTa, because of its distance buckets."""
    if before.image is not None:
        return ""  # an image of another size is a different input
    size = before.size
    with undisturbed():
        old, new = (small_copy(reading.model.get_submodule(path), narrow=narrow) for reading in (before, after))
        with torch.no_grad():
            for parameter in old.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(LOUDER)  # otherwise attention is nearly uniform, whatever the scores are
            held = dict(new.named_parameters())
            for name, parameter in old.named_parameters():
                shared = tuple(map(slice, map(min, parameter.shape, held[name].shape)))
                held[name][shared] = parameter[shared]
            for change in after.beside:
                name = change.table.parameter.removeprefix(f"{path}.")
                if name in held:
                    sizes = {axis.name: axis.size for axis in change.layout.axes}
                    held[name].copy_(resize_table(old.get_parameter(name), sizes=sizes, layout=change.table.layout))
        shortest = min(size.length, after.size.length)
        for tokens in (min(shortest, LONGEST_TEXT), *(short for short in SHORT_TEXTS if short <= shortest)):
            try:
                inputs = text_inputs(old, tokens)
                both = [answers(model, inputs) for model in (old, new)]
            except Exception:  # not a multiple that the model accepts
                continue
            same = all(
                one.shape == other.shape and torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
                for one, other in zip(*both, strict=False)
            )
            return "" if same else f"a text of {tokens} tokens gets another output at the new length with the same rows"
    return ""


def answers(model: nn.Module, inputs: Mapping[str, Any]) -> list[Tensor]:
    torch.default_generator.manual_seed(0)  # some models have random attention
    return [output.detach() for output in floats_in(model(**inputs))]


def wrong_line(model: nn.Module, table: nn.Parameter, size: TableSize) -> str:
    """Checks that token i reads the row of position i, in a text of full length and in a short text. Returns an
    objection, or ""."""
    full = min(size.length, LONGEST_TEXT)
    failure, ahead = None, 0
    for tokens in (full, *(short for short in SHORT_TEXTS if short < full)):
        try:
            wrong, ahead = wrong_rows(model, table, size, tokens)
        except Exception as error:  # a shorter text may still show which rows are read
            failure = error if tokens == full else failure
        else:
            if wrong:
                return wrong
            if tokens < full:
                break
    if failure is not None and ahead:
        return wrong_rows(model, table, size, full - ahead)[0]
    if failure is not None:
        raise failure
    return ""


def wrong_rows(model: nn.Module, table: nn.Parameter, size: TableSize, tokens: int) -> tuple[str, int]:
    """Returns an objection, or "", and the number of rows behind that of the last token which the text reads as well:
    ProphetNet reads the next row, and CLVP adds a token before and one after the text."""
    (gradient,) = gradients(model, text_inputs(model, tokens), table)
    front, read = size.layout.front, set(gradient.flatten(0, -2).any(dim=1).nonzero().flatten().tolist())
    expected = set(range(front, front + tokens))
    if not read:
        raise NotTried(f"{type(model).__name__} reads none of its rows for a text alone")
    # Front rows may be read for padding; the row of a padding index is read but gets no gradient.
    others = read - set(range(front)) - expected
    ahead = len(others) if others <= set(range(front + tokens, front + tokens + MOST_AHEAD)) else 0
    if len(others) > ahead or len(expected - read) > (not ahead):
        found, wanted = (f"rows {min(rows)} to {max(rows)}, {len(rows)} in all" for rows in (read, expected))
        return f"a text of {tokens} tokens reads {found}, instead of {wanted}", 0
    return "", ahead


def wrong_grid(model: nn.Module, table: nn.Parameter, size: TableSize, image: Size) -> str:
    """Checks that each patch reads the row of its own cell. Returns an objection, or "".

    A patch's pixels x and its row p enter a model as W x + p, so the gradient at x is the gradient at p times W (or
    nearly so, if there is a norm in between). The patch with the most similar gradient must be the row's own patch.
    """
    (height, width), (lines, columns) = size.table.patch or (1, 1), size.layout.grid or (1, 1)
    pixels, rows = image_gradients(model, table, image)
    rows = size.layout.split(size.layout.rows_in(rows))[1]
    if not rows.any(dim=1).all():
        return "the model does not read one row for each patch"
    patches = pixels[:, : lines * height, : columns * width].unfold(1, height, height).unfold(2, width, width)
    patches = patches.permute(1, 2, 0, 3, 4).flatten(0, 1).flatten(1)
    some = torch.linspace(0, len(rows) - 1, min(len(rows), MOST_CELLS)).long()
    projections = [
        module
        for module in model.modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
        and tuple(module.weight.flatten(1).shape) == (rows.shape[1], patches.shape[1])
    ]
    for projection in projections:
        expected = rows[some] @ projection.weight.detach().flatten(1)
        likeness = normalize(expected) @ normalize(patches).T
        error = (expected - patches[some]).abs().max() / patches[some].abs().max()
        if torch.equal(likeness.argmax(dim=1), some) or error < TOLERANCE:
            return ""
        if isinstance(projection, nn.Conv2d) and is_read_behind(projection, model, table, size.layout, image):
            return ""
    convolutions = [projection for projection in projections if isinstance(projection, nn.Conv2d)]
    if not convolutions:
        raise NotTried("it has no convolution of patches")
    if any(any(convolution.padding) for convolution in convolutions):
        raise NotTried("its patches reach beyond the image")
    return f"the patches of an image do not read the cells of a {lines} x {columns} grid, row by row"


def is_read_behind(
    projection: nn.Conv2d, model: nn.Module, table: nn.Parameter, layout: TableLayout, image: Size
) -> bool:
    """Returns whether the gradient at each output of a convolution of patches is most similar to that at its own row.

    A norm between both changes the pixels' gradients so much that small patches look alike.
    """
    found: list[Tensor] = []
    hook = projection.register_forward_hook(lambda _layer, _inputs, output: found.append(output))
    try:
        inputs = next(image_inputs(model, image))
        total = random_total(model, inputs)
    except Exception:  # another form of image
        return False
    finally:
        hook.remove()
    rows, cells = torch.autograd.grad(total, (table, found[0]), allow_unused=True, materialize_grads=True)
    own, here = layout.split(layout.rows_in(rows))[1], cells.sum(dim=0).flatten(1).T
    return own.shape == here.shape and torch.equal(
        (normalize(own) @ normalize(here).T).argmax(dim=1), torch.arange(len(own))
    )


def image_gradients(model: nn.Module, table: nn.Parameter, size: Size) -> tuple[Tensor, Tensor]:
    """Returns the gradient of a run with respect to an image (C, height, width), summed over frames, and the gradient
    with respect to a table."""
    failure = None
    for inputs in image_inputs(model, size):
        image = list(inputs.values())[-1].requires_grad_()
        try:
            rows, pixels = gradients(model, inputs, table, image)
        except Exception as error:
            failure = failure or error
            continue
        return pixels.flatten(0, -4).sum(dim=0), rows
    raise failure or NotTried("it takes no pixel_values")


def gradients(model: nn.Module, inputs: Mapping[str, Any], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Returns the gradients, with respect to these tensors, of a random linear function of all outputs of a model."""
    return torch.autograd.grad(random_total(model, inputs), tensors, allow_unused=True, materialize_grads=True)
