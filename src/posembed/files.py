"""Files and folders that are written whole or not at all, and never over something that posembed did not write.

New content grows in a hidden place beside its target, ``.NAME.XXXXXXXX.partial``, is flushed to the disk and then
takes its name in one step: a rename that replaces nothing, or an exchange of the two names. After an exchange the
caller looks at what stood there, under a name that nobody else knows. If it is not posembed's own, it goes back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Refusal = Callable[[Path], str | None]
"""Looks at what stands at a target and says why it must stay; None if posembed may replace it."""

NOT_POSSIBLE_HERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
AT_FDCWD = -100
LINUX_NO_REPLACE, LINUX_EXCHANGE = 1, 2  # renameat2
MACOS_EXCHANGE, MACOS_NO_REPLACE = 2, 4  # renamex_np


@contextmanager
def whole_or_absent(out: Path, *, refusal: Refusal | None = None) -> Iterator[Path]:
    """A path to write to, which takes the name ``out`` at the end of the block and is removed after an error.

    Args:
        out: the target. A link is never followed: what stands at ``out`` itself counts.
        refusal: asked about what stands there already, before the block and again when it is replaced. None
            replaces nothing.

    Raises:
        FileExistsError: something stands there that must stay. Its ``strerror`` says why.
        OSError: it cannot be written. The disk is then as it was.
    """
    if os.path.lexists(out):
        refuse(out, out, refusal)
    staging = out.parent / f".{out.name}.{secrets.token_hex(4)}.partial"
    try:
        yield staging
        flush(staging)
        in_place = renamed(staging, out)
    except BaseException:
        remove(staging)
        raise
    if not in_place:
        replace(staging, out, refusal)
    # The content is in place and whole; only its name might not survive a power cut.
    with suppress(OSError):
        flush_one(out.parent)


def write_whole(path: Path, content: bytes, *, refusal: Refusal | None) -> None:
    """Write a file whole or not at all. Arguments and errors as for ``whole_or_absent``."""
    with whole_or_absent(path, refusal=refusal) as staging:
        staging.write_bytes(content)


def as_bytes(text: str) -> bytes:
    """UTF-8; half a character, as in the name of a file that is no UTF-8, becomes an escape."""
    return text.encode("utf-8", "backslashreplace")


def leftovers(out: Path) -> list[Path]:
    """What killed processes left beside ``out``; one that still runs has its own there too."""
    pattern = re.compile(re.escape(f".{out.name}.") + r"[0-9a-f]{8}\.(partial|old)", re.DOTALL)
    try:
        return sorted(path for path in out.parent.iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


# --- taking a name -----------------------------------------------------------------------------------------------


def replace(staging: Path, out: Path, refusal: Refusal | None) -> None:
    """Put ``staging`` where something stands; remove that only once it is known to be posembed's own."""
    try:
        if refusal is None or out.is_symlink():
            refuse(out, out, refusal)
        exchanged = system_rename(staging, out, linux=LINUX_EXCHANGE, macos=MACOS_EXCHANGE)
        old = staging if exchanged else set_aside(staging, out)
    except OSError:
        remove(staging)
        raise
    # A kill or an interrupt from here on leaves both, the old one under a name that ``leftovers`` finds.
    try:
        refuse(old, out, refusal)
    except BaseException:
        if not exchanged:
            os.rename(out, staging)
            must_be_renamed(old, out)
        elif not system_rename(staging, out, linux=LINUX_EXCHANGE, macos=MACOS_EXCHANGE):
            raise
        remove(staging)
        raise
    remove(old)


def refuse(place: Path, out: Path, refusal: Refusal | None) -> None:
    reason = "it exists" if refusal is None else "it is a link" if place.is_symlink() else refusal(place)
    if reason is not None:
        raise FileExistsError(errno.EEXIST, reason, str(out))


def set_aside(staging: Path, out: Path) -> Path:
    """Two renames, where the system cannot exchange names. Returns where the old content lies then."""
    old = staging.with_suffix(".old")
    os.rename(out, old)
    try:
        must_be_renamed(staging, out)
    except OSError:
        must_be_renamed(old, out)
        raise
    return old


def must_be_renamed(source: Path, target: Path) -> None:
    if not renamed(source, target):
        raise FileExistsError(errno.EEXIST, "it exists", str(target))


def renamed(source: Path, target: Path) -> bool:
    """Rename to a free name; False if the name is taken. Linux, macOS and Windows differ in what replaces what."""
    try:
        if system_rename(source, target, linux=LINUX_NO_REPLACE, macos=MACOS_NO_REPLACE):
            return True
        if source.is_dir() or os.name == "nt":
            os.rename(source, target)  # at most an empty folder is replaced
            return True
        try:
            os.link(source, target)
        except FileExistsError:
            raise
        except OSError:  # no hard links on this file system
            if os.path.lexists(target):
                return False
            os.rename(source, target)
        else:
            os.unlink(source)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
            return False
        raise
    return True


def system_rename(source: Path, target: Path, *, linux: int, macos: int) -> bool:
    """Rename by the system's own call with flags; False where it or the file system does not know them."""
    if sys.platform not in ("linux", "darwin"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], linux)
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, macos)
    else:
        return False
    number = ctypes.get_errno()
    if failed and number not in (*NOT_POSSIBLE_HERE, errno.EPERM):  # EPERM: a container that filters calls
        raise OSError(number, os.strerror(number), str(target))
    return not failed


# --- flushing and removing ---------------------------------------------------------------------------------------


def flush(path: Path) -> None:
    """Flush a file, or every file and folder of a folder, to the disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            flush_one(Path(folder, name))
        flush_one(Path(folder))
    if not path.is_dir():
        flush_one(path)


def flush_one(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        flush_open(descriptor)
    finally:
        os.close(descriptor)


def flush_open(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NOT_POSSIBLE_HERE:  # SMB and FUSE refuse to flush folders
            raise


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def reason(error: OSError) -> str:
    """Why the system refused, in words."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "the disk is full" if full else error.strerror or str(error)
