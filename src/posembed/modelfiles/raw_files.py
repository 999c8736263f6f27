"""Opens, copies and creates files. Read errors name the file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path

from posembed.errors import CheckpointError
from posembed.files import flush_open, reason

COPY_CHUNK = 16 * 2**20
KERNEL_CHUNK = 2**27
LARGEST_RECORD = 2**26

FileState = tuple[int, int, int]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns every OSError in the block into a CheckpointError that names the file of the error, or else ``path``."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read: {reason(error)}") from error


@contextmanager
def open_file(path: Path) -> Iterator[BufferedReader]:
    with reading(path):
        if not path.is_file():  # reading a pipe or a device could wait forever
            raise CheckpointError(f"{path}: expected a file; {'it is not one' if path.exists() else 'it is not there'}")
        with path.open("rb") as file:
            yield file


def file_state(path: Path) -> FileState:
    """Returns a file's inode, size and modification time, which change when it is written to or replaced."""
    with reading(path):
        found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_bytes(path: Path, *, most: int) -> bytes:
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise CheckpointError(f"{path}: expected at most {most:,} bytes; it has {size:,}")
        return file.read(size)


def read_record(path: Path, name: str) -> str:
    """Returns the text stored under ``name`` in an archive of torch.save; "{}" if there is none."""
    with reading(path):
        try:
            with zipfile.ZipFile(path) as archive:
                found = [each for each in archive.infolist() if each.filename.endswith(f"/{name}")]
                return archive.read(found[-1]).decode() if found and found[-1].file_size < LARGEST_RECORD else "{}"
        except (zipfile.BadZipFile, UnicodeDecodeError, NotImplementedError):
            return "{}"


def create(path: Path) -> FileIO:
    """Creates a file that only its owner can read, until ``copy_mode`` is called."""
    return FileIO(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600))


def write_all(file: RawIOBase, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) or 0 :]


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text)


def copy_file(source: Path, target: Path) -> None:
    """Copies a whole file and flushes the copy to disk."""
    with open_file(source) as original:
        size = os.fstat(original.fileno()).st_size
    target.parent.mkdir(parents=True, exist_ok=True)
    with create(target) as file:
        copy_bytes(source, 0, size, file)
        flush_open(file.fileno())


def copy_mode(source: Path, target: Path) -> None:
    """Gives ``target`` the permissions of ``source``. The owner can always read ``target``, and change a folder."""
    if os.name == "posix":
        with reading(source):
            mode = source.stat().st_mode & 0o777 | (0o700 if source.is_dir() else 0o400)
        with suppress(PermissionError):  # file systems without permissions
            os.chmod(target, mode)


def copy_bytes(source: Path, start: int, end: int, target: RawIOBase) -> None:
    """Appends bytes ``start`` to ``end`` of ``source`` to ``target``, with at most one chunk in memory.

    Raises CheckpointError if ``source`` cannot be read, OSError if ``target`` cannot be written.
    """
    while start < end:
        count = copy_in_kernel(source, start, end - start, target.fileno())
        if count == 0:
            with open_file(source) as file:
                file.seek(start)
                chunk = file.read(min(COPY_CHUNK, end - start))
            if not chunk:
                raise CheckpointError(f"{source}: the file was cut short while it was being copied; try again")
            write_all(target, chunk)
            count = len(chunk)
        start += count


def copy_in_kernel(source: Path, start: int, count: int, target: int) -> int:
    """Copies bytes in the kernel. Returns their number, or 0 on any failure; the caller then copies them itself."""
    if not hasattr(os, "copy_file_range"):
        return 0
    with open_file(source) as file:
        try:
            return os.copy_file_range(file.fileno(), target, min(count, KERNEL_CHUNK), start)
        except OSError:
            return 0
