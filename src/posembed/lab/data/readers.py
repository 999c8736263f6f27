"""Labelled texts from a CSV, TSV or JSONL file, a Hugging Face dataset, or the standard library."""

from __future__ import annotations

import csv
import json
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from posembed.errors import DataError
from posembed.lab.data.documents import NOT_SOURCE, load_hugging_face
from posembed.lab.data.labelled import Example, Labelled, labelled
from posembed.lab.data.split import same_words

TEXT_COLUMNS = ["text", "sentence", "content", "review", "document", "question", "comment", "body", "message", "tweet"]
LABEL_COLUMNS = ["label", "labels", "class", "category", "target", "sentiment", "topic", "intent", "genre"]

PART_FILES = 10
"""The fewest source files of a standard library package that becomes a class."""
PIECE = 400
"""The most characters, in whole lines, of a piece of source."""

LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Numbered = Iterable[tuple[int, Mapping[str, Any]]]
"""(number, row), where the row maps columns to values."""


def load_labelled(data: str = "stdlib", *, text_column: str | None = None, label_column: str | None = None) -> Labelled:
    """Reads, checks and splits labelled texts.

    Args:
        data: "stdlib" (from which package of Python's standard library is this piece of source?), a .csv, .tsv or
            .jsonl file, or "hf:NAME[:CONFIG]" (a Hugging Face dataset, with its own held-out split if it has one).
        text_column: the column of the text, or several joined by commas, such as pairs of sentences, which become
            lines of one text. None: the only column with an obvious name (``TEXT_COLUMNS``).
        label_column: the column of the label. None: the only column with an obvious name (``LABEL_COLUMNS``).

    Raises:
        DataError: data that cannot be read or has no such columns, or labels that are not classes.
    """
    if data == "stdlib":
        if text_column or label_column:
            raise DataError("the standard library has no columns; name them with a file or a dataset")
        return _standard_library()
    if data.startswith("hf:"):
        return _hugging_face(data.removeprefix("hf:"), text_column, label_column)
    path = Path(data).expanduser()
    try:
        rows = iter(_rows(path))
        first = next(rows, None)
        if first is None:
            raise DataError(f"{path} has no rows; expected a text and a label in each")
        texts, label = _columns(list(first[1]), text_column, label_column, path.name)
        examples, blank = _examples(chain([first], rows), texts, label, path.name)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; the data may be stdlib, a .csv, .tsv or .jsonl file, or "
            "hf:NAME[:CONFIG]"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 at offset {_not_utf8_at(path, error):,}; convert it") from error
    return labelled(examples, None, name=path.name, column=f"column {label!r}", blank=blank)


