"""Sentences with a label for each word, from files of columns (CoNLL) or generated, and entities in IOB labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posembed.errors import DataError
from posembed.lab.data.documents import read_text
from posembed.lab.data.labelled import LONE_SURROGATE, Examples, examples_of, split_parts
from posembed.lab.data.sentences import different, tagged_sentence
from posembed.lab.data.text import same_words

GENERATED = 2500
"""The number of generated sentences."""
DOCUMENT = "-DOCSTART-"
OUTSIDE = "O"
BLANKS = " \t\r"
"""What separates columns. Other white space, such as a no-break space, is part of a word."""
TOKEN_NUMBER = re.compile(r"\d+([-.]\d+)?")
LARGEST_SHARE = 0.5
"""The maximum number of different labels per labelled word. With more, the column does not hold labels."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words and their labels. document: the file's name and the number of the document, or the sentence itself."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    document: str

    @property
    def text(self) -> str:
        return " ".join(self.words)


def load_tagged(
    data: str = "generated",
    *,
    test_data: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
) -> Examples[Sentence]:
    """Reads and splits sentences with a label for each word.

    Args:
        data: "generated" (names of three types, which depend on the order of the words), or a file of columns: one word
            per line, its label in another column, and a blank line after each sentence, as in CoNLL-2003. Columns are
            separated by tabs or spaces. Lines that start with -DOCSTART- separate documents.
        test_data: a file with the held-out sentences. Nothing else is then held out.
        text_column, label_column: the numbers of the columns, counted from 1. None means the first and the last.

    Raises:
        DataError: a file that cannot be read, or whose lines do not have these columns or hold no labels.
    """
    if data == "generated":
        if test_data or text_column or label_column:
            raise DataError(
                "generated sentences have no columns and no file to test on; give these options with --data"
            )
        made = different(GENERATED, tagged_sentence)
        parts = [[Sentence(tuple(w for w, _ in s), tuple(t for _, t in s), " ".join(w for w, _ in s)) for s in made]]
        about = "generated sentences"
    else:
        paths = [Path(file).expanduser() for file in (data, test_data) if file is not None]
        parts = [read_columns(path, _number("text", text_column), _number("label", label_column)) for path in paths]
        about = " and ".join(path.name for path in paths)
    kept, held_out, left_out = split_parts(parts, lambda s: same_words(s.text), name=about, one="document or sentence")
    known, other = ({tag for s in part for tag in s.tags} for part in (kept, held_out))
    labels = tuple(sorted(known | other))
    check_tags([*kept, *held_out], name=about)
    new = sorted(other - known)
    return examples_of(
        kept,
        held_out,
        lambda s: (s.document, *s.words, *s.tags),
        about=f"{about}: {len(labels)} labels;",
        kind="sentences",
        left_out=left_out,
        more=f", with labels that no training sentence has: {', '.join(new)}" * bool(new),
        labels=labels,
    )


def _number(what: str, column: str | None) -> int | None:
    if column is not None and not (column.isdecimal() and int(column) > 0):
        raise DataError(f"--{what}-column: expected the number of a column, from 1; got {column!r}")
    return None if column is None else int(column)


