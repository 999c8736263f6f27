"""Proves a resize by running small copies of a model at the old and at the new size.

Matching shapes do not show that a model works at a new size: some models read a table by coordinates or interpolate
it, and some take only square images. So a copy with few layers is run at both sizes. The gradient at a table shows
which rows it read: token i of a text reads the row of position i, and an image, a video or a sound reads all rows. The
cells of its input read them in order if the gradient at each row is that at the output of a layer that makes the cells.
Where old inputs must keep their answers, the answers of both copies are compared. Last, the whole model is run on the
meta device, which computes only shapes, so that a model of any size runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from posembed.checkpoints.choose import Target
from posembed.checkpoints.position_tables import IMAGE_TOKENS, PositionTable, Size, TableSize, leaves
from posembed.checkpoints.proof_inputs import (
    LONGEST_TEXT,
    Misread,
    NotTried,
    TooLarge,
    features_in,
    image_inputs,
    inputs_of,
    line_inputs,
    text_inputs,
)
from posembed.checkpoints.responses import WINDOWED
from posembed.checkpoints.small_copies import Copies, Way, copies, small_copy, undisturbed, ways_around
from posembed.checkpoints.sources.configs import models_around, source_of
from posembed.errors import CheckpointError
from posembed.tables.layout import TableLayout, are_sides
from posembed.tables.resize import takes
from posembed.words import last_line

MOST_CELLS = 4096  # of a table, in copies of the true size
MOST_COMPARED = 1024  # the maximum number of cells to compare with all others
SHORT_TEXTS = (16, 64, 512, 8, 4)  # in tokens; some models accept only lengths that are a multiple of some number
TOLERANCE = 1e-4
IN_ORDER = 0.9  # the share of cells whose gradients are nearest to those of the same cell
SAME = 1e-5  # relative differences below this are rounding
LOUDER = 10  # the factor by which initial weights are multiplied
MERGED = 8  # frames that a model may merge to one
SMOOTH = 3  # waves of random tables
BLOCK = 2  # the side of a block of patches, in models that merge patches
KEEPING = ("extend", "zeros")  # methods that keep the answers of models with limited differences
UNORDERED = ("group", "query")  # axes of object queries: the whole model shows whether it runs with others
IN_PART = ("coordinate", "number", "distance", *UNORDERED)  # axes of which an input reads only some rows
CELLS = (nn.Conv2d, nn.Conv3d, nn.Linear, nn.ReLU, nn.MaxPool2d)  # a ReLU makes those of a ResNet
STATED = re.compile(r"tokens_per_image|image_tokens|image_seq_len")

OWN = (
    "Without a resize, the model interpolates its old table as --method {method} (method={method!r}) does, by default "
    "or if it is called with interpolate_pos_encoding=True."
)
READ_ALL = "Small copies of the model, one at the old and one at the new size{}, run and read every row of the table."
ONLY_SHAPES = "The whole model runs at the new size on PyTorch's meta device, which computes only shapes."
NO_RUN = "no small copy of its model could be run to check which rows it reads ({})"
NOT_AT_NEW = "a small copy of the model runs at its own size, but not at the new one ({})"


@dataclass(frozen=True)
class Shown:
    """What is known of a resize, or was shown by runs.

    sentences: for the user. image_tokens: the numbers of features that the model makes of an image for its text, before
    and after (None if no run shows them). keeping: the methods for limited differences with which a longer limit
    changes no answer, the default one first.
    """

    sentences: tuple[str, ...] = ()
    image_tokens: tuple[int, int] | None = None
    keeping: tuple[str, ...] = ()


def as_known(old_model: nn.Module, new_model: nn.Module, target: Target, own: str, method: str | None) -> Shown:
    """Returns what rows of families.json say of a resize. Refuses a size at which the whole model does not run.

    own: the method by which the model interpolates its old table itself, or ""."""
    tokens = None if target.is_text else run_whole(old_model, new_model, target)[1]
    return Shown((OWN.format(method=own),) if own not in ("", method) else (), tokens)


def proved(old_model: nn.Module, new_model: nn.Module, target: Target) -> Shown:
    """Runs small copies of a model before and after a resize, and refuses what they do not show to be right.

    The rows of fixed sinusoids in a line follow from a formula at any position, so they need no run.
    """
    groups: dict[str, list[TableSize]] = {}  # by the smallest model around the tables
    for change in target.changes:
        if change.layout.axes or change.table.kind != "sinusoidal":
            path = next(models_around(old_model, change.table.parameter), "")
            groups.setdefault(path, []).append(change)
    parts = 1
    keeping: tuple[str, ...] = ()
    for changes in groups.values():
        named = next((change for change in changes if change.layout.axes), changes[0])
        try:
            refuse_exchanged_sides(old_model, changes)
            found = proved_in_parts((old_model, new_model), target, changes)
            parts, keeping = max(parts, found[0]), keeping or found[1]
        except Misread as problem:
            raise CheckpointError(f"{named.table.key}: not resized: {problem}") from problem
        except NotTried as reason:
            if isinstance(reason, TooLarge) and target.is_text and target.limited is None:
                continue  # the names of its field and inputs must suffice
            if named.layout.axes and named.layout.axes[0].name in UNORDERED:
                continue
            raise CheckpointError(f"{named.table.key}: not resized: {NO_RUN.format(reason)}") from reason
    along = [change for change in target.changes if change.layout.axes]
    if not along and target.image_size is None:
        return Shown()
    ran, tokens = run_whole(old_model, new_model, target)
    if target.limited is not None or any(change.layout.axes[0].name in IN_PART for change in along):
        return Shown((), tokens, keeping)
    sizes = f", divided by {parts}" if parts > 1 else ""
    return Shown((READ_ALL.format(sizes), *([ONLY_SHAPES] if ran and sizes else [])), tokens)


def why_unread(model: nn.Module, table: PositionTable) -> str:
    """Returns why a small copy of a model on the meta device does not read the cells that a table's layout says, or
    "" if it reads them."""
    size, field = table.as_it_is(), table.cells[0].field
    value = field.value if isinstance(field.value, int) else list(field.value)
    try:
        proved_in_parts((model, model), Target((size,), (size.length, size.length), {field: value}), [size])
    except NotTried as reason:
        return f"small copies of the model fail at their own size ({reason})"
    except Misread as problem:
        return str(problem)
    return ""


def remedy_for_window(target: Target) -> str:
    larger = "; if the window is larger than its smallest map, first set a larger image_size in config.json"
    return larger if target.of_window else ""


# --- copies at both sizes


def refuse_exchanged_sides(model: nn.Module, changes: Sequence[TableSize]) -> None:
    for change in () if source_of(model.config).in_order else changes:
        for layout in (change.table.layout, change.layout):
            if len(layout.axes) == 2 and layout.axes[0].relative and len(set(layout.shape)) > 1:
                raise Misread(
                    f"no run shows in which order the model reads the differences of a grid of "
                    f"{' x '.join(str(axis.size) for axis in layout.axes)} (transformers' BEiT exchanges height and "
                    "width); pass a square size"
                )


def proved_in_parts(
    models: Sequence[nn.Module], target: Target, changes: Sequence[TableSize]
) -> tuple[int, tuple[str, ...]]:
    """Runs copies of the models that hold some tables, with sizes divided by a power of two where the true ones would
    take too long. Returns the divisor, and the methods that keep answers. Raises Misread, or NotTried if none runs."""
    cells, parts = max(size for change in changes for size in (change.length, change.table.length)), 1
    # A limit may not be smaller than a sound's chunks.
    fixed = target.of_window or target.limited is not None or target.patch_size is not None
    while cells > MOST_CELLS * parts**2 and not fixed and all(change.layout.axes for change in changes):
        parts *= 2
    with suppress(Misread, NotTried):  # parts may leave cells of a stage over
        if parts > 1:
            return parts, proved_at(models, target, changes, parts)
    return 1, proved_at(models, target, changes)


def proved_at(
    models: Sequence[nn.Module], target: Target, changes: Sequence[TableSize], parts: int = 1
) -> tuple[str, ...]:
    """Runs the copies of ``proved_in_parts`` in the first way in which the old one runs."""
    images = target.image_size if target.image_size and parts == 1 else (None, None)

    def prove(way: Way) -> tuple[str, ...]:
        made = copies(models, target, changes, way, parts)
        refuse_misread(made.old, made.before, images[0])
        if models[0] is models[1]:
            return ()
        try:
            refuse_misread(made.new, made.after, images[1])
        except TooLarge:
            raise
        except NotTried as reason:
            raise Misread(NOT_AT_NEW.format(reason) + remedy_for_window(target)) from reason
        return compared(made)

    proof: tuple[str, ...] = first(prove, ways_around(models[0], changes[0].table.parameter))
    return proof


def first(run: Callable[[Any], Any], given: Iterable[Any], owner: Any = None) -> Any:
    """Returns what a function gives for the first input, or way to build a copy, with which it does not fail. Raises
    Misread and TooLarge at once, and otherwise NotTried with the first failure. owner: what fails, for its name."""
    failure: Exception | None = None
    for each in given:
        try:
            return run(each)
        except (Misread, TooLarge):
            raise
        except Exception as error:  # each model raises its own errors
            stronger = isinstance(error, NotTried) and not isinstance(failure, NotTried)
            failure = error if failure is None or stronger else failure
    if failure is None:
        raise NotTried("it takes no input that is known" if owner else "no model of transformers contains it")
    if owner is None and isinstance(failure, NotTried):
        raise failure
    raise NotTried(f"{type(owner).__name__}: {last_line(failure)}") from failure


def refuse_misread(model: nn.Module, tables: Mapping[str, TableSize], image: Size | None = None) -> None:
    """Runs a copy. Raises Misread if it does not read every row of its tables in order, or NotTried.

    image: the (height, width) of an image in pixels, if it is known.
    """
    held = {name: model.get_parameter(name).requires_grad_() for name in tables}  # fixed sinusoids do not
    lines = {name: size for name, size in tables.items() if not size.layout.axes}
    others = {name: size for name, size in tables.items() if size.layout.axes}

    def read_text(tokens: int) -> None:
        """Token i of a text must read the row of position i."""
        read, _ = gradients(model, text_inputs(model, tokens), [held[name] for name in lines])
        for size, gradient in zip(lines.values(), read, strict=True):
            refuse_wrong_line(size.layout.front, gradient, tokens)

    def read_cells(inputs: Mapping[str, Any]) -> None:
        read, made = gradients(model, inputs, [held[name] for name in others], CELLS)
        if not any(bool(gradient.any()) for gradient in read) and not all(map(is_unread, others.values())):
            raise NotTried("it reads none of the rows for the inputs that were tried")
        for (name, size), rows in zip(others.items(), read, strict=True):
            if problem := wrong_rows(size, rows, made):
                raise Misread(problem if len(others) == 1 else f"{name}: {problem}")

    with undisturbed():
        if lines:
            full = min([LONGEST_TEXT, *(size.length for size in lines.values())])
            with suppress(NotTried):  # it may accept no short text
                first(read_text, (short for short in SHORT_TEXTS if short < full), model)
            first(read_text, [full], model)
        if others:
            first(read_cells, chain(image_inputs(model, image) if image else (), inputs_of(model)), model)


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
    """Returns the gradients of a run with respect to tensors, and to the outputs of all layers of some kinds.

    Patches become cells in one of these layers. Where a table is added to its output, both have the same gradient.
    """
    outputs: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _layer, _inputs, output: outputs.append(output))
        for layer in model.modules()
        if isinstance(layer, kinds)
    ]
    try:
        total = random_total(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    outputs = [output for output in outputs if output.requires_grad]
    found = torch.autograd.grad(total, (*tensors, *outputs), allow_unused=True, materialize_grads=True)
    return found[: len(tensors)], found[len(tensors) :]


def random_total(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Returns a random linear function of all finite outputs of a model."""
    outputs = [each for each in floats_in(model(**inputs)) if each.requires_grad and each.isfinite().all()]
    return torch.stack([(output * torch.randn_like(output)).sum() for output in outputs]).sum()


