"""Recognises the output of an earlier resize, so that ``--overwrite`` never deletes anybody's work.

Its record keeps the time of the resize and, for a folder, each file's hash. All files get that time, in whole even
seconds, which every file system can store. What is added or changed later differs from the record.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from posembed.errors import CheckpointError
from posembed.modelfiles.json_files import read_json
from posembed.modelfiles.raw_files import open_file
from posembed.modelfiles.safetensors import read_header, tensor_sha256

RECORD = "posembed.json"
MOST_NAMED = 5
# Of a file above 64 MB only blocks at even distances are hashed: all its bytes would take as long as the copy.
BLOCK, BLOCKS = 1 << 16, 1 << 10


def hashes_of(place: Path) -> dict[str, str]:
    return {str(path.relative_to(place)): fingerprint(path) for path in files_of(place) if path != place / RECORD}


def stamp(place: Path) -> None:
    """Sets the time of the last resize, from the record, on a file or on all files of a folder."""
    with suppress(KeyError, IndexError, OSError, CheckpointError):  # --overwrite then refuses this copy: safe
        seconds = last_resize(place)["time"]
        for path in files_of(place):
            os.utime(path, (seconds, seconds))


def files_of(place: Path) -> list[Path]:
    inside = [Path(folder, name) for folder, _, names in os.walk(place) for name in names]
    return inside if place.is_dir() else [place]


def last_resize(place: Path) -> dict[str, Any]:
    """Returns the newest entry of the record. Raises KeyError, IndexError, TypeError or ValueError if there is none."""
    record: Any = read_json(place / RECORD) if place.is_dir() else json.loads(read_header(place)[1]["posembed"])
    return dict(record["resizes"][-1])


def fingerprint(path: Path) -> str:
    """Returns SHA-256 of a file's size and bytes; for a large file, of its size and blocks spread over it."""
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        for start in range(0, size, max(BLOCK, -(-size // BLOCKS))):
            file.seek(start)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def why_not_replaced(place: Path) -> str | None:
    """Returns why a resize may not replace ``place``; None for an earlier resize, unchanged."""
    try:
        others = foreign_entries(place) if place.is_dir() else changes_of_file(place)
    except (OSError, CheckpointError):
        others = ["files that cannot be read"]
    if not others:
        return None
    more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
    found = f"{', '.join(others[:MOST_NAMED])}{more}"
    return f"it is not an unchanged earlier resize; found {found}; choose another name, or remove it yourself"


def foreign_entries(root: Path) -> list[str]:
    """Returns what differs from an earlier resize: files of another time or content, links, empty folders."""
    record = root / RECORD
    hashes, seconds = {}, None
    with suppress(KeyError, IndexError, TypeError, CheckpointError):
        hashes, seconds = {**read_json(record)["files"]}, last_resize(root)["time"]
    found = []
    for path in (root, *root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir() and not path.is_symlink():
            if not os.listdir(path) and path != root:  # raises OSError for an unreadable folder, which rglob skips
                found.append(f"{name}/")
        elif not has_time(path, seconds) or (path != record and hashes.get(name) != fingerprint(path)):
            found.append(name)
    return sorted(found)


def changes_of_file(path: Path) -> list[str]:
    """Returns what differs from the resize in a file's metadata: its time, or the hashes of its tables."""
    tensors, _ = read_header(path)
    with suppress(KeyError, IndexError, TypeError, ValueError):
        last = last_resize(path)
        hashes = {change["key"]: change["sha256"][1] for change in last["tensors"] if change["sha256"][1] is not None}
        if has_time(path, last["time"]) and all(tensor_sha256(tensors[key].read()) == hashes[key] for key in hashes):
            return []
    return ["a file that no resize wrote, or that was changed since"]


def has_time(path: Path, seconds: Any) -> bool:
    state = path.lstat()
    return stat.S_ISREG(state.st_mode) and type(seconds) is int and state.st_mtime_ns == seconds * 10**9
