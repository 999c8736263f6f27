"""Reads text: files, folders, the standard library and Hugging Face datasets."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posembed.errors import DataError
from posembed.files import files_below, reason
from posembed.measure.jobs import written

NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
NOT_SOURCE |= {"entities.py", "mimetypes.py", "stringprep.py"}
"""Parts of the standard library to leave out: tests, and modules that contain only tables of data."""

FIRST_LOOK = 1 << 20  # bytes. A larger file is read whole only if this much of it has no zero byte.

STRINGS = ("string", "large_string", "string_view")  # Arrow's types for a column of text


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    text: bytes
    """UTF-8 without a zero byte."""


def read_documents(data: str) -> tuple[list[Document], list[Document] | None, str]:
    """Reads "stdlib", text files or folders separated by commas, or "hf:NAME[:CONFIG]". Returns the documents, the
    data's own held-out part (None if it has none), and a description.

    Raises DataError for a path that does not exist, and for data without text.
    """
    if data.startswith("hf:"):
        name = data.removeprefix("hf:")
        parts = load_hugging_face(name)
        train, *own = (_text_rows(rows, name) for rows in parts.values())
        about = f"its own {' and '.join(parts)} splits" if own else f"{len(train):,} rows"
        return train, own[0] if own else None, f"{name} ({about})"
    if data == "stdlib":
        root, files = standard_library()
        documents, _ = _below(root, files)
        return documents, None, f"source of Python's standard library ({len(documents)} files)"
    documents, skipped = [], 0
    # a path may contain a comma
    names = [data] if os.path.exists(os.path.expanduser(data)) else [name.strip() for name in data.split(",")]
    if "" in names:  # the path "" would mean the current folder
        raise DataError(f"expected files or folders separated by commas, got {data!r}")
    paths = [Path(name).expanduser() for name in names]
    for path in paths:
        if os.path.isdir(path):
            found, others = _below(path, files_below(path))
            if not found:
                raise DataError(f"the folder {path} holds no text: expected files of UTF-8 text in or below it")
            documents += found
            skipped += others
        else:
            documents.append(Document(path.name, read_text(path)))
    count = f"{len(documents):,} file{'s' * (len(documents) != 1)}"
    if skipped:
        count += f"; {skipped:,} skipped: empty, not text, or part of a run folder"
    return documents, None, f"{', '.join(path.resolve().name for path in paths)} ({count})"


def standard_library() -> tuple[Path, list[Path]]:
    """Returns the folder of Python's standard library, and its sorted source files without ``NOT_SOURCE``."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return root, sorted(p for p in root.rglob("*.py") if not NOT_SOURCE.intersection(p.relative_to(root).parts))


def read_text(path: Path) -> bytes:
    """Reads a text file. Raises DataError if it is missing, empty, not UTF-8, or contains a zero byte."""
    text = _read_bytes(path)
    if not text.strip():
        raise DataError(f"{path} is empty: expected UTF-8 text")
    if reason := _not_text(text):
        raise DataError(f"{path} is not UTF-8 text: {reason}; convert it, or leave it out")
    return text


def load_hugging_face(name: str, *, held_out: str | None = None) -> dict[str, Any]:
    """Loads the dataset NAME[:CONFIG]. Returns its rows by split: "train", then its own held-out split if it has one:
    ``held_out``, or one with a usual name. Raises DataError for a dataset that cannot be loaded, or that lacks the
    split named train or ``held_out``."""
    try:
        import datasets
    except ImportError:
        raise DataError(
            "hf: data needs the datasets library; install it with pip install 'posembed[datasets]'"
        ) from None
    path, _, config = name.partition(":")
    try:
        parts = datasets.load_dataset(path, config or None)
    except Exception as error:  # its network stack and readers raise many types of errors
        raise DataError(f"the dataset {name} cannot be loaded: {reason(error)}") from error
    for wanted in ("train", held_out):
        if wanted is not None and wanted not in parts:
            raise DataError(f"the dataset {name} has no split named {wanted}, only {', '.join(parts)}")
    usual = ("validation", "validation_matched", "test") if held_out is None else (held_out,)
    own = [part for part in usual if part in parts]
    return {part: parts[part] for part in ("train", *own[:1])}


def _text_rows(rows: Any, name: str) -> list[Document]:
    columns = [column for column, feature in rows.features.items() if getattr(feature, "dtype", "") in STRINGS]
    if "text" in columns:
        columns = ["text"]
    if len(columns) != 1:
        raise DataError(f"the dataset {name} needs a column named text, or only one of strings; it has {columns}")
    documents = []
    for number, text in enumerate(rows[columns[0]]):
        if text and text.strip():
            if "\0" in text:
                raise DataError(f"row {number:,} of the dataset {name} is not text: it holds a zero byte; remove it")
            documents.append(Document(str(number), text.encode()))
    return documents


def _below(root: Path, files: Iterable[Path]) -> tuple[list[Document], int]:
    """Returns the text files, sorted by name, and the number of skipped files. posembed's own files are skipped,
    because a run that trains on a folder may also write into it."""
    files = sorted(files)
    stored, documents = written(files), []
    for path in files:
        if path in stored:
            continue
        text = _read_bytes(path, most=FIRST_LOOK)
        if len(text) == FIRST_LOOK and b"\0" not in text:
            text = _read_bytes(path)
        if text.strip() and not _not_text(text):
            documents.append(Document(path.relative_to(root).as_posix(), text))
    return documents, len(files) - len(documents)


def _read_bytes(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise DataError(
            f'no file or folder {path}; the data may be "stdlib", text files or a folder of them (for texts with '
            "labels: a .csv, .tsv or .jsonl file), or hf:NAME[:CONFIG]"
        ) from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; expected a file") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _not_text(text: bytes) -> str | None:
    if (zero := text.find(b"\0")) >= 0:
        return f"a zero byte at offset {zero:,}"
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"an invalid byte at offset {error.start:,}"
    return None
