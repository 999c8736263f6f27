"""Labelled texts, split by document into a training part and a held-out part."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import reprlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posembed.errors import DataError
from posembed.lab.data.documents import load_hugging_face, read_text, standard_library
from posembed.lab.data.text import same_words

COLUMNS = {
    "text": ["text", "sentence", "content", "review", "document", "question", "comment", "body", "message", "tweet"],
    "label": ["label", "labels", "class", "category", "target", "sentiment", "topic", "intent", "genre"],
}
"""The obvious names of text and label columns."""

HELD_OUT_SHARE = 0.2
LABELS_PER_DOCUMENT = 0.5
"""The maximum number of different labels per document. With more, the labels identify documents and are not classes."""
PART_FILES = 10  # a standard library package becomes a class if it has at least this many source files
PIECE = 400  # the maximum number of characters in a piece of source, which consists of whole lines

LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Example:
    """A labelled text. document: a key that is shared by the pieces of one file, or by equal texts. All examples of a
    document are on the same side of the split."""

    text: str
    label: str
    document: str


@dataclass(frozen=True)
class Labelled:
    """Labelled texts, split into two parts. labels: all labels, sorted. sha256: a hash of the split examples."""

    train: tuple[Example, ...]
    held_out: tuple[Example, ...]
    labels: tuple[str, ...]
    description: str
    sha256: str


def load_labelled(data: str = "stdlib", *, text_column: str | None = None, label_column: str | None = None) -> Labelled:
    """Reads, checks and splits labelled texts.

    Args:
        data: "stdlib" (pieces of source from Python's standard library, labelled with their package), a .csv, .tsv or
            .jsonl file, or "hf:NAME[:CONFIG]" (a Hugging Face dataset, with its own held-out split if it has one).
        text_column: the column of the text. Several columns, separated by commas (such as pairs of sentences), become
            the lines of one text. None means the only column with an obvious name (``COLUMNS``).
        label_column: the column of the label. None means the only column with an obvious name.

    Raises:
        DataError: the data cannot be read or lacks these columns, or the labels are not classes.
    """
    if data == "stdlib":
        if text_column or label_column:
            raise DataError("the standard library has no columns; name columns only for a file or a dataset")
        return labelled(_packages(), None, name="pieces of source of Python's standard library", column="package")
    parts: dict[str, Iterable[tuple[int, Mapping[str, Any]]]]
    if data.startswith("hf:"):
        name = data.removeprefix("hf:")
        splits = load_hugging_face(name)
        features = splits["train"].features
        parts = {f"{name} ({part})": enumerate(rows, start=1) for part, rows in splits.items()}
        about = f"{name} (its own {' and '.join(splits)} splits)" if len(splits) > 1 else name
    else:
        path = Path(data).expanduser()
        name = about = path.name
        rows = read_rows(path)
        parts, features = {name: rows}, rows[0][1]
    texts = _columns(list(features), "text", text_column, name)
    (label,) = _columns(list(features), "label", label_column, name)
    if label in texts:
        raise DataError(f"column {label!r} of {name} cannot be both the label and in the text; choose another for one")
    classes = getattr(features[label], "names", None)
    read = [_examples(rows, texts, label, part, classes) for part, rows in parts.items()]
    return labelled(
        read[0][0],
        read[1][0] if len(read) > 1 else None,
        name=about,
        column=f"column {label!r}",
        blank=sum(blank for _, blank in read),
    )


def _packages() -> list[Example]:
    """Returns pieces of source, labelled with their package. Each file is a document."""
    root, sources = standard_library()
    files = defaultdict(list)
    for path in sources:
        package, *within = path.relative_to(root).parts
        if within:
            files[package].append(path)
    return [
        Example(piece, package, path.relative_to(root).as_posix())
        for package, paths in files.items()
        if len(paths) >= PART_FILES
        for path in paths
        for piece in pieces(path.read_text(encoding="utf-8", errors="replace"), PIECE)
    ]


def pieces(text: str, size: int) -> list[str]:
    """Splits a text into pieces of whole lines, with as many lines as fit into ``size`` characters. A longer line is a
    piece of its own. Blank pieces are dropped."""
    cut = [""]
    for line in text.splitlines(keepends=True):
        if cut[-1] and len(cut[-1]) + len(line) > size:
            cut.append("")
        cut[-1] += line
    return [piece for piece in cut if piece.strip()]


# --- columns and rows --------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """Returns (line number, row) pairs; a row maps columns to values. The file's extension decides its format. Raises
    DataError for a file that cannot be read or has no rows."""
    kind = path.suffix.lower()
    if kind not in (".csv", ".tsv", ".jsonl", ".ndjson"):
        raise DataError(f"{path} should end in .csv, .tsv or .jsonl, which decides how it is read")
    text = read_text(path).decode("utf-8-sig")
    rows = list(_json_lines(text, path) if "json" in kind else _separated(text, path, tabs=kind == ".tsv"))
    if not rows:
        raise DataError(f"{path} has no rows; expected a text and a label in each")
    return rows


def _separated(text: str, path: Path, *, tabs: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(2**31 - 1)  # the default limit of 128 KiB is too small for some texts
    # In tab-separated files a quotation mark is an ordinary character (IANA text/tab-separated-values).
    format_: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    reader = csv.DictReader(io.StringIO(text, newline=""), **format_)
    try:
        names = reader.fieldnames or ()
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise DataError(f"{path} has more than one column named {twice[0]!r}; rename or remove one")
        for row in reader:
            if None in row or None in row.values():
                raise DataError(
                    f"line {reader.line_num} of {path} does not have the {len(names)} columns of the first line; "
                    "correct it"
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"line {reader.reader.line_num} of {path} cannot be read: {error}; correct it") from error


def _json_lines(text: str, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"line {number} of {path} is not JSON: {error}; correct it") from error
        if not isinstance(row, dict):
            raise DataError(f'line {number} of {path} is not a JSON object; write each as one, such as {{"text": ...}}')
        yield number, row


def _columns(columns: Sequence[str], what: str, wanted: str | None, name: str) -> list[str]:
    """Returns the requested text or label columns; by default, the only column with an obvious name."""
    listed = f"it has {', '.join(columns)}"
    if wanted is None:
        found = [column for column in columns if column.strip().lower() in COLUMNS[what]]
        if len(found) != 1:
            which = f"several columns could hold it: {', '.join(found)}" if found else listed
            raise DataError(f"which column of {name} holds the {what}? Name it with --{what}-column; {which}")
        return found
    found = [wanted] if wanted in columns or what == "label" else [part.strip() for part in wanted.split(",")]
    for column in found:
        if column not in columns:
            raise DataError(f"{name} has no column named {column!r}; {listed}")
    return found


def _examples(
    rows: Iterable[tuple[int, Mapping[str, Any]]],
    texts: Sequence[str],
    label: str,
    name: str,
    classes: Sequence[str] | None,
) -> tuple[list[Example], int]:
    """Returns one example for each row that has a text, and the number of rows without a text. Texts that differ only
    in white space are one document.

    classes: the names of the classes, if the labels are their numbers.
    """
    examples, blank = [], 0
    for number, row in rows:
        where, value = f"row {number} of {name}", row.get(label)
        for column in texts:
            if not isinstance(row.get(column), str | None):
                raise DataError(f"{where} has no text: column {column!r} holds {row[column]!r}; expected a string")
        text = "\n".join(row.get(column) or "" for column in texts)
        words = same_words(text)
        if not words:
            blank += 1
            continue
        if value is None or isinstance(value, list | dict) or not str(value).strip() or (classes and value == -1):
            raise DataError(
                f"{where} has no label: column {label!r} holds {value!r}; expected a name or a whole number. Label the "
                "row, or leave it out"
            )
        found = classes[value] if classes else re.sub(r"^(-?\d+)\.0+$", r"\1", str(value).strip())  # 1.0 is the class 1
        if LONE_SURROGATE.search(words + found):
            raise DataError(f"{where} is not text: it holds half of a UTF-16 pair; correct it")
        examples.append(Example(text, found, text if text == words else words))
    return examples, blank


# --- the split ---------------------------------------------------------------------------------------------------


def labelled(
    train: Sequence[Example],
    held_out: Sequence[Example] | None,
    *,
    name: str,
    column: str = "label",
    blank: int = 0,
) -> Labelled:
    """Checks the labels and splits the examples. With ``held_out``, keeps the given split, but drops the
    training documents that are held out too. ``blank``: the number of rows that were skipped for lack of text.

    Raises DataError for labels that ``check_labels`` refuses, and for a label that is missing on one side of the split.
    """
    known = {example.document for example in held_out or ()}
    kept = [example for example in train if example.document not in known]
    check_labels([*kept, *(held_out or ())], name=name, column=column)
    notes = f", {len(train) - len(kept):,} more left out because they are held out too" * (len(kept) < len(train))
    train, held_out = (kept, held_out) if held_out is not None else split_by_document(train)
    for side, others, what in ((train, held_out, "held-out"), (held_out, train, "training")):
        missing = sorted({e.label for e in side} - {e.label for e in others})
        if missing:
            raise DataError(f"{name} has no {what} example of {missing[0]!r}; leave that label out, or add examples")
    digest = hashlib.sha256()
    for part, examples in (("train", train), ("held out", held_out)):
        for e in examples:
            digest.update("\0".join((part, e.document, e.label, e.text, "")).encode())
    labels = tuple(sorted({example.label for example in train}))
    documents = len({example.document for example in held_out})
    return Labelled(
        train=tuple(train),
        held_out=tuple(held_out),
        labels=labels,
        description=(
            f"{name}: {len(labels)} classes; {len(train):,} training examples{notes}, {len(held_out):,} of "
            f"{documents:,} other documents held out" + f", {blank:,} without a text skipped" * bool(blank)
        ),
        sha256=digest.hexdigest(),
    )


def split_by_document(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Returns (train, held out). For each label, holds out its smallest document. Then goes through its other documents
    in the order of their names' hashes, and holds out each that still fits into a fifth of the label's examples. A
    document has the label of its first example."""
    sizes = Counter(example.document for example in examples)
    by_label = defaultdict(list)
    for document, label in {e.document: e.label for e in reversed(examples)}.items():
        by_label[label].append(document)
    held_out = set()
    for documents in by_label.values():
        drawn = sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest())
        smallest = min(drawn, key=sizes.__getitem__)
        held_out.add(smallest)
        room = HELD_OUT_SHARE * sum(sizes[document] for document in drawn) - sizes[smallest]
        for document in drawn:
            if document != smallest and sizes[document] <= room:
                held_out.add(document)
                room -= sizes[document]
    return (
        [example for example in examples if example.document not in held_out],
        [example for example in examples if example.document in held_out],
    )


