"""What runs of small copies show of a resize: the reasons to refuse it, and sentences for the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.found import TableSize, section
from posembed.checkpoints.rebuild import is_of_timm
from posembed.checkpoints.trials.along_axes import (
    IN_PART,
    NOT_IN_ORDER,
    TRUE,
    CopiesRead,
    is_repeated,
    refused,
    remedy_for_window,
)
from posembed.checkpoints.trials.answers import SAME, KeptAnswers, kept_answers, own_reading
from posembed.checkpoints.trials.plain import NO_RUN, refuse_misread
from posembed.checkpoints.trials.small_copies import PRETRAINED, NotTried
from posembed.checkpoints.trials.whole import run_whole
from posembed.errors import CheckpointError

ROUNDING = 1e-3  # relative: timm computes where old differences lie in float32
READ_BUCKETS = (
    "Small copies of the model, one at the old and one at the new size, run and read the expected bucket for each "
    "distance. A distance whose new bucket lies within its old one keeps its row. Any other gets the mean of the old "
    "rows of the distances in its new bucket."
)
READ_ALL = "Small copies of the model, {}, run and read every row of the table."
ONLY_SHAPES = "The whole model runs at the new size on PyTorch's meta device, which computes only shapes."


@dataclass(frozen=True)
class Shown:
    """What runs showed: sentences for the user, and the numbers of features that the model makes of an image for its
    text, before and after (None if no run shows them)."""

    sentences: tuple[str, ...] = ()
    image_tokens: tuple[int, int] | None = None


def refuse_unread(old_model: nn.Module, new_model: nn.Module, target: Target) -> Shown:
    """Refuses tables that a run contradicts, or that no run could check."""
    if target.field is not None and target.field.path[-1] == PRETRAINED and is_repeated(old_model, target.table):
        raise CheckpointError(
            f"{target.table.key}: not resized: the model repeats it side by side over a larger image, so it needs no "
            "resize: an image of any size reads the same rows"
        )
    left = refuse_misread(old_model, new_model, target)
    read = read_along_axes(old_model, new_model, target, left) if left else CopiesRead()
    if not left and target.image_size is None:
        return Shown()
    whole = run_whole(old_model, new_model, target)
    if whole.problem:
        raise CheckpointError(f"{target.table.key}: not resized: {whole.problem}{remedy_for_window(target)}")
    sentences = []
    changes = [change for change, _ in left]
    if left and target.limited is None and not any(change.layout.axes[0].name in IN_PART for change in changes):
        sentences.append(READ_ALL.format(read.sizes))
        sentences += [ONLY_SHAPES] if whole.ran and read.sizes != TRUE else []
    return Shown(tuple(sentences), whole.image_tokens)


def read_along_axes(
    old_model: nn.Module, new_model: nn.Module, target: Target, left: Sequence[tuple[TableSize, str]]
) -> CopiesRead:
    """Refuses tables that ``refuse_misread`` left to runs of small copies, if these contradict them."""
    changes = [change for change, _ in left]
    try:
        read = refused(old_model, new_model, target, changes)
    except NotTried as reason:
        read = CopiesRead(left[0][1] or NO_RUN.format(reason))
    if read.problem == NOT_IN_ORDER and reads_as_its_own(old_model, new_model, target):
        read = CopiesRead(sizes=read.sizes)
    if read.problem:
        raise CheckpointError(f"{changes[0].table.key}: not resized: {read.problem}")
    return read


def reads_as_its_own(old_model: nn.Module, new_model: nn.Module, target: Target) -> bool:
    """Returns whether a method gives the answers of the model's own reading of its old table. This shows the order of
    its rows where they are not added to the cells, but stand beside them (Perceiver)."""
    own = own_reading(old_model, new_model, target, None)
    return own is not None and (own.apart < SAME or bool(own.same))


def answers_within_limits(
    old_model: nn.Module, new_model: nn.Module, target: Target, method: str | None
) -> KeptAnswers | None:
    """Returns what small copies show about limited differences, if there are any. Refuses a table whose rows mean
    something else."""
    table = target.limited
    if table is None:
        return None
    try:
        answers = kept_answers(old_model, new_model, target, table, method)
    except NotTried as reason:
        raise CheckpointError(f"{table.table.key}: not resized: {NO_RUN.format(reason)}") from reason
    if not answers.keeping:
        other = "a small copy gives other answers at the new size, whether new rows repeat the outermost rows or are 0"
        raise CheckpointError(f"{table.table.key}: not resized: {other}, so its rows are not differences from a limit")
    return answers


def shown(
    old_model: nn.Module,
    new_model: nn.Module,
    target: Target,
    method: str | None,
    limits: KeptAnswers | None,
) -> Iterator[str]:
    """Yields what runs of small copies showed, in sentences."""
    if limits is not None and target.limited is not None:
        yield said_of_limits(limits, shrinks=target.limited.length < target.limited.table.length)
        config: Any = old_model.config
        around = section(config.to_dict(), target.field.path[:-1]) if target.field else {}
        grows, within = target.limited.length > target.limited.table.length, around.get("context_size")
        if grows and type(within) is int and within <= max(axis.size for axis in target.limited.table.layout.axes):
            yield (
                f"The model reads no difference beyond context_size={within} (config.json), so it reads none of the "
                "new rows until context_size grows."
            )
    if (own := own_reading(old_model, new_model, target, method)) is not None:
        same = "the same answers as" if own.apart < SAME else f"answers that differ by {100 * own.apart:.2g}% from"
        remedy = f"; --method {own.same} (method={own.same!r}) gives the same answers" if own.same else ""
        yield (
            f"On a small copy with a smooth random table, the resized table gives {same} the old table at the new "
            f"size, which the model interpolates itself{remedy}."
        )


def said_of_loading(new_model: nn.Module, tables: Mapping[str, tuple[Tensor, Tensor]]) -> Iterator[str]:
    """Yields how timm's own tables differ, if timm resizes the tables of an old file when it loads them.

    tables: each table before and after a resize, by its key.
    """
    if not is_of_timm(new_model.config):
        return
    from posembed.checkpoints.timm_models import loaded_by_timm

    theirs = loaded_by_timm(new_model, {key: before for key, (before, _) in tables.items()})
    pairs = [(theirs[key].double(), after.double()) for key, (_, after) in tables.items() if key in theirs]
    if not pairs:
        return
    apart = max(float((own - ours).norm() / (own.norm() or 1)) for own, ours in pairs)
    some = f"these {len(pairs)} tables" if len(pairs) == len(tables) else f"{len(pairs)} of these {len(tables)} tables"
    all_of = "it" if len(tables) == 1 else some
    same = "the same values" if apart < ROUNDING else f"values that differ by up to {100 * apart:.2g}%"
    yield f"timm resizes {all_of} as well when it loads the old file into a model of the new size, to {same}."


def said_of_limits(answers: KeptAnswers, *, shrinks: bool) -> str:
    remedy = f"--method {answers.keeping} (method={answers.keeping!r}) keeps them"
    if not answers.within:
        return f"The answers change, also for short inputs; {remedy}."
    if shrinks:
        return (
            "A small copy of the model gives the same answers at the old and at the new size, for an input within the "
            "new limits. Longer inputs may get other answers."
        )
    if not answers.beyond:
        return f"The answers change for inputs with differences beyond the old limits; {remedy}."
    return "A small copy of the model gives the same answers at the old and at the new size, for the same input."
