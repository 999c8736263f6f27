"""A corpus: text as token ids, split by document into a training part and a held-out part."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posembed.errors import DataError
from posembed.lab.data.documents import Document, read_documents
from posembed.lab.data.split import apart, share_of_known_lines, split
from posembed.lab.data.tokenizer import Bytes, Loaded, read_tokenizer


@dataclass(frozen=True)
class Corpus:
    """Token ids (N,) on the CPU, uint8 or int32: documents one after the other, each with a separator at its end."""

    train: Tensor
    held_out: Tensor
    held_out_bytes: Tensor | None
    """The bytes of text per held-out token, which turn a loss per token into bits per byte. None if the tokens do not
    decode to the text."""
    vocabulary: int
    description: str
    sha256: str
    """Covers the tokenizer and both sides of the split, so that the same text under another path is equal."""


def load_corpus(data: str = "stdlib", *, tokenizer: str = "bytes") -> Corpus:
    """Reads text and holds out a tenth, the same tenth every time. A document whose text is held out is not trained
    on, whatever its name.

    Args:
        data: "stdlib" (the source of Python's standard library), a text file or several joined by commas, a
            folder (every text file below it), or "hf:NAME[:CONFIG]" (a Hugging Face dataset).
        tokenizer: "bytes", the path of a tokenizer.json, or a tokenizer's name on the Hugging Face hub.

    Raises:
        DataError: a path that does not exist, no text, or a tokenizer that cannot be loaded or finds no token.
    """
    read = read_documents(data)
    own = read.held_out
    sides = split(read.documents, by_name=data == "stdlib") if own is None else apart(read.documents, own)
    train, held_out = sides.train, sides.held_out
    chosen = read_tokenizer(tokenizer)
    train_ids, held_out_ids = _in_a_row(train, chosen), _in_a_row(held_out, chosen)
    for ids, documents, what in ((train_ids, train, "train on"), (held_out_ids, held_out, "measure on")):
        if len(ids) == len(documents):
            raise DataError(f"{data} has no text to {what} under the tokenizer {tokenizer}; give more, or another")
    held_out_bytes = _bytes_in_a_row(held_out, chosen)

    notes = [read.description]
    if sides.left_out:
        count = f"{sides.left_out:,} document{'s' * (sides.left_out != 1)}"
        notes.append(f"{count} not trained on, because the same text is held out")
    if known := share_of_known_lines(train, held_out):
        notes.append(f"{known:.1%} of the held-out text is in lines that the training text has too")
    if held_out_bytes is None:
        notes.append("the tokens do not decode to the text, so bits per byte are unknown")
    return Corpus(
        train=train_ids,
        held_out=held_out_ids,
        held_out_bytes=held_out_bytes,
        vocabulary=chosen.vocabulary,
        description="\n".join(notes),
        sha256=_fingerprint(chosen, train, held_out),
    )


def _in_a_row(documents: Sequence[Document], tokenizer: Bytes | Loaded) -> Tensor:
    """Concatenates the ids of the documents, each followed by the tokenizer's end."""
    texts = (document.text.decode() for document in documents)
    end = np.array([tokenizer.end], dtype=tokenizer.dtype)
    parts = [part for ids in tokenizer.ids(texts) for part in (ids, end)]
    return torch.from_numpy(np.concatenate([*parts, end[:0]]))


def _bytes_in_a_row(documents: Sequence[Document], tokenizer: Bytes | Loaded) -> Tensor | None:
    counts = []
    for document in documents:
        found = tokenizer.bytes_of(document.text.decode())
        if found is None:
            return None
        counts.append(found)
    return torch.from_numpy(np.concatenate(counts))


def _fingerprint(tokenizer: Bytes | Loaded, train: Sequence[Document], held_out: Sequence[Document]) -> str:
    digest = hashlib.sha256(tokenizer.sha256.encode())
    for side, documents in ((b"train", train), (b"held out", held_out)):
        digest.update(side + b"\0")
        for document in documents:
            digest.update(document.text + b"\0")
    return digest.hexdigest()
