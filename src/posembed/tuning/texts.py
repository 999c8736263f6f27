"""Long documents for fine-tuning, split into a training and a held-out part; or a collection to measure with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posembed.errors import DataError
from posembed.evaluation.collection import Collection, read_collection
from posembed.evaluation.texts import encode, read_documents, refuse_unknown
from posembed.evaluation.ways import slices
from posembed.measure.jobs import Progress, silent
from posembed.tuning.apart import Candidates, left_out_note, runs, set_apart

FEWEST = 10
"""The smallest number of documents to train on, and to measure on."""
MOST_HELD_OUT = 100
"""The largest number of documents to measure on: more would take long and add little precision."""
MOST_SHORT = 500
"""The largest number of shorter documents that a search can find."""
MOST_WINDOWS = 2000
DATASET = "hf:"
MORE_TEXT = "give more text or a smaller length (documents are files of a folder, or separated by blank lines)"


class Document(NamedTuple):
    """A text and its token ids (L,), int64, without special tokens."""

    text: str
    ids: Tensor


class Window(NamedTuple):
    """A part of a training document. document: its index. start: the index of its first token."""

    document: int
    start: int
    ids: Tensor


@dataclass(frozen=True, eq=False)
class Texts:
    """Documents with at least the new length. training: documents to train on. held_out: documents to measure on.

    short: the texts of shorter documents. Nothing is trained on them, but a search can find them instead of a held-out
    document. width: the number of tokens of a window. alike, of_queries: the numbers of long documents that are near
    copies of a held-out one, or consist mostly of a query, and are left out.
    """

    training: tuple[Document, ...]
    held_out: tuple[Document, ...]
    short: tuple[str, ...]
    width: int
    alike: int = 0
    of_queries: int = 0

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Windows of ``width`` tokens that cover the training documents, evenly chosen if there are very many."""
        windows = [
            Window(number, part.start, document.ids[part])
            for number, document in enumerate(self.training)
            for part in slices(len(document.ids), self.width)
        ]
        step = max(1.0, len(windows) / MOST_WINDOWS)
        return tuple(windows[int(index * step)] for index in range(min(len(windows), MOST_WINDOWS)))

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            *left_out_note("Documents that are near copies of a held-out one", self.alike),
            *left_out_note("Documents that consist mostly of a query", self.of_queries),
        )

    @cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256(f"{self.width}".encode())
        for documents in (self.training, self.held_out):
            digest.update(len(documents).to_bytes(8, "little") + b"".join(order(0, each.text) for each in documents))
        digest.update(b"".join(order(0, text) for text in self.short))
        return digest.hexdigest()


def read_texts(text: str | Path | Sequence[str | Path]) -> list[str]:
    """Reads the documents of paths as ``posembed.evaluation.texts.read_documents`` does, and of "hf:NAME[:CONFIG]", a
    dataset of Hugging Face whose rows are documents. Raises DataError."""
    documents: list[str] = []
    for each in [text] if isinstance(text, str | Path) else text:
        if str(each).startswith(DATASET):
            from posembed.lab.data.documents import read_documents as read_dataset

            documents += [document.text.decode() for document in read_dataset(str(each))[0]]
        else:
            documents += read_documents(each)
    return documents