def read_columns(path: Path, word: int | None = None, tag: int | None = None) -> list[Sentence]:
    """Returns the sentences of a file of columns. word, tag: the column numbers of the words and labels, counted from
    1; None means the first and the last. Raises DataError without sentences, or if the number of columns varies."""
    text = read_text(path).decode("utf-8-sig")
    lines = re.split(r"\r*\n|(?<!\n)\r(?![ \t])", text)  # \r alone ends a line, if no blank follows (paste)
    found: list[tuple[int, list[str], list[str]]] = []
    document, begun, width, comment = 0, False, 0, ""
    tabs = "\t" in next((line for line in map(str.strip, lines) if line and not line.startswith(("#", DOCUMENT))), "")
    for number, line in enumerate(lines, start=1):
        line = line.strip(BLANKS)
        cells = re.split(r"\t" if tabs else "[ \t]+", line)
        if line.startswith(DOCUMENT):
            document, begun = document + 1, False
        elif not line.strip():
            begun = False
        elif not (tabs and line.startswith("#") and "\t" not in line):  # a comment of CoNLL-U
            cells = [cell.strip(BLANKS) for cell in cells]
            if not width:
                width, comment = len(cells), f"; if line {number} is a comment, remove it" * line.startswith("#")
            if len(cells) != width or width < 2:
                raise DataError(
                    f"line {number} of {path} has {len(cells)} column{'s' * (len(cells) != 1)}; expected "
                    f"{max(width, 2)}: a word, ..., its label, and a blank line after each sentence{comment}"
                )
            at = [width if column is None else column for column in (word or 1, tag)]
            if max(at) > width:
                raise DataError(f"{path} has no column {max(at)}; its lines have {width} columns")
            if at[0] == at[1]:
                raise DataError(f"column {at[0]} of {path} cannot be both the word and its label")
            pair = [cells[column - 1] for column in at]
            if not all(pair) or LONE_SURROGATE.search("".join(pair)):
                raise DataError(f"line {number} of {path} has no {'label' if pair[0] else 'word'}; correct it")
            if not begun:
                found.append((document, [], []))
                begun = True
            found[-1][1].append(pair[0])
            found[-1][2].append(pair[1])
    if not found:
        raise DataError(f"{path} has no sentences; expected a word and its label in each line")
    if len(found) > 1 and all(words[0].startswith("# ") or words[0] == "#" for _, words, _ in found):
        raise DataError(f"every sentence of {path} starts with a line that starts with #; remove these comments")
    if word is None and all(TOKEN_NUMBER.fullmatch(each) for _, words, _ in found for each in words):
        raise DataError(
            f"the first column of {path} has only numbers, such as {found[0][1][0]}; choose the column of the words "
            "with --text-column"
        )
    several = len({document for document, _, _ in found}) > 1
    return [
        Sentence(tuple(words), tuple(tags), f"{path.name} {document}" if several else " ".join(words))
        for document, words, tags in found
    ]


def check_tags(sentences: Sequence[Sentence], *, name: str) -> None:
    """Raises DataError for labels that cannot be learned."""
    counts = Counter(tag for sentence in sentences for tag in sentence.tags)
    total = sum(counts.values())
    if len(counts) < 2:
        raise DataError(f"all words of {name} have the label {next(iter(counts))!r}; expected two labels or more")
    if len(counts) > 2 and len(counts) > total * LARGEST_SHARE:
        raise DataError(
            f"the label column of {name} has {len(counts):,} different values in {total:,} words, such as "
            f"{next(iter(counts))!r}: these are not labels; choose another with --label-column"
        )


# --- entities ----------------------------------------------------------------------------------------------------


def are_iob(labels: Iterable[str]) -> bool:
    """Whether all labels are O, B-TYPE or I-TYPE, with at least one entity."""
    others = {label for label in labels if label != OUTSIDE}
    return bool(others) and all(label[:2] in ("B-", "I-") and len(label) > 2 for label in others)


def entities(tags: Sequence[str | None]) -> set[tuple[str, int, int]]:
    """Returns the entities (type, first word, one after the last word) that IOB labels mark.

    An entity starts at B-TYPE, and at an I-TYPE that does not continue an entity of its type, as in the evaluation
    script of CoNLL-2003 (Tjong Kim Sang and De Meulder 2003). The files of that task, which use B only between
    neighbouring entities of one type, therefore need no conversion. None counts as O.

    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
    [('LOC', 3, 4), ('LOC', 4, 5), ('PER', 0, 2)]
    """
    found, kind, start = set(), "", 0
    for at, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, new = (tag or OUTSIDE).partition("-")
        if kind and (prefix != "I" or new != kind):
            found.add((kind, start, at))
            kind = ""
        if prefix != OUTSIDE and not kind:
            kind, start = new, at
    return found
