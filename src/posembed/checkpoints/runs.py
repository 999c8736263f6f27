"""Runs small copies of a model at its old and its new size, to check tables along axes before a resize is written.

Every row of a table must be read at both sizes, the model must run at both, and the cells of an image, a video or a
sound must be in the order that the layout says. If the model itself reads images of the new size with its old table,
its answers are compared with those of a copy whose table is resized.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from posembed.checkpoints.choose import WINDOWED, Target
from posembed.checkpoints.found import ConfigField, PositionTable, Size, TableSize, pair
from posembed.checkpoints.rebuild import last_line, models_around, takes_text
from posembed.checkpoints.trial import (
    LONGEST_TEXT,
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
from posembed.tables.layout import TableLayout, are_sides
from posembed.tables.resize import changed_axes, resize_table, takes
from posembed.tables.resize_methods import kernels_of

FEW_CELLS = (12, 16)  # cells along an axis of a copy whose true size would take too long
SAME = 1e-5  # relative differences below this are rounding
BLOCK = 2  # the side of a block of patches, in models that merge patches
IMAGE_SIZES = ("pretrain_image_size", "max_img_size", "max_image_size", "image_size", "img_size", "input_size")
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer
SMOOTH = 3  # waves of random tables
FRAME_WIDTHS = ("feature_projection_input_dim", "input_dim", "input_size", "hidden_size")  # fields, of a sound's frames
SHORT_SOUND = 64  # frames, which a model may merge to fewer
MERGED = 8  # frames that a model may merge to one
KEEPING = ("extend", "zeros")  # methods that keep the answers of models with limited differences


def refused(old_model: nn.Module, new_model: nn.Module, target: Target, changes: Sequence[TableSize]) -> str:
    """Returns the reason to refuse the resize of tables along axes, or "". Raises NotTried if no copy could be run."""
    first, reasons = changes[0].table, []
    windowed = target.field is not None and WINDOWED.search(target.field.path[-1])
    remedy = "; if the window is larger than its smallest map, first set a larger image_size in config.json" * bool(
        windowed and target.limited is None
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
            found = unread(old, {name: change.table.as_it_is() for name, change in tables.items()})
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
    windowed = target.field is not None and WINDOWED.search(target.field.path[-1])
    whole = windowed or target.limited is not None  # a limit may not be smaller than a sound's chunks
    many = max(change.length for change in target.changes) > MOST_CELLS and not whole
    settings = [given for field in target.values if many and (given := smaller(table, field))]
    with undisturbed():
        try:
            made = []
            for model, given in zip(models, zip(*settings, strict=True) if settings else ((), ()), strict=True):
                made.append(small_copy(model, narrow=narrow, few_layers=few_layers, settings=given))
            return made
        except NotTried:
            raise
        except Exception as error:
            raise NotTried(f"{type(models[0]).__name__}: {last_line(error)}") from error


def smaller(table: PositionTable, field: ConfigField) -> list[tuple[ConfigField, Any]]:
    """Returns a field twice, with two values that give few cells."""
    cells = [each for each in table.cells if each.field == field]
    values = [[each.value(few) for each in cells] for few in FEW_CELLS]
    return [(field, sides[0] if isinstance(field.value, int) else sides) for sides in values if sides]


def reads_cells(model: nn.Module, table: PositionTable) -> bool:
    """Returns whether a small copy of a model on the meta device reads the cells that a table's layout says."""
    size, field = table.as_it_is(), table.cells[0].field
    value = field.value if isinstance(field.value, int) else list(field.value)
    target = Target((size,), (size.length, size.length), value, on=field)
    for path, narrow in product(models_around(model, table.parameter), (True, False)):
        part = model.get_submodule(path)
        try:
            copy, _ = copies((part, part), target, table, narrow=narrow, few_layers=True)
            return not unread(copy, {table.parameter.removeprefix(f"{path}.".removeprefix(".")): size})
        except NotTried:
            continue
    return False


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
                if problem := wrong_rows(tables[name], gradient, projected):
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


