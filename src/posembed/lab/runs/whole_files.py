"""Files written whole or not at all, by any number of processes on any number of machines at once.

A file is written under a name that no other process has, and renamed. There are no locks: a rename is atomic on
one machine and on NFS, and a killed process holds nothing that others wait for.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from posembed.errors import RunFolderError
from posembed.files import flush_one, reason, renamed

SECONDS_UNTIL_STALE = 3600.0
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")


@contextmanager
def written_whole(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end of the block, rename it to ``path``.

    replace: False keeps an existing file, and one that another process writes in the meantime.

    Raises:
        RunFolderError: the file cannot be written, whatever the block writes it with.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        flush_one(temporary)
        if replace:
            os.replace(temporary, path)
        else:
            renamed(temporary, path)
    except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: torch.save
        why = reason(error) if isinstance(error, OSError) else error
        raise RunFolderError(
            f"{path} cannot be written: {why}; once it can be, the same command goes on from the finished runs"
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_whole(path: Path, text: str, *, replace: bool = True) -> None:
    """Write a text in UTF-8, as ``written_whole`` does."""
    with written_whole(path, replace=replace) as temporary:
        temporary.write_text(text, encoding="utf-8")


def json_object(text: str) -> dict[str, Any]:
    """Raises ValueError where the text is no JSON object."""
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(values, dict):
        raise ValueError("expected an object with names")
    return values


def remove_leftovers(folder: Path) -> None:
    """Remove old temporary files of ``written_whole``, in the folder and below, which killed processes left."""
    for path in folder.rglob(".*.tmp"):
        with suppress(FileNotFoundError):
            if TEMPORARY.fullmatch(path.name) and time.time() - path.stat().st_mtime > SECONDS_UNTIL_STALE:
                path.unlink()