def floats_in(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor) and outputs.is_floating_point():
        yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for value in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from floats_in(value)


def wrong_rows(size: TableSize, gradient: Tensor, made: Sequence[Tensor]) -> str:
    """Returns an objection if a gradient shows that a model does not read every row of a table in its order, or ""."""
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
    if len(layout.axes) == 1 or len(layout.dims) > 1 or any(axis.relative for axis in layout.axes):
        return ""  # no order to be shown
    orders = [cells, *([rows] if layout.front or layout.tail else [])]
    if layout.grid and not any(side % BLOCK for side in layout.grid):
        height, width = (side // BLOCK for side in layout.grid)  # Qwen's patches come in blocks, which it merges
        orders.append(cells.unflatten(0, (height, BLOCK, width, BLOCK)).transpose(1, 2).flatten(0, 3))
    names = " x ".join(str(axis.size) for axis in layout.axes)
    in_order = any(shows_order(each, made) for each in orders)
    return "" if in_order else f"the cells of its input do not read the cells of a {names} grid, row by row"


def is_unread(size: TableSize) -> bool:
    """Returns whether a table has no columns, or one bias for all scores, which changes no attention."""
    return not size.table.width or (size.length == 1 and size.layout.axes[0].relative)


def in_window(table: PositionTable) -> bool:
    return all(WINDOWED.search(cells.field.path[-1]) for cells in table.cells)


def used_along_axes(used: Tensor, layout: TableLayout) -> list[Tensor]:
    """Returns which rows are used along each axis, or [no row] if the rows used are not all combinations of these."""
    grid = used.reshape(layout.shape)
    along = [grid.any(dim=1 - dim) for dim in range(2)] if grid.dim() == 2 else [grid]
    whole = grid.dim() == 1 or torch.equal(grid, along[0][:, None] & along[1])
    return along if whole else [torch.zeros_like(used)]


def is_around_zero(used: Tensor) -> bool:
    """Returns whether the rows used of differences along one axis are neighbours of each other and of no difference."""
    rows = used.nonzero().flatten()
    return len(rows) > 0 and bool(used[len(used) // 2]) and len(rows) == int(rows[-1] - rows[0]) + 1


def shows_order(cells: Tensor, made: Sequence[Tensor]) -> bool:
    """Returns whether the gradients at the cells (N, D) are those at the output of a layer, cell by cell.

    A norm between the two changes them, most of all where they are small. Another order leaves few cells in place.
    """
    for output in made:
        flat = output.flatten(2).transpose(1, 2) if output.dim() > 3 else output  # (B, N, D), or (N, 1, D)
        if flat.shape[-1] != cells.shape[1] or flat.numel() % cells.numel():
            continue
        here = flat.reshape(-1, *cells.shape).sum(dim=0)
        some = torch.linspace(0, len(cells) - 1, min(len(cells), MOST_COMPARED)).long()
        if torch.allclose(here, cells, rtol=TOLERANCE, atol=TOLERANCE * float(cells.abs().max())):
            return True
        nearest = (normalize(cells[some]) @ normalize(here).T).argmax(dim=1)
        if (nearest == some).double().mean() > IN_ORDER:
            return True
    return False


# --- the answers of both copies


def compared(made: Copies) -> tuple[str, ...]:
    """Compares the answers of copies with limited differences, and of copies that read texts. Returns the methods that
    keep those of limited differences. Raises Misread, or NotTried if no answers can be compared."""
    tables = made.after
    keeping: tuple[str, ...] = ()
    limited = {name: each for name, each in tables.items() if are_sides(each.layout.axes)}
    with undisturbed(), torch.no_grad():
        if limited:
            keeping = first(lambda tables: methods_keeping(made, tables), [limited], made.old)
        if len(limited) < len(tables) and any(not each.layout.axes for each in tables.values()):
            refuse_other_answer(made, tables)
    return keeping


def refuse_other_answer(made: Copies, tables: Mapping[str, TableSize]) -> None:
    """Raises Misread if the output for a text changes although it reads the same rows. This happens in DeBERTa, because
    of its distance buckets."""
    pair_up(made.old, made.new, {}, loud=True)
    fill(made.new, resized(made.old, {name: each for name, each in tables.items() if each.layout.axes}, None))
    lengths = [min(each.length, each.table.length) for each in tables.values() if not each.layout.axes]

    def compare(tokens: int) -> None:
        inputs = text_inputs(made.old, tokens)
        before, after = (list(floats_in(seeded_outputs(model, inputs))) for model in (made.old, made.new))
        if not all(
            one.shape == other.shape and torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
            for one, other in zip(before, after, strict=False)
        ):
            raise Misread(f"a text of {tokens} tokens gets another output at the new length with the same rows")

    with suppress(NotTried):  # it may accept only multiples of some number
        first(compare, (min(*lengths, LONGEST_TEXT), *(short for short in SHORT_TEXTS if short <= min(lengths))))


def methods_keeping(made: Copies, limited: Mapping[str, TableSize]) -> tuple[str, ...]:
    """Returns the methods for limited differences with which larger limits change no answer. Raises Misread if there is
    none: the rows mean something else.

    Both copies have the same weights, and tables of differences that are smooth and random. Limits that shrink are
    checked as limits that grow from the new size to the old one.
    """
    one = next(iter(limited.values()))
    grows = one.length > one.table.length
    backwards = {
        name: TableSize(replace(each.table, layout=each.layout), each.table.layout, each.table.length)
        for name, each in limited.items()
    }
    small, large, grown = (made.old, made.new, limited) if grows else (made.new, made.old, backwards)
    farthest = max(axis.size for axis in (one.table.layout if grows else one.layout).axes)
    texts = [size for each in made.after.values() if not each.layout.axes for size in (each.length, each.table.length)]
    lengths = [min([factor * farthest, LONGEST_TEXT, *texts]) for factor in (2 * MERGED, 2)]
    pair_up(small, large, grown)

    def answer(inputs: Mapping[str, Any]) -> tuple[str, ...]:
        wanted = seeded(small, inputs)
        return tuple(each for each in KEEPING if keeps(large, resized(small, grown, each), inputs, wanted))

    given = (inputs for length in lengths for inputs in line_inputs(small, length))
    if not (keeping := first(answer, given, small)):
        other = "a small copy gives other answers at the new size, whether new rows repeat the outermost rows or are 0"
        raise Misread(f"{other}, so its rows are not differences from a limit")
    return tuple(keeping)


def said_of_limits(keeping: Sequence[str], method: str, *, kept: bool, shrinks: bool) -> str:
    """Says what becomes of the answers of a model with limited differences. kept: whether all rows keep their values at
    the same difference."""
    remedy = f"--method {keeping[0]} (method={keeping[0]!r}) keeps them"
    if not kept:
        return f"The answers change, also for short inputs; {remedy}."
    if shrinks:
        return (
            "A small copy of the model gives the same answers at the old and at the new size, for an input within the "
            "new limits. Longer inputs may get other answers."
        )
    if method not in keeping:
        return f"The answers change for inputs with differences beyond the old limits; {remedy}."
    return "A small copy of the model gives the same answers at the old and at the new size, for the same input."


def keeps(model: nn.Module, tables: Mapping[str, Tensor], inputs: Mapping[str, Any], wanted: Tensor) -> bool:
    """Returns whether a copy with these tables gives the wanted answer."""
    fill(model, tables)
    return same(seeded(model, inputs), wanted)


def same(given: Tensor, wanted: Tensor) -> bool:
    return given.shape == wanted.shape and bool((given - wanted).norm() < SAME * wanted.norm())


def pair_up(
    old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], *, waves: float = SMOOTH, loud: bool = False
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
            named = method if takes(change.table.layout, change.layout, method) else None
            found[name] = change.resized(held[name], named or change.table.method or None)
    return found


def fill(new: nn.Module, tables: Mapping[str, Tensor], scale: float = 1) -> None:
    """Copies tables into a copy of the new model."""
    into = dict(new.named_parameters())
    for name, rows in tables.items():
        into[name].copy_(scale * rows)


def smooth(layout: TableLayout, like: Tensor, *, waves: float = SMOOTH) -> Tensor:
    """Returns random rows (N, D) that change slowly along each axis, for a table in this layout."""
    rows = layout.rows_in(torch.zeros_like(like))
    front, _, tail = layout.split(rows)
    total = torch.zeros(*layout.shape, rows.shape[1])
    for dim, size in enumerate(layout.shape):
        along = torch.sin(torch.arange(size)[:, None] / max(size, 1) * waves + 6 * torch.rand(rows.shape[1]))
        total += along.reshape(*(size if at == dim else 1 for at in range(len(layout.shape))), -1)
    return torch.cat([torch.randn_like(front), total.flatten(0, -2), torch.randn_like(tail)])


def seeded_outputs(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """Runs a model. Some models shuffle patches, sample durations or have random attention."""
    torch.default_generator.manual_seed(0)
    return model(**inputs)


def seeded(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Runs a model, and returns its first output."""
    outputs = seeded_outputs(model, inputs)
    return outputs if isinstance(outputs, Tensor) else next(v for v in outputs.values() if isinstance(v, Tensor))


# --- whole models

Run = Callable[[Any, Mapping[str, Any]], Any]


def run_whole(old_model: nn.Module, new_model: nn.Module, target: Target) -> tuple[bool, tuple[int, int] | None]:
    """Runs the largest models that accept an input known here, at their old and at their new size.

    Returns whether the model that holds all others ran on the meta device, and the numbers of features that it makes of
    an image, before and after (None if no run shows them). Refuses what does not run at the new size.
    """
    around = list(models_around(old_model, target.table.parameter))
    for path in reversed(around):
        models = [model.get_submodule(path) for model in (old_model, new_model)]
        try:
            ran, counts = (tried(models, target, run) for run in (run_forward, count_features))
            shapes = ran is not None and path == around[-1]
            if ran is counts is None and target.table.layout.grid is not None:
                small = narrow_copies(models, target)
                ran, counts = (tried(small, target, run, "cpu") for run in (run_forward, count_features))
            if ran is counts is None:
                continue
            if counts is not None:
                refuse_other_count(models[0], models[1], counts, target)
        except Misread as problem:
            raise CheckpointError(f"{target.table.key}: not resized: {problem}{remedy_for_window(target)}") from problem
        return shapes, counts
    return False, None


def narrow_copies(models: Sequence[nn.Module], target: Target) -> list[nn.Module]:
    """Returns copies of few layers, to be run on the CPU at the true size of their images, or []."""
    if max(size for each in target.changes for size in (each.table.length, each.length)) <= MOST_CELLS:
        with undisturbed(), suppress(Exception):  # narrow copies of some models cannot be built, and large ones are not
            return [small_copy(model, narrow=True) for model in models]
    return []


def tried(models: Sequence[nn.Module], target: Target, run: Run, device: str = "meta") -> tuple[Any, Any] | None:
    """Runs the old model with inputs of its own size, and the new one with an input of its size in the first form that
    the old one accepts. Returns what ``run`` gives for both, or None if the old one accepts none. Raises Misread if
    the new one fails."""
    with undisturbed(), torch.no_grad(), torch.device(device):
        for old, new in forms_of(models, target.image_size) if models else ():
            try:
                before = run(models[0], old)
            except Exception:  # each model raises its own errors
                continue
            try:
                return before, run(models[1], new)
            except Exception as error:
                texts = (new[name].shape[1] for name in ("input_ids", "inputs_embeds") if name in new)
                if target.image_size is None and max(texts, default=0) > target.length[1]:
                    continue  # the new model need not read so long a text
                why = f"{type(models[1]).__name__}: {last_line(error)}"
                raise Misread(f"the model runs at its own size, but not at the new one ({why})") from error
    return None


def forms_of(models: Sequence[nn.Module], sizes: tuple[Size, Size] | None) -> Iterator[tuple[Any, Any]]:
    """Yields inputs of the same form for the old and the new model, each at its own size."""
    with suppress(Exception):  # it takes other inputs, or its images are too large
        yield from zip(*map(image_inputs, models, sizes or ()), strict=False)
    with suppress(Exception):
        yield from zip(*map(inputs_of, models), strict=False)


def run_forward(model: Any, inputs: Mapping[str, Any]) -> bool:
    model(**inputs)
    return True


def count_features(model: Any, inputs: Mapping[str, Any]) -> int:
    """Returns the number of features that a model makes of an image for its text, which some models compute first."""
    computed = (getattr(module, field, None) for module in model.modules() for field in IMAGE_TOKENS)
    if (number := next((each for each in computed if type(each) is int), None)) is not None:
        return number
    accepted = signature(model.get_image_features).parameters
    given = {name: value for name, value in inputs.items() if name in accepted and isinstance(value, Tensor)}
    return features_in(model.get_image_features(**given))


def refuse_other_count(old: Any, new: Any, counts: tuple[int, int], target: Target) -> None:
    """Raises Misread if a config states another number of image tokens than the new model makes."""
    stated, after = (dict(leaves(model.config.to_dict())) for model in (old, new))
    for path, number in stated.items():
        says = STATED.search(str(path[-1])) and path[-1] not in IMAGE_TOKENS and type(number) is int
        if says and number == counts[0] and after.get(path) != counts[1]:
            size = " x ".join(map(str, target.image_size[1])) if target.image_size else "the new size"
            raise Misread(
                f"config.json says {'.'.join(path)}={after.get(path)} image tokens, but the model makes {counts[1]} of "
                f"an image of {size} pixels; pass a size of which it makes {after.get(path)}"
            )
