"""Quality by text length, for several checkpoints on the same texts: ``posembed.evaluate_checkpoints``."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posembed.errors import ArgumentError
from posembed.evaluation.measures import MEASUREMENTS
from posembed.evaluation.results import Evaluation, Row
from posembed.evaluation.results_file import ResultsFile
from posembed.evaluation.run import SHORTEST, PlannedRow, Progress, device_named, planned_rows, run_missing
from posembed.evaluation.runnable import KINDS, Runnable, open_runnable
from posembed.evaluation.texts import Sample, draw_sample, read_documents

DEFAULT_LENGTHS = (256, 512, 1024, 2048)


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
    """Measure models at several text lengths, compared with truncating and chunking at the original length.

    Causal language models: perplexity over all tokens, fed in chunks of each length, and over the last tokens of
    every text. Masked language models: accuracy on a seeded 15% of the tokens, which are masked, and
    pseudo-perplexity. Sentence encoders: whether the embedding of a text of that length is found among all texts by a
    passage from its beginning, middle or end (recall at 1, mean reciprocal rank).

    The original length is the shortest that any of the checkpoints has, or had before it was resized. The baselines
    run the checkpoint with that length. All texts have the longest length, so all lengths use the same texts.

    Args:
        sources: folders in the format of transformers or sentence-transformers, or hub names; all of one kind.
        text: a file, several files, or a folder. A file is split into documents at WikiText titles, or else at blank
            lines; each file of a folder is one document.
        lengths: in tokens, including special tokens.
        texts: the maximum number of texts; the first that are long enough are used.
        seed: draws the masked tokens of masked language models.
        device: where the models run; by default an accelerator if there is one.
        results: a file that keeps every count; what it holds is not measured again.
        progress: called after each batch.

    Raises:
        ArgumentError: an argument that cannot be used, or checkpoints of different kinds.
        CheckpointError: a checkpoint that cannot be run, or whose kind is unknown.
        DataError: text that cannot be read or is too short, or a results file that cannot be used.

    Examples:
        evaluation = posembed.evaluate_checkpoints(["my-model", "my-model-2048"], "book.txt", lengths=[512, 2048])
        evaluation.rows[1].estimate("perplexity", 2048)  # mean, low, high, and the values by text
    """
    lengths = checked_lengths(lengths)
    check(
        is_path(text) or is_list(text, is_path), "text", "the path of a text file or a folder, or a list of paths", text
    )
    check(type(texts) is int and texts > 0, "texts", "a whole number of at least 1", texts)
    check(type(seed) is int and -(2**63) <= seed < 2**64, "seed", "a whole number that PyTorch takes as a seed", seed)
    check(results is None or is_path(results), "results", "the path of a file, or None", results)
    check(callable(progress), "progress", "a function of a name, the tokens done and their total", progress)
    where = device_named(device)
    kept = ResultsFile(results)
    runnables = checked_runnables(sources)
    measurement = MEASUREMENTS[runnables[0].kind]
    fewest = measurement.fewest_texts
    check(texts >= fewest, "texts", f"at least {fewest} to evaluate {KINDS[runnables[0].kind]}", texts)
    documents = read_documents(text)
    samples = {runnable.name: sample_for(runnable, documents, length=lengths[-1], most=texts) for runnable in runnables}
    setting = measurement.setting(lengths[0], seed)
    plan = planned_rows(runnables, samples, lengths, setting)
    run_missing(plan, kept, device=where, progress=progress)
    rows = tuple(finished_row(row, samples[row.runnable.name], kept) for row in plan)
    measures = tuple(measure.name for measure in measurement.measures)
    number = len(samples[runnables[0].name].ids)
    how = f"{number:,} texts of {lengths[-1]:,} tokens; {measurement.note.format(setting)}."
    notes = (how, *notes_on(runnables, samples, rows, lengths))
    return Evaluation(runnables[0].kind, measures, lengths, number, rows, notes)


def refuse_short_text(source: str | Path, text: str | Path | Sequence[str | Path], *, length: int) -> None:
    """Raises the errors of ``evaluate_checkpoints`` for one checkpoint and this text, without loading its weights."""
    checked_lengths([length])
    runnable = open_runnable(source)
    longest = max(length, runnable.rows or length)
    sample_for(runnable, read_documents(text), length=longest, most=MEASUREMENTS[runnable.kind].fewest_texts)


def check(holds: bool, name: str, expected: str, given: object) -> None:
    if not holds:
        raise ArgumentError(f"{name}: expected {expected}; got {reprlib.repr(given)}")


def is_path(value: object) -> bool:
    return isinstance(value, str | Path)


def is_list(value: object, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes) and all(map(of, value))


def checked_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """The lengths in ascending order, each once."""
    expected = f"a list of whole numbers of tokens, each at least {SHORTEST}, such as [256, 512]"
    valid = is_list(lengths, lambda length: type(length) is int and length >= SHORTEST)
    check(valid and len(lengths) > 0, "lengths", expected, lengths)
    return tuple(sorted(set(lengths)))


def checked_runnables(sources: Sequence[str | Path]) -> list[Runnable]:
    """Checkpoints that can be compared."""
    expected = "a list of folders or hub names, at least one, such as ['my-model']"
    check(is_list(sources, is_path) and len(sources) > 0, "sources", expected, sources)
    if len(set(map(str, sources))) < len(sources):
        raise ArgumentError(f"a checkpoint is named twice: {', '.join(map(str, sources))}; name each once")
    runnables = [open_runnable(source) for source in sources]
    first = runnables[0]
    for other in runnables[1:]:
        if other.kind != first.kind:
            raise ArgumentError(
                f"expected models of one kind; {first.name} is {KINDS[first.kind]}, {other.name} is "
                f"{KINDS[other.kind]}; evaluate each kind in its own call"
            )
    return runnables


def sample_for(runnable: Runnable, documents: Sequence[str], *, length: int, most: int) -> Sample:
    fewest, one_each = MEASUREMENTS[runnable.kind].fewest_texts, not MEASUREMENTS[runnable.kind].whole_texts
    return draw_sample(runnable.tokenizer(), documents, length=length, most=most, fewest=fewest, one_each=one_each)


def finished_row(planned: PlannedRow, sample: Sample, kept: ResultsFile) -> Row:
    runnable = planned.runnable
    counts = {length: None if job is None else kept[job.key] for length, job in planned.jobs.items()}
    by_text = {
        measure.name: {length: None if found is None else measure.by_text(found) for length, found in counts.items()}
        for measure in MEASUREMENTS[runnable.kind].measures
    }
    return Row(runnable.name, planned.baseline, runnable.length, sample.sha256, by_text)


def notes_on(
    runnables: Sequence[Runnable], samples: Mapping[str, Sample], rows: Sequence[Row], lengths: Sequence[int]
) -> Iterator[str]:
    """What a reader must know to read the values, one line each."""
    for runnable in runnables:
        yield from runnable.notes_on(lengths)
    if len({sample.sha256 for sample in samples.values()}) > 1:
        yield "The tokenizers differ and so do the texts: values of different checkpoints cannot be compared."
    if not any(row.baseline for row in rows):
        yield "No baseline: no checkpoint is known to have had an original length below these lengths."
    for row in rows:
        unknown = [length for length in lengths if None in [by_length[length] for by_length in row.by_text.values()]]
        if missing := [str(length) for length in unknown if row.fits(length)]:
            yield f"{row.checkpoint}: no values at {', '.join(missing)} tokens, because outputs are not finite."