def split_documents(
    documents: Iterable[str],
    tokenizer: Any,
    *,
    width: int,
    around: int,
    held_out: float | None,
    seed: int,
    fewest: int = FEWEST,
    queries: Iterable[str] = (),
    remedy: str = MORE_TEXT,
    progress: Progress = silent,
) -> Texts:
    """Splits the documents of at least ``width`` tokens. Documents with equal tokens count once, and near copies of a
    held-out one are left out.

    around: the number of special tokens, for the errors. fewest: the smallest number of documents in each part.
    held_out: the share of documents to measure on; None holds no document out. A hash of the seed and of its text
    decides whether a document is held out. queries: texts that are not trained on; documents that consist mostly of a
    query are left out. remedy: the advice in the DataError that is raised for too few documents.
    """
    found = dict[tuple[int, ...], str]()
    different = sorted(set(documents))  # so that the order of the files does not matter
    for number, text in enumerate(different):
        if number % 100 == 0:
            progress("tokenizing documents", number, len(different))
        found.setdefault(tuple(encode(tokenizer, text)), text)
    queries = list(queries)
    for query in queries:
        found.pop(tuple(encode(tokenizer, query)), None)
    encoded = [Document(text, torch.tensor(ids, dtype=torch.long)) for ids, text in found.items()]
    asked = Candidates([runs(query) for query in queries])
    large = [document for document in encoded if len(document.ids) >= width]
    long = [document for document in large if not (queries and asked.make_up(runs(document.text)))]
    refuse_unknown(tokenizer, torch.cat([torch.empty(0, dtype=torch.long), *(document.ids for document in long)]))
    needed, least = (fewest, 0) if held_out is None else (2 * fewest, fewest)
    number = min(max(least, round((held_out or 0.0) * len(long))), MOST_HELD_OUT, len(long) - fewest)
    ranked = sorted(long, key=lambda document: order(seed, document.text))
    of_ranked = [runs(document.text) for document in ranked]
    copies = Candidates(of_ranked)
    apart = set_apart(len(ranked), number, least, lambda at: copies.copied_by(of_ranked[at]))
    measured, training = (tuple(ranked[at] for at in part) for part in apart)
    left_out = len(ranked) - len(measured) - len(training)
    if len(training) < fewest or len(measured) < least:
        longest = max((len(document.ids) for document in encoded), default=0) + around
        alike = f", of which {left_out:,} are near copies of another" if left_out else ""
        raise DataError(
            f"expected at least {needed} documents of {width + around:,} tokens, {fewest} to train on"
            f"{f' and {least} to measure on' if least else ''}; {len(long):,} of {len(encoded):,} documents hold it"
            f"{alike}, and the longest has {longest:,}; {remedy}"
        )
    candidates = Candidates([of_ranked[at] for at in apart[0]])
    shorter = sorted((each for each in encoded if 0 < len(each.ids) < width), key=lambda each: order(seed, each.text))
    others = (each.text for each in shorter if not candidates.copied_by(runs(each.text)).any())
    return Texts(training, measured, tuple(islice(others, MOST_SHORT)), width, left_out, len(large) - len(long))


def judged_collection(
    folder: str | Path, tokenizer: Any, *, split: str | None, old_length: int, around: int
) -> Collection:
    """Reads a collection that can show whether a longer table pays. Raises DataError if it has too few queries with a
    relevant document in it, or only documents that fit into the old length. around: the number of special tokens."""
    found = read_collection(folder, split)
    for query, text in found.queries.items():
        if not encode(tokenizer, text):
            raise DataError(f"{folder}: the tokenizer finds no tokens in the query {query!r}; remove it")
    answered = sum(
        any(grade > 0 and document in found.documents for document, grade in grades.items())
        for grades in found.judged.values()
    )
    if answered < FEWEST:
        expected = f"expected at least {FEWEST} queries with a relevant document in the corpus to measure on"
        raise DataError(f"{folder}: {expected}; got {answered}; judge more queries, or leave out --retrieval")
    longest = 0
    for text in sorted(found.documents.values(), key=len, reverse=True):  # so that mostly one is read
        longest = max(longest, len(encode(tokenizer, text)) + around)
        if longest > old_length:
            return found
    raise DataError(
        f"{folder}: expected documents of more than {old_length:,} tokens, which the model takes already; the longest "
        f"has {longest:,}; no longer table can help, so use the model as it is"
    )


def order(seed: int, text: str) -> bytes:
    """Returns a hash that puts texts into an order, which does not depend on the other texts."""
    return hashlib.sha256(f"{seed} {text}".encode("utf-8", "surrogatepass")).digest()


def pieces_of_text(tokenizer: Any, text: str, spans: Sequence[slice]) -> list[str]:
    """Returns the parts of a text at spans of its tokens, without special tokens."""
    if not getattr(tokenizer, "is_fast", False):
        ids = encode(tokenizer, text)
        return [tokenizer.decode(ids[span]) for span in spans]
    found = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False, return_offsets_mapping=True)
    offsets = found["offset_mapping"]
    return [
        text[offsets[span.start][0] : offsets[span.stop - 1][1]] if span.stop > span.start else "" for span in spans
    ]
