"""A place on the disk that is filled whole or not at all: written beside itself, flushed, then renamed."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posembed.errors import CheckpointError


@contextmanager
def whole_or_absent(out: Path, *, needed: int) -> Iterator[Path]:
    """A path to write to, which takes the place of ``out`` if all goes well and is removed if not."""
    staging = out.parent / f".{out.name}.{secrets.token_hex(4)}.partial"
    try:
        free = shutil.disk_usage(out.parent).free
        if needed > free:
            raise CheckpointError(f"{out}: needs {needed / 1e9:.2f} GB; {free / 1e9:.2f} GB of that disk are free")
        yield staging
        for folder, _, _ in os.walk(staging):
            flush_folder(Path(folder))
        put_in_place(staging, out)
        flush_folder(out.parent)
    except OSError as error:
        reason = (
            "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
        )
        raise CheckpointError(f"{out}: cannot be written: {reason}; nothing was left there") from error
    finally:
        remove(staging)


def leftovers(out: Path) -> list[Path]:
    """What resizes to ``out`` that were killed have left beside it; one that still runs has its own there too."""
    pattern = re.compile(re.escape(f".{out.name}.") + r"[0-9a-f]{8}\.partial")
    return sorted(path for path in out.parent.iterdir() if pattern.fullmatch(path.name))


def put_in_place(staging: Path, out: Path) -> None:
    if not os.path.lexists(out):
        os.rename(staging, out)
        return
    old = staging.with_suffix(".old")
    os.rename(out, old)
    try:
        os.rename(staging, out)
    except OSError:
        os.rename(old, out)
        raise
    remove(old)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, on systems where a folder can be flushed."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
