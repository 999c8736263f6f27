"""A corpus of token ids, split by document into a training part and a held-out part that have no document in common."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posembed.errors import DataError
from posembed.lab.data.documents import Document, read_documents
from posembed.lab.data.tokenizer import Bytes, Loaded, read_tokenizer

HELD_OUT_SHARE = 0.1
DOCUMENTS_TO_SPLIT_BY = 20  # with fewer documents, the end of each is held out instead of whole documents
LONG_LINE = 40  # bytes. Shorter lines often repeat by chance.


@dataclass(frozen=True)
class Corpus:
    """Training and held-out text as token ids (N,), uint8 or int32, on the CPU. Each document ends in a separator."""

    train: Tensor
    held_out: Tensor
    held_out_bytes: Tensor | None
    """The number of bytes in each held-out token, to convert a loss per token to bits per byte. None if the tokens do
    not decode to the text."""
    vocabulary: int
    description: str
    sha256: str
    """A hash of the tokenizer and of both parts. It does not depend on the path of the text."""


def load_corpus(data: str = "stdlib", *, tokenizer: str = "bytes", end: int | None = None) -> Corpus:
    """Reads text and holds out the same tenth every time. A document whose text is held out is left out of the training
    part, even if its name differs.

    data: "stdlib" (the source of Python's standard library), a text file or several separated by commas, a folder
    (every text file below it), or "hf:NAME[:CONFIG]" (a Hugging Face dataset). tokenizer: as in ``read_tokenizer``.
    end: the id that ends a document, if the tokenizer is not "bytes"; None means an id that no token has.

    Raises DataError if the data has no text or the tokenizer finds no token in it, and the errors of ``read_documents``
    and ``read_tokenizer``.
    """
    documents, own, description = read_documents(data)
    sides = split(documents, by_name=data == "stdlib") if own is None else apart(documents, own)
    chosen = read_tokenizer(tokenizer, (document.text.decode() for document in sides.train))
    if end is not None and isinstance(chosen, Loaded):
        chosen.vocabulary, chosen.end = chosen.end, end
    train, held_out = (_in_a_row(side, chosen) for side in (sides.train, sides.held_out))
    for ids, documents, what in ((train, sides.train, "train on"), (held_out, sides.held_out, "measure on")):
        if len(ids) == len(documents):
            raise DataError(f"{data} has no text to {what} with the tokenizer {tokenizer}; give more text or another")
    counts: list[Any] = [chosen.bytes_of(document.text.decode()) for document in sides.held_out]
    decodes = all(count is not None for count in counts)

    notes = [description]
    if sides.left_out:
        count = f"{sides.left_out:,} document{'s' * (sides.left_out != 1)}"
        notes.append(f"{count} not trained on, because the same text is held out")
    if known := share_of_known_lines(sides.train, sides.held_out):
        notes.append(f"{known:.1%} of the held-out text is in lines that also occur in the training text")
    if not decodes:
        notes.append("the tokens do not decode to the text, so bits per byte are unknown")
    digest = hashlib.sha256(chosen.sha256.encode())
    for name, documents in ((b"train", sides.train), (b"held out", sides.held_out)):
        digest.update(name + b"\0")
        for document in documents:
            digest.update(document.text + b"\0")
    return Corpus(
        train=train,
        held_out=held_out,
        held_out_bytes=torch.from_numpy(np.concatenate(counts)) if decodes else None,
        vocabulary=max(chosen.vocabulary, chosen.end + 1),
        description="\n".join(notes),
        sha256=digest.hexdigest(),
    )


def _in_a_row(documents: Sequence[Document], tokenizer: Bytes | Loaded) -> Tensor:
    """Concatenates the ids of the documents, with the tokenizer's end id after each document."""
    texts = (document.text.decode() for document in documents)
    end = np.array([tokenizer.end], dtype=tokenizer.dtype)
    parts = [part for ids in tokenizer.ids(texts) for part in (ids, end)]
    return torch.from_numpy(np.concatenate([*parts, end[:0]]))


# --- the split ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """The two sides of a split. left_out: the number of documents dropped because their text is held out too."""

    train: list[Document]
    held_out: list[Document]
    left_out: int


def split(documents: Sequence[Document], *, by_name: bool = False) -> Split:
    """Holds out about a tenth of the different texts.

    Holds out whole documents in the order of their texts' hashes, but skips large documents. If there are too few
    documents, or if large documents contain too much of the text, holds out the end of every document instead. The
    order of ``documents`` does not matter. ``by_name`` hashes names instead of texts, because names stay the same in
    the next version of a library.
    """

    def order(document: Document) -> tuple[bytes, int, bytes]:
        text, name = document.text, document.name.encode("utf-8", "surrogateescape")  # as Python encodes file names
        return (hashlib.sha256(name).digest(), 0, text) if by_name else (same_text(text), len(text), text)

    ordered = sorted(documents, key=order)
    once = list({same_text(document.text): document for document in reversed(ordered)}.values())
    held_out, size = [], 0
    wanted = HELD_OUT_SHARE * sum(len(document.text) for document in once)
    for document in once:
        if size < wanted and size + len(document.text) <= 2 * wanted:
            held_out.append(document)
            size += len(document.text)
    if len(once) >= DOCUMENTS_TO_SPLIT_BY and size >= wanted / 2:
        sides = apart(ordered, held_out)
        return Split(sides.train, held_out, left_out=sides.left_out - len(held_out))
    return Split(*_ends(once[::-1]), left_out=len(documents) - len(once))


def apart(train: Sequence[Document], held_out: list[Document]) -> Split:
    """Removes the training documents whose text is held out."""
    texts = {same_text(document.text) for document in held_out}
    kept = [document for document in train if same_text(document.text) not in texts]
    return Split(kept, held_out, left_out=len(train) - len(kept))


def _ends(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Holds out the end of each document: 10% to 20% of it, from a line break on, or 10% if there is no line break."""
    train, held_out = [], []
    for document in documents:
        text = document.text
        cut = round(len(text) * (1 - HELD_OUT_SHARE))
        if line := text.rfind(b"\n", round(len(text) * (1 - 2 * HELD_OUT_SHARE)), cut) + 1:
            cut = line
        while 0 < cut < len(text) and text[cut] & 0b1100_0000 == 0b1000_0000:  # inside a UTF-8 character
            cut -= 1
        train.append(Document(document.name, text[:cut]))
        held_out.append(Document(f"{document.name} (end)", text[cut:]))
    return [d for d in train if d.text], [d for d in held_out if d.text]


def same_text(text: bytes) -> bytes:
    """Returns a digest that is equal for two texts if their ``same_words`` are equal."""
    return hashlib.sha256(same_words(text.decode()).encode()).digest()


def same_words(text: str) -> str:
    """Returns the text with normalized white space, without byte order marks, and in Unicode's form NFC."""
    words = " ".join(text.replace("\ufeff", " ").split())
    return words if words.isascii() else unicodedata.normalize("NFC", words)


def share_of_known_lines(train: Iterable[Document], held_out: Sequence[Document]) -> float:
    """Returns the share of the held-out bytes in long lines that also occur in the training text."""
    held_out_lines = [line for document in held_out for line in _long_lines(document)]
    asked = set(held_out_lines)
    known = {line for document in train for line in _long_lines(document) if line in asked}
    repeated = sum(len(line) for line in held_out_lines if line in known)
    return repeated / max(sum(len(document.text) for document in held_out), 1)


def _long_lines(document: Document) -> Iterable[bytes]:
    return (line for part in document.text.split(b"\n") if len(line := part.strip()) >= LONG_LINE)
