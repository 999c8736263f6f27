"""Fine-tuning all-MiniLM-L6-v2 from 512 to 1,024 and 2,048 positions on long articles, and its speed.

    python benchmarks/tune.py --text wikitext-2

The folder has WikiText-2's validation and test files. For each length, does what ``posembed tune original tuned-2048
--length 2048 --steps 40 --seeds 3`` does, and measures both models on texts of another kind, the source files of
Python's standard library. Then measures windows per second, compared with the trainer of sentence-transformers, which
computes the same loss on the same windows with the same model. A call that is interrupted continues from runs/tune.
Writes benchmarks/results/tune.md after each part.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pickle
import shlex
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from resize_quality import markdown
from retrieval import copy_with_its_whole_table
from torch import Tensor, nn

from posembed.cli.console import Bar
from posembed.evaluation.api import evaluate_checkpoints
from posembed.evaluation.results import Evaluation
from posembed.files import whole_or_absent, written_whole
from posembed.report import evaluation as evaluation_report
from posembed.report import tuning as tuning_report
from posembed.tuning.draws import window_of
from posembed.tuning.plan import plan_tuning
from posembed.tuning.result import Tuned
from posembed.tuning.run import TunePlan
from posembed.tuning.sentences import Sentences, answer_loss
from posembed.tuning.settings import Existing
from posembed.tuning.texts import pieces_of_text
from posembed.tuning.trainer import StepTrainer

OLD, NEW = 512, (1024, 2048)
RESULTS = Path(__file__).resolve().parent / "results" / "tune.md"
WORK = Path("runs/tune")
STDLIB = Path(sysconfig.get_path("stdlib"))
BYTES_OF_A_LONG_FILE = 12_000
STEPS_AT_ONCE = 3  # of each trainer, in turn; a step before them is not timed

T = TypeVar("T")


class Part(NamedTuple):
    """What was measured at one new length. speeds: the seconds per window of each trainer in each round."""

    tuned: Tuned
    minutes: float
    other: Evaluation | None = None
    speeds: dict[str, list[float]] | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files, or folders of files")
    parser.add_argument("--length", type=int, nargs="+", default=NEW, help="the new lengths, each on its own")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--train", default="all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--other", type=int, default=60, help="maximum number of source files of Python")
    parser.add_argument("--rounds", type=int, default=5, help="how often each trainer is timed; 0: not at all")
    parser.add_argument("--dry-run", action="store_true", help="print the plans and the estimated times")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the page to write")
    given = parser.parse_args()
    text, out, parts = [path.resolve() for path in given.text], given.out.resolve(), list[Part]()
    words = shlex.join(Path(word).name if Path(word).exists() else word for word in sys.argv[1:])
    settings = {"train": given.train, "steps": given.steps, "batch": given.batch, "seeds": given.seeds}
    # One folder for all calls with the same settings. The checkpoints have short names in it.
    key = hashlib.sha256(json.dumps([settings, max(given.length), *map(str, text), given.other]).encode()).hexdigest()[
        :8
    ]
    (WORK / key).mkdir(parents=True, exist_ok=True)
    os.chdir(WORK / key)
    if not Path("original").exists():
        with whole_or_absent(Path("original")) as staging:
            copy_with_its_whole_table(staging)
    write_other(Path("other"), given.other)
    for length in given.length:
        plan = partial(plan_tuning, "original", f"tuned-{length}", text, {**settings, "length": length})
        if given.dry_run:
            tune, timed = plan(), "" if given.rounds else " (not timed)"
            print("\n".join(tuning_report.plan_words(tune, tune.estimate())), f"\nRounds: {given.rounds}{timed}.\n")
            continue
        with Bar() as bar:
            part = once(f"tuned-{length}.pickle", lambda plan=plan, bar=bar: fine_tuned(plan(), bar))
            write(out, words, [*parts, part])
            sources, lengths = [f"tuned-{length}", "original"], [OLD, length]
            kept = {"results": "other.jsonl", "progress": bar.update}
            part = part._replace(other=evaluate_checkpoints(sources, "other", lengths=lengths, **kept))
            write(out, words, [*parts, part])
            if given.rounds:
                timed = {**settings, "length": length, "anchor": 0.0}
                speeds = partial(compared_speeds, text, timed, given.rounds)
                part = part._replace(speeds=once(f"speeds-{length}.pickle", speeds))
        parts.append(part)
        write(out, words, parts)
    if parts:
        print(out.read_text(encoding="utf-8"))


def once(name: str, make: Callable[[], T]) -> T:
    """Returns what an earlier call made, or else makes and keeps it."""
    path = Path(name)
    if not path.exists():
        made = make()
        with written_whole(path) as staging:
            staging.write_bytes(pickle.dumps(made))
    return pickle.loads(path.read_bytes())


def fine_tuned(plan: TunePlan, bar: Bar) -> Part:
    began = time.monotonic()
    return Part(plan.run(bar.update), (time.monotonic() - began) / 60)


def write(out: Path, words: str, parts: Sequence[Part]) -> None:
    with written_whole(out) as staging:
        staging.write_text("\n".join(page(words, parts)), encoding="utf-8")


def write_other(folder: Path, most: int) -> None:
    """Copies long source files of Python's standard library, each of which is a document."""
    folder.mkdir(exist_ok=True)
    long = [path for path in sorted(STDLIB.glob("*.py")) if path.stat().st_size > BYTES_OF_A_LONG_FILE]
    for path in long[:most]:
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


