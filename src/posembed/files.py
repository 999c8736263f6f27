"""Writes files and folders whole or not at all, and never over something that posembed did not write.

New content is written next to its target under a hidden name, ``.NAME.XXXXXXXX.partial``, and flushed to the disk. It
is then renamed in one step: by a rename that never replaces a target, or by exchanging the two names. After an exchange
the old content, now under a name that no other process uses, is inspected and put back if posembed did not write it.

A run folder belongs to posembed alone, and any number of processes on any number of machines may write into it at
once. ``written_whole`` needs no locks for this: a rename is atomic on one machine and on NFS, and a killed process
leaves nothing locked.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from posembed.errors import RunFolderError
from posembed.words import brief

Refusal = Callable[[Path], str | None]
"""Inspects an existing target. Returns the reason why it must stay, or None if posembed may replace it."""

PARTIAL = r"\.[0-9a-f]{8}\.(partial|old)"
"""Matches the suffix of an unfinished file's name, which follows a dot and the target's name."""
SECONDS_UNTIL_STALE = 3600.0
NOT_POSSIBLE_HERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
AT_FDCWD = -100


@contextmanager
def whole_or_absent(out: Path, *, refusal: Refusal | None = None) -> Iterator[Path]:
    """Yields a path to write to. Renames it to ``out`` at the end of the block, or removes it after an error.

    A link at ``out`` is never followed. ``refusal`` inspects an existing target before the block, and again when it is
    replaced. If ``refusal`` is None, every existing target stays. Raises FileExistsError, whose ``strerror`` is the
    reason, if the target must stay, and OSError if ``out`` cannot be written. After either error the disk is unchanged.
    """
    if os.path.lexists(out):
        refuse(out, out, refusal)
    staging = staging_of(out)
    try:
        yield staging
        flush(staging)
        in_place = renamed(staging, out)
    except BaseException:
        remove(staging)
        raise
    if not in_place:
        replace(staging, out, refusal)
    # The content is whole and in place; only its name might not survive a power failure.
    with suppress(OSError):
        flush_one(out.parent)


def write_whole(path: Path, content: bytes, *, refusal: Refusal | None) -> None:
    with whole_or_absent(path, refusal=refusal) as staging:
        staging.write_bytes(content)


@contextmanager
def written_whole(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yields a path to write to. At the end of the block, renames it to ``path``, a file in a run folder.

    With ``replace=False`` an existing file stays, even one that another process writes in the meantime. Raises
    RunFolderError if the file cannot be written, whichever library writes it.
    """
    staging = staging_of(path)
    try:
        yield staging
        flush_one(staging)
        if replace:
            os.replace(staging, path)
        else:
            renamed(staging, path)
    except Exception as error:
        from safetensors import SafetensorError

        if not isinstance(error, OSError | SafetensorError):
            raise
        raise RunFolderError(
            f"{path} cannot be written: {reason(error)}; make room there, or make it writable: then the same command "
            "continues from the finished runs"
        ) from error
    finally:
        with suppress(OSError):
            staging.unlink()


def write_text(path: Path, text: str, *, replace: bool = True) -> None:
    """Writes text as UTF-8 into a run folder, with the arguments and errors of ``written_whole``."""
    with written_whole(path, replace=replace) as staging:
        staging.write_text(text, encoding="utf-8")


def staging_of(out: Path) -> Path:
    return out.parent / f".{out.name}.{secrets.token_hex(4)}.partial"


def longest_name(folder: Path) -> int:
    """Returns how many bytes a name in a folder may have, so that the longer name of its unfinished file fits too."""
    added = len(staging_of(folder).name) - len(folder.name)
    try:
        return os.pathconf(folder, "PC_NAME_MAX") - added
    except (AttributeError, OSError, ValueError):  # not on this system, or no such folder
        return 255 - added


def as_bytes(text: str) -> bytes:
    """Encodes text as UTF-8. A lone surrogate, as in a file name that is not UTF-8, becomes an escape sequence."""
    return text.encode("utf-8", "backslashreplace")


def data_of(module: str, name: str | None = None) -> Any:
    """Returns the content of NAME.json next to a module; by default of the module's own name. module: ``__file__``."""
    path = Path(module).with_suffix(".json")
    return json.loads((path if name is None else path.parent / f"{name}.json").read_text(encoding="utf-8"))


