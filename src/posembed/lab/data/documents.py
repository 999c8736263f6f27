"""Documents of text from files, folders, the standard library or a Hugging Face dataset."""

from __future__ import annotations

import json
import os
import re
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posembed.errors import DataError

NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
NOT_SOURCE |= {"entities.py", "mimetypes.py", "stringprep.py"}
"""Parts of the standard library that are not read: tests, and modules that are tables of data."""

RUNS_WRITE = re.compile(
    r"(settings|reading|cost)\.json|report\.html|(results/)?\.[^/]*\.partial|results/[^/]*\.json|tracking/.*", re.DOTALL
)
"""The text files that the lab writes into a run folder."""

FIRST_LOOK = 1 << 20
"""Bytes. A larger file is read whole only if this much of it has no zero byte."""

STRINGS = ("string", "large_string", "string_view")
"""Arrow's types for a column of text."""


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    text: bytes
    """UTF-8 without a zero byte."""


@dataclass(frozen=True)
class Collection:
    """Documents and their description. held_out: the data's own held-out part; None if it has none."""

    documents: list[Document]
    held_out: list[Document] | None
    description: str


def read_documents(data: str) -> Collection:
    """Reads "stdlib", text files or folders joined by commas, or "hf:NAME[:CONFIG]".

    Raises:
        DataError: a path that does not exist, or no text.
    """
    if data.startswith("hf:"):
        return _hugging_face(data.removeprefix("hf:"))
    if data == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        files = [p for p in root.rglob("*.py") if not NOT_SOURCE.intersection(p.relative_to(root).parts)]
        documents, _ = _below(root, files)
        return Collection(documents, None, f"source of Python's standard library ({len(documents)} files)")
    documents, others = [], 0
    # a path may contain a comma
    names = [data] if os.path.exists(os.path.expanduser(data)) else [name.strip() for name in data.split(",")]
    if "" in names:  # the path "" would mean this folder
        raise DataError(f"expected files or folders joined by commas, got {data!r}")
    paths = [Path(name).expanduser() for name in names]
    for path in paths:
        if os.path.isdir(path):
            found, skipped = _below(path, (p for p in path.rglob("*") if p.is_file()))
            if not found:
                raise DataError(f"the folder {path} holds no text: expected files of UTF-8 text in or below it")
            documents += found
            others += skipped
        else:
            documents.append(Document(path.name, _read_text(path)))
    count = f"{len(documents):,} file{'s' * (len(documents) != 1)}"
    if others:
        count += f"; {others:,} skipped: empty, not text, or of a run folder"
    return Collection(documents, None, f"{', '.join(path.resolve().name for path in paths)} ({count})")


def _below(root: Path, files: Iterable[Path]) -> tuple[list[Document], int]:
    """Returns the text files, sorted by name, and the number of the others. Files that the lab writes do not count as
    text, because runs that train on this text would change it."""
    files = sorted(files)
    runs = {path.parent for path in files if path.name in ("settings.json", "cost.json") and _is_of_lab(path)}

    def written_by_lab(path: Path) -> bool:
        within = (path.relative_to(folder).as_posix() for folder in runs.intersection(path.parents))
        return any(RUNS_WRITE.fullmatch(name) for name in within)

    documents, others = [], 0
    for path in files:
        text = _read_bytes(path, most=FIRST_LOOK)
        if len(text) == FIRST_LOOK and b"\0" not in text:
            text = _read_bytes(path)
        if text.strip() and not _not_text(text) and not written_by_lab(path):
            documents.append(Document(path.relative_to(root).as_posix(), text))
        else:
            others += 1
    return documents, others


def _is_of_lab(file: Path) -> bool:
    of_lab = {"question", "steps", "batch"} if file.name == "settings.json" else {"settings", "attention", "rows"}
    try:
        return of_lab <= json.loads(file.read_bytes()).keys()
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _read_bytes(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise DataError(
            f'no file or folder {path}; the data may be "stdlib", text files, a folder, or hf:NAME[:CONFIG]'
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _read_text(path: Path) -> bytes:
    text = _read_bytes(path)
    if not text.strip():
        raise DataError(f"{path} is empty: expected UTF-8 text")
    if reason := _not_text(text):
        raise DataError(f"{path} is not text ({reason}); expected UTF-8; convert it, or leave it out")
    return text


def _not_text(text: bytes) -> str | None:
    if (zero := text.find(b"\0")) >= 0:
        return f"a zero byte at offset {zero:,}"
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8 at offset {error.start:,}"
    return None


def _hugging_face(name: str) -> Collection:
    """Returns the dataset's own held-out split if it has one."""
    parts = load_hugging_face(name)
    train = _rows(parts["train"], name)
    for held_out in ("validation", "test"):
        if held_out in parts:
            own = _rows(parts[held_out], name)
            return Collection(train, own, f"{name} (its own train and {held_out} splits)")
    return Collection(train, None, f"{name} ({len(train):,} rows)")


def load_hugging_face(name: str) -> Any:
    """Returns the splits of NAME[:CONFIG] from the datasets library; one of them is named train."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            "hf: data needs the datasets library; install it with pip install 'posembed[datasets]'"
        ) from None
    path, _, config = name.partition(":")
    try:
        parts = datasets.load_dataset(path, config or None)
    except Exception as error:  # anything from its network stack and readers
        raise DataError(f"the dataset {name} cannot be loaded: {error}") from error
    if "train" not in parts:
        raise DataError(f"the dataset {name} has no split named train, only {', '.join(parts)}")
    return parts


def _rows(rows: Any, name: str) -> list[Document]:
    columns = [column for column, feature in rows.features.items() if getattr(feature, "dtype", "") in STRINGS]
    if "text" in columns:
        columns = ["text"]
    if len(columns) != 1:
        raise DataError(f"the dataset {name} needs a column named text, or just one of strings; it has {columns}")
    documents = []
    for number, text in enumerate(rows[columns[0]]):
        if text and text.strip():
            if "\0" in text:
                raise DataError(f"row {number:,} of the dataset {name} is not text: it holds a zero byte; remove it")
            documents.append(Document(str(number), text.encode()))
    return documents
