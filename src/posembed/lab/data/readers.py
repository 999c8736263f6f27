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

TEXT_COLUMNS = (
    "text",
    "sentence",
    "content",
    "review",
    "document",
    "question",
    "comment",
    "body",
    "message",
    "tweet",
)
LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "sentiment", "topic", "intent", "genre")

PART_FILES = 10
"""A package of the standard library is one of the parts to tell apart if it has this many files of source."""
PIECE = 400
"""Characters, in whole lines, of a piece of source."""

LONE_SURROGATE = re.compile("[\ud800-\udfff]")

Row = Mapping[str, Any]
Numbered = Iterator[tuple[int, Row]]


def load_labelled(data: str = "stdlib", *, text_column: str | None = None, label_column: str | None = None) -> Labelled:
    """Read, check and split.

    Args:
        data: "stdlib" (which package of Python's standard library is this piece of source from?), a .csv, .tsv or
            .jsonl file, or "hf:NAME[:CONFIG]" (a Hugging Face dataset, with its own held-out split if it has one).
        text_column: of the text, or several with commas between, as of pairs of sentences: they are joined by a
            line's end. None: the one of an obvious name (``TEXT_COLUMNS``).
        label_column: of the label. None: the one of an obvious name (``LABEL_COLUMNS``).

    Raises:
        DataError: what cannot be read, has no such columns, or whose labels are none.
    """
    if data == "stdlib":
        if text_column or label_column:
            raise DataError("the standard library has no columns; name them with a file or a dataset")
        return _standard_library()
    if data.startswith("hf:"):
        return _hugging_face(data.removeprefix("hf:"), text_column, label_column)
    path = Path(data).expanduser()
    name = path.name
    try:
        rows = _rows(path)
        first = next(rows, None)
        if first is None:
            raise DataError(f"{path} has no rows; expected a text and a label in each")
        columns = list(first[1])
        texts, label = _columns(columns, text_column, label_column, name)
        examples, blank = _examples(chain([first], rows), texts, label, name)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; the data may be stdlib, a .csv, .tsv or .jsonl file, or "
            "hf:NAME[:CONFIG]"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 at offset {_not_utf8_at(path, error):,}; convert it") from error
    return labelled(examples, None, name=name, column=f"column {label!r}", blank=blank)


def _not_utf8_at(path: Path, error: UnicodeDecodeError) -> int:
    """The error's own offset is of the part that was decoded at once."""
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError as of_file:
        error = of_file
    return error.start


def _rows(path: Path) -> Numbered:
    """(line number, row) of a file, by the end of its name."""
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return _separated(path, tabs=kind == ".tsv")
    if kind in (".jsonl", ".ndjson"):
        return _json_lines(path)
    raise DataError(f"{path} should end in .csv, .tsv or .jsonl, which says how to read it")


def _separated(path: Path, *, tabs: bool) -> Numbered:
    csv.field_size_limit(2**31 - 1)  # the library's own 128 KiB is short for a text
    # In tab-separated files a quotation mark is a character like any other (IANA text/tab-separated-values).
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
                        f"line {reader.line_num} of {path} does not have the "
                        f"{len(names)} columns of the first line; mend it"
                    )
                yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"line {reader.reader.line_num} of {path} cannot be read: {error}; mend it") from error


def _json_lines(path: Path) -> Numbered:
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
    """(those of the text, that of the label)."""
    texts = _text_columns(columns, text_column, name)
    label = _column(columns, label_column, LABEL_COLUMNS, "label", name)
    if label in texts:
        raise DataError(f"column {label!r} of {name} cannot be the label and in the text; name another for one")
    return texts, label


def _text_columns(columns: Sequence[str], wanted: str | None, name: str) -> list[str]:
    if wanted is not None and wanted not in columns and "," in wanted:
        return [_column(columns, part.strip(), (), "text", name) for part in wanted.split(",")]
    return [_column(columns, wanted, TEXT_COLUMNS, "text", name)]


