"""Recognises the output of an earlier resize, so that ``--overwrite`` never deletes anybody's work.

A resize sets one modification time on all files that it writes, in whole even seconds, which every file system can
store. A file that somebody adds or changes later has another one.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from posembed.checkpoints.json_files import read_json
from posembed.checkpoints.tensor_files import read_header
from posembed.errors import CheckpointError

RECORD = "posembed.json"
MOST_NAMED = 5


def stamp(place: Path) -> None:
    """Set the time of this resize on a file, or on all files of a folder."""
    seconds = int(time.time()) // 2 * 2
    files = [Path(folder, name) for folder, _, names in os.walk(place) for name in names]
    for path in files if place.is_dir() else [place]:
        with suppress(OSError):  # without a stamp, --overwrite will refuse this copy, which is safe
            os.utime(path, (seconds, seconds))


def why_not_replaced(place: Path) -> str | None:
    """Why a resize may not replace what stands at ``place``; None where it is an earlier resize, unchanged."""
    try:
        if place.is_dir():
            others = foreign_entries(place)
        else:
            is_own = "posembed" in read_header(place)[1] and stamp_of(place) is not None
            others = [] if is_own else ["a file that no resize wrote, or that was changed since"]
    except (OSError, CheckpointError):
        others = ["files that cannot be read"]
    if not others:
        return None
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    return (
        "it is replaced only if it holds nothing but an earlier resize; "
        f"found {', '.join(others[:MOST_NAMED])}{more}; choose another name, or remove it yourself"
    )


def foreign_entries(root: Path) -> list[str]:
    """What an earlier resize did not leave so: files with another time, links, empty folders."""
    record = root / RECORD
    is_own = record.is_file() and "resizes" in read_json(record)
    time_of_resize = stamp_of(record) if is_own else None
    found = []
    for folder, subfolders, names in os.walk(root, onerror=raised):
        paths = [Path(folder, name) for name in (*subfolders, *names)]
        if not paths and Path(folder) != root:
            found.append(f"{Path(folder).relative_to(root)}/")
        for path in paths:
            is_folder = path.is_dir() and not path.is_symlink()
            if not is_folder and (time_of_resize is None or stamp_of(path) != time_of_resize):
                found.append(str(path.relative_to(root)))
    return sorted(found)


def stamp_of(path: Path) -> int | None:
    """A file's time, if it is one that ``stamp`` can have set."""
    state = path.lstat()
    if stat.S_ISREG(state.st_mode) and state.st_mtime_ns % 2_000_000_000 == 0:
        return state.st_mtime_ns
    return None


def raised(error: OSError) -> None:
    raise error
