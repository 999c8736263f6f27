"""Proves a resize by running small copies of a model at the old and at the new size.

Matching shapes do not show that a model works at a new size: some models read a table by coordinates or interpolate it,
and some take only square images. So a copy with few layers is run at both sizes. The gradient of a table shows which
rows the copy read: token i of a text reads the row of position i, and an image, a video or a sound reads all rows. The
cells of the input read the rows in order if each row has the gradient of its cell at the output of the layer that makes
the cells. Where old inputs must keep their outputs, the outputs of both copies are compared. Last, the whole
model is run (``whole_models.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from posembed.checkpoints.choose import Target
from posembed.checkpoints.position_tables import PositionTable, Size, TableSize
from posembed.checkpoints.proof_inputs import (
    LONGEST_TEXT,
    Misread,
    NotTried,
    TooLarge,
    image_inputs,
    inputs_of,
    line_inputs,
    text_inputs,
)
from posembed.checkpoints.responses import WINDOWED
from posembed.checkpoints.small_copies import Copies, cells_to_try, copies, may_be_smaller, undisturbed
from posembed.checkpoints.sources.base import HALF, Few
from posembed.checkpoints.sources.configs import models_around, source_of
from posembed.checkpoints.sources.hugging_face import FEW_CELLS
from posembed.checkpoints.whole_models import Models, remedy_for_window, run_whole
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.layout import TableLayout, are_sides
from posembed.tables.resize import takes
from posembed.words import last_line

MOST_CELLS = 1024  # the maximum number of cells to compare with all others
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
CELLS = (nn.Conv2d, nn.Conv3d, nn.Linear, nn.ReLU, nn.MaxPool2d)  # a ReLU makes those of a ResNet, a pool NesT's

READ_BUCKETS = (
    "Small copies of the model, one at the old and one at the new size, run and read the expected bucket for each "
    "distance. A distance whose new bucket lies within its old one keeps its row. Any other gets the mean of the old "
    "rows of the distances in its new bucket."
)
OWN = (
    "Without a resize, the model interpolates its old table as --method {method} (method={method!r}) does, by default "
    "or if it is called with interpolate_pos_encoding=True."
)
TRUE = "one at the old and one at the new size"
READ_ALL = "Small copies of the model, {}, run and read every row of the table."
ONLY_SHAPES = "The whole model runs at the new size on PyTorch's meta device, which computes only shapes."
NO_RUN = "no small copy of its model could be run to check which rows it reads ({})"
NOT_AT_NEW = "a small copy of the model runs at its own size, but not at the new one ({})"


@dataclass(frozen=True)
class Shown:
    """What model runs showed about a resize, or was already known.

    sentences: what to tell the user. image_tokens: the numbers of image features that the model inserts into its text,
    before and after (None if no run shows them). method: the method to resize by; None for each table's default.
    """

    sentences: tuple[str, ...] = ()
    image_tokens: tuple[int, int] | None = None
    method: str | None = None


def as_known(models: Models, target: Target, own: str, method: str | None) -> Shown:
    """Returns what families.json says about a resize. Refuses a size at which the whole model does not run. own: the
    method by which the model interpolates its old table itself, or "" for none."""
    tokens = None if target.is_text else run_whole(models, target)[1]
    return Shown((OWN.format(method=own),) if own not in ("", method) else (), tokens, method)


def proved(models: Models, target: Target, method: str | None) -> Shown:
    """Runs small copies of a model before and after a resize. Refuses a resize that these runs do not show to be right.

    Fixed sinusoids in a line need no run, because a formula gives their rows at any position.
    """
    if all(change.how is not None for change in target.changes):
        return Shown((READ_BUCKETS,), method=method)
    groups: dict[str, list[TableSize]] = {}  # by the smallest model around the tables
    for change in target.changes:
        if change.layout.axes or change.table.kind != "sinusoidal":
            path = next(models_around(models[0], change.table.parameter), "")
            groups.setdefault(path, []).append(change)
    sentences: list[str] = []
    sizes = TRUE
    for changes in groups.values():
        named = next((change for change in changes if change.layout.axes), changes[0])
        try:
            words, said, method = proved_together(models, target, changes, method)
        except Misread as problem:
            raise CheckpointError(f"{named.table.key}: not resized: {problem}") from problem
        except NotTried as reason:
            if isinstance(reason, TooLarge) and target.is_text and target.limited is None:
                continue  # the names of its field and inputs must suffice
            if named.layout.axes and named.layout.axes[0].name in UNORDERED:
                continue
            raise CheckpointError(f"{named.table.key}: not resized: {NO_RUN.format(reason)}") from reason
        sizes, sentences = (words if sizes == TRUE else sizes), sentences + said
    along = [change for change in target.changes if change.layout.axes]
    if not along and target.image_size is None:
        return Shown(tuple(sentences), method=method)
    ran, tokens = run_whole(models, target)
    if target.limited is None and not any(change.layout.axes[0].name in IN_PART for change in along):
        sentences = [READ_ALL.format(sizes), *([ONLY_SHAPES] if ran and sizes != TRUE else []), *sentences]
    return Shown(tuple(sentences), tokens, method)


# --- copies at both sizes


def proved_together(
    models: Models, target: Target, changes: Sequence[TableSize], method: str | None
) -> tuple[str, list[str], str | None]:
    """Runs copies of both models around the tables in ``changes``. Returns the sizes of the copies in words, sentences
    on clipped differences, and the method to resize by. Raises Misread, or NotTried if no copy runs."""
    for change in () if source_of(models[0].config).in_order else changes:
        for layout in (change.table.layout, change.layout):
            if len(layout.axes) == 2 and layout.axes[0].relative and len(set(layout.shape)) > 1:
                raise Misread(
                    f"no run shows in which order the model reads the differences of a grid of "
                    f"{' x '.join(str(axis.size) for axis in layout.axes)} (transformers' BEiT exchanges height and "
                    "width); pass a square size"
                )
    sizes = cells_to_try(changes, target, models[0])
    problem: NotTried | Misread | None = None
    for few in sizes:  # other sizes may leave cells of a stage over
        try:
            return proved_at(models, target, changes, method, few)
        except Misread as found:
            problem = problem if isinstance(problem, Misread) else found
            if few is None:
                break
        except NotTried as reason:
            problem = problem or reason
            if isinstance(reason, TooLarge) and sizes == [None] and may_be_smaller(changes, target):
                sizes += FEW_CELLS
    assert problem is not None
    raise problem


def proved_at(
    models: Models, target: Target, changes: Sequence[TableSize], method: str | None, few: Few
) -> tuple[str, list[str], str | None]:
    """Does the runs of ``proved_together`` at one size. few: cells along an axis of each copy; None for true sizes."""
    reasons = []
    images = target.image_size if target.image_size and few is None else (None, None)
    for path, narrow, few_layers in product(
        models_around(models[0], changes[0].table.parameter), (True, False), (True, False)
    ):
        parts = [model.get_submodule(path) for model in models]
        try:
            made = copies(parts, target, changes, path, narrow=narrow, few_layers=few_layers, few=few)
        except NotTried as reason:
            reasons.append(reason)
            continue
        try:
            refuse_misread(made.old, made.before, images[0])
        except TooLarge:
            raise
        except NotTried as reason:
            reasons.append(reason)
            continue
        try:
            refuse_misread(made.new, made.after, images[1])
        except TooLarge:
            raise
        except NotTried as reason:
            raise Misread(NOT_AT_NEW.format(reason) + remedy_for_window(target)) from reason
        said, method = compared(made, target, method)
        words = f"one with {few[0]} and one with {few[1]} cells along an axis" if few else TRUE
        return "with images of half the size" if few == HALF else words, said, method
    raise reasons[0] if reasons else NotTried("no model of transformers contains it")


def why_unread(model: nn.Module, table: PositionTable) -> str:
    """Returns why small copies of a model on the meta device do not read a table's cells as its layout states, or "" if
    a copy does."""
    size, field = table.as_it_is(), table.cells[0].field
    value = field.value if isinstance(field.value, int) else list(field.value)
    target, why = Target((size,), (size.length, size.length), {field: value}), ""
    tries = product(models_around(model, table.parameter), cells_to_try([size], target, model), (True, False))
    for path, few, narrow in tries:
        part = model.get_submodule(path)
        try:
            made = copies((part, part), target, [size], path, narrow=narrow, few=few)
            refuse_misread(made.old, made.before)
        except Misread as problem:
            return str(problem)
        except TooLarge as reason:
            why = why or str(reason)
        except NotTried as reason:
            why = why or f"small copies of the model fail at their own size ({reason})"
        else:
            return ""
    return why


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


def floats_in(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor) and outputs.is_floating_point():
        yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for value in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from floats_in(value)


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


# --- the answers of both copies


def compared(made: Copies, target: Target, method: str | None) -> tuple[list[str], str | None]:
    """Compares the outputs of both copies, for limited differences and for texts. Returns sentences on what this shows,
    and the method to resize by. Raises Misread, or NotTried if no outputs can be compared."""
    tables = made.after
    limited = {name: each for name, each in tables.items() if are_sides(each.layout.axes)}
    said = []
    with undisturbed(), torch.no_grad():
        if limited:
            try:
                keeping, sentence = kept_answers(made, tables, limited, method)
            except Misread:
                raise
            except Exception as error:
                raise NotTried(f"{type(made.old).__name__}: {last_line(error)}") from error
            said, method = [sentence, *beyond_context(made.old, target)], method or keeping
        if len(limited) < len(tables) and any(not each.layout.axes for each in tables.values()):
            refuse_other_answer(made, tables)
    return said, method


def refuse_other_answer(made: Copies, tables: Mapping[str, TableSize]) -> None:
    """Raises Misread if the output for a text changes although the text reads the same rows. This happens in DeBERTa,
    because of its distance buckets."""
    pair_up(made.old, made.new, {}, loud=True)
    fill(made.new, resized(made.old, {name: each for name, each in tables.items() if each.layout.axes}, None))
    lengths = [min(each.length, each.table.length) for each in tables.values() if not each.layout.axes]
    shortest = min(lengths)
    for tokens in (min(shortest, LONGEST_TEXT), *(short for short in SHORT_TEXTS if short <= shortest)):
        try:
            inputs = text_inputs(made.old, tokens)
            before, after = (list(floats_in(seeded_outputs(model, inputs))) for model in (made.old, made.new))
        except Exception:  # not a multiple that the model accepts
            continue
        if not all(
            one.shape == other.shape and torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
            for one, other in zip(before, after, strict=False)
        ):
            raise Misread(f"a text of {tokens} tokens gets another output at the new length with the same rows")
        return


def kept_answers(
    made: Copies, tables: Mapping[str, TableSize], limited: Mapping[str, TableSize], method: str | None
) -> tuple[str, str]:
    """Returns the method that keeps all outputs when the limits of differences grow, and a sentence on what the outputs
    show about the requested resize. Raises Misread if no method does: the rows mean something else. Both copies have
    the same weights, and their tables are random but smooth. If the limits shrink, the check swaps the two sizes."""
    first = next(iter(limited.values()))
    grows = first.length > first.table.length
    limits = [axis.size for axis in (first.table.layout if grows else first.layout).axes]
    texts = [size for each in tables.values() if not each.layout.axes for size in (each.length, each.table.length)]
    longest = min([LONGEST_TEXT, *texts])
    long = [min(factor * max(limits), longest) for factor in (2 * MERGED, 2)]
    short = [min(*limits, longest)]
    backwards = {
        name: TableSize(replace(each.table, layout=each.layout), each.table.layout, each.table.length)
        for name, each in limited.items()
    }
    small, large, grown = (made.old, made.new, limited) if grows else (made.new, made.old, backwards)
    pair_up(small, large, grown)
    inputs, wanted = answered(small, long)
    same = (each for each in KEEPING if keeps(large, resized(small, grown, each), inputs, wanted))
    if not (keeping := next(same, "")):
        other = "a small copy gives other answers at the new size, whether new rows repeat the outermost rows or are 0"
        raise Misread(f"{other}, so its rows are not differences from a limit")
    pair_up(made.old, made.new, limited)
    rows = resized(made.old, tables, method or keeping)
    within, beyond = (keeps(made.new, rows, *answered(made.old, lengths)) for lengths in (short, long))
    return keeping, said_of_limits(keeping, within=within, beyond=beyond, shrinks=not grows)


def said_of_limits(keeping: str, *, within: bool, beyond: bool, shrinks: bool) -> str:
    remedy = f"--method {keeping} (method={keeping!r}) keeps them"
    if not within:
        return f"The answers change, also for short inputs; {remedy}."
    if shrinks:
        return (
            "A small copy of the model gives the same answers at the old and at the new size, for an input within the "
            "new limits. Longer inputs may get other answers."
        )
    if not beyond:
        return f"The answers change for inputs with differences beyond the old limits; {remedy}."
    return "A small copy of the model gives the same answers at the old and at the new size, for the same input."


def beyond_context(model: nn.Module, target: Target) -> Iterator[str]:
    config: Any = model.config
    limited, within = target.limited, config.to_dict().get("context_size")
    if limited is None or limited.length <= limited.table.length or type(within) is not int:
        return
    if within <= max(axis.size for axis in limited.table.layout.axes):
        yield (
            f"The model reads no difference beyond context_size={within} (config.json), so it reads none of the new "
            "rows until context_size grows."
        )


def keeps(model: nn.Module, tables: Mapping[str, Tensor], inputs: Mapping[str, Any], wanted: Tensor) -> bool:
    """Returns whether a copy with these tables gives the wanted output."""
    fill(model, tables)
    return same(seeded(model, inputs), wanted)


def same(given: Tensor, wanted: Tensor) -> bool:
    return given.shape == wanted.shape and bool((given - wanted).norm() < SAME * wanted.norm())


def answered(model: nn.Module, lengths: Sequence[int]) -> tuple[dict[str, Any], Tensor]:
    """Returns the first input of one of these lengths that a model can read, and the model's output."""
    failure: Exception | None = None
    for inputs in (each for length in lengths for each in line_inputs(model, length)):
        try:
            return inputs, seeded(model, inputs)
        except Exception as error:
            failure = failure or error
    raise failure or NotTried("it takes no input that is known")


def pair_up(
    old: nn.Module, new: nn.Module, tables: Mapping[str, TableSize], *, waves: float = SMOOTH, loud: bool = False
) -> None:
    """Gives both copies the same weights, and the old copy smooth tables, whose cells are all equal if waves is 0."""
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
    """Returns an old copy's tables, resized by the method, or by a table's default if it does not support that."""
    held, found = dict(old.named_parameters()), {}
    for name, change in tables.items():
        if name in held:
            named = method if takes(change.table.layout, change.layout, method) else None
            found[name] = change.resized(held[name], named or change.table.method or None)
    return found


def fill(new: nn.Module, tables: Mapping[str, Tensor], scale: float = 1) -> None:
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
    """Runs a model with a fixed seed. Some models shuffle patches, sample durations or have random attention."""
    torch.default_generator.manual_seed(0)
    return model(**inputs)


def seeded(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """Runs a model with a fixed seed, and returns its first output."""
    outputs = seeded_outputs(model, inputs)
    return outputs if isinstance(outputs, Tensor) else next(v for v in outputs.values() if isinstance(v, Tensor))
