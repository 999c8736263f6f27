"""posembed tune: resizes a checkpoint, fine-tunes it on long texts, and says whether the longer table pays."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posembed.cli.options import Planning, Values, command, shape_of
from posembed.cli.push import Uploading, planned_upload
from posembed.errors import ArgumentError
from posembed.measure.processes import joined
from posembed.settings import Settings, argument, checked_bounds, given_to, option, take
from posembed.tuning.settings import DATA, PARTS, Sources, TuneSettings, folder_of

if TYPE_CHECKING:
    from posembed.tuning.run import TunePlan


@dataclass(frozen=True, kw_only=True)
class Tuning(Settings):
    """The model to fine-tune, and the data for this."""

    checkpoint: str = argument("A folder or hub name, with its tokenizer.", "CHECKPOINT")
    out: Path = argument("The new folder to write.", "OUT")
    text: tuple[Path, ...] = option(
        "A text file or a folder of text files; can be repeated. Required, except with --images, and with --retrieval, "
        "whose documents are the default.",
        DATA,
        default=(),
    )
    report: Path | None = option("The page to write. Default: OUT.html.", default=None)


def start(given: dict[str, Any]) -> None:
    """Fine-tune a model at a longer length on your own long texts, and find out whether the longer table pays.

    Resizes CHECKPOINT as posembed resize does, and fine-tunes it.

    Measures it on held-out texts, compared with the original and with the same fine-tuning at the old length, both
    with truncated and with chunked texts.

    The same command continues after Ctrl-C or a kill, and prints a finished result again.
    """
    from posembed.cli.console import Bar, print_result, told_when_stopped
    from posembed.report.page import refuse_page, write_page

    shape, dry_run = shape_of(given), given.pop("dry_run", False)
    upload = planned_upload(given, dry_run=dry_run)
    of = given_to(Tuning, given)
    checked_bounds(given, Sources, TuneSettings, *PARTS)
    kept, page = folder_of(of.out), of.report or Path(f"{of.out}.html")
    refuse_written(page, [of.out, kept])
    refuse_page(page)
    with told_when_stopped(kept), joined() as processes:
        from posembed.tuning.plan import plan_tuning

        sources = take(Sources, given)
        with Bar() as bar:
            plan = plan_tuning(of.checkpoint, of.out, of.text or None, given, progress=bar.update, **sources)
        refuse_written(page, plan.places.values())
        plan = replace(plan, processes=processes)
        if dry_run:
            print_plan(plan, bool(shape))
            upload(of.out)
            return
        from posembed.report.tuning import paragraphs, planned, render, tables
        from posembed.report.words import duration

        if not plan.store.begun and not processes.rank:
            total = duration(sum(each.seconds for each in planned(plan)))
            print(f"About {total} in total on this machine, without loading and saving.", file=sys.stderr)
        with Bar() as bar:
            tuned = plan.run(bar.update)
        if processes.rank:
            return
        print_result(tuned, shape, tables(tuned), paragraphs(tuned))
        write_page(page, render(tuned))
    told = [f"written: {path}" for path in plan.places.values()]
    told += [f"report: {page}", f"kept: {kept}, with every seed and measurement; remove it when you need no more"]
    print(*told, sep="\n", file=sys.stderr if shape else sys.stdout)
    if (pushed := upload(of.out)) is not None:
        print(pushed, file=sys.stderr if shape else sys.stdout)


def refuse_written(page: Path, folders: Iterable[Path]) -> None:
    if page.resolve() in [folder.resolve() for folder in folders]:
        raise ArgumentError(f"report: {page} is a folder that this command writes; name another file (--report)")


def print_plan(plan: TunePlan, as_json: bool) -> None:
    from posembed.cli.console import plain_console
    from posembed.report.terminal import print_plan as print_table
    from posembed.report.tuning import plan_words, planned

    if as_json:
        print(json.dumps({**plan.to_dict(), "estimate": plan.estimate()}, indent=2, allow_nan=False))
        return
    plain_console().print(*plan_words(plan), sep="\n")
    print_table(plain_console(), planned(plan), "Estimated times, without loading and saving", first="part")


tune = command("tune", start, Tuning, Sources, TuneSettings, *PARTS, Uploading, Planning, Values, several="")
