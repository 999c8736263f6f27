"""posembed resize: a checkpoint with longer, shorter or re-gridded position tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from posembed.cli.evaluate import print_evaluation
from posembed.cli.inspect import CHECKPOINT
from posembed.errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from posembed.checkpoints.resize import Resize
    from posembed.evaluation.results import Evaluation

LEFTOVERS = {
    ".old": "the earlier OUT, from a resize that was killed; look inside, then rename or delete it",
    ".partial": "left by a resize to this place that was killed, or used by one that still runs; it holds an "
    "unfinished copy or the earlier OUT. Look inside, then delete it",
}  # by their endings, what the files hold that killed processes leave


def resize(
    checkpoint: Annotated[str, CHECKPOINT],
    out: Annotated[Path, typer.Argument(help="The new folder or .safetensors file to write.", show_default=False)],
    length: Annotated[
        int | None, typer.Option(help="Text: the new number of positions, not counting reserved rows.")
    ] = None,
    image_size: Annotated[
        str | None, typer.Option(help="Images: the new size in pixels, 384 or HEIGHTxWIDTH.", metavar="SIZE")
    ] = None,
    grid: Annotated[
        str | None, typer.Option(help="Images: the new patches, HEIGHTxWIDTH, such as 24x24.", metavar="HxW")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How new rows are computed. Text: tile (the default: it keeps every old row, and in a sentence "
            "encoder linear interpolation was worse at all lengths), hierarchical, linear, cubic, stretch, truncate, "
            "random, mean. Images: bicubic-antialias (the default), bicubic, bilinear-antialias, bilinear, dinov2."
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="The key of the table, if there are several or it is a guess.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            help="A text file or a folder of them: evaluate both checkpoints on it, at the old and the new length.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it is the unchanged output of an earlier resize.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Write a copy of a checkpoint with longer, shorter or re-gridded position tables.

    Everything that depends on the length changes too: config, settings, ids.
    All other tensors and files are copied byte for byte.
    CHECKPOINT itself is never changed.
    """
    import json

    from posembed.checkpoints.resize import resize_checkpoint
    from posembed.files import leftovers
    from posembed.tables.resize import DEFAULT_TEXT_METHOD, WHY_TEXT_METHOD

    if check is not None:
        refuse_to_check(checkpoint, check, dry_run=dry_run, length=length)
    resized = resize_checkpoint(
        checkpoint,
        out,
        length=length,
        image_size=None if image_size is None else sides(image_size, "--image-size"),
        grid=None if grid is None else sides(grid, "--grid"),
        method=method,
        table=table,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    left = leftovers(out)
    if not as_json:
        print_resize(resized)
        print("nothing was written (--dry-run)" if dry_run else f"written: {out}")
        if method is None and any(change.how == DEFAULT_TEXT_METHOD for change in resized.edit.tables):
            print(f"{DEFAULT_TEXT_METHOD} is the default: {WHY_TEXT_METHOD}")
        for path in left:
            print(f"{path}: {LEFTOVERS[path.suffix]}")
    evaluation = None if check is None else before_and_after(checkpoint, out, check, resized)
    if as_json:
        files = {"left_out": list(resized.left_out), "leftovers": list(map(str, left)), "written": not dry_run}
        checked = {} if evaluation is None else {"check": evaluation.to_dict()}
        print(json.dumps({**resized.record, **files, **checked}, indent=2))
    elif evaluation is not None:
        from posembed.cli.console import table_console

        print()
        print_evaluation(table_console(), evaluation)


def refuse_to_check(checkpoint: str, text: Path, *, dry_run: bool, length: int | None) -> None:
    """Refuses what cannot be evaluated, before anything is written."""
    from posembed.evaluation.api import refuse_short_text

    if dry_run or length is None:
        reason = "--dry-run writes none; leave one of them out" if dry_run else "give --length"
        raise ArgumentError(f"--check evaluates a text model of another length; {reason}")
    refuse_short_text(checkpoint, text, length=length)


def before_and_after(checkpoint: str, out: Path, text: Path, resized: Resize) -> Evaluation:
    """Evaluates both checkpoints on the same text, at the old length and at the new one."""
    from posembed.cli.console import Bar
    from posembed.evaluation.api import evaluate_checkpoints

    with Bar() as bar:
        lengths = resized.edit.target.length
        return evaluate_checkpoints([checkpoint, out], text, lengths=lengths, progress=bar.update)


def sides(text: str, option: str) -> tuple[int, int]:
    """ "384" -> (384, 384), "384x512" -> (384, 512)."""
    match = re.fullmatch(r"(\d{1,9})(?:x(\d{1,9}))?", text)
    if match is None:
        raise ArgumentError(f"{option}: expected a number or HEIGHTxWIDTH, such as 24x32; got {text!r}")
    return int(match[1]), int(match[2] or match[1])


def print_resize(resized: Resize) -> None:
    """Prints one line per change, so that each can be searched for."""
    for change in resized.edit.tables:
        print(f"{change.key}: {shape(change.before)} -> {shape(change.after)}, {change.how}")
        print(f"{change.key}: unchanged rows at the start: {change.kept}")
    for other in resized.edit.others:
        print(f"{other.key}: {shape(other.before)} -> {shape(other.after)}, {other.how}")
    for setting in resized.settings:
        before = "none" if setting.before is None else setting.before
        print(f"{setting.file}: {'.'.join(setting.path)}: {before} -> {setting.after}")
    if resized.edit.target.note:
        print(resized.edit.target.note)
    for name in resized.left_out:
        print(f"{name}: left out, because it may hold the old table")


def shape(tensor: Tensor | None) -> str:
    return "none" if tensor is None else " x ".join(map(str, tensor.shape))
