"""``posembed.evaluate_checkpoints``: quality by text length, for several checkpoints on the same texts."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from posembed.checkpoints.rebuild import last_line
from posembed.errors import ArgumentError, CheckpointError
from posembed.evaluation.counts import Counts, Tick
from posembed.evaluation.measures import MEASUREMENTS, Job
from posembed.evaluation.results import Evaluation, ResultsFile, Row
from posembed.evaluation.runnable import KINDS, Runnable, open_runnable
from posembed.evaluation.texts import Sample, draw_sample, read_documents

DEFAULT_LENGTHS = (256, 512, 1024, 2048)
SHORTEST = 16  # tokens

Progress = Callable[[str, int, int], None]
"""A function of the name of the running checkpoint, the number of tokens done and the total number of tokens."""


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
    """Measures models at several text lengths, compared with truncating and chunking at the original length.

    Causal language models: perplexity over all tokens, fed in chunks of each length, and over the last tokens of
    every text. Masked language models: accuracy and pseudo-perplexity on 15% of the tokens, which are masked at random.
    Sentence encoders: how often a passage from the beginning, middle or end of a text retrieves the embedding of that
    text, truncated to each length, among all texts (recall at 1, mean reciprocal rank).

    The original length is the shortest that any checkpoint has, or had before it was resized. The baselines run the
    checkpoint with that length. All texts have the longest length, so all lengths use the same texts.

    Args:
        sources: folders in the format of transformers or sentence-transformers, or hub names, of models of one kind.
        text: a file, several files, or a folder. A file is split into documents at WikiText titles, or else at blank
            lines; each file of a folder is one document.
        lengths: the text lengths in tokens, including special tokens.
        texts: the maximum number of texts; the first that are long enough are used.
        seed: the seed for drawing the masked tokens of masked language models.
        device: the device that runs the models. Default: an accelerator if available.
        results: a file that keeps every measurement, so that none is repeated.
        progress: a function called after each batch.

    Raises:
        ArgumentError: an argument cannot be used, or the checkpoints are of different kinds.
        CheckpointError: a checkpoint cannot be run, or its kind is unknown.
        DataError: the text cannot be read or is too short, or the results file cannot be used.

    Examples:
        evaluation = posembed.evaluate_checkpoints(["my-model", "my-model-2048"], "book.txt", lengths=[512, 2048])
        evaluation.rows[1].estimate("perplexity", 2048)  # mean, low, high, and the values by text
    """
    lengths = checked_lengths(lengths)
    check(is_path(text) or is_list(text, is_path), "text", "the path of a file or a folder, or a list of paths", text)
    check(type(texts) is int and texts > 0, "texts", "a whole number of at least 1", texts)
    check(type(seed) is int and -(2**63) <= seed < 2**64, "seed", "a whole number that PyTorch takes as a seed", seed)
    check(results is None or is_path(results), "results", "the path of a file, or None", results)
    check(callable(progress), "progress", "a function of a name, the tokens done and their total", progress)
    where, kept = device_named(device), ResultsFile(results)
    runnables = checked_runnables(sources)
    kind, measurement = runnables[0].kind, MEASUREMENTS[runnables[0].kind]
    fewest = measurement.fewest_texts
    check(texts >= fewest, "texts", f"at least {fewest} to evaluate {KINDS[kind]}", texts)
    documents = read_documents(text)
    samples = {runnable.name: sample_for(runnable, documents, length=lengths[-1], most=texts) for runnable in runnables}
    setting = measurement.setting(lengths[0], seed)
    plan = planned_rows(runnables, samples, lengths, setting)
    run_missing(plan, kept, device=where, progress=progress)
    rows = tuple(finished_row(row, samples[row.runnable.name], kept) for row in plan)
    measures = tuple(measure.name for measure in measurement.measures)
    number = len(samples[runnables[0].name].ids)
    how = f"{number:,} texts of {lengths[-1]:,} tokens; {measurement.note.format(setting)}."
    return Evaluation(kind, measures, lengths, number, rows, (how, *notes_on(runnables, samples, rows, lengths)))


def refuse_short_text(source: str | Path, text: str | Path | Sequence[str | Path], *, length: int) -> None:
    """Raises the errors that ``evaluate_checkpoints`` raises for a text at this length, without loading weights."""
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
    expected = f"a list of whole numbers of tokens, each at least {SHORTEST}, such as [256, 512]"
    valid = is_list(lengths, lambda length: type(length) is int and length >= SHORTEST)
    check(valid and len(lengths) > 0, "lengths", expected, lengths)
    return tuple(sorted(set(lengths)))


def device_named(name: str | torch.device | None) -> torch.device:
    """Returns the named device. Without a name, returns the machine's accelerator, or else its CPU."""
    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, TypeError) as error:
        expected = "device: expected a device that is available here, such as 'cpu', or None"
        raise ArgumentError(f"{expected}; got {name!r} ({last_line(error)})") from error


