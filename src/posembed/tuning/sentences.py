"""The objective of sentence encoders: the vector of a window of text should be near those of the passages in it.

A softmax compares the vector of a window with a bank of passages, which the original model embeds once. The window's
own passages are the answers, and other passages of the same document are left out. The loss of several answers is the
mean of their cross-entropies (Khosla et al., arXiv:2004.11362, equation 2). A second term keeps short texts near their
original vectors: 1 - cosine between the tuned and the original vectors of a few passages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.evaluation.api import device_named
from posembed.evaluation.collection import Collection
from posembed.evaluation.counts import Tick
from posembed.evaluation.passages import PASSAGES
from posembed.evaluation.plan import Plan
from posembed.evaluation.retrieval import plan_collections
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.texts import encode
from posembed.evaluation.tokens import DOCUMENT_PROMPTS, QUERY_PROMPTS, Prompt
from posembed.evaluation.ways import Encoder
from posembed.measure.jobs import Kept, Progress, Store
from posembed.tuning.draws import pieces, seeded, window_of
from posembed.tuning.objectives import Objective, Setup, vectors_once
from posembed.tuning.settings import PassageLoss, Queries
from posembed.tuning.texts import pieces_of_text

PASSAGES_PER_PIECE = 2
"""The number of passages in the bank for each piece of the original length, at random positions."""
ANCHORS = 4
"""The number of passages per window whose vectors are kept near the original vectors."""
SAME_END = 16
"""Documents whose last so many tokens are the same are compared whole."""


class Bank(NamedTuple):
    """Passages of P tokens. ids: (M, P). windows, starts: int64 (M,), the window of each passage, and the index of its
    first token there. documents: int64 (M,), the document of each passage."""

    ids: Tensor
    windows: Tensor
    starts: Tensor
    documents: Tensor


class Sentences(Objective):
    """The objective of sentence encoders."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.windows = setup.texts.windows
        self.asked = Prompt.of(setup.original, setup.tokenizer, QUERY_PROMPTS)
        self.given = Prompt.of(setup.original, setup.tokenizer, DOCUMENT_PROMPTS)
        self.pooling, self.pad = str(setup.original.pooling), setup.tokenizer.pad_token_id or 0
        self.of_loss = self.settings.part(PassageLoss)
        self.bank = self.drawn_bank()
        self.vectors: Tensor | None = None

    @cached_property
    def around(self) -> int:
        return sum(map(len, self.given.around))

    def pieces(self, length: int) -> list[slice]:
        """Returns the pieces of a window that fit into ``length`` tokens, without overlap."""
        return pieces(self.setup.texts.width, length - self.around)

    def drawn_bank(self) -> Bank:
        """Draws passages at random positions of each piece of the original length: each piece has its own."""
        sizes, longest = self.settings.to_dict(), self.setup.old_length // 4
        for name in sizes.keys() & {"passage", "query"}:
            if (size := sizes[name]) > longest:
                raise ArgumentError(
                    f"{name}: expected at most {longest} tokens, a quarter of the old length; got {size}"
                )
        size, draw = self.of_loss.passage, seeded(self.settings.seed, "passages")
        pieces = [piece for piece in self.pieces(self.setup.old_length) if piece.stop - piece.start >= size]
        places = [
            (number, piece.start + int(torch.randint(piece.stop - piece.start - size + 1, (), generator=draw)))
            for number in range(len(self.windows))
            for piece in pieces
            for _ in range(PASSAGES_PER_PIECE)
        ]
        windows, starts = torch.tensor(places).T
        return Bank(
            torch.stack([self.windows[number].ids[start : start + size] for number, start in places]),
            windows,
            starts,
            torch.tensor([window.document for window in self.windows])[windows],
        )

    def prepare(self, store: Store, progress: Progress) -> None:
        done = 0

        def tick(tokens: int) -> None:
            nonlocal done
            done += tokens
            progress("embedding passages by the original", done, self.bank.ids.numel())

        make = partial(self.vectors_of, self.setup.original, list(self.bank.ids), tick)
        self.vectors = vectors_once(store, make, number=len(self.bank.ids))

    def vectors_of(self, runnable: Runnable, texts: Sequence[Tensor], tick: Tick = lambda tokens: None) -> Tensor:
        """Returns a checkpoint's unit vectors (N, D) of short texts, which are given as ids."""
        model = runnable.model(device_named(self.setup.device)).float()
        with torch.inference_mode():
            return Encoder(model, *self.asked.around, self.pooling, self.pad).whole(texts, tick)

    def held_out_vectors(self, runnable: Runnable) -> Tensor:
        most = self.setup.old_length - sum(map(len, self.asked.around))  # as the original reads them
        return self.vectors_of(runnable, [self.asked.ids(query)[:most] for query in self.collection.queries.values()])

    @property
    def windows_once(self) -> float:
        return self.bank.ids.numel() / self.setup.texts.width

    def loss(self, model: nn.Module, items: Sequence[int], *, length: int, seed: int) -> Tensor:
        numbers = [window_of(item, len(self.windows), seed) for item in items]
        parts = self.pieces(length)
        found = self.embed(model, self.given, [self.windows[each].ids[piece] for each in numbers for piece in parts])
        own = torch.stack([self.inside(each, piece) for each in numbers for piece in parts])
        documents = torch.tensor([self.windows[each].document for each in numbers for _ in parts])
        # Only the time of a step is measured before the passages are embedded.
        passages = torch.ones(len(own[0]), found.shape[1]) if self.vectors is None else self.vectors
        scores = found @ passages.T / self.of_loss.temperature
        loss = answer_loss(scores, own, documents[:, None] == self.bank.documents)
        if not self.of_loss.anchor:
            return loss
        draws = [seeded(seed, f"anchors {item}") for item in items]
        drawn = torch.cat([torch.randint(len(passages), (ANCHORS,), generator=draw) for draw in draws])
        kept = (self.embed(model, self.asked, list(self.bank.ids[drawn])) * passages[drawn]).sum(dim=1)
        return loss + self.of_loss.anchor * (1 - kept).mean()

    def inside(self, window: int, piece: slice) -> Tensor:
        """Returns which passages of the bank lie inside a piece of a window: (M,)."""
        stops = self.bank.starts + self.of_loss.passage
        return (self.bank.windows == window) & (self.bank.starts >= piece.start) & (stops <= piece.stop)

    def embed(self, model: nn.Module, prompt: Prompt, pieces: Sequence[Tensor]) -> Tensor:
        """Returns unit vectors (N, D) on the CPU, as sentence-transformers computes them. Differentiable."""
        reader = Encoder(model, *prompt.around, self.pooling, self.pad)
        states = reader.states(pieces)
        return torch.cat(
            [reader.pooled(each, len(piece), len(piece)) for each, piece in zip(states, pieces, strict=True)]
        )

    def plan(self, tuned: Runnable, original: Runnable, old: Runnable | None, kept: Kept) -> Plan:
        lengths = (self.setup.old_length, self.settings.length)
        found = dict.fromkeys(lengths, self.collection)
        held_out, size = len(self.setup.texts.held_out), self.settings.part(Queries).query
        how = (
            f" The queries are {len(PASSAGES)} passages of {size} tokens from each of the {held_out:,} held-out "
            f"documents, and are removed from them. Of each, the first {self.settings.length:,} tokens are searched."
        )
        if self.setup.texts.short:
            how += " The other documents are too short to be trained on."
        how += "".join(f" {note}" for note in self.setup.texts.notes)
        if self.setup.collection is not None:
            trained = [document.ids.tolist() for document in self.setup.texts.training]
            texts = self.setup.collection.documents.values()
            both = count_of_both(trained, (encode(self.setup.tokenizer, text) for text in texts))
            on = f"{both:,} of these documents, but" if both else "none of these documents, and"
            how = f" The models were trained on {on} on no judgement."
        runnables = [each for each in (tuned, original, old) if each is not None]
        own, where = self.setup.collection is not None, device_named(self.setup.device)
        documents = enumerate(self.setup.texts.held_out)
        whole = {f"d{at}": len(document.ids) - size * len(PASSAGES) for at, document in documents}
        plan = plan_collections(runnables, found, how=how, kept=kept, device=where, whole={} if own else whole)
        owners = [owner for owner in range(held_out) for _ in PASSAGES]
        return plan if own else replace(plan, unit="document", owners=owners)

    @cached_property
    def collection(self) -> Collection:
        """The user's own collection; or the held-out documents, each up to the new length, and the shorter documents.
        The queries are passages from the beginning, middle and end of held-out documents, and are removed there."""
        if self.setup.collection is not None:
            return self.setup.collection
        documents = {f"s{number}": text for number, text in enumerate(self.setup.texts.short)}
        queries, judged = {}, {}
        size, width = self.settings.part(Queries).query, self.setup.texts.width
        for number, document in enumerate(self.setup.texts.held_out):
            stop = min(len(document.ids), width + size * len(PASSAGES))
            starts = [round(share * (stop - size)) for share in PASSAGES.values()]
            taken = [slice(start, start + size) for start in starts]
            edges = [0, *(edge for part in taken for edge in (part.start, part.stop)), stop]
            kept = [slice(*edges[index : index + 2]) for index in range(0, len(edges), 2)]
            cut = pieces_of_text(self.setup.tokenizer, document.text, [*taken, *kept])
            documents[f"d{number}"] = " ".join(cut[len(taken) :])
            for place, query in zip(PASSAGES, cut, strict=False):
                queries[f"{place} {number}"] = query
                judged[f"{place} {number}"] = {f"d{number}": 1}
        return Collection(documents, queries, judged)


def answer_loss(scores: Tensor, own: Tensor, same_document: Tensor) -> Tensor:
    """Returns the mean cross-entropy () of each piece's own passages among the passages of other documents.

    scores: (N, M). own, same_document: which passages belong to a piece and to its document, bool (N, M). A piece
    without a passage does not count.
    """
    having = own.any(dim=1)
    scores, own, same_document = scores[having], own[having], same_document[having]
    others = scores.masked_fill(same_document, -torch.inf).logsumexp(dim=1, keepdim=True)
    of_each = torch.logaddexp(scores, others) - scores
    return ((of_each * own).sum(dim=1) / own.sum(dim=1)).mean()


def count_of_both(trained: Iterable[Sequence[int]], searched: Iterable[Sequence[int]]) -> int:
    """Returns how many searched documents were trained on. They may have a title before the text, after which the first
    token may be another one."""
    ends: dict[tuple[int, ...], list[list[int]]] = {}
    for ids in trained:
        ends.setdefault(tuple(ids[-SAME_END:]), []).append([*ids[1:]])
    alike = ((ids, ends.get(tuple(ids[-SAME_END:]), [])) for ids in searched)
    return sum(any([*ids[-len(each) :]] == each for each in known) for ids, known in alike)
