"""posembed tune: resizes a checkpoint, fine-tunes it on long texts, and says whether the longer table pays."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.exceptions import Exit

from posembed.cli.options import Planning, Printing, command
from posembed.errors import ArgumentError, CheckpointError
from posembed.files import as_bytes, longest_name, reason, remove_beginnings, staging_of
from posembed.settings import Settings, argument, checked_bounds, given_to, option
from posembed.tuning.settings import DATA, PARTS, TuneSettings

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

    The same command continues after Ctrl-C or a kill.
    """
    dry_run, as_json = given.pop("dry_run", False), given.pop("json", False)
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
    with interrupts_told(out):
        plan = run(of.checkpoint, out, of.text or None, given, page, dry_run, as_json, **sources)
    for path in [] if dry_run else plan.places.values():
        print(f"written: {path}", file=sys.stderr if as_json else sys.stdout)
    if page.exists() and not dry_run:
        print(f"report: {page}", file=sys.stderr if as_json else sys.stdout)


def run(
    checkpoint: str,
    out: Path,
    text: tuple[Path, ...] | None,
    given: dict[str, Any],
    page: Path,
    dry_run: bool,
    as_json: bool,
    **sources: Any,
) -> TunePlan:
    from posembed.cli.console import Bar
    from posembed.tuning.plan import plan_tuning

    with interrupts_heard() as heard:
        with Bar() as bar:
            plan = plan_tuning(checkpoint, out, text, given, progress=heard(bar.update), **sources)
        refuse_page_inside(page, plan)
        if plan.done:
            print_done(plan, dry_run, as_json)
        elif dry_run:
            print_plan(plan, as_json)
        else:
            if not plan.staging.begun:
                heard(print_times)(plan)
            with Bar() as bar:
                tuned = plan.run(heard(bar.update))
            heard(print_tuned)(tuned, as_json)
            heard(save_page)(tuned, page, plan)
        if not dry_run:
            heard(plan.finish)()
    return plan


@contextmanager
def interrupts_heard() -> Iterator[Callable[[Callable[..., None]], Callable[..., None]]]:
    """Yields a function that makes another one raise KeyboardInterrupt if Ctrl-C was pressed before its call.

    Python prints and forgets the exception if it comes in a finalizer or in a callback from C.
    """
    pressed = threading.Event()

    def press(number: int, frame: Any) -> None:
        pressed.set()
        raise KeyboardInterrupt

    def heard(function: Callable[..., None]) -> Callable[..., None]:
        def called(*given: Any, **named: Any) -> None:
            if pressed.is_set():
                raise KeyboardInterrupt
            function(*given, **named)

        return called

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # it may be ignored
        yield heard
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def interrupts_told(out: Path) -> Iterator[None]:
    """Ends the command on Ctrl-C in the block, and says how it continues."""
    from posembed.tuning.staging import Staging

    try:
        yield
    except KeyboardInterrupt:
        folder = Staging.of(out)
        goes_on = "nothing was written, and the same command starts again"
        if folder.begun:
            goes_on = f"the same command continues from {folder.path}"
        elif folder.half_removed:
            goes_on = f"everything is written, and the same command removes {folder.removed}"
        print(f"posembed: stopped; {goes_on}", file=sys.stderr)
        raise Exit(130) from None


def refuse_page_of(page: Path) -> None:
    """Raises ArgumentError if the page cannot be written, before time is spent on the results for it."""
    from posembed.report.page import refuse_page

    if (more := len(os.fsencode(staging_of(page).name)) - longest_name(page.parent)) > 0:
        raise ArgumentError(f"the page's name is {more} bytes too long: {page}; name another file (--report)")
    refuse_page(page)


def refuse_page_inside(page: Path, plan: TunePlan) -> None:
    """Raises ArgumentError if the page would be one of the folders that are written, or in one of them."""
    target = page.resolve()
    for place in (*plan.places.values(), plan.staging.path, plan.staging.removed):
        if place.resolve() in (target, *target.parents):
            raise ArgumentError(f"report: {page} is the folder {place}, or in it; name another file (--report)")


def save_page(tuned: Tuned, page: Path, plan: TunePlan) -> None:
    """Writes the page, and removes what kills left of it: beginnings of the same page, and pages that it replaced."""
    from posembed.report.page import why_not_replaced, write_page
    from posembed.report.tuning import render
    from posembed.tuning.staging import TakenError

    written = render(tuned)
    with suppress(TakenError, OSError), plan.staging.locked():
        remove_beginnings(page, as_bytes(written), refusal=why_not_replaced)
    try:
        write_page(page, written)
    except ArgumentError as error:
        why = reason(error.__cause__) if isinstance(error.__cause__, OSError) else "it exists"
        raise CheckpointError(
            f"the page {page} cannot be written: {why}; make room or name another file (--report), and repeat the "
            f"command; it continues from {plan.staging.path}"
        ) from error


def print_done(plan: TunePlan, dry_run: bool, as_json: bool) -> None:
    said = f"{plan.out}: an earlier call has finished this fine-tuning; nothing is left to do"
    said += "." if dry_run else f" but to remove {plan.staging.removed}."
    print(json.dumps({"out": str(plan.out), "done": True}) if as_json else said)


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


def print_tuned(tuned: Tuned, as_json: bool) -> None:
    if as_json:
        print(json.dumps(tuned.to_dict(), indent=2, allow_nan=False))
        return
    from posembed.cli.console import plain_console
    from posembed.report.terminal import print_tables
    from posembed.report.tuning import paragraphs, tables

    print_tables(plain_console(), tables(tuned), paragraphs(tuned))


tune = command("tune", start, Tuning, TuneSettings, *PARTS, Planning, Printing)