# --- speed ---------------------------------------------------------------------------------------------------------


class AnswerLoss(nn.Module):
    """Our loss, as a loss of sentence-transformers. The labels are the numbers of the windows."""

    def __init__(self, model: nn.Module, objective: Sentences) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, features: Iterable[dict[str, Tensor]], labels: Tensor) -> Tensor:
        (of_windows,) = features
        found = F.normalize(self.model(of_windows)["sentence_embedding"], dim=1)
        objective, numbers = self.objective, labels.tolist()
        assert objective.vectors is not None
        own = torch.stack([objective.bank.windows == number for number in numbers])
        documents = torch.tensor([objective.windows[number].document for number in numbers])
        scores = found @ objective.vectors.T / objective.of_loss.temperature
        return answer_loss(scores, own, documents[:, None] == objective.bank.documents)


def compared_speeds(text: Sequence[Path], settings: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds per window of each trainer in each round. The trainers take turns."""
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_tuning("original", Path(folder) / "speed", text, settings)
        objective = plan.objective
        assert isinstance(objective, Sentences)
        objective.vectors = F.normalize(torch.randn(len(objective.bank.ids), 384), dim=1)
        from posembed.checkpoints.resize import resize_checkpoint

        plan.store.claim()
        resized = plan.store.path / "resized"
        resize_checkpoint("original", resized, length=settings["length"])
        refuse_another_loss(plan, objective)
        runs: dict[str, Callable[[], list[float]]] = {
            "posembed": lambda: our_steps(plan, objective, Path(folder)),
            "sentence-transformers": lambda: their_steps(plan, objective, Path(folder), dropout=False),
            "sentence-transformers, with dropout": lambda: their_steps(plan, objective, Path(folder), dropout=True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(rounds):
            for name in sorted(runs, reverse=number % 2 == 1):
                seconds[name].append(statistics.median(runs[name]()) / settings["batch"])
    return seconds


def texts_of(plan: TunePlan, numbers: Iterable[int]) -> list[str]:
    """Returns the texts of windows."""
    found, documents = [], plan.texts.training
    for window in (plan.texts.windows[number] for number in numbers):
        span = slice(window.start, window.start + len(window.ids))
        found += pieces_of_text(plan.setup.tokenizer, documents[window.document].text, [span])
    return found


def refuse_another_loss(plan: TunePlan, objective: Sentences) -> None:
    """Raises AssertionError unless both trainers compute the same loss on the first windows."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(plan.store.path / "resized")).eval()
    model.max_seq_length = plan.settings.length
    numbers = [window_of(item, len(plan.texts.windows), 0) for item in range(plan.settings.batch)]
    with torch.inference_mode():
        ours = objective.loss(
            plan.start("tuned").model("cpu"), range(len(numbers)), length=plan.settings.length, seed=0
        )
        features = model.preprocess(texts_of(plan, numbers))
        theirs = AnswerLoss(model, objective)([features], torch.tensor(numbers))
    assert math.isclose(ours, theirs, rel_tol=1e-3), (ours, theirs)  # a window's text can begin within a word


def our_steps(plan: TunePlan, objective: Sentences, folder: Path) -> list[float]:
    """Returns the seconds of each step."""
    trained = plan.trainable("tuned", plan.start("tuned"), 0)
    ends: list[float] = []
    trainer = StepTrainer(
        trained,
        objective,
        plan.settings,
        folder=Path(tempfile.mkdtemp(dir=folder)),
        steps=1 + STEPS_AT_ONCE,
        length=plan.settings.length,
        seed=0,
        device=None,
        parts=1,
    )
    trainer.run(lambda done: ends.append(time.perf_counter()))
    return [stop - start for start, stop in pairwise(ends)]


def their_steps(plan: TunePlan, objective: Sentences, folder: Path, *, dropout: bool) -> list[float]:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    from posembed.tuning.trainable import without_dropout

    model = SentenceTransformer(str(plan.store.path / "resized"))
    model.max_seq_length = plan.settings.length
    if not dropout:
        without_dropout(model)
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *given: Any, **others: Any) -> None:
            ends.append(time.perf_counter())

    texts = texts_of(plan, range(min(plan.settings.batch * (1 + STEPS_AT_ONCE), len(plan.texts.windows))))
    arguments = SentenceTransformerTrainingArguments(
        output_dir=tempfile.mkdtemp(dir=folder),
        max_steps=1 + STEPS_AT_ONCE,
        per_device_train_batch_size=plan.settings.batch,
        learning_rate=plan.settings.part(Existing).learning_rate,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"sentence": texts, "label": list(range(len(texts)))}),
        loss=AnswerLoss(model, objective),
        callbacks=[Clock()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return [stop - start for start, stop in pairwise(ends)]


# --- the page ------------------------------------------------------------------------------------------------------


def page(words: str, parts: Sequence[Part]) -> Iterable[str]:
    yield "# all-MiniLM-L6-v2, fine-tuned on longer texts than it takes"
    yield ""
    yield f"    python benchmarks/tune.py {words}"
    yield ""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "sentence-transformers"))
    yield f"{versions}; {os.cpu_count()} CPUs, {torch.get_num_threads()} threads."
    for part in parts:
        yield from ("", f"## From {part.tuned.evaluation.lengths[0]:,} to {part.tuned.length:,} positions", "")
        yield from of_part(part)
    yield ""


