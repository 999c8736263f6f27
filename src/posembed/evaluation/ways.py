"""Ways to search documents that are longer than a model's original length.

A document is read in windows, each in one run of the model, and each window has one vector per chunk. To add a way,
add an entry to ``WAYS``. To add a way to compare a query with the vectors of a document, add an entry to ``MATCHES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posembed.evaluation.counts import TOKENS_PER_BATCH, Tick
from posembed.evaluation.ranking import best_of_each

NEIGHBOURHOOD = 1024
"""The number of tokens on each side of a chunk that count as its neighbourhood."""
SHARE_OF_NEIGHBOURHOOD = 0.5


class Reading(NamedTuple):
    """How a document is read, in tokens including special tokens.

    length: the tokens that are read from the document, in all of its windows. window: the tokens per run of the model.
    chunk: the tokens per vector. Late chunking has several chunks per window; otherwise a window is a chunk.
    """

    length: int
    window: int
    chunk: int

    def room(self, around: int) -> int:
        """Returns the number of tokens of the document that are read, if ``around`` tokens are put around a window."""
        windows, rest = divmod(self.length, self.window)
        return windows * (self.window - around) + max(0, rest - around)

    def shortest(self, longest: int, around: int) -> Reading:
        """Returns the smallest reading that gives the same windows for documents of at most ``longest`` tokens."""
        window = min(self.window, self.length, longest + around)
        length = longest + around * -(-longest // (window - around))
        return Reading(min(self.length, length), window, min(self.chunk, window))


@dataclass(frozen=True)
class Way:
    """A way to search long documents.

    name: its name in the results, with {chunk} or {old}, the original length. match: a key of ``MATCHES``.
    reading: a function of the length, the longest window that the model takes, the original length and the chunk.
    only_original: whether it is used only with the original model. only_longer: whether a window must be longer than a
    chunk.
    """

    name: str
    match: str
    reading: Callable[[int, int, int, int], Reading]
    only_original: bool = False
    only_longer: bool = False


def in_chunks(length: int, longest: int, old: int, chunk: int) -> Reading:
    return Reading(length, chunk, chunk)


WAYS: dict[str, Way] = {
    "truncate": Way(
        "truncated at {old}",
        "max",
        lambda length, longest, old, chunk: Reading(*3 * [min(length, old)]),
        only_original=True,
    ),
    "late": Way(
        "late chunks of {chunk}, max",
        "max",
        lambda length, longest, old, chunk: Reading(length, longest, chunk),
        only_longer=True,
    ),
    "context": Way("chunks of {chunk} in context, max", "context", in_chunks),
    "max": Way("chunks of {chunk}, max", "max", in_chunks),
    "mean": Way("chunks of {chunk}, mean", "mean", in_chunks),
}
"""The ways by name. The last way that is used with the original model is the reference.

Late chunking is that of Günther et al. (arXiv:2409.04701): the model reads a long window, and the states of each
chunk's tokens are pooled.
"""

# (B, L, D) -> (B, D), without padding.
POOL: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda states: states.mean(dim=1),
    "cls": lambda states: states[:, 0],
    "max": lambda states: states.amax(dim=1),
}
Spans = Sequence[slice]


def slices(number: int, most: int) -> list[slice]:
    """Returns slices of at most ``most`` that cover ``number`` tokens. If there are at least ``most`` tokens, the last
    slice has ``most`` too, and may overlap the slice before it.

    >>> slices(10, 4)
    [slice(0, 4, None), slice(4, 8, None), slice(6, 10, None)]
    """
    starts = (max(0, min(start, number - most)) for start in range(0, number, most))
    return [slice(start, min(start + most, number)) for start in starts]


def new_tokens(spans: Spans) -> list[int]:
    """Returns the number of tokens in each span that no earlier span covers."""
    numbers, covered = [], 0
    for span in spans:
        numbers.append(max(0, span.stop - max(span.start, covered)))
        covered = max(covered, span.stop)
    return numbers


def match_mean(vectors: Tensor, spans: Spans) -> Tensor:
    """The mean of the chunks' vectors, weighted by their new tokens: (M, D) -> (1, D)."""
    return torch.tensor(new_tokens(spans), dtype=vectors.dtype)[None] @ vectors


def match_context(vectors: Tensor, spans: Spans) -> Tensor:
    """Each chunk's vector plus half of the mean of its neighbourhood, weighted by tokens: (M, D) -> (M, D).

    The neighbourhood of a chunk is the chunk itself and all chunks that overlap the 1,024 tokens before it or after it.
    """
    starts, stops = (torch.tensor([getattr(span, end) for span in spans]) for end in ("start", "stop"))
    near = (stops[None] > starts[:, None] - NEIGHBOURHOOD) & (starts[None] < stops[:, None] + NEIGHBOURHOOD)
    weights = near * torch.tensor(new_tokens(spans))
    return vectors + SHARE_OF_NEIGHBOURHOOD * (weights / weights.sum(dim=1, keepdim=True)).to(vectors.dtype) @ vectors


MATCHES: dict[str, Callable[[Tensor, Spans], Tensor]] = {
    "max": lambda vectors, spans: vectors,
    "mean": match_mean,
    "context": match_context,
}
"""Functions from a document's unit vectors (M, D) and spans to the vectors that queries are compared with. The score of
a document is the largest cosine."""


