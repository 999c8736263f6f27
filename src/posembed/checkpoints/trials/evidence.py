"""What runs of small copies show of a resize: the reasons to refuse it, and sentences for the user."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from posembed.checkpoints.choose import Target
from posembed.checkpoints.families import Known
from posembed.checkpoints.found import TableSize, section
from posembed.checkpoints.rebuild import is_of_timm
from posembed.checkpoints.trials.along_axes import (
    IN_PART,
    TRUE,
    CopiesRead,
    refused,
    remedy_for_window,
)
from posembed.checkpoints.trials.answers import KeptAnswers, kept_answers
from posembed.checkpoints.trials.plain import NO_RUN, refuse_misread
from posembed.checkpoints.trials.small_copies import NotTried
from posembed.checkpoints.trials.whole import WholeRuns, run_whole
from posembed.errors import CheckpointError

ROUNDING = 1e-3  # relative: timm computes where old differences lie in float32
READ_BUCKETS = (
    "Small copies of the model, one at the old and one at the new size, run and read the expected bucket for each "
    "distance. A distance whose new bucket lies within its old one keeps its row. Any other gets the mean of the old "
    "rows of the distances in its new bucket."
)
OWN = "At the new size, the model interpolates its old table itself, as --method {method} (method={method!r}) does."
READ_ALL = "Small copies of the model, {}, run and read every row of the table."
ONLY_SHAPES = "The whole model runs at the new size on PyTorch's meta device, which computes only shapes."


@dataclass(frozen=True)
class Shown:
    """What is known of a resize, or was shown by runs.

    sentences: for the user. image_tokens: the numbers of features that the model makes of an image for its text, before
    and after (None if no run shows them). method: the method to resize by; None for each table's default.
    """

    sentences: tuple[str, ...] = ()
    image_tokens: tuple[int, int] | None = None
    method: str | None = None


def as_known(old_model: nn.Module, new_model: nn.Module, target: Target, seen: Known, method: str | None) -> Shown:
    """Returns what rows of families.json say of a resize. Refuses a size at which the whole model does not run."""
    whole = WholeRuns() if target.is_text else run_whole(old_model, new_model, target)
    if whole.problem:
        raise CheckpointError(f"{target.table.key}: not resized: {whole.problem}{remedy_for_window(target)}")
    own = (OWN.format(method=seen.own),) if seen.own else ()
    return Shown(own, whole.image_tokens, method)


def proved(old_model: nn.Module, new_model: nn.Module, target: Target, method: str | None) -> Shown:
    """Runs small copies of a model before and after a resize, and refuses what they do not show to be right."""
    if all(change.how is not None for change in target.changes):
        return Shown((READ_BUCKETS,), method=method)
    runs = refuse_unread(old_model, new_model, target)
    limits = answers_within_limits(old_model, new_model, target, method)
    if method is None and limits is not None:
        method = limits.keeping
    sentences = (*runs.sentences, *shown(old_model, target, limits))
    return Shown(sentences, runs.image_tokens, method)


def refuse_unread(old_model: nn.Module, new_model: nn.Module, target: Target) -> Shown:
    """Refuses tables that a run contradicts, or that no run could check."""
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
    if read.problem:
        raise CheckpointError(f"{changes[0].table.key}: not resized: {read.problem}")
    return read


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


def shown(old_model: nn.Module, target: Target, limits: KeptAnswers | None) -> Iterator[str]:
    """Yields what runs of small copies showed of limited differences, in sentences."""
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
