"""posembed tune: resizes a checkpoint, fine-tunes it on long texts, and says whether the longer table pays."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posembed.cli.options import AS_JSON, PATH, parameter, parameters_of, with_parameters
from posembed.errors import ArgumentError
from posembed.tuning.settings import DATA, TuneSettings

if TYPE_CHECKING:
    from posembed.tuning.result import Tuned
    from posembed.tuning.run import TunePlan


def tune(
    *,
    checkpoint: str,
    out: Path,
    text: list[Path] | None,
    retrieval: Path | None,
    images: Path | None,
    split: str | None,
    report: Path | None,
    dry_run: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Fine-tune a model at a longer length on your own long texts, and find out whether the longer table pays.

    Resizes CHECKPOINT as posembed resize does, fine-tunes it, and measures it on texts that were held out, against the
    original model and against the same fine-tuning at the old length, both with truncated and chunked texts.
    With --retrieval, your own queries measure it. With --images and --image-size, the same for an image model.
    The same command continues after Ctrl-C or a kill.
    """
    from posembed.cli.console import Bar
    from posembed.report.page import refuse_page
    from posembed.tuning.plan import plan_tuning

    device = chosen.pop("device")
    settings = TuneSettings.of(chosen)
    page = out.with_name(f"{out.name}.html") if report is None else report
    refuse_page(page)
    if not text and retrieval is None and images is None:
        raise ArgumentError("expected --text, --retrieval or both (for an image model, --images); got neither")
    given: dict[str, Any] = {"retrieval": retrieval, "split": split, "images": images, "device": device}
    with Bar(lines=True) as bar:
        plan = plan_tuning(checkpoint, out, text or None, settings, progress=bar.update, **given)
    if dry_run:
        print_plan(plan, as_json)
        return
    try:
        with Bar(lines=True) as bar:
            tuned = plan.run(bar.update)
    except KeyboardInterrupt:
        print(f"posembed: stopped; the same command continues from {plan.staging.path}", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(tuned.to_dict(), indent=2))
    else:
        print_tuned(tuned)
    from posembed.report.tuning import write_tuning_page

    write_tuning_page(tuned, page)
    plan.finish()
    for path in plan.places.values():
        print(f"written: {path}", file=sys.stderr if as_json else sys.stdout)
    print(f"report: {page}", file=sys.stderr if as_json else sys.stdout)


def print_plan(plan: TunePlan, as_json: bool) -> None:
    from posembed.cli.console import plain_console
    from posembed.report.tuning import plan_words

    estimate = plan.estimate()
    if as_json:
        print(json.dumps({**plan.to_dict(), "estimate": estimate}, indent=2))
        return
    for sentence in [*plan_words(plan, estimate), "Nothing was written (--dry-run)."]:
        plain_console().print(sentence)


def print_tuned(tuned: Tuned) -> None:
    from posembed.cli.console import table_console
    from posembed.report.evaluation import tables
    from posembed.report.terminal import print_tables
    from posembed.report.tuning import paragraphs, seeds_table

    print_tables(table_console(), [*tables(tuned.evaluation), *seeds_table(tuned)], paragraphs(tuned))


def positional(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


CHECKPOINT = typer.Argument(help="A folder or hub name, with its tokenizer.", metavar="CHECKPOINT")
OUT = typer.Argument(help="The new folder to write.", **{**PATH, "metavar": "OUT"})
TEXT = typer.Option(
    help="A text file or a folder of text files; can be repeated. Default: the documents of --retrieval.",
    show_default=False,
    **PATH,
)

with_parameters(
    tune,
    [
        positional("checkpoint", Annotated[str, CHECKPOINT]),
        positional("out", Annotated[Path, OUT]),
        inspect.Parameter(
            "text", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[list[Path] | None, TEXT]
        ),
        parameter(
            "retrieval",
            Path,
            "A folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/*.tsv). Its queries measure the result, "
            "instead of passages of held-out documents. For sentence encoders.",
            panel=DATA,
        ),
        parameter("images", Path, "A folder of large images, for an image model. They need no labels.", panel=DATA),
        parameter("image_size", int, "For an image model, the new side in pixels, instead of --length.", panel=DATA),
        parameter("split", str, "The file in qrels. Default: test, or the only file.", panel=DATA),
        *parameters_of(TuneSettings),
        parameter("device", str, "The device that runs the models. Default: an accelerator if available."),
        parameter("report", Path, "The page to write.", shown="OUT.html"),
        parameter("dry_run", bool, "Print the documents, the steps and the time, and write nothing.", default=False),
        AS_JSON,
    ],
)
