"""posembed inspect, evaluate and resize: the commands that read a checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posembed.cli.options import PATH, AsJson, sides
from posembed.errors import ArgumentError
from posembed.lab.runs.spec import as_type

if TYPE_CHECKING:
    from rich.console import Console

    from posembed.checkpoints.inspect import CheckpointReport
    from posembed.evaluation.plan import Plan
    from posembed.evaluation.results import Evaluation

Checkpoint = Annotated[
    str, typer.Argument(help="A folder, hub name, or .safetensors, .bin or .pt file.", metavar="CHECKPOINT")
]
PageFile = Annotated[
    Path | None, typer.Option(help="Also write an HTML page with figures to this file.", show_default=False, **PATH)
]
RETRIEVAL = "Retrieval"
LEFTOVER = "an unfinished copy or the earlier OUT, from a resize that was killed or still runs; check before removal"


def inspect(checkpoint: Checkpoint, report: PageFile = None, as_json: AsJson = False) -> None:
    """Show every position table of a checkpoint: what it is, what it learned, and what is wrong with it."""
    from posembed.checkpoints.inspect import inspect_checkpoint
    from posembed.cli.console import plain_console

    found = inspect_checkpoint(checkpoint)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_report(plain_console(soft_wrap=True), found)
    if report is not None:
        from posembed.report.checkpoint import write_checkpoint_page

        print(f"report: {write_checkpoint_page(found, report)}", file=sys.stderr if as_json else sys.stdout)


def print_report(console: Console, report: CheckpointReport) -> None:
    """Prints, for each table, its findings and then its facts."""
    from posembed.report.checkpoint import alike, facts, name_of, standing_out

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
        apart = standing_out(group)
        for name, value in (*facts(each, group), *([("stands out", apart)] if apart else [])):
            console.print(f"  {name:<20}{value}")


def evaluate(
    checkpoints: Annotated[
        list[str],
        typer.Argument(help="Folders or hub names of models of one kind, each with its tokenizer.", show_default=False),
    ],
    text: Annotated[
        list[Path] | None,
        typer.Option(help="A text file or a folder of text files; can be repeated.", show_default=False, **PATH),
    ] = None,
    retrieval: Annotated[
        str | None,
        typer.Option(
            help="Instead of --text: a folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/*.tsv), or a "
            "generated task, passkey or needle.",
            metavar="FOLDER|TASK",
            show_default=False,
        ),
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="Lengths in tokens, separated by commas.", metavar="N,N,...")
    ] = "256,512,1024,2048",
    texts: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of texts; the first that are long enough are used. For a generated task, the number "
            "of documents. [dim]\\[default: 100][/dim]",
            min=1,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for masked tokens, or for a generated task.")] = 0,
    device: Annotated[
        str | None, typer.Option(help="The device that runs the models. Default: an accelerator if available.")
    ] = None,
    results: Annotated[
        Path, typer.Option(help="A file that keeps every measurement, so that none is repeated.", **PATH)
    ] = Path("runs/evaluations.jsonl"),
    report: PageFile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the rows and the tokens to read, and measure nothing.")
    ] = False,
    split: Annotated[
        str | None, typer.Option(help="The file in qrels. Default: test, or the only file.", rich_help_panel=RETRIEVAL)
    ] = None,
    ways: Annotated[
        str | None,
        typer.Option(
            help="The baselines: truncate, late, context, max, mean. Default: all.",
            metavar="NAME,NAME,...",
            rich_help_panel=RETRIEVAL,
        ),
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(help="Tokens per chunk. Default: the original length.", rich_help_panel=RETRIEVAL)
    ] = None,
    query_prompt: Annotated[
        str | None,
        typer.Option(
            help='A text before each query, such as "query: ". Default: the model\'s.', rich_help_panel=RETRIEVAL
        ),
    ] = None,
    document_prompt: Annotated[
        str | None,
        typer.Option(help="A text before each document. Default: the model's.", rich_help_panel=RETRIEVAL),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure models at several text lengths, compared with truncating and chunking at the original length.

    With --text: perplexity, masked-token accuracy, or how well passages find their texts.
    With --retrieval: how well queries find the documents of a collection.
    """
    from posembed.cli.console import Bar
    from posembed.evaluation.api import plan_texts
    from posembed.evaluation.retrieval import plan_retrieval

    only_retrieval = {
        "split": split,
        "ways": None if ways is None else as_type("ways", ways, tuple[str, ...]),
        "chunk": chunk,
        "query_prompt": query_prompt,
        "document_prompt": document_prompt,
    }
    given: dict[str, Any] = {name: value for name, value in only_retrieval.items() if value is not None}
    given |= {} if texts is None else {"texts": texts}
    if (text is None) == (retrieval is None):
        raise ArgumentError("expected either --text or --retrieval; " + ("got both" if text else "got neither"))
    if text is not None and given.keys() - {"texts"}:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(given.keys() - {"texts"}))
        raise ArgumentError(f"{named}: these options need --retrieval; leave them out with --text")
    if report is not None:
        from posembed.report.page import refuse_page

        refuse_page(report)
    common: dict[str, Any] = {"lengths": as_type("lengths", lengths, tuple[int, ...]), "seed": seed, "device": device}
    if text is not None:
        plan = plan_texts(checkpoints, text, **common, **given, results=results)
    else:
        plan = plan_retrieval(checkpoints, retrieval or "", **common, **given, results=results)
    if dry_run:
        print_plan(plan, as_json)
        return
    with Bar() as bar:
        evaluation = plan.run(bar.update)
    if as_json:
        print(json.dumps(evaluation.to_dict(), indent=2))
    else:
        print_evaluation(evaluation)
    if report is not None:
        from posembed.report.evaluation import write_evaluation_page

        print(f"report: {write_evaluation_page(evaluation, report)}", file=sys.stderr if as_json else sys.stdout)