def _not_utf8_at(path: Path, error: UnicodeDecodeError) -> int:
    """Returns the offset in the file; the error's own is relative to a chunk."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError as of_file:
        error = of_file
    return error.start


def _rows(path: Path) -> Numbered:
    """Yields (line number, row) of a file, by the extension of its name."""
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return _separated(path, tabs=kind == ".tsv")
    if kind in (".jsonl", ".ndjson"):
        return _json_lines(path)
    raise DataError(f"{path} should end in .csv, .tsv or .jsonl, which says how to read it")


def _separated(path: Path, *, tabs: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(2**31 - 1)  # the library's 128 KiB is short for a text
    # In tab-separated files a quotation mark is an ordinary character (IANA text/tab-separated-values).
    format_: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, **format_)
        try:
            names = reader.fieldnames or ()
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise DataError(f"{path} has more than one column named {twice[0]!r}; rename or remove one")
            for row in reader:
                if None in row or None in row.values():
                    raise DataError(
                        f"line {reader.line_num} of {path} does not have the {len(names)} columns of the first line; "
                        "mend it"
                    )
                yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"line {reader.reader.line_num} of {path} cannot be read: {error}; mend it") from error


def _json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"line {number} of {path} is not JSON: {error}; mend it") from error
            if not isinstance(row, dict):
                raise DataError(f'line {number} of {path} is not an object with names, such as {{"text": ...}}')
            yield number, row


def _columns(
    columns: Sequence[str], text_column: str | None, label_column: str | None, name: str
) -> tuple[list[str], str]:
    """Returns (the columns of the text, the column of the label)."""
    wanted = [text_column]
    if text_column is not None and text_column not in columns and "," in text_column:
        wanted = [part.strip() for part in text_column.split(",")]
    texts = [_column(columns, each, TEXT_COLUMNS, "text", name) for each in wanted]
    label = _column(columns, label_column, LABEL_COLUMNS, "label", name)
    if label in texts:
        raise DataError(f"column {label!r} of {name} cannot be the label and in the text; name another for one")
    return texts, label


def _column(columns: Sequence[str], wanted: str | None, usual: Sequence[str], what: str, name: str) -> str:
    listed = f"it has {', '.join(columns)}"
    if wanted is not None:
        if wanted not in columns:
            raise DataError(f"{name} has no column named {wanted!r}; {listed}")
        return wanted
    found = [column for column in columns if column.strip().lower() in usual]
    if len(found) != 1:
        which = f"several columns could hold it: {', '.join(found)}" if found else listed
        raise DataError(f"which column of {name} holds the {what}? Name it with --{what}-column; {which}")
    return found[0]


def _examples(
    rows: Numbered, texts: Sequence[str], label: str, name: str, names: Sequence[str] | None = None
) -> tuple[list[Example], int]:
    """Returns one example per row with a text, and the number of rows without. names: of labels that are numbers.

    Texts that differ only in white space are one document.
    """
    examples, blank = [], 0
    for number, row in rows:
        where = f"row {number} of {name}"
        for column in texts:
            if not isinstance(row.get(column), str | None):
                raise DataError(f"{where} has no text: column {column!r} holds {row[column]!r}; expected a string")
        text = "\n".join(row.get(column) or "" for column in texts)
        words = same_words(text)
        if not words:
            blank += 1
            continue
        found = _label(row.get(label), names, where, label)
        if LONE_SURROGATE.search(words + found):
            raise DataError(f"{where} is not text: it holds half of a UTF-16 pair; mend it")
        examples.append(Example(text, found, text if text == words else words))
    return examples, blank


def _label(value: Any, names: Sequence[str] | None, where: str, column: str) -> str:
    if value is None or isinstance(value, list | dict) or not str(value).strip() or (names and value == -1):
        raise DataError(
            f"{where} has no label: column {column!r} holds {value!r}; expected a name or a whole number. Label the "
            "row, or leave it out"
        )
    label = names[value] if names else str(value).strip()
    return label.partition(".")[0] if re.fullmatch(r"-?\d+\.0+", label) else label  # 1.0 is the class 1


def _hugging_face(name: str, text_column: str | None, label_column: str | None) -> Labelled:
    """Keeps the dataset's own split if it has one."""
    parts = load_hugging_face(name)
    texts, label = _columns(list(parts["train"].features), text_column, label_column, name)
    names = getattr(parts["train"].features[label], "names", None)
    own = next((part for part in ("validation", "validation_matched", "test") if part in parts), None)
    read = {
        part: _examples(enumerate(parts[part], start=1), texts, label, f"{name} ({part})", names)
        for part in ("train", own)
        if part
    }
    return labelled(
        read["train"][0],
        read[own][0] if own else None,
        name=f"{name} (its own train and {own} splits)" if own else name,
        column=f"column {label!r}",
        blank=sum(blank for _, blank in read.values()),
    )


def _standard_library() -> Labelled:
    """Returns pieces of source with their package as label; a file is a document."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if len(parts) > 1 and not NOT_SOURCE.intersection(parts):
            files[parts[0]].append(path)
    examples = []
    for package, paths in files.items():
        for path in paths if len(paths) >= PART_FILES else ():
            text, file = path.read_text(encoding="utf-8", errors="replace"), path.relative_to(root).as_posix()
            examples += [Example(piece, package, file) for piece in pieces(text, PIECE)]
    return labelled(examples, None, name="pieces of source of Python's standard library", column="package")


def pieces(text: str, size: int) -> list[str]:
    """Cuts a text into whole lines, as many per piece as fit the size; a longer line stands alone. Blank pieces are
    left out."""
    cut = [""]
    for line in text.splitlines(keepends=True):
        if cut[-1] and len(cut[-1]) + len(line) > size:
            cut.append("")
        cut[-1] += line
    return [piece for piece in cut if piece.strip()]
