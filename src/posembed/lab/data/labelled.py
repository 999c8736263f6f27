"""Labelled texts, split by document into a training part and a held-out part."""

from __future__ import annotations

import hashlib
import math
import re
import reprlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Generic, Protocol, TypeVar

from posembed.errors import ArgumentError, DataError
from posembed.lab.data.documents import standard_library
from posembed.lab.data.tables import Table, choose_columns, named, read_tables, refuse_header
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

MISSING = re.compile(r"(?i)-?nan|<na>|#?n/a")
NUMBER = re.compile(r"(?i)[+-]?\d+\.?\d*(e[+-]?\d+)?|true|false")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Example:
    """A labelled text. document: a key that is shared by the pieces of one file, or by equal texts. All examples of a
    document are on the same side of the split."""

    text: str
    label: str
    document: str
    second: str | None = None
    """The second text of a pair whose texts are kept apart."""


class HasDocument(Protocol):
    @property
    def document(self) -> str: ...


ExampleT = TypeVar("ExampleT", bound=HasDocument)


@dataclass(frozen=True)
class Examples(Generic[ExampleT]):
    """Examples, split into two parts. sha256: a hash of the split examples. labels: the sorted labels of both parts;
    empty for questions with answers."""

    train: tuple[ExampleT, ...]
    held_out: tuple[ExampleT, ...]
    description: str
    sha256: str
    labels: tuple[str, ...] = ()


PAIRS = ("joined", "segments")


def load_labelled(
    data: str = "stdlib",
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    test_data: str | None = None,
    pairs: str | None = None,
) -> Examples[Example]:
    """Reads, checks and splits labelled texts.

    Args:
        data: "stdlib" (pieces of source from Python's standard library, labelled with their package), a .csv, .tsv or
            .jsonl file, "hf:NAME[:CONFIG]" (a Hugging Face dataset, with its own held-out split if it has one), or a
            data set of GLUE: "sst2", "mnli" (its matched development set), "mnli-mismatched", "qnli" or "qqp" from the
            hub, or from a folder of its published files: "mnli:glue/MNLI".
        text_column: the column of the text. Several columns, separated by commas (such as pairs of sentences), become
            the lines of one text. None means the only column with an obvious name (``COLUMNS``).
        label_column: the column of the label. None means the only column with an obvious name. The columns of a file
            without a header have numbers, from "1" on.
        test_data: a file with the held-out examples. Nothing else is then held out.
        pairs: "segments" keeps the texts of two columns apart; "joined" or None makes one text of them.

    Raises:
        ArgumentError: unknown ``pairs``, or "segments" without two text columns.
        DataError: the data cannot be read or lacks these columns, or the labels are not classes.
    """
    if pairs not in (None, *PAIRS):
        raise ArgumentError(f"pairs must be one of {', '.join(PAIRS)}; got {pairs!r}")
    if data == "stdlib":
        if text_column or label_column:
            raise DataError("the standard library has no columns; name columns only for a file or a dataset")
        if test_data:
            raise DataError("the standard library has a held-out part of its own; give --test-data with a --data file")
        require_pairs(pairs, ["source"])
        return labelled(_packages(), None, name="pieces of source of Python's standard library", column="package")
    known = named(data)
    if known is not None:
        if text_column or label_column:
            raise DataError(f"{data} names its own columns; leave out --text-column and --label-column")
        columns = known[0].columns if known[1] is None else known[0].local or known[0].columns
        if not columns:
            raise DataError(f"{data} has no labelled texts; give it to posembed compare tasks spans")
        text_column, label_column = ",".join(columns[:-1]), columns[-1]
    asked = [part.strip() for names in (text_column, label_column) if names for part in names.split(",")]
    tables, about = read_tables(data, test_data, columns=asked)
    read, column = [], ""
    for table in tables:
        texts = choose_columns(table, "text", text_column, COLUMNS["text"])
        (label,) = choose_columns(table, "label", label_column, COLUMNS["label"])
        if label in texts:
            raise DataError(
                f"column {label!r} of {table.name} cannot be both the label and in the text; choose another for one"
            )
        require_pairs(pairs, texts)
        refuse_header(table, texts, label, chain.from_iterable(COLUMNS.values()))
        text_column, label_column, column = ",".join(texts), label, f"column {label!r}"
        read.append(_examples(table, texts, label, apart=pairs == "segments"))
    return labelled(
        read[0][0],
        read[1][0] if len(read) > 1 else None,
        name=about,
        column=column,
        blank=sum(blank for _, blank in read),
        short=sum(table.short for table in tables),
    )


