"""A collection in the tokens of a checkpoint, with the checkpoint's prompts before queries and documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posembed.errors import DataError
from posembed.evaluation.collection import Collection
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.texts import encode, special_tokens

QUERY_PROMPTS, DOCUMENT_PROMPTS = ("query",), ("document", "passage", "corpus")
"""The names of the prompts in a checkpoint's settings, as in sentence-transformers."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A collection in the tokens of a checkpoint. documents, queries: ids (L,) without special tokens, int64.

    around_documents, around_queries: the tokens before and after each text: special tokens and prompts.
    """

    collection: Collection
    documents: Sequence[Tensor]
    queries: Sequence[Tensor]
    around_documents: tuple[tuple[int, ...], tuple[int, ...]]
    around_queries: tuple[tuple[int, ...], tuple[int, ...]]
    pad: int

    @cached_property
    def names(self) -> list[str]:
        """The ids of the documents, in descending order, in which trec_eval ranks equal scores."""
        return sorted(self.collection.documents, reverse=True)

    @cached_property
    def sha256(self) -> str:
        """A hash of everything but the documents' texts."""
        digest = hashlib.sha256(json.dumps([self.around_documents, self.around_queries, self.pad, self.names]).encode())
        digest.update(json.dumps([self.collection.judged, [ids.tolist() for ids in self.queries]]).encode())
        return digest.hexdigest()

    @property
    def added(self) -> int:
        return sum(map(len, self.around_documents))


class Prompt(NamedTuple):
    """A text before each query or each window of a document.

    start: its tokens. around: the tokens before and after each text: special tokens and the prompt.
    """

    tokenizer: Any
    text: str
    start: tuple[int, ...]
    around: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, runnable: Runnable, tokenizer: Any, names: Sequence[str], text: str | None = None) -> Prompt:
        """Returns the prompt with one of these names in a checkpoint's settings, or with the given text."""
        text = runnable.prompt(*names) if text is None else text
        runnable.refuse_apart(text)
        (before, after), start = special_tokens(tokenizer), tuple(encode(tokenizer, text.rstrip()))
        return cls(tokenizer, text, start, ((*before, *start), after))

    def ids(self, text: str) -> Tensor:
        """Returns the tokens of a text (L,), int64, without those around it."""
        # A prompt and a text are encoded together, because a text's first token can depend on the space before it.
        ids = encode(self.tokenizer, self.text + text)[len(self.start) :] if text else []
        return torch.tensor(ids, dtype=torch.long)


def tokenized(
    runnable: Runnable,
    tokenizer: Any,
    found: Mapping[int, Collection],
    prompts: tuple[str | None, str | None],
) -> dict[int, Tokens]:
    """Returns the collection for each length, in a checkpoint's tokens, with prompts for queries and documents."""
    asked = Prompt.of(runnable, tokenizer, QUERY_PROMPTS, prompts[0])
    given = Prompt.of(runnable, tokenizer, DOCUMENT_PROMPTS, prompts[1])
    most = None if runnable.length is None else runnable.length - sum(map(len, asked.around))
    made: dict[int, Tokens] = {}  # by the collection's id: several lengths can share one
    for each in found.values():
        if id(each) in made:
            continue
        documents = [given.ids(each.documents[name]) for name in sorted(each.documents, reverse=True)]
        queries = [asked.ids(text)[:most] for text in each.queries.values()]
        if not all(map(len, queries)) or not any(map(len, documents)):
            raise DataError(
                f"{runnable.name}: its tokenizer finds no tokens in a query, or in all documents; check them"
            )
        pad = tokenizer.pad_token_id or 0
        made[id(each)] = Tokens(each, documents, queries, given.around, asked.around, pad)
    return {length: made[id(each)] for length, each in found.items()}