def check_labels(examples: Sequence[Example], *, name: str, column: str) -> None:
    """Raises DataError for labels that are not classes or cannot be learned."""
    by_label = defaultdict(set)
    for example in examples:
        by_label[example.label].add(example.document)
    total = len({example.document for example in examples})
    if not by_label:
        raise DataError(f"{name} has no example with text; give at least two classes with at least two examples each")
    if fractions := [label for label in by_label if _is_fraction(label)]:
        raise DataError(
            f"the {column} of {name} holds numbers such as {fractions[0]}; expected names or whole numbers. Choose "
            "another column, or sort the numbers into a few named ranges first"
        )
    first = next(iter(by_label))
    if len(by_label) > 2 and len(by_label) > total * LABELS_PER_DOCUMENT:
        raise DataError(
            f"the {column} of {name} has {len(by_label):,} different values in {total:,} texts, such as "
            f"{reprlib.repr(first)}: these identify texts, not classes; choose another column"
        )
    if len(by_label) == 1:
        raise DataError(f"all texts of {name} have the {column} {first!r}; expected two classes or more")
    if alone := sorted(label for label, documents in by_label.items() if len(documents) == 1):
        raise DataError(
            f"classes of {name} with a single example: {len(alone):,}, such as {reprlib.repr(alone[0])}; expected two "
            "or more, one of them held out. Add some, or leave these classes out"
        )


def _is_fraction(label: str) -> bool:
    try:
        return not float(label).is_integer()
    except ValueError:
        return False
