"""posembed inspect, evaluate and resize: the commands that read a checkpoint."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posembed.cli.options import Paging, Planning, Printing, Values, command, shape_of
from posembed.cli.push import Uploading, planned_upload
from posembed.errors import ArgumentError
from posembed.evaluation.settings import MODEL_TYPE, PARTS, EvaluationSettings, Measured
from posembed.measure.processes import joined
from posembed.settings import Amount, Count, Cube, Names, Settings, Sides, argument, flag, given_to, option, take

if TYPE_CHECKING:
    from rich.console import Console

    from posembed.checkpoints.inspect import CheckpointReport

SIZE = "New size: one is required"
ONE_FILE = "One file of weights, without a config"
KEPT = Path("runs/evaluations")
LEFTOVER = "an unfinished copy or the earlier OUT, from a resize that was killed or still runs; check before removal"


@dataclass(frozen=True, kw_only=True)
class Source(Settings):
    """A checkpoint to read."""

    checkpoint: str = argument("A folder, hub name, or .safetensors, .bin or .pt file.", "CHECKPOINT")
    model_type: str | None = option(MODEL_TYPE, default=None)


@dataclass(frozen=True, kw_only=True)
class Inspecting(Source):
    """How to show a checkpoint."""

    plain: bool = flag("Numbers only, without the small picture that a terminal gets.")


def run_inspect(given: dict[str, Any]) -> None:
    """Show every position table of a checkpoint: what it is, what it learned, and what is wrong with it."""
    from posembed.checkpoints.inspect import inspect_checkpoint
    from posembed.cli.console import plain_console

    report, as_json = given_to(Paging, given).report, given.pop("json", False)
    of = given_to(Inspecting, given)
    found = inspect_checkpoint(of.checkpoint, model_type=of.model_type)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_report(plain_console(soft_wrap=True), found, plain=of.plain)
    if report is not None:
        from posembed.report.checkpoint import render
        from posembed.report.page import write_page

        print(f"report: {write_page(report, render(found))}", file=sys.stderr if as_json else sys.stdout)


def print_report(console: Console, report: CheckpointReport, *, plain: bool) -> None:
    """Prints the findings and facts of each table. In a terminal, also draws the table, unless ``plain``."""
    from posembed.report.checkpoint import alike, facts, name_of

    kind = f", {report.model_type}" if report.model_type else ""
    console.print(f"{report.source}{kind}: {report.parameters:,} parameters")
    if not report.tables:
        console.print(f"no position table was found: {report.why_none}")
    for group in alike(report.tables):
        each = group[0]
        console.print()
        console.print(name_of(group), style="bold")
        for finding in each.findings:
            console.print(f"  ! {finding}", style="yellow")
        if each.table.doubt and not each.table.fixed:
            console.print(f"  ? {each.table.doubt}", style="yellow")
        for name, value in facts(each, group):
            console.print(f"  {name:<20}{value}")
        if console.is_terminal and not plain:
            from posembed.report.checkpoint_terminal import drawn

            for line in drawn(each, console):
                console.print(line)


def run_evaluate(given: dict[str, Any]) -> None:
    """Measure models at several text lengths, compared with truncating and chunking at the original length.

    With --text: perplexity, masked-token accuracy, or how well passages find their texts.
    With --retrieval: how well queries find the documents of a collection.
    """
    from posembed.cli.console import Bar, print_result
    from posembed.evaluation.api import plan_texts
    from posembed.evaluation.retrieval import plan_retrieval
    from posembed.report.page import refuse_page, write_page

    shape, report = shape_of(given), given_to(Paging, given).report
    dry_run = given.pop("dry_run", False)
    given.setdefault("results", KEPT)
    of = given_to(EvaluationSettings, given)
    if bool(of.text) == (of.retrieval is not None):
        raise ArgumentError(f"expected either --text or --retrieval; got {'both' if of.text else 'neither'}")
    if report is not None:
        refuse_page(report)
    plan = (
        plan_texts(of.checkpoints, of.text, **given)
        if of.retrieval is None
        else plan_retrieval(of.checkpoints, of.retrieval, **given)
    )
    from posembed.report import evaluation as pages

    if dry_run:
        print_result(
            plan, shape, [pages.plan_table(plan)], [*pages.plan_words(plan), "Nothing was measured (--dry-run)."]
        )
        return
    with joined() as processes, Bar() as bar:
        evaluation = replace(plan, processes=processes).run(bar.update)
    if processes.rank:
        return
    print_result(evaluation, shape, pages.tables(evaluation), pages.paragraphs(evaluation))
    if report is not None:
        print(f"report: {write_page(report, pages.render(evaluation))}", file=sys.stderr if shape else sys.stdout)


@dataclass(frozen=True, kw_only=True)
class Resizing(Source):
    """A resize: the new size, and how the new rows are computed."""

    out: Path = argument("The new folder or file to write; of a file, the ending says the format.", "OUT")
    length: int | None = option(
        "Text: the new number of positions, not counting reserved rows. Differences that the model limits: the new "
        "limit.",
        SIZE,
        default=None,
    )
    image_size: Sides | None = option("Images: the new size in pixels, 384 or HEIGHTxWIDTH.", SIZE, default=None)
    patch_size: Sides | None = option("Images: the new patch size, also with --image-size.", SIZE, default=None)
    grid: Sides | None = option("Images: the new grid of patches, HEIGHTxWIDTH, such as 24x24.", SIZE, default=None)
    window: Sides | None = option("Windowed attention: the new window in cells, 12 or HxW.", SIZE, default=None)
    frames: Count | None = option("Video and sound: the new number of frames, as in config.json.", SIZE, default=None)
    queries: Count | None = option("Detectors like DETR: the new number of object queries.", SIZE, default=None)
    buckets: Count | None = option("T5 and models like it: the new number of buckets.", SIZE, default=None)
    method: str | None = option(
        "How new rows are computed. Text: tile (the default: it keeps every existing row; linear was worse in a "
        "sentence encoder, far better in small language models), hierarchical, linear, cubic, stretch, truncate, "
        "random, mean. "
        "Images: bicubic-antialias (the default), bicubic, bilinear-antialias, bilinear, dinov2. Differences on a "
        "grid: bicubic (the default), bilinear, geometric, extend. One axis of differences, frames or coordinates: "
        "linear (the default), cubic. Numbers beside the input: tile. Differences that the model limits: extend (the "
        "default), zeros, linear-corners, cubic-corners. Object queries: noise (the default: copies with "
        "noise), random.",
        default=None,
    )
    table: str | None = option(
        "The key of the table, required if there are several or posembed had to guess.", default=None
    )
    reserved: Amount | None = option(
        "Rows before the positions that no position reads. Default: what the settings in the file say, or 0.",
        ONE_FILE,
        default=None,
    )
    tail: Amount | None = option("Rows after the positions.", ONE_FILE, default=None)
    old_grid: Sides | Cube | None = option(
        "The present grid, if it is not square, such as 12x101, or 8x14x14 for frames.", ONE_FILE, default=None
    )
    optimizer: Literal["keep", "drop"] | None = option(
        "The state of the optimizer: keep (the default; rows that change begin with zeros; where it is not known which "
        "values are the table's, it is left out) or drop.",
        ONE_FILE,
        default=None,
    )
    keep: Names | None = option(
        "Settings that stay, although they hold the old length, as the output names them.", ONE_FILE, default=None
    )
    check: Path | None = option(
        "A text file or a folder of text files. Evaluates both checkpoints on it, at the old and new length.",
        default=None,
    )
    prove: bool = flag("Run small copies of the model before and after, even if posembed knows the model.")
    overwrite: bool = flag("Replace OUT if it is the unchanged output of an earlier resize.")


def run_resize(given: dict[str, Any]) -> None:
    """Write a copy of a checkpoint with longer, shorter or re-gridded position tables.

    Everything that depends on the length changes too: config, settings, ids.
    All other tensors and files are copied byte for byte.
    CHECKPOINT itself is never changed.
    """
    from posembed.checkpoints.resize import resize_checkpoint
    from posembed.files import leftovers
    from posembed.tables.resize import DEFAULT_TEXT_METHOD, WHY_TEXT_METHOD

    dry_run, as_json = given.pop("dry_run", False), given.pop("json", False)
    upload = planned_upload(given, dry_run=dry_run)
    chosen = take(Resizing, given)
    checkpoint, out, check = chosen.pop("checkpoint"), chosen.pop("out"), chosen.pop("check", None)
    length, method = chosen.get("length"), chosen.get("method")
    if check is not None:
        from posembed.evaluation.api import refuse_short_text

        if dry_run or length is None:
            reason = "--dry-run writes none; leave one of them out" if dry_run else "give --length"
            raise ArgumentError(f"--check evaluates a text model of another length; {reason}")
        refuse_short_text(checkpoint, check, length=length, model_type=chosen.get("model_type"))
    resized = resize_checkpoint(checkpoint, out, **chosen, dry_run=dry_run)
    left = leftovers(out)
    if not as_json:
        print(resized)
        print("nothing was written (--dry-run)" if dry_run else f"written: {out}")
        if method is None and any(change.how == DEFAULT_TEXT_METHOD for change in resized.edit.tables):
            print(f"{DEFAULT_TEXT_METHOD} is the default: {WHY_TEXT_METHOD}")
        for path in left:
            print(f"{path}: {LEFTOVER}")
    evaluation = None
    if check is not None:
        from posembed.cli.console import Bar, print_result
        from posembed.evaluation.api import evaluate_checkpoints

        with Bar() as bar:
            lengths = resized.edit.target.length
            how: dict[str, Any] = {"lengths": lengths, "model_type": chosen.get("model_type")}
            evaluation = evaluate_checkpoints([checkpoint, out], check, progress=bar.update, **how)
    pushed = upload(out)
    if as_json:
        files = {"left_out": list(resized.left_out), "leftovers": list(map(str, left)), "written": not dry_run}
        more = {"check": evaluation and evaluation.to_dict(), "push": pushed and vars(pushed)}
        print(json.dumps({**resized.record, **files, **{name: each for name, each in more.items() if each}}, indent=2))
        return
    if evaluation is not None:
        from posembed.report.evaluation import paragraphs, tables

        print()
        print_result(evaluation, "", tables(evaluation), paragraphs(evaluation))
    if pushed is not None:
        print(pushed)


@dataclass(frozen=True, kw_only=True)
class Checking(Source):
    """A checkpoint to load and run."""

    against: str | None = option(
        "The checkpoint that it was made from: the same random texts, within its length, go through both.",
        default=None,
    )


def run_check(given: dict[str, Any]) -> int:
    """Load a checkpoint as its users will, run it, and compare the limits in all its files.

    Ends with exit code 1 if anything will fail or surprise.
    """
    from posembed.publish.check import check_checkpoint

    as_json = given.pop("json", False)
    of = take(Checking, given)
    found = check_checkpoint(of["checkpoint"], against=of.get("against"))
    print(json.dumps(found.to_dict(), indent=2) if as_json else found)
    return int(bool(found.problems))


inspect = command("inspect", run_inspect, Inspecting, Paging, Printing)
check = command("check", run_check, Checking, Printing)
evaluate = command(
    "evaluate",
    run_evaluate,
    EvaluationSettings,
    Measured,
    *PARTS,
    Paging,
    Planning,
    Values,
    defaults={"results": KEPT},
    several="",
)
resize = command("resize", run_resize, Resizing, Uploading, Planning, Printing)
