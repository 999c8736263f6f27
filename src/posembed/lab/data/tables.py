"""Tables of examples: .csv, .tsv and .jsonl files, Hugging Face datasets, and the data sets of the GLUE benchmark."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from posembed.errors import DataError
from posembed.files import data_of
from posembed.lab.data.documents import load_hugging_face, read_text

Row: TypeAlias = tuple[int, Mapping[str, Any]]
"""The line number of an example, and its values by column."""
ReadJson: TypeAlias = Callable[[str, Path], Iterator[Row]]


@dataclass
class Table:
    """The rows of one file or of one split of a dataset. The rows can be read only once."""

    name: str
    rows: Iterable[Row]
    columns: list[str]
    features: Mapping[str, Any] = field(default_factory=dict)
    """A dataset's own description of its columns."""
    numbered: bool = False
    """Whether the file has no header, so that its columns have numbers from 1 on."""
    short: int = 0
    """The number of rows that were skipped because they lack a column."""

    def hint(self) -> str:
        """Returns advice for a file without a header; empty if the file cannot need this advice."""
        if self.numbered or Path(self.name).suffix.lower() not in SEPARATED:
            return ""
        return ". If the file has no header, give the numbers of the columns: --text-column 1 --label-column 2"


@dataclass(frozen=True)
class Named:
    """A known data set: its name on the hub, and the files that its authors publish.

    columns: those of the hub's version. local: those of the files, if they differ. The last column is the label.
    """

    hub: str
    files: tuple[str, str]
    """The training file and the held-out file."""
    columns: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    held_out: str | None = None
    """The name of the hub's held-out split, if it is not the usual one."""


NAMED = {name: Named(**known) for name, known in data_of(__file__, "named").items()}
"""The data sets with a name: NAME is the hub's version, and NAME:FOLDER the published files in a folder."""
SEPARATED = (".csv", ".tsv")


def named(data: str) -> tuple[Named, Path | None] | None:
    """Returns the data set that "NAME" or "NAME:FOLDER" names, and the folder; None if there is no such name."""
    name, _, folder = data.partition(":")
    return (NAMED[name], Path(folder).expanduser() if folder else None) if name in NAMED else None


def paired(data: str) -> bool:
    """Whether ``data`` names a data set of pairs of texts."""
    known = named(data)
    return known is not None and len(known[0].columns) > 2


def read_tables(
    data: str, test_data: str | None = None, *, columns: Sequence[str] = (), read_json: ReadJson | None = None
) -> tuple[list[Table], str]:
    """Opens the training part and the held-out part, if there is one. Returns them and a name for both.

    Args:
        data: a .csv, .tsv or .jsonl file, "hf:NAME[:CONFIG]", or "NAME" or "NAME:FOLDER" of ``NAMED``.
        test_data: a file with the held-out part.
        columns: the columns that the caller asks for. If all are numbers, and the first line does not have them as
            names, the file counts as one without a header.
        read_json: a function that reads a .json file; None refuses such files.

    Raises:
        DataError: a file or dataset that cannot be read or has no rows.
    """
    known = named(data)
    if known is not None and known[1] is None:
        data = f"hf:{known[0].hub}"
    if test_data is not None and (known is not None or data.startswith("hf:")):
        raise DataError(f"{data} has a held-out part of its own; leave out --test-data")
    if data.startswith("hf:"):
        name = data.removeprefix("hf:")
        splits = load_hugging_face(name, held_out=None if known is None else known[0].held_out)
        tables = [
            Table(f"{name} ({part})", enumerate(rows, start=1), list(rows.features), rows.features)
            for part, rows in splits.items()
        ]
        return tables, f"{name} (its own {' and '.join(splits)} splits)" if len(splits) > 1 else name
    if known is not None:
        source, folder = known
        assert folder is not None
        files = [folder / file for file in source.files]
        missing = [file.name for file in files if not file.exists()]
        if missing:
            raise DataError(f"{folder} has no {' and no '.join(missing)}; expected {' and '.join(source.files)} in it")
        tables = [read_table(file, keep=source.local or source.columns, read_json=read_json) for file in files]
        return tables, data.partition(":")[0]
    paths = [Path(file).expanduser() for file in (data, test_data) if file is not None]
    tables = [read_table(path, columns=columns, read_json=read_json) for path in paths]
    if len(tables) > 1 and tables[0].name == tables[1].name:
        tables[1].name = str(paths[1])
    return tables, " and ".join(table.name for table in tables)


