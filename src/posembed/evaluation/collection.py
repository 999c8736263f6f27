"""Collections for retrieval: documents, queries, and judgements of which documents answer a query.

Reads the layout of BEIR (Thakur et al., arXiv:2104.08663): ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/*.tsv``.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from posembed.errors import DataError
from posembed.files import json_object
from posembed.words import amount, brief, listed

COLUMNS = ("query-id", "corpus-id", "score")
USUAL_SPLIT = "test"
LARGEST_GRADE = 999_999
FORMS = (".tsv", ".gz")
FIELDS = 'a JSON object with the texts "_id" and "text" (and "title", if there is one)'
JUDGEMENT = f"three columns separated by tabs: {', '.join(COLUMNS)} (a whole number of up to six digits)"
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
    if unknown := [query for query in judged if not asked.get(query)]:
        raise DataError(f"{path}: the query {unknown[0]!r} has no text in queries.jsonl; ids must be equal as text")
    missing = {document for of_query in judged.values() for document in of_query} - documents.keys()
    if not any(document in documents for of_query in judged.values() for document in of_query):
        few = listed([repr(name) for name in sorted(missing)[:3]])
        raise DataError(f"{path}: corpus.jsonl has no judged document, such as {few}; ids must be equal as text")
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
    if asked > len(queries):
        yield f"{asked - len(queries):,} of {asked:,} queries have no judgement and are left out."
    if missing:
        yield f"The corpus lacks {amount(missing, 'judged document')}. If relevant, they count as not found."
    if empty := sum(not text for text in documents.values()):
        yield f"The corpus has {amount(empty, 'document')} without text, which are never retrieved."
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


def existing(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    found = listed(sorted(path.name for path in folder.iterdir())[:8])
    raise DataError(f"{folder}: expected {LAYOUT}; {name} is missing, and the folder holds {found or 'nothing'}")


def judgements_path(folder: Path, split: str | None) -> Path:
    # A Mac writes hidden files such as "._test.tsv" beside others.
    files = [path for path in sorted((folder / "qrels").glob("*.tsv*")) if path.name[0] != "."]
    found = {path.name.removesuffix(".gz").removesuffix(".tsv"): path for path in files if path.suffix in FORMS}
    if not found:
        raise DataError(f"{folder}: expected {LAYOUT}; there is no qrels/*.tsv")
    wanted = split or (USUAL_SPLIT if len(found) > 1 else next(iter(found)))
    if wanted not in found:
        given = "no split was named" if split is None else f"got {split!r}"
        raise DataError(f"split: expected one of the files in {folder / 'qrels'}: {', '.join(found)}; {given}")
    return found[wanted]


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yields pairs (path and line number, line) of a file of UTF-8 text, which may start with a byte order mark and may
    be gzipped. Blank lines are left out."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            yield from ((f"{path}, line {number}", line) for number, line in enumerate(file, start=1) if line.strip())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start}); convert it") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error


def read_texts(path: Path, *, titles: bool) -> dict[str, str]:
    """Returns the texts by id. As in BEIR, the text of a document is its title, a space and its text."""
    texts: dict[str, str] = {}
    for where, line in lines_of(path):
        try:
            entry = json_object(line)
            # The files of judgements have spaces around their ids too.
            title = (titles and entry.get("title")) or ""
            name, text = str(entry["_id"]).strip(), " ".join([title, entry["text"]]).strip()
            f"{name}{text}".encode()
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{where}: expected {FIELDS}; got {brief(line, 60)!r} ({brief(error)})") from error
        if name in texts:
            raise DataError(f"{where}: the id {name!r} occurs twice; give each line its own id")
        texts[name] = text
    if not texts:
        raise DataError(f"{path}: the file is empty; expected one JSON object per line")
    return texts


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Returns {query: {document: grade}}. The columns are in BEIR's order, or in that of the header."""
    judged: dict[str, dict[str, int]] = {}
    order = list(COLUMNS)
    for where, line in lines_of(path):
        cells = [cell.strip() for cell in line.rstrip("\r\n").split("\t")]
        if not judged and sorted(cells) == sorted(COLUMNS):
            order = cells
            continue
        try:
            query, document, written = (dict(zip(order, cells, strict=True))[column] for column in COLUMNS)
            grade = int(written.removesuffix(".0"))  # pandas writes 1.0
            if abs(grade) > LARGEST_GRADE:
                raise ValueError
        except ValueError as error:
            raise DataError(f"{where}: expected {JUDGEMENT}; got {brief(line, 60)!r}") from error
        if judged.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DataError(f"{where}: {query!r} and {document!r} have two grades; keep one")
    if not judged:
        raise DataError(f"{path}: it holds no judgement; expected lines of {', '.join(COLUMNS)}")
    return judged
