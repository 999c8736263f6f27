"""posembed push, and --push of the commands that write a checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posembed.cli.options import Planning, Printing, command
from posembed.errors import ArgumentError, CheckpointError
from posembed.measure.processes import launched
from posembed.settings import Settings, argument, flag, option, take

if TYPE_CHECKING:
    from posembed.publish.push import Push

PUBLIC = "Let everybody see {}. By default, only its owner does."


@dataclass(frozen=True, kw_only=True)
class Pushing(Settings):
    """An upload to the Hugging Face Hub."""

    out: Path = argument("The folder or file of weights to upload.", "OUT")
    name: str = argument("The repository on the Hub, such as owner/model. It is created if it does not exist.", "NAME")
    public: bool = flag(PUBLIC.format("it"))


@dataclass(frozen=True, kw_only=True)
class Uploading(Settings):
    """An upload of a command's output."""

    push: str | None = option(
        "Also upload OUT to this repository on the Hugging Face Hub, such as owner/model, as posembed push does.",
        default=None,
    )
    public: bool = flag(PUBLIC.format("the repository of --push"))


def run_push(given: dict[str, Any]) -> None:
    """Upload a checkpoint to the Hugging Face Hub, in one commit, with a model card."""
    from posembed.publish.push import push_checkpoint

    dry_run, as_json = given.pop("dry_run", False), given.pop("json", False)
    pushed = push_checkpoint(**take(Pushing, given), dry_run=dry_run)
    print(json.dumps(vars(pushed), indent=2) if as_json else pushed)


def planned_upload(given: dict[str, Any], *, dry_run: bool) -> Callable[[Path], Push | None]:
    """Removes ``Uploading`` from ``given``, and returns a function that uploads OUT at the end. Raises now, before the
    work, all errors that can be found now; a dry run only checks the name."""
    of = take(Uploading, given)
    name, public = of.get("push"), of.get("public", False)
    if name is None:
        if public:
            raise ArgumentError("--public is for an upload; give the name of its repository with --push")
        return lambda out: None
    from posembed.publish.push import files_there, push_checkpoint, refuse_name

    if launched().rank:
        return lambda out: None
    again = f"posembed push {{}} {name}{' --public' * public}"
    refuse_name(name)
    if not dry_run:
        files_there(name, public=public)

    def upload(out: Path) -> Push | None:
        if dry_run:
            print(f"to upload: {again.format(out)} (--dry-run lists the files, once they are written)", file=sys.stderr)
            return None
        try:
            return push_checkpoint(out, name, public=public)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {out} is written; to upload it: {again.format(out)}") from error

    return upload


push = command("push", run_push, Pushing, Planning, Printing)