def print_plan(plan: Plan, as_json: bool) -> None:
    from posembed.cli.console import table_console
    from posembed.report.evaluation import plan_table, plan_words
    from posembed.report.terminal import print_tables

    if as_json:
        print(json.dumps(plan.to_dict(), indent=2))
    else:
        print_tables(table_console(), [plan_table(plan)], [*plan_words(plan), "Nothing was measured (--dry-run)."])


def print_evaluation(evaluation: Evaluation) -> None:
    from posembed.cli.console import table_console
    from posembed.report.evaluation import paragraphs, tables
    from posembed.report.terminal import print_tables

    print_tables(table_console(), tables(evaluation), paragraphs(evaluation))


def resize(
    checkpoint: Checkpoint,
    out: Annotated[
        Path, typer.Argument(help="The new folder or .safetensors file to write.", **{**PATH, "metavar": "OUT"})
    ],
    length: Annotated[
        int | None,
        typer.Option(
            help="Text: the new number of positions, not counting reserved rows. Differences that the model limits: "
            "the new limit."
        ),
    ] = None,
    image_size: Annotated[
        str | None, typer.Option(help="Images: the new size in pixels, 384 or HEIGHTxWIDTH.", metavar="SIZE")
    ] = None,
    grid: Annotated[
        str | None, typer.Option(help="Images: the new grid of patches, HEIGHTxWIDTH, such as 24x24.", metavar="HxW")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(help="Windowed attention: the new window in cells, 12 or HEIGHTxWIDTH.", metavar="SIZE"),
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="Video and sound: the new number of frames, as in config.json.")
    ] = None,
    buckets: Annotated[
        int | None, typer.Option(help="T5 and models like it: the new number of buckets of distances.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="How new rows are computed. Text: tile (the default: it keeps every existing row, and in a sentence "
            "encoder linear interpolation was worse at all lengths), hierarchical, linear, cubic, stretch, truncate, "
            "random, mean. Images: bicubic-antialias (the default), bicubic, bilinear-antialias, bilinear, dinov2. "
            "Differences on a grid: bicubic (the default), bilinear, geometric, extend. One axis of differences, "
            "frames or coordinates: linear (the default), cubic. Numbers beside the input: tile. Differences that the "
            "model limits: extend (the default), zeros, linear-corners, cubic-corners."
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="The key of the table, required if there are several or posembed had to guess.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and write nothing.")] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            help="A text file or a folder of text files. Evaluates both checkpoints on it, at the old and new length.",
            show_default=False,
            **PATH,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it is the unchanged output of an earlier resize.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a copy of a checkpoint with longer, shorter or re-gridded position tables.

    Everything that depends on the length changes too: config, settings, ids.
    All other tensors and files are copied byte for byte.
    CHECKPOINT itself is never changed.
    """
    from posembed.checkpoints.resize import resize_checkpoint
    from posembed.files import leftovers
    from posembed.tables.resize import DEFAULT_TEXT_METHOD, WHY_TEXT_METHOD

    if check is not None:
        from posembed.evaluation.api import refuse_short_text

        if dry_run or length is None:
            reason = "--dry-run writes none; leave one of them out" if dry_run else "give --length"
            raise ArgumentError(f"--check evaluates a text model of another length; {reason}")
        refuse_short_text(checkpoint, check, length=length)
    resized = resize_checkpoint(
        checkpoint,
        out,
        length=length,
        image_size=None if image_size is None else sides(image_size, "--image-size"),
        grid=None if grid is None else sides(grid, "--grid"),
        window=None if window is None else sides(window, "--window"),
        frames=frames,
        buckets=buckets,
        method=method,
        table=table,
        overwrite=overwrite,
        dry_run=dry_run,
    )
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
        from posembed.cli.console import Bar
        from posembed.evaluation.api import evaluate_checkpoints

        with Bar() as bar:
            lengths = resized.edit.target.length
            evaluation = evaluate_checkpoints([checkpoint, out], check, lengths=lengths, progress=bar.update)
    if as_json:
        files = {"left_out": list(resized.left_out), "leftovers": list(map(str, left)), "written": not dry_run}
        checked = {} if evaluation is None else {"check": evaluation.to_dict()}
        print(json.dumps({**resized.record, **files, **checked}, indent=2))
    elif evaluation is not None:
        print()
        print_evaluation(evaluation)