def _column(columns: Sequence[str], wanted: str | None, usual: Sequence[str], what: str, name: str) -> str:
    there = f"it has {', '.join(columns)}"
    if wanted is not None:
        if wanted not in columns:
            raise DataError(f"{name} has no column named {wanted!r}; {there}")
        return wanted
    found = [column for column in columns if column.strip().lower() in usual]
    if len(found) != 1:
        which = f"several columns could hold it: {', '.join(found)}" if found else there
        raise DataError(f"which column of {name} holds the {what}? Name it with --{what}-column; {which}")
    return found[0]


def _examples(
    rows: Iterable[tuple[int, Row]],
    texts: Sequence[str],
    label: str,
    name: str,
    names: Sequence[str] | None = None,
) -> tuple[list[Example], int]:
    """One of each row that has a text, and the number of rows that have none. names: of labels that are numbers.

    The same text twice, if but for white space, is one document.
    """
    examples, blank = [], 0
    for number, row in rows:
        text = "\n".join(_text(row.get(column), f"row {number} of {name}", column) for column in texts)
        words = same_words(text)
        if not words:
            blank += 1
            continue
        found = _label(row.get(label), names, f"row {number} of {name}", label)
        if LONE_SURROGATE.search(words + found):
            raise DataError(f"row {number} of {name} is not text: it holds half of a UTF-16 pair; mend it")
        examples.append(Example(text, found, text if text == words else words))
    return examples, blank


def _text(value: Any, where: str, column: str) -> str:
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where} has no text: column {column!r} holds {value!r} there; expected a string")
    return value or ""


def _label(value: Any, names: Sequence[str] | None, where: str, column: str) -> str:
    if value is None or isinstance(value, list | dict) or not str(value).strip() or (names and value == -1):
        raise DataError(
            f"{where} has no label: column {column!r} holds {value!r} there, and a class needs a name or a whole "
            "number. Label the row, or leave it out"
        )
    label = names[value] if names else str(value).strip()
    return label.partition(".")[0] if re.fullmatch(r"-?\d+\.0+", label) else label  # 1.0 is the class 1


def _hugging_face(name: str, text_column: str | None, label_column: str | None) -> Labelled:
    """The dataset's own split where it has one, else ours."""
    parts = load_hugging_face(name)
    columns = list(parts["train"].features)
    texts, label = _columns(columns, text_column, label_column, name)
    names = getattr(parts["train"].features[label], "names", None)

    def read(part: str) -> tuple[list[Example], int]:
        return _examples(enumerate(parts[part], start=1), texts, label, f"{name} ({part})", names)

    own = next((part for part in ("validation", "validation_matched", "test") if part in parts), None)
    train, blank = read("train")
    if own is None:
        return labelled(train, None, name=name, column=f"column {label!r}", blank=blank)
    held_out, more_blank = read(own)
    called = f"{name} (its own train and {own} splits)"
    return labelled(train, held_out, name=called, column=f"column {label!r}", blank=blank + more_blank)


def _standard_library() -> Labelled:
    """Pieces of source, labelled by the package that they are from; a file is a document."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if len(parts) > 1 and not NOT_SOURCE.intersection(parts):
            files[parts[0]].append(path)
    examples = []
    for package, paths in files.items():
        if len(paths) < PART_FILES:
            continue
        for path in paths:
            text, file = path.read_text(encoding="utf-8", errors="replace"), path.relative_to(root).as_posix()
            examples += [Example(piece, package, file) for piece in pieces(text, PIECE)]
    return labelled(examples, None, name="pieces of source of Python's standard library", column="package")


def pieces(text: str, size: int) -> list[str]:
    """Whole lines, as many at a time as fit the size (a longer line stands alone); blank pieces are left out."""
    cut, piece = [], ""
    for line in text.splitlines(keepends=True):
        if piece and len(piece) + len(line) > size:
            cut.append(piece)
            piece = ""
        piece += line
    return [piece for piece in [*cut, piece] if piece.strip()]
