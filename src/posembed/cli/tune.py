"""posembed tune: resizes a checkpoint, fine-tunes it on long texts, and says whether the longer table pays."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posembed.cli.options import Planning, Values, command, print_measured, shape_of
from posembed.errors import ArgumentError, CheckpointError
from posembed.files import longest_name, reason, staging_of
from posembed.settings import Settings, argument, checked_bounds, given_to, option
from posembed.tuning.settings import DATA, PARTS, TuneSettings, folder_of

if TYPE_CHECKING:
    from posembed.tuning.result import Tuned
    from posembed.tuning.run import TunePlan


@dataclass(frozen=True, kw_only=True)
class Tuning(Settings):
    """What is fine-tuned, and on what."""

    checkpoint: str = argument("A folder or hub name, with its tokenizer.", "CHECKPOINT")
    out: Path = argument("The new folder to write.", "OUT")
    text: tuple[Path, ...] = option(
        "A text file or a folder of text files; can be repeated. Required, except with --images, and with --retrieval, "
        "whose documents are the default.",
        DATA,
        default=(),
    )
    retrieval: Path | None = option(
        "A folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/*.tsv). Its queries measure the result, instead "
        "of passages of held-out documents. For sentence encoders.",
        DATA,
        default=None,
    )
    images: Path | None = option(
        "A folder of large images, for an image model. They need no labels.", DATA, default=None
    )
    device: str | None = option("The device that runs the models. Default: an accelerator if available.", default=None)
    report: Path | None = option("The page to write. Default: OUT.html.", default=None)


def start(given: dict[str, Any]) -> None:
    """Fine-tune a model at a longer length on your own long texts, and find out whether the longer table pays.

    Resizes CHECKPOINT as posembed resize does, and fine-tunes it.

    Measures it on held-out texts, compared with the original and with the same fine-tuning at the old length, both
    with truncated and with chunked texts.

    The same command continues after Ctrl-C or a kill, and prints a finished result again.
    """
    shape, dry_run = shape_of(given), given.pop("dry_run", False)
    of = given_to(Tuning, given)
    checked_bounds(given, TuneSettings, *PARTS)
    out = of.out
    if out.name in ("", ".."):
        raise ArgumentError(f"out: expected the path of a new folder; got {str(out)!r}")
    page = out.with_name(f"{out.name}.html") if of.report is None else of.report
    refuse_page_of(page)
    if not of.text and of.retrieval is None and of.images is None:
        raise ArgumentError("expected --text, --retrieval or both (for an image model, --images); got neither")
    sources: dict[str, Any] = {name: getattr(of, name) for name in ("retrieval", "images", "device")}
    from posembed.cli.console import told_when_stopped

    kept = folder_of(out)
    with told_when_stopped(kept):
        plan = run(of.checkpoint, out, of.text or None, given, page, dry_run, shape, **sources)
    if not dry_run:
        told = [f"written: {path}" for path in plan.places.values()]
        told += [f"report: {page}", f"kept: {kept}, with every seed and measurement; remove it when you need no more"]
        print(*told, sep="\n", file=sys.stderr if shape else sys.stdout)


def run(
    checkpoint: str,
    out: Path,
    text: tuple[Path, ...] | None,
    given: dict[str, Any],
    page: Path,
    dry_run: bool,
    shape: str,
    **sources: Any,
) -> TunePlan:
    from posembed.cli.console import Bar
    from posembed.tuning.plan import plan_tuning

    with Bar() as bar:
        plan = plan_tuning(checkpoint, out, text, given, progress=bar.update, **sources)
    refuse_page_inside(page, plan)
    if dry_run:
        print_plan(plan, bool(shape))
        return plan
    if not plan.store.begun:
        print_times(plan)
    with Bar() as bar:
        tuned = plan.run(bar.update)
    print_tuned(tuned, shape)
    save_page(tuned, page, plan)
    return plan


def refuse_page_of(page: Path) -> None:
    """Raises ArgumentError if the page cannot be written, before time is spent on the results for it."""
    from posembed.report.page import refuse_page

    if (more := len(os.fsencode(staging_of(page).name)) - longest_name(page.parent)) > 0:
        raise ArgumentError(f"the page's name is {more} bytes too long: {page}; name another file (--report)")
    refuse_page(page)


def refuse_page_inside(page: Path, plan: TunePlan) -> None:
    """Raises ArgumentError if the page would be one of the folders that are written, or in one of them."""
    target = page.resolve()
    for place in (*plan.places.values(), plan.store.path):
        if place.resolve() in (target, *target.parents):
            raise ArgumentError(f"report: {page} is the folder {place}, or in it; name another file (--report)")


def save_page(tuned: Tuned, page: Path, plan: TunePlan) -> None:
    from posembed.report.page import write_page
    from posembed.report.tuning import render

    try:
        write_page(page, render(tuned))
    except ArgumentError as error:
        why = reason(error.__cause__) if isinstance(error.__cause__, OSError) else "it exists"
        raise CheckpointError(
            f"the page {page} cannot be written: {why}; make room or name another file (--report), and repeat the "
            f"command; it continues from {plan.store.path}"
        ) from error


def print_plan(plan: TunePlan, as_json: bool) -> None:
    from posembed.cli.console import plain_console
    from posembed.report.tuning import plan_words

    estimate = estimated(plan)
    if as_json:
        print(json.dumps({**plan.to_dict(), "estimate": estimate}, indent=2, allow_nan=False))
        return
    for sentence in [*plan_words(plan, estimate), "Nothing was written (--dry-run)."]:
        plain_console().print(sentence)


def print_times(plan: TunePlan) -> None:
    """Says how long everything takes, before it starts."""
    from posembed.report.tuning import times

    print(times(plan, estimated(plan)), file=sys.stderr)


def estimated(plan: TunePlan) -> dict[str, float]:
    from posembed.tuning.remedies import PLANNING, memory

    with memory(PLANNING):
        return plan.estimate()


def print_tuned(tuned: Tuned, shape: str) -> None:
    if shape:
        print_measured(tuned, shape)
        return
    from posembed.cli.console import plain_console
    from posembed.report.terminal import print_tables
    from posembed.report.tuning import paragraphs, tables

    print_tables(plain_console(), tables(tuned), paragraphs(tuned))


tune = command("tune", start, Tuning, TuneSettings, *PARTS, Planning, Values)