@dataclass(frozen=True)
class Encoder:
    """A sentence encoder that embeds texts of different lengths, chunk by chunk.

    before, after: the tokens around each window. pooling: a key of ``POOL``. pad: the padding token.
    """

    model: nn.Module
    before: tuple[int, ...]
    after: tuple[int, ...]
    pooling: str
    pad: int = 0

    def read(
        self, texts: Sequence[Tensor], reading: Reading, tick: Tick = lambda tokens: None
    ) -> Iterator[tuple[Spans, Tensor]]:
        """Yields the chunks of each text: their spans in its tokens, and their unit vectors (M, D), on the CPU.

        texts: ids (L,) without the tokens around windows. A text without tokens has no chunks. Equal windows are read
        once.
        """
        around = len(self.before) + len(self.after)
        windows = windows_of(texts, reading, around)
        distinct = {piece.numpy().tobytes(): piece for _, _, piece in windows}
        vectors: dict[bytes, Tensor] = {}
        for batch in batched(sorted(distinct.items(), key=lambda item: (-len(item[1]), item[0]))):
            states = self.states([piece for _, piece in batch])
            for (key, piece), of_piece in zip(batch, states, strict=True):
                vectors[key] = self.pooled(of_piece, len(piece), reading.chunk - around)
            tick(sum(len(piece) for _, piece in batch))
        spans: list[list[slice]] = [[] for _ in texts]
        found: list[list[Tensor]] = [[] for _ in texts]
        for index, start, piece in windows:
            parts = slices(len(piece), reading.chunk - around)
            spans[index] += [slice(start + part.start, start + part.stop) for part in parts]
            found[index].append(vectors[piece.numpy().tobytes()])
        for of_text, parts_of_text in zip(spans, found, strict=True):
            yield of_text, torch.cat(parts_of_text) if parts_of_text else torch.empty(0, 0)

    def whole(self, texts: Sequence[Tensor], tick: Tick = lambda tokens: None) -> Tensor:
        """Returns the unit vectors (N, D) of whole texts, at least one token each, as sentence-transformers does."""
        reading = whole_reading(texts, len(self.before) + len(self.after))
        return torch.cat([vectors for _, vectors in self.read(texts, reading, tick)])

    def states(self, pieces: Sequence[Tensor]) -> Iterator[Tensor]:
        """Runs the model on pieces of different lengths, padded. Yields the states (L, D) of each, without padding."""
        front, back = (torch.tensor(ids, dtype=torch.long) for ids in (self.before, self.after))
        fed = [torch.cat([front, piece.long(), back]) for piece in pieces]
        device = next(self.model.parameters()).device
        ids, mask = (each.to(device) for each in padded(fed, self.pad))
        states = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        yield from (of_piece[: len(piece)] for of_piece, piece in zip(states, fed, strict=True))

    def pooled(self, states: Tensor, size: int, chunk: int) -> Tensor:
        """Returns the unit vectors (M, D) of the chunks of a piece of ``size`` tokens, from its states (L, D).

        The tokens before the piece are pooled with its first chunk, and those after it with its last. A piece that is
        one chunk therefore has the vector that sentence-transformers computes.
        """
        begin, vectors = len(self.before), []
        for span in slices(size, chunk):
            start = begin + span.start if span.start else 0
            stop = begin + span.stop if span.stop < size else len(states)
            vectors.append(POOL[self.pooling](states[None, start:stop]))
        return F.normalize(torch.cat(vectors), dim=1).cpu()


def padded(rows: Sequence[Tensor], value: int) -> tuple[Tensor, Tensor]:
    """Returns rows of different lengths as one tensor (B, L), and the mask (B, L), int64, that is 0 at the padding."""
    lengths = torch.tensor([len(row) for row in rows])
    whole = nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)
    return whole, (torch.arange(whole.shape[1]) < lengths[:, None]).long()


def whole_reading(texts: Sequence[Tensor], around: int) -> Reading:
    return Reading(*3 * [max(map(len, texts)) + around + 1])


def windows_of(texts: Sequence[Tensor], reading: Reading, around: int) -> list[tuple[int, int, Tensor]]:
    """Returns the windows of texts: for each, the index of its text, its start in the text, and its ids. ``around``:
    the number of tokens that are put around a window."""
    return [
        (index, part.start, text[part])
        for index, text in enumerate(texts)
        for part in slices(min(len(text), reading.room(around)), reading.window - around)
    ]


def tokens_to_read(texts: Sequence[Tensor], reading: Reading, around: int) -> int:
    distinct = {piece.numpy().tobytes() for _, _, piece in windows_of(texts, reading, around)}
    return sum(map(len, distinct)) // torch.long.itemsize


def batched(pieces: Sequence[tuple[bytes, Tensor]]) -> Iterator[list[tuple[bytes, Tensor]]]:
    """Yields batches of pieces, which are sorted by length, longest first."""
    start = 0
    while start < len(pieces):
        stop = start + max(1, TOKENS_PER_BATCH // len(pieces[start][1]))
        yield list(pieces[start:stop])
        start = stop


class Index(NamedTuple):
    """The unit vectors (M, D) that queries are compared with, and the document that owns each, int64 (M,)."""

    vectors: Tensor
    owners: Tensor
    documents: int

    @classmethod
    def of(cls, documents: Sequence[tuple[Spans, Tensor]], match: str) -> Index:
        """Builds the index of documents, given as their spans and vectors. match: a key of ``MATCHES``."""
        vectors = [MATCHES[match](found, spans) for spans, found in documents if spans]
        owners = torch.tensor([index for index, (spans, _) in enumerate(documents) if spans])
        counts = torch.tensor([len(found) for found in vectors])
        return cls(F.normalize(torch.cat(vectors), dim=1), owners.repeat_interleave(counts), len(documents))

    def scores(self, queries: Tensor) -> Tensor:
        """Returns the score (Q, N) of each document: its largest cosine. queries: unit vectors (Q, D)."""
        return best_of_each(queries @ self.vectors.T, self.owners, self.documents)
