"""Files written whole or not at all, by any number of processes on any number of machines at once.

A file is written under a name that no other process has, and renamed. There are no locks: a rename is atomic on
one machine and on NFS, and a killed process holds nothing that others wait for.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from posembed.files import flush_one, renamed

SECONDS_UNTIL_STALE = 3600.0
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")


@contextmanager
def written_whole(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end of the block, rename it to ``path``.

    replace: False keeps an existing file, and one that another process writes in the meantime.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        flush_one(temporary)
        if replace:
            os.replace(temporary, path)
        else:
            renamed(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, text: str, *, replace: bool = True) -> None:
    """Write a text in UTF-8, as ``written_whole`` does."""
    with written_whole(path, replace=replace) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_leftovers(folder: Path) -> None:
    """Remove old temporary files of ``written_whole``, in the folder and below, which killed processes left."""
    for path in folder.rglob(".*.tmp"):
        with suppress(FileNotFoundError):
            if TEMPORARY.fullmatch(path.name) and time.time() - path.stat().st_mtime > SECONDS_UNTIL_STALE:
                path.unlink()