def checked_runnables(sources: Sequence[str | Path]) -> list[Runnable]:
    expected = "a list of folders or hub names, at least one, such as ['my-model']"
    check(is_list(sources, is_path) and len(sources) > 0, "sources", expected, sources)
    if len(set(map(str, sources))) < len(sources):
        raise ArgumentError(f"a checkpoint is named twice: {', '.join(map(str, sources))}; name each once")
    runnables = [open_runnable(source) for source in sources]
    if len({runnable.kind for runnable in runnables}) > 1:
        kinds = "; ".join(f"{runnable.name} is {KINDS[runnable.kind]}" for runnable in runnables)
        raise ArgumentError(f"expected models of one kind; {kinds}; evaluate each kind in its own call")
    return runnables


def sample_for(runnable: Runnable, documents: Sequence[str], *, length: int, most: int) -> Sample:
    fewest, one_each = MEASUREMENTS[runnable.kind].fewest_texts, not MEASUREMENTS[runnable.kind].whole_texts
    return draw_sample(runnable.tokenizer(), documents, length=length, most=most, fewest=fewest, one_each=one_each)


class PlannedRow(NamedTuple):
    """A row before it is measured. jobs: the job for each length, or None if the checkpoint does not take it."""

    runnable: Runnable
    baseline: str
    jobs: Mapping[int, Job | None]


def planned_rows(
    runnables: Sequence[Runnable], samples: Mapping[str, Sample], lengths: Sequence[int], setting: int
) -> list[PlannedRow]:
    """Returns one row per checkpoint, then the baselines if the longest length is above the original length."""

    def job(runnable: Runnable, length: int, limit: int, fit: str) -> Job:
        text = lengths[-1] if MEASUREMENTS[runnable.kind].whole_texts else length
        chunk = min(length, limit)
        return Job(runnable, samples[runnable.name], setting, text, chunk, "whole" if chunk == text else fit)

    rows = []
    for runnable in runnables:
        longest = lengths[-1] if runnable.length is None else runnable.length
        jobs = {length: job(runnable, length, length, "chunked") if length <= longest else None for length in lengths}
        rows.append(PlannedRow(runnable, "", jobs))
    known = [(runnable.old_length, runnable) for runnable in runnables if runnable.old_length is not None]
    if known:
        # Among checkpoints with the same original length, prefer a checkpoint that was not lengthened.
        old, oldest = min(known, key=lambda pair: (pair[0], pair[1].length or math.inf))
        if SHORTEST <= old < lengths[-1]:
            for name, fit in MEASUREMENTS[oldest.kind].baselines.items():
                jobs = {length: job(oldest, length, old, fit) for length in lengths}
                rows.append(PlannedRow(oldest, f"{name} at {old}", jobs))
    return rows


def run_missing(plan: Sequence[PlannedRow], results: ResultsFile, *, device: torch.device, progress: Progress) -> None:
    jobs = [job for row in plan for job in row.jobs.values() if job is not None]
    missing = {job.key: job for job in jobs if job.key not in results}
    total, done = sum(job.tokens for job in missing.values()), 0
    if missing:
        results.prepare()
    # Grouped by checkpoint, so that each is loaded only once.
    for runnable in dict.fromkeys(job.runnable for job in missing.values()):
        model = runnable.model(device)

        def tick(tokens: int, name: str = runnable.name) -> None:
            nonlocal done
            done += tokens
            progress(name, done, total)

        for key, job in missing.items():
            if job.runnable is runnable:
                counts = run_job(model, job, tick)
                results.add(key, counts, checkpoint=runnable.name, length=job.length, chunk=job.chunk, fit=job.fit)
        del model  # frees its memory before the next model is loaded


def run_job(model: nn.Module, job: Job, tick: Tick) -> Counts:
    try:
        with torch.inference_mode():
            counts = MEASUREMENTS[job.runnable.kind].count(model, job, tick)
    except (RuntimeError, IndexError) as error:
        why = f"cannot be run on {job.chunk} tokens at a time ({last_line(error)})"
        raise CheckpointError(f"{job.runnable.name}: {why}; leave out that length") from error
    return {
        name: [number if math.isfinite(number) else None for number in numbers.tolist()]
        for name, numbers in counts.items()
    }


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
    for runnable in runnables:
        yield from runnable.notes_on(lengths)
    if len({sample.sha256 for sample in samples.values()}) > 1:
        yield "The tokenizers differ, and so do the texts: values of different checkpoints cannot be compared."
    if not any(row.baseline for row in rows):
        yield "There is no baseline, because no original length below these lengths is known."
    for row in rows:
        unknown = [length for length in lengths if None in [by_length[length] for by_length in row.by_text.values()]]
        if missing := [str(length) for length in unknown if row.fits(length)]:
            yield f"{row.checkpoint} has no values at {', '.join(missing)} tokens, because outputs are not finite."
