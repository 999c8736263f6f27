"""Proves a resize by running small copies of a model at the old and at the new size.

Matching shapes do not show that a model works at a new size: some models read a table by coordinates or interpolate it,
and some take only square images. So a copy with few layers is run at both sizes, and the gradients of its tables show
which rows it read (``reads.py``). Where old inputs must keep their outputs, the outputs of both copies are compared
(``answers.py``). Last, the whole model is run (``whole_models.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from torch import nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.position_tables import PositionTable, TableSize
from posembed.checkpoints.proof.answers import compared
from posembed.checkpoints.proof.copies import cells_to_try, copies, may_be_smaller
from posembed.checkpoints.proof.inputs import Misread, NotTried, TooLarge
from posembed.checkpoints.proof.reads import IN_PART, UNORDERED, refuse_misread
from posembed.checkpoints.proof.whole_models import Models, remedy_for_window, run_whole
from posembed.checkpoints.sources.base import HALF, Few
from posembed.checkpoints.sources.configs import models_around, source_of
from posembed.checkpoints.sources.hugging_face import FEW_CELLS
from posembed.errors import CheckpointError

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