def json_object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(values, dict):
        raise ValueError("expected a JSON object")
    return values


def leftovers(out: Path) -> list[Path]:
    """Returns the unfinished content of ``out``, left by processes that were killed or are still running."""
    pattern = re.compile(re.escape(f".{out.name}") + PARTIAL, re.DOTALL)
    try:
        return sorted(path for path in out.parent.iterdir() if pattern.fullmatch(path.name))
    except OSError:
        return []


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Removes unfinished files that are more than an hour old from a folder. ``name``: the name of their target; by
    default any name, for a folder that only posembed uses."""
    for path in folder.glob(f".{name}.*.partial"):
        with suppress(FileNotFoundError):
            is_ours = path.is_file() and re.fullmatch(rf"\..+{PARTIAL}", path.name)
            if is_ours and time.time() - path.stat().st_mtime > SECONDS_UNTIL_STALE:
                path.unlink()


def is_page(path: Path) -> bool:
    """Returns whether a file ends with the comment that marks posembed's HTML pages, even if the page was edited
    later."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 100))
        return re.search(rb"\n<!-- posembed \w{64} -->\n\Z", file.read()) is not None
    return False


# --- taking a name -----------------------------------------------------------------------------------------------


def replace(staging: Path, out: Path, refusal: Refusal | None) -> None:
    """Replaces an existing target. Removes the old content only after ``refusal`` allows it."""
    try:
        if refusal is None or out.is_symlink():
            refuse(out, out, refusal)
        exchanged = system_rename(staging, out, exchange=True)
        old = staging if exchanged else set_aside(staging, out)
    except OSError:
        remove(staging)
        raise
    # If the process is killed from here on, old and new content remain; ``leftovers`` finds the old content.
    try:
        refuse(old, out, refusal)
    except BaseException:
        if not exchanged:
            os.rename(out, staging)
            must_be_renamed(old, out)
        elif not system_rename(staging, out, exchange=True):
            raise
        remove(staging)
        raise
    remove(old)


def refuse(place: Path, out: Path, refusal: Refusal | None) -> None:
    reason = "it exists" if refusal is None else "it is a link" if place.is_symlink() else refusal(place)
    if reason is not None:
        raise FileExistsError(errno.EEXIST, reason, str(out))


def set_aside(staging: Path, out: Path) -> Path:
    """Replaces ``out`` by two renames, where names cannot be exchanged. Returns the new path of the old content."""
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
    """Renames to a free name. Returns False if the name is taken, even where the system would replace it."""
    try:
        if system_rename(source, target, exchange=False):
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


def system_rename(source: Path, target: Path, *, exchange: bool) -> bool:
    """Exchanges two names, or renames to a free name, by a system call. Returns False if the call is not supported."""
    if sys.platform not in ("linux", "darwin"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(source), os.fsencode(target)
    if hasattr(libc, "renameat2"):
        failed = libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], 2 if exchange else 1)  # EXCHANGE, NOREPLACE
    elif hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, 2 if exchange else 4)  # SWAP, EXCL
    else:
        return False
    number = ctypes.get_errno()
    if failed and number not in (*NOT_POSSIBLE_HERE, errno.EPERM):  # EPERM: a container may forbid the call
        raise OSError(number, os.strerror(number), str(target))
    return not failed


# --- flushing and removing ---------------------------------------------------------------------------------------


def flush(path: Path) -> None:
    """Flushes a file, or a folder with everything in it, to the disk."""
    for inside in path.rglob("*") if path.is_dir() else ():
        flush_one(inside)
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


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the files below a folder, at any depth. Skips hidden files and folders, such as .DS_Store and .git, links
    to folders, and whatever cannot be inspected, on which Python 3.10's ``rglob`` fails."""
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        shown = (Path(where, name) for name in names if not name.startswith("."))
        yield from (path for path in shown if os.path.isfile(path))


def reason(error: BaseException) -> str:
    """Returns the reason for an error in words, without the path that Python adds. Also reads system errors that Rust
    libraries report as text."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    code = error.errno if isinstance(error, OSError) else number and int(number[1])
    if code in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    return brief((isinstance(error, OSError) and error.strerror) or error)
