"""Collections for retrieval: documents, queries, and judgements of which documents answer a query.

Reads the layout of BEIR (Thakur et al., arXiv:2104.08663): ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/*.tsv``.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from posembed.errors import DataError
from posembed.words import brief, listed

COLUMNS = ("query-id", "corpus-id", "score")
USUAL_SPLIT = "test"
LARGEST_GRADE = 999_999
LAYOUT = "corpus.jsonl, queries.jsonl and qrels/*.tsv, as in BEIR; each file may end in .gz"


@dataclass(frozen=True)
class Collection:
    """Documents and queries by id, and the grade of each judged document for each judged query.

    A grade of 1 or more means relevant. notes: remarks about the data, one sentence or two each.
    """

    documents: Mapping[str, str]
    queries: Mapping[str, str]
    judged: Mapping[str, Mapping[str, int]]
    notes: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """A hash of the documents, the queries and the judgements."""
        parts = json.dumps([dict(self.documents), dict(self.queries), {key: dict(v) for key, v in self.judged.items()}])
        return hashlib.sha256(parts.encode()).hexdigest()


def read_collection(folder: str | Path, split: str | None = None) -> Collection:
    """Reads a folder in BEIR's layout. Raises DataError, which names the file and the line.

    split: the name of a file in ``qrels``. Default: "test", or the only file. Only queries with judgements are kept.
    """
    folder = Path(folder)
    if not folder.is_dir():
        kind = "a file; unpack an archive first" if folder.exists() else "nothing there"
        raise DataError(f"{folder}: expected a folder with {LAYOUT}; found {kind}")
    documents = read_texts(existing(folder, "corpus.jsonl"), titles=True)
    asked = read_texts(existing(folder, "queries.jsonl"), titles=False)
    path = judgements_path(folder, split)
    judged = read_judgements(path)
    if unknown := [query for query in judged if query not in asked]:
        raise DataError(f"{path}: {these(unknown, 'query', 'queries')} not in queries.jsonl; ids must be equal as text")
    if empty := [query for query in judged if not asked[query]]:
        raise DataError(f"queries.jsonl: {these(empty, 'query', 'queries')} without text; remove them from {path}")
    missing = {document for of_query in judged.values() for document in of_query} - documents.keys()
    if not any(document in documents for of_query in judged.values() for document in of_query):
        few = these(sorted(missing), "document", "documents")
        raise DataError(f"{path}: {few} not in corpus.jsonl, as all that it names; ids must be equal as text")
    queries = {query: asked[query] for query in judged}
    notes = tuple(notes_on(documents, queries, judged, len(missing), len(asked)))
    return Collection(documents, queries, judged, notes)


def notes_on(
    documents: Mapping[str, str],
    queries: Mapping[str, str],
    judged: Mapping[str, Mapping[str, int]],
    missing: int,
    asked: int,
) -> Iterator[str]:
    def some(number: int, what: str) -> str:
        return f"{number:,} {what}{'s' if number > 1 else ''}"

    if asked > len(queries):
        yield f"{asked - len(queries):,} of {asked:,} queries have no judgement and are left out."
    if missing:
        yield f"The corpus lacks {some(missing, 'judged document')}. If relevant, they count as not found."
    if empty := sum(not text for text in documents.values()):
        yield f"The corpus has {some(empty, 'document')} without text, which are never retrieved."
    if none := sum(max(of_query.values()) < 1 for of_query in judged.values()):
        yield f"Judged queries without a relevant document: {none:,}. As in trec_eval, their values are 0."
    if itself := sum(own_document_is_left_out(query, documents, judged) for query in queries):
        yield (
            "As in BEIR, an unjudged document with the id of a query is taken for the query itself and is not ranked "
            f"for it (queries: {itself:,})."
        )


def own_document_is_left_out(query: str, documents: Mapping[str, str], judged: Mapping[str, Mapping[str, int]]) -> bool:
    """Returns whether the corpus holds the query itself as an unjudged document, as in ArguAna and Quora."""
    return query in documents and query not in judged[query]


def these(names: list[str], one: str, several: str) -> str:
    shown = listed([repr(name) for name in names[:3]])
    if len(names) == 1:
        return f"the {one} {shown} is"
    return f"{len(names):,} {several} are ({shown}{', ...' if len(names) > 3 else ''})"


def existing(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    found = listed(sorted(path.name for path in folder.iterdir())[:8])
    raise DataError(f"{folder}: expected {LAYOUT}; {name} is missing, and the folder holds {found or 'nothing'}")


def judgements_path(folder: Path, split: str | None) -> Path:
    inside = folder / "qrels"
    # A Mac writes hidden files such as "._test.tsv" beside others.
    files = sorted(path for path in inside.iterdir() if path.name[0] != ".") if inside.is_dir() else []
    names = {path: path.name.removesuffix(".gz") for path in files}
    found = {name.removesuffix(".tsv"): path for path, name in names.items() if name.endswith(".tsv")}
    if not found:
        raise DataError(f"{folder}: expected {LAYOUT}; there is no qrels/*.tsv")
    wanted = split or (USUAL_SPLIT if len(found) > 1 else next(iter(found)))
    if wanted not in found:
        given = "no split was named" if split is None else f"got {split!r}"
        raise DataError(f"split: expected one of the files in {inside}: {', '.join(found)}; {given}")
    return found[wanted]


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """Opens UTF-8 text, with or without a byte order mark, or gzip of it."""
    opener: Callable[..., TextIO] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read_texts(path: Path, *, titles: bool) -> dict[str, str]:
    """Returns the texts by id. As in BEIR, the text of a document is its title, a space and its text."""
    texts: dict[str, str] = {}
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            name, text, title = fields_of(line, where)
            if name in texts:
                raise DataError(f"{where}: the id {name!r} occurs twice; give each line its own id")
            texts[name] = f"{title} {text}".strip() if titles else text.strip()
    if not texts:
        raise DataError(f"{path}: the file is empty; expected one JSON object per line")
    return texts


def fields_of(line: str, where: str) -> tuple[str, str, str]:
    expected = 'a JSON object with the fields "_id" and "text" (and "title", if there is one)'
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: expected {expected}; {error}") from error
    names = [*entry] if isinstance(entry, dict) else []
    if "_id" not in names or "text" not in names:
        given = f"the fields {listed(map(repr, names))}" if names else f"{brief(line, 60)!r}"
        raise DataError(f"{where}: expected {expected}; got {given}; rename them")
    name, text, title = entry["_id"], entry["text"], entry.get("title") or ""
    if (
        not isinstance(name, str | int)
        or isinstance(name, bool)
        or not isinstance(text, str)
        or not isinstance(title, str)
    ):
        raise DataError(f'{where}: expected "_id" and "text" to be strings; got {brief(line, 60)!r}')
    try:
        f"{name}{title}{text}".encode()
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start].encode("ascii", "backslashreplace").decode()
        raise DataError(f"{where}: expected Unicode text; got {surrogate}, half a character; remove it") from error
    return str(name).strip(), text, title  # the files of judgements have spaces around their ids too


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Returns {query: {document: grade}}. The columns are in BEIR's order, or in that of the header."""
    judged: dict[str, dict[str, int]] = {}
    order = (0, 1, 2)
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            cells = [cell.strip() for cell in line.rstrip("\r\n").split("\t")]
            if cells == [""]:
                continue
            if not judged and sorted(cells) == sorted(COLUMNS):
                order = (cells.index(COLUMNS[0]), cells.index(COLUMNS[1]), cells.index(COLUMNS[2]))
                continue
            expected = f"three columns separated by tabs: {', '.join(COLUMNS)} (a whole number of up to six digits)"
            grade = whole(cells[order[2]]) if len(cells) == len(COLUMNS) else None
            if grade is None:
                raise DataError(f"{path}, line {number}: expected {expected}; got {brief(line, 60)!r}")
            query, document = cells[order[0]], cells[order[1]]
            if judged.setdefault(query, {}).setdefault(document, grade) != grade:
                raise DataError(f"{path}, line {number}: {query!r} and {document!r} have two grades; keep one")
    if not judged:
        raise DataError(f"{path}: it holds no judgement; expected lines of {', '.join(COLUMNS)}")
    return judged


def whole(cell: str) -> int | None:
    """Parses a grade: 1, or 1.0 as pandas writes it. Returns None for anything else."""
    try:
        grade = int(cell.removesuffix(".0"))
    except ValueError:
        return None
    return grade if abs(grade) <= LARGEST_GRADE else None