def require_pairs(pairs: str | None, texts: Sequence[str]) -> None:
    """Raises ArgumentError if ``pairs`` is "segments" and there are not exactly two text columns."""
    if pairs == "segments" and len(texts) != 2:
        raise ArgumentError(
            f"--pairs segments needs two text columns, such as --text-column premise,hypothesis; got {len(texts)}: "
            f"{', '.join(texts)}"
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


# --- rows ------------------------------------------------------------------------------------------------------------


def _examples(table: Table, texts: Sequence[str], label: str, *, apart: bool) -> tuple[list[Example], int]:
    """Returns one example for each row that has a text, and the number of rows without a text. Texts that differ only
    in white space are one document.

    apart: whether the two texts of a row stay apart.
    """
    examples, blank = [], 0
    classes = getattr(table.features.get(label), "names", None)  # if the labels are the numbers of these classes
    for number, row in table.rows:
        where, value = f"row {number} of {table.name}", row.get(label)
        for column in texts:
            if not isinstance(row.get(column), str | None):
                raise DataError(f"{where} has no text: column {column!r} holds {row[column]!r}; expected a string")
        text = "\n".join(row.get(column) or "" for column in texts)
        words = same_words(text)
        if not words:
            blank += 1
            continue
        missing = value is None or value != value or not str(value).strip()  # pandas writes NaN
        if missing or isinstance(value, list | dict) or (classes and value == -1):
            raise DataError(
                f"{where} has no label: column {label!r} holds {value!r}; expected a name or a whole number. Label the "
                "row, or leave it out"
            )
        found = classes[value] if classes else re.sub(r"^(-?\d+)\.0+$", r"\1", str(value).strip())  # 1.0 is the class 1
        if LONE_SURROGATE.search(words + found):
            raise DataError(f"{where} is not text: it holds half of a UTF-16 pair; correct it")
        document = text if text == words else words
        if apart:
            first, second = (row.get(column) or "" for column in texts)
            examples.append(Example(first, found, document, second))
        else:
            examples.append(Example(text, found, document))
    return examples, blank


# --- the split ---------------------------------------------------------------------------------------------------


def labelled(
    train: Sequence[Example],
    held_out: Sequence[Example] | None,
    *,
    name: str,
    column: str = "label",
    blank: int = 0,
    short: int = 0,
) -> Examples[Example]:
    """Checks the labels and splits the examples. With ``held_out``, keeps the given split, but drops the training
    documents that are held out too. ``blank``, ``short``: the numbers of rows that were skipped because they lack a
    text, or columns.

    Raises DataError for labels that ``check_labels`` refuses, and for a label that is missing on one side of the split.
    """
    kept = train if held_out is None else without_copies(train, held_out, name=name)
    check_labels([*kept, *(held_out or ())], name=name, column=column)
    left_out = len(train) - len(kept)
    train, held_out = (kept, held_out) if held_out is not None else split_by_document(train, lambda e: e.label)
    for side, others, what in ((held_out, train, "training"), (train, held_out, "held-out")):
        missing = sorted({e.label for e in side} - {e.label for e in others})
        if missing:
            raise DataError(f"{name} has no {what} example of {missing[0]!r}; leave that label out, or add examples")
    labels = tuple(sorted({example.label for example in train}))
    more = f", {blank:,} without a text skipped" * bool(blank)
    more += f", {short:,} with missing columns skipped" * bool(short)
    return examples_of(
        train,
        held_out,
        lambda e: (e.document, e.label, e.text, *([] if e.second is None else [e.second])),
        about=f"{name}: {len(labels)} classes;",
        kind="examples",
        left_out=left_out,
        more=more,
        labels=labels,
    )


def examples_of(
    train: Sequence[ExampleT],
    held_out: Sequence[ExampleT],
    fields: Callable[[ExampleT], Iterable[str]],
    *,
    about: str,
    kind: str,
    left_out: int,
    others: str = "from {:,} other documents",
    more: str = "",
    labels: tuple[str, ...] = (),
) -> Examples[ExampleT]:
    """Returns split examples with a description and a hash. fields: returns the texts of an example to hash. left_out:
    the number of training examples that are held out too."""
    copies = f", {left_out:,} more left out because they are held out too" if left_out else ""
    where = others.format(len({example.document for example in held_out}))
    description = f"{about} {len(train):,} training {kind}{copies}, {len(held_out):,} {where} held out{more}"
    digest = hashlib.sha256()
    for part, examples in (("train", train), ("held out", held_out)):
        for example in examples:
            digest.update("\0".join((part, *fields(example), "")).encode())
    return Examples(tuple(train), tuple(held_out), description, digest.hexdigest(), labels)


def split_parts(
    parts: Sequence[Sequence[ExampleT]], text: Callable[[ExampleT], str], *, name: str, one: str
) -> tuple[list[ExampleT], Sequence[ExampleT], int]:
    """Splits the examples by document, unless there are two parts. Returns the training examples (without those whose
    text is also held out), the held-out examples, and the number left out. Raises DataError if all examples have the
    same document, or if none is left to train on. one: what a document is called in the error."""
    if len(parts) == 1 and len({example.document for example in parts[0]}) < 2:
        raise DataError(f"{name} has one {one}; expected two or more, one of them held out")
    train, held_out = split_by_document(parts[0]) if len(parts) == 1 else parts
    kept = without_copies(train, held_out, text, name=name)
    return kept, held_out, len(train) - len(kept)


def without_copies(
    train: Sequence[ExampleT],
    held_out: Sequence[ExampleT],
    text: Callable[[ExampleT], str] = lambda example: example.document,
    *,
    name: str,
) -> list[ExampleT]:
    """Returns the training examples whose text is not held out too. Raises DataError if there is none."""
    known = {text(example) for example in held_out}
    kept = [example for example in train if text(example) not in known]
    if not kept:
        raise DataError(f"{name}: every training text is held out too; give other texts to test on")
    return kept


def split_by_document(
    examples: Sequence[ExampleT], label: Callable[[ExampleT], str] = lambda example: ""
) -> tuple[list[ExampleT], list[ExampleT]]:
    """Returns (train, held out). For each label, holds out its smallest document. Then goes through the label's other
    documents in the order of the hashes of their names, and holds out each that still fits into a fifth of the label's
    examples. A document has the label of its first example."""
    sizes = Counter(example.document for example in examples)
    by_label = defaultdict(list)
    for document, name in {e.document: label(e) for e in reversed(examples)}.items():
        by_label[name].append(document)
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
    missing = {label for label in by_label if MISSING.fullmatch(label)}
    if missing and len(missing) < len(by_label) and all(map(NUMBER.fullmatch, by_label.keys() - missing)):
        raise DataError(
            f"the {column} of {name} holds numbers and {min(missing)}, which stands for a missing label; label these "
            "rows, or leave them out"
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
        number = float(label)
    except ValueError:
        return False
    return math.isfinite(number) and not number.is_integer()  # nan is a language