def of_part(part: Part) -> Iterator[str]:
    tuned, seeds = part.tuned, part.tuned.settings.seeds
    yield " ".join(tuning_report.answer(tuned))
    for table in tuning_report.tables(tuned):
        yield from ("", f"### {table.title}", "", *markdown(table, slice(None)))
    yield ""
    yield f"- {evaluation_report.legend(tuned.evaluation)}"
    yield from (f"- {line}" for line in (*tuning_report.how(tuned), *tuned.evaluation.notes))
    yield f"- The last call, with what earlier calls had left to do, took {part.minutes:.0f} minutes for {seeds} seeds."
    if part.other is not None:
        yield from ("", f"### Texts of another kind, at {tuned.length:,} tokens", "")
        yield "The first tokens of source files of Python's standard library, read by the model of the first seed."
        yield " ".join(evaluation_report.answer(part.other))
        for table in evaluation_report.tables(part.other)[:2]:
            yield from ("", f"#### {table.title}", "", *markdown(table, slice(None)))
        yield ""
        yield from (f"- {note}" for note in part.other.notes)
    if part.speeds is not None:
        yield from ("", f"### Windows of {tuned.length:,} tokens per second", "", *of_speeds(tuned, part.speeds))


def of_speeds(tuned: Tuned, speeds: Mapping[str, Sequence[float]]) -> Iterator[str]:
    yield from ("| trainer | windows/s (median) | posembed is faster by |", "|---|---|---|")
    for name, seconds in speeds.items():
        ratios = [theirs / ours for theirs, ours in zip(seconds, speeds["posembed"], strict=True)]
        by = f"{statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f})"
        yield f"| {name} | {1 / statistics.median(seconds):.2f} | {by if name != 'posembed' else ''} |"
    yield ""
    yield (
        f"Training all weights, {tuned.settings.batch} windows per step, with the softmax over the passages as the "
        f"only loss. The trainers took turns, {len(speeds['posembed'])} times {STEPS_AT_ONCE} steps each; the range is "
        "over these rounds. sentence-transformers tokenizes the windows in each step. posembed always turns dropout "
        "off, and so does the second row; the third keeps the dropout of the model's config, as the library's examples "
        "do."
    )


if __name__ == "__main__":
    main()
