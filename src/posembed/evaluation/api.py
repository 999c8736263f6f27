"""Quality by length, several checkpoints side by side on the same text: ``posembed.evaluate_checkpoints``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from posembed.errors import ArgumentError
from posembed.evaluation.plan import SHORTEST, PlannedRow, planned_rows
from posembed.evaluation.results import MEASURES, ByText, Evaluation, Row, measures_by_text
from posembed.evaluation.results_file import Kept
from posembed.evaluation.run import Progress, Settings, device_named, key_of, run_missing
from posembed.evaluation.runnable import KINDS, Kind, Runnable, open_runnable
from posembed.evaluation.sentences import PLACES
from posembed.evaluation.texts import Sample, draw_sample, read_documents

DEFAULT_LENGTHS = (256, 512, 1024, 2048)
# Among fewer texts the right one is found by chance too often for a difference to show.
FEWEST_TEXTS: dict[Kind, int] = {"causal": 1, "masked": 1, "sentences": 10}
LAST_TOKENS = 128
PASSAGE_TOKENS = 48


def evaluate_checkpoints(
    sources: Sequence[str | Path],
    text: str | Path | Sequence[str | Path],
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    texts: int = 100,
    seed: int = 0,
    device: str | None = None,
    results: str | Path | None = None,
    progress: Progress = lambda name, done, total: None,
) -> Evaluation:
    """Measure models by length of text, beside the baselines of cutting and chopping it at the old length.

    Causal language models: perplexity over all tokens, fed in pieces of each length, and over the last tokens of
    every text. Masked ones: a seeded 15 % of the tokens hidden, how many are found, and pseudo-perplexity.
    Sentence encoders: whether the embedding of a text of that length is found among those of the others by a
    passage from its beginning, middle or end (recall at 1, mean reciprocal rank).

    The old length is the shortest that any of the checkpoints has, or had before it was resized; the baselines are
    run with that one. All texts hold the longest length, so that each length is measured on the same ones.

    Args:
        sources: folders as transformers or sentence-transformers write them, or hub names; all of one kind.
        text: a file, several, or a folder. A file is split into documents at WikiText's titles, or else at blank
            lines; each file of a folder is one document.
        lengths: in tokens, special ones included.
        texts: at most this many, the first that are long enough.
        seed: draws the hidden tokens of masked models.
        device: where to run; an accelerator if there is one.
        results: a file that keeps every figure; what stands there is not measured again.
        progress: called after each batch.

    Raises:
        ArgumentError: lengths that cannot be used, or checkpoints of different kinds.
        CheckpointError: a checkpoint that cannot be run, or whose kind is not known.
        DataError: text that cannot be read, or too little of it.
    """
    lengths = checked_lengths(lengths)
    where = device_named(device)
    kept = Kept(results)
    runnables = checked_runnables(sources)
    kind = runnables[0].kind
    documents = read_documents(text)
    samples = {runnable.name: sample_for(runnable, documents, length=lengths[-1], most=texts) for runnable in runnables}
    settings = Settings(min(LAST_TOKENS, lengths[0] // 2), min(PASSAGE_TOKENS, lengths[0] // 4), seed)
    plan = planned_rows(runnables, lengths)
    run_missing(plan, samples, settings, kept, device=where, progress=progress)
    rows = tuple(finished_row(row, samples[row.runnable.name], settings, kept) for row in plan)
    sample = samples[runnables[0].name]
    notes = tuple(notes_on(runnables, samples, rows, lengths, settings))
    return Evaluation(kind, MEASURES[kind], lengths, len(sample.ids), rows, notes)


def refuse_short_text(source: str | Path, text: str | Path | Sequence[str | Path], *, length: int) -> None:
    """Raise what ``evaluate_checkpoints`` would of one checkpoint on this text, without loading its weights."""
    checked_lengths([length])
    runnable = open_runnable(source)
    longest = max(length, runnable.rows or length)
    sample_for(runnable, read_documents(text), length=longest, most=FEWEST_TEXTS[runnable.kind])


def sample_for(runnable: Runnable, documents: Sequence[str], *, length: int, most: int) -> Sample:
    return draw_sample(
        runnable.tokenizer(),
        documents,
        length=length,
        most=most,
        fewest=FEWEST_TEXTS[runnable.kind],
        one_each=runnable.kind == "sentences",
    )


def checked_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    if not lengths or not all(type(length) is int and length >= SHORTEST for length in lengths):
        raise ArgumentError(f"lengths are whole numbers of tokens from {SHORTEST}; got {list(lengths)}")
    return tuple(sorted(set(lengths)))


def checked_runnables(sources: Sequence[str | Path]) -> list[Runnable]:
    """Checkpoints that can stand side by side."""
    if not sources or isinstance(sources, str):
        raise ArgumentError(f"expected a list of checkpoints, one or more; got {sources!r}")
    if len(set(map(str, sources))) < len(sources):
        raise ArgumentError(f"a checkpoint is named twice: {', '.join(map(str, sources))}; name each once")
    runnables = [open_runnable(source) for source in sources]
    first = runnables[0]
    for other in runnables[1:]:
        if other.kind != first.kind:
            raise ArgumentError(
                f"expected models of one kind; {first.name} is {KINDS[first.kind]}, {other.name} is "
                f"{KINDS[other.kind]}; evaluate them apart"
            )
    return runnables


def finished_row(planned: PlannedRow, sample: Sample, settings: Settings, kept: Kept) -> Row:
    kind = planned.runnable.kind
    figures: dict[int, Mapping[str, ByText]] = {
        length: {} if task is None else measures_by_text(kind, kept[key_of(planned.runnable, sample, task, settings)])
        for length, task in planned.tasks.items()
    }
    by_text = {
        measure: {length: figure.get(measure) for length, figure in figures.items()} for measure in MEASURES[kind]
    }
    return Row(planned.runnable.name, planned.baseline, planned.runnable.length, sample.sha256, by_text)


def notes_on(
    runnables: Sequence[Runnable],
    samples: Mapping[str, Sample],
    rows: Sequence[Row],
    lengths: Sequence[int],
    settings: Settings,
) -> Iterator[str]:
    """What a reader must know to read the figures, a line each."""
    first, longest = runnables[0], lengths[-1]
    sample = samples[first.name]
    what = {
        "causal": f"the last tokens are the last {settings.last} of each text",
        "masked": f"15 % of the tokens hidden, drawn with the seed {settings.seed}",
        "sentences": f"{len(PLACES)} passages of {settings.passage} tokens from each, sought among all of them",
    }[first.kind]
    yield f"Texts: {len(sample.ids):,} that hold {longest:,} tokens; {what}."
    for runnable in runnables:
        yield from runnable.notes_on(lengths)
    if len({sample.sha256 for sample in samples.values()}) > 1:
        yield "The tokenizers differ, and so do the texts: figures of different checkpoints cannot be compared."
    if not any(row.baseline for row in rows):
        yield "No baseline: no checkpoint is known to have been shorter than these lengths."
    for row in rows:
        odd = [
            length
            for length in lengths
            if row.fits(length) and None in [by_length[length] for by_length in row.by_text.values()]
        ]
        if odd:
            yield f"{row.checkpoint}: its answers at {', '.join(map(str, odd))} tokens are not finite numbers."