def read_table(
    path: Path, *, columns: Sequence[str] = (), keep: Sequence[str] = (), read_json: ReadJson | None = None
) -> Table:
    """Opens a file, whose extension decides its format. ``columns``, ``read_json``: as in ``read_tables``.

    keep: the only columns to keep. Rows that lack one of the file's columns are then skipped and counted, such as some
    rows of QQP's published file.

    Raises DataError for a file that cannot be read or has no rows.
    """
    kind, table = path.suffix.lower(), Table(path.name, (), [])
    kinds = (*SEPARATED, ".jsonl", ".ndjson", *((".json",) if read_json else ()))
    if kind not in kinds:
        listed = ", ".join(each for each in kinds if each != ".ndjson")
        raise DataError(f"{path} should end in {' or '.join(listed.rsplit(', ', 1))}, which decides how it is read")
    text = read_text(path).decode("utf-8-sig")
    if kind in SEPARATED:
        rows = _separated(text, path, table, columns, keep)
    elif kind == ".json" and read_json is not None:
        rows = read_json(text, path)
    else:
        rows = _json_lines(text, path)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path} has no rows; expected an example in each")
    table.rows = chain([first], rows)
    table.columns = table.columns or list(first[1])
    return table


def _separated(
    text: str, path: Path, table: Table, columns: Sequence[str], keep: Sequence[str]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(2**31 - 1)  # the default limit of 128 KiB is too small for some texts
    # In tab-separated files a quotation mark is an ordinary character (IANA text/tab-separated-values).
    tabs = path.suffix.lower() == ".tsv"
    format_: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    reader = csv.reader(io.StringIO(text, newline=""), **format_)
    lines: Iterator[list[str]] = (line for line in reader if line)
    try:
        names = next(lines, [])
        table.numbered = bool(columns) and all(name.isdecimal() for name in columns) and not _in_header(columns, names)
        if table.numbered:
            lines, names = chain([names], lines), [str(number) for number, _ in enumerate(names, start=1)]
        table.columns = names
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise DataError(f"{path} has more than one column named {twice[0]!r}; rename or remove one{table.hint()}")
        if missing := [name for name in keep if name not in names]:
            raise DataError(f"{path} has no column named {missing[0]!r}; it has {', '.join(names)}")
        for line in lines:
            if len(line) != len(names):
                if keep:
                    table.short += 1
                    continue
                raise DataError(
                    f"line {reader.line_num} of {path} does not have the {len(names)} columns of the first line; "
                    "correct it"
                )
            row = dict(zip(names, line, strict=True))
            yield reader.line_num, {name: row[name] for name in keep} if keep else row
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {path} cannot be read: {error}; correct it") from error


def _json_lines(text: str, path: Path) -> Iterator[Row]:
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


def choose_columns(table: Table, what: str, wanted: str | None, obvious: Sequence[str]) -> list[str]:
    """Returns the requested columns; by default, the only column with an obvious name.

    what: the option without its "-column", such as "text". wanted: names, or numbers for a file without a header; for
    texts, several may be separated by commas.

    Raises DataError if there is no such column, or no single obvious one.
    """
    listed = f"it has {', '.join(table.columns)}"
    if wanted is None:
        found = [column for column in table.columns if column.strip().lower() in obvious]
        if len(found) != 1:
            which = f"several columns could hold it: {', '.join(found)}" if found else listed
            hint = "" if found else table.hint()
            raise DataError(
                f"which column of {table.name} holds the {what}? Name it with --{what}-column; {which}{hint}"
            )
        return found
    found = [wanted] if wanted in table.columns or what == "label" else [part.strip() for part in wanted.split(",")]
    if len(set(found)) < len(found):
        raise DataError(f"--{what}-column names a column of {table.name} twice: {wanted}; name different columns")
    for column in found:
        if column not in table.columns:
            raise DataError(f"{table.name} has no column named {column!r}; {listed}{table.hint()}")
    return found


def refuse_header(table: Table, texts: Sequence[str], label: str, obvious: Iterable[str]) -> None:
    """Raises DataError if a file that is read without a header seems to have one, which would become an example: its
    first line holds an obvious column name, and a label that no other line has."""
    if not table.numbered:
        return
    table.rows = rows = list(table.rows)
    first = rows[0][1]
    names = {first[column].strip().lower() for column in (*texts, label)}
    if names & set(obvious) and all(row[label] != first[label] for _, row in rows[1:]):
        listed = ",".join(first[column] for column in texts)
        raise DataError(
            f"the first line of {table.name} looks like a header ({', '.join(first.values())}), but columns with "
            f"numbers mean a file without one; give the names: --text-column {listed} --label-column {first[label]}"
        )


def _in_header(columns: Sequence[str], first: Sequence[str]) -> bool:
    """Whether the first line is a header with these numbers as names. An example may hold them by chance: the line
    counts as an example if some cell is not a number, and if all these numbers are numbers of its columns."""
    numbers = all(name.isdecimal() for name in first)
    return {*columns} <= {*first} and (numbers or any(not 0 < int(name) <= len(first) for name in columns))