def wrong_rows(size: TableSize, gradient: Tensor, projected: Sequence[Tensor]) -> str:
    """Returns an objection if a gradient shows that a model does not read every row of a table in its order, or ""."""
    layout = size.layout
    rows = layout.rows_in(gradient)
    cells = rows[layout.front : len(rows) - layout.tail]
    used = cells.any(dim=1)
    if not cells.shape[1] or (len(cells) == 1 and layout.axes[0].relative):
        return ""  # nothing to read, or one bias for all scores, which changes no attention
    if are_sides(layout.axes):
        return "" if used[layout.axes[0].size] else "it does not read the row of difference 0 where that row should be"
    if layout.axes[0].name == "coordinate":
        return "" if used[-1] else "the largest coordinate does not read the last row"
    if len(layout.axes) == 1 and in_window(size.table) and is_around_zero(used):
        return ""  # of a window that is larger than the map, no two cells are farthest apart
    if not used.all():
        return f"the model reads {int(used.sum())} of its {len(cells)} rows"
    apart = len(layout.axes) == 1 or len(layout.dims) > 1  # no order to be shown
    if apart or any(axis.relative for axis in layout.axes):
        return ""
    merged = [cells]
    side = math.isqrt(len(cells))  # of a copy with few cells
    sides = layout.grid if layout.grid and math.prod(layout.grid) == len(cells) else (side, side)
    if layout.grid and math.prod(sides) == len(cells) and not any(side % BLOCK for side in sides):
        height, width = (side // BLOCK for side in sides)  # Qwen's patches come in blocks, which it merges
        grid = cells.unflatten(0, (height, BLOCK, width, BLOCK))
        merged.append(grid.transpose(1, 2).flatten(0, 3))
    in_order = any(shows_order(each, projected) for each in merged)
    return "" if in_order else "the cells of its input do not read its rows in order"


def in_window(table: PositionTable) -> bool:
    return all(WINDOWED.search(cells.field.path[-1]) for cells in table.cells)


def is_around_zero(used: Tensor) -> bool:
    """Returns whether the rows used of differences along one axis are neighbours of each other and of no difference."""
    rows = used.nonzero().flatten()
    return bool(used[len(used) // 2]) and len(rows) == int(rows[-1] - rows[0]) + 1


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


def inputs_of(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a model: patches, a sound, an image or a video, or a text with boxes."""
    accepted, config = signature(model.forward).parameters, cast(Any, model.config)
    area, side = getattr(config, "num_patches", None), getattr(config, "patch_size", None)
    if {"pixel_values", "spatial_shapes"} <= set(accepted) and type(area) is int and type(side) is int:
        edge, channels = math.isqrt(area), getattr(config, "num_channels", 3)
        texts = text_inputs(model, SHORT_TEXT) if takes_text(model) else {}
        mask = {name: torch.ones(1, area) for name in ("pixel_attention_mask", "attention_mask") if name in accepted}
        yield {
            **texts,
            **dict(list(mask.items())[:1]),
            "pixel_values": torch.randn(1, area, channels * side * side),
            "spatial_shapes": torch.tensor([[edge, edge]]),
        }
    grid = grid_of(config)
    if grid is not None and type(side) is int:
        yield from packed_patches(accepted, config, grid, side)
    bins, frames = (getattr(config, name, None) for name in ("num_mel_bins", "max_length"))
    if "input_values" in accepted and type(bins) is int and type(frames) is int:
        yield {"input_values": torch.randn(1, frames, bins)}
    largest = getattr(config, "max_2d_position_embeddings", None)
    if "bbox" in accepted and type(largest) is int:
        inputs = text_inputs(model, SHORT_TEXT)
        corner = torch.linspace(0, largest - 1, SHORT_TEXT).long()
        box = torch.stack([torch.zeros_like(corner), torch.zeros_like(corner), corner, corner], dim=-1)
        yield {**inputs, "bbox": box[None]}
    if not any(each in accepted for each in ("pixel_values", "bbox", "input_values")):
        for tokens in (SHORT_SOUND, SHORT_TEXT, 2):
            yield from line_inputs(model, tokens)
    for name in IMAGE_SIZES:
        if (size := pair(getattr(config, name, None))) is not None:
            yield from image_inputs(model, size)
    if grid is not None and type(side) is int and "pixel_values" in accepted:  # patches without a grid
        yield {"pixel_values": torch.randn(1, math.prod(grid), getattr(config, "num_channels", 3) * side * side)}


def grid_of(config: Any) -> Size | None:
    """Returns the grid of patches (height, width) that a config's learned positions stand for."""
    for name in ("num_patches", "num_position_embeddings"):
        if type(area := getattr(config, name, None)) is int and area:
            return math.isqrt(area), math.isqrt(area)
    if sides := pair(getattr(config, "posemb_grid_size", None)):
        return sides
    if sides := pair([getattr(config, f"pos_emb_{side}", None) for side in ("height", "width")]):
        return sides
    patch = pair(getattr(config, "patch_size", None))
    sizes = (pair(getattr(config, name, None)) for name in IMAGE_SIZES)
    size = next(filter(None, sizes), None)
    return None if patch is None or size is None else (size[0] // patch[0], size[1] // patch[1])


def packed_patches(accepted: Collection[str], config: Any, grid: Size, side: int) -> Iterator[dict[str, Any]]:
    """Yields the patches of an image, cut out beforehand, with its grid, in the forms that models take."""
    name = "hidden_states" if "hidden_states" in accepted else "pixel_values"
    if name not in accepted:
        return
    cells = math.prod(grid)
    channels = next((getattr(config, each) for each in ("num_channels", "in_channels") if hasattr(config, each)), 3)
    frames = next(
        (getattr(config, each) for each in ("temporal_patch_size", "patch_temporal") if hasattr(config, each)), 1
    )
    merged = getattr(config, "spatial_merge_size", 1)
    for sizes in ("grid_thw", "image_grid_thw"):
        if sizes in accepted:
            here = torch.tensor([[1, *grid]])
            yield {name: torch.randn(cells, channels * frames * side * side), sizes: here}
            for lead in ((cells,), (1, cells)):
                yield {name: torch.randn(*lead, channels, side, side), sizes: here}
            blocks, block = cells // merged**2, merged * side
            yield {name: torch.randn(blocks, block, block, channels), sizes: here // torch.tensor([1, merged, merged])}
    if "target_sizes" in accepted:
        yield {name: torch.randn(1, channels, side, cells * side), "target_sizes": torch.tensor([grid])}


def line_inputs(model: nn.Module, tokens: int) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a model of a text or a sound: this many tokens, frames or states."""
    accepted, config = signature(model.forward).parameters, model.config
    if takes_text(model):
        yield text_inputs(model, tokens)
    for name in ("input_features", "hidden_states", "input_values", "inputs_embeds"):
        widths = (getattr(config, each, None) for each in FRAME_WIDTHS)
        for width in widths if name in accepted else ():
            if type(width) is int:
                masks = {name: None for name in ("mask",) if name in accepted}
                yield {name: torch.randn(1, tokens, width), **masks}


@dataclass(frozen=True)
class KeptAnswers:
    """What resized copies of a model with limited differences answer, compared with the old ones.

    keeping: a method for limited differences with which larger limits change no answer; "" if there is none, which
    shows that the rows mean something else. within, beyond: whether the resize that was asked for keeps the answer to
    an input within all limits, and to one with differences beyond the smaller limits.
    """

    keeping: str
    within: bool
    beyond: bool


def kept_answers(
    old_model: nn.Module, new_model: nn.Module, target: Target, first: TableSize, method: str | None
) -> KeptAnswers:
    """Compares copies with the same weights, and tables of differences that are smooth and random.

    Limits that shrink are checked as limits that grow from the new size to the old one. Raises NotTried if no copy
    could be run.
    """
    grows = first.length > first.table.length
    limits = [axis.size for axis in (first.table.layout if grows else first.layout).axes]
    texts = [size for each in target.changes if not each.layout.axes for size in (each.length, each.table.length)]
    longest = min([LONGEST_TEXT, *texts])
    long = [min(factor * max(limits), longest) for factor in (2 * MERGED, 2)]
    short = [min(*limits, longest)]
    failure: Exception | None = None
    for path, narrow in product(models_around(old_model, first.table.parameter), (True, False)):
        models = [model.get_submodule(path) for model in (old_model, new_model)]
        tables = {each.table.parameter.removeprefix(f"{path}.".removeprefix(".")): each for each in target.changes}
        limited = {name: each for name, each in tables.items() if each.layout.axes}
        with undisturbed(), torch.no_grad():
            try:
                old, new = (small_copy(model, narrow=narrow) for model in models)
                small, large, grown = (old, new, limited) if grows else (new, old, backwards(limited))
                pair_up(small, large, grown, waves=SMOOTH)
                inputs, wanted = answered(small, long)
                keeping = (each for each in KEEPING if keeps(large, resized(small, grown, each), inputs, wanted))
                if not (found := next(keeping, "")):
                    return KeptAnswers("", False, False)
                pair_up(old, new, limited, waves=SMOOTH)
                rows = resized(old, tables, method)
                within, beyond = (keeps(new, rows, *answered(old, lengths)) for lengths in (short, long))
                return KeptAnswers(found, within, beyond)
            except Exception as error:
                failure = failure or error
    raise NotTried(f"{type(old_model).__name__}: {last_line(failure)}" if failure else "no known model contains it")


def backwards(tables: Mapping[str, TableSize]) -> dict[str, TableSize]:
    """Returns the sizes of tables that change from their new layouts to their old ones."""
    return {
        name: TableSize(replace(each.table, layout=each.layout), each.table.layout, each.table.length)
        for name, each in tables.items()
    }


def answered(model: nn.Module, lengths: Sequence[int]) -> tuple[dict[str, Any], Tensor]:
    """Returns the first input of one of these lengths that a model can read, and its answer."""
    failure: Exception | None = None
    for inputs in (each for length in lengths for each in line_inputs(model, length)):
        try:
            return inputs, seeded(model, inputs)
        except Exception as error:
            failure = failure or error
    raise failure or NotTried("it takes no input that is known")


def keeps(model: nn.Module, tables: Mapping[str, Tensor], inputs: Mapping[str, Any], wanted: Tensor) -> bool:
    """Returns whether a copy with these tables gives the wanted answer."""
    fill(model, tables)
    given = seeded(model, inputs)
    return given.shape == wanted.shape and bool((given - wanted).norm() < SAME * wanted.norm())


def seeded(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Runs a model, and returns its first output. Some models shuffle patches or sample durations."""
    torch.default_generator.manual_seed(0)
    return first_of(model(**inputs))


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
            shared = tuple(map(slice, map(min, parameter.shape, into[name].shape)))
            # Initial weights are so small that biases of attention would not change an answer.
            into[name][shared] = parameter.mul_(LOUDER if loud and parameter.dim() > 1 else 1)[shared]


def resized(old: nn.Module, tables: Mapping[str, TableSize], method: str | None) -> dict[str, Tensor]:
    """Returns the tables of an old copy, resized with the method, or with their defaults where it is not for them."""
    held, found = dict(old.named_parameters()), {}
    for name, change in tables.items():
        if name in held:
            sizes = {axis.name: axis.size for axis in change.layout.axes} or None
            length = None if sizes else change.length
            named = method if takes(change.table.layout, change.layout, method) else None
            found[name] = resize_table(held[name], sizes=sizes, length=length, layout=change.table.layout, method=named)
    return found


def fill(new: nn.Module, tables: Mapping[str, Tensor], scale: float = 1) -> None:
    """Copies tables into a copy of the new model."""
    into = dict(new.named_parameters())
    for name, rows in tables.items():
        into[name].copy_(scale * rows)


def difference(old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], method: str | None) -> float | None:
    """Resizes the tables of the old copy into the new one, and returns how far their answers are apart. Returns None if
    no answer depends on the tables, such as one to a text alone."""
    rows = resized(old, tables, method)
    asks = "interpolate_pos_encoding" in signature(old.forward).parameters
    failure: Exception | None = None
    for inputs in inputs_of(new):
        answers = []
        try:
            own = seeded(old, {**inputs, **({"interpolate_pos_encoding": True} if asks else {})})
            for scale in (0, 1):
                fill(new, rows, scale)
                answers.append(seeded(new, inputs))
        except Exception as error:  # these inputs are in another form, or of a size that the model does not read
            failure = failure or error
            continue
        without, ours = answers
        if own.shape == ours.shape and not torch.equal(without, ours):
            return float((own - ours).norm() / own.norm())
    if failure is not None:
        raise failure
    return None


def gives_same(old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], method: str) -> bool:
    try:
        apart = difference(old, new, tables, method)
    except ArgumentError:  # such as truncate for more frames
        return False
    return apart is not None and apart < SAME


def first_of(outputs: Any) -> Tensor:
    """Returns the first output of a model."""
    return outputs if isinstance(outputs, Tensor) else next(v for v in outputs.values() if isinstance(v, Tensor))


def smooth(layout: TableLayout, like: Tensor, *, waves: float = SMOOTH) -> Tensor:
    """Returns random rows (N, D) that change slowly along each axis, for a table in this layout."""
    rows = layout.rows_in(torch.zeros_like(like))
    front, _, tail = layout.split(rows)
    total = torch.zeros(*layout.shape, rows.shape[1])
    for dim, size in enumerate(layout.shape):
        along = torch.sin(torch.arange(size)[:, None] / max(size, 1) * waves + 6 * torch.rand(rows.shape[1]))
        total += along.reshape(*(size if at == dim else 1 for at in range(len(layout.shape))), -1)
    return torch.cat([torch.randn_like(front), total.flatten(0, -2), torch.randn_like(tail)])
