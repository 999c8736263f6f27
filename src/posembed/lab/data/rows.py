"""Reads the rows of a CSV, TSV or JSONL file."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posembed.errors import DataError
from posembed.lab.data.documents import read_text


def read_rows(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """Returns (line number, row) for each row, where the row maps columns to values. The file's extension decides
    its format.

    Raises:
        DataError: a file that cannot be read, or without rows.
    """
    kind = path.suffix.lower()
    if kind not in (".csv", ".tsv", ".jsonl", ".ndjson"):
        raise DataError(f"{path} should end in .csv, .tsv or .jsonl, which says how to read it")
    text = read_text(path).decode("utf-8-sig")
    rows = list(_json_lines(text, path) if "json" in kind else _separated(text, path, tabs=kind == ".tsv"))
    if not rows:
        raise DataError(f"{path} has no rows; expected a text and a label in each")
    return rows


def _separated(text: str, path: Path, *, tabs: bool) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(2**31 - 1)  # the library's 128 KiB is short for a text
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
            raise DataError(f'line {number} of {path} is not an object with names, such as {{"text": ...}}')
        yield number, row
