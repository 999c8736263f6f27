"""The run of a fine-tuning: resize, fine-tune, measure, write. A call continues where an earlier call was stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from posembed.checkpoints.live import resize_model_
from posembed.checkpoints.resize import Resize, resize_checkpoint
from posembed.errors import ArgumentError, CheckpointError
from posembed.evaluation.api import device_named
from posembed.evaluation.pictures import open_image_model
from posembed.evaluation.runnable import Runnable, open_runnable, short_names
from posembed.files import write_whole
from posembed.measure.jobs import Kept, Progress, Store, silent
from posembed.measure.processes import ALONE, Processes
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.copies import whole_copy
from posembed.modelfiles.json_files import read_json
from posembed.statistics import estimate
from posembed.tuning.images import Images
from posembed.tuning.language import Causal, Masked
from posembed.tuning.objectives import RESIZED, Objective, Setup
from posembed.tuning.outs import beside, documents, refuse_changed, refuse_places, write, writing, wrote
from posembed.tuning.result import Tuned, with_seeds
from posembed.tuning.sentences import Sentences
from posembed.tuning.settings import MINUTES, TuneSettings, folder_of
from posembed.tuning.trainable import Trainable, rows_moved, trainable

OBJECTIVES: dict[str, Callable[[Setup], Objective]] = {
    "images": Images,
    "causal": Causal,
    "masked": Masked,
    "sentences": Sentences,
}
"""The objective of each kind of model."""
PROBED = 3
"""The number of windows that are timed before a fine-tuning, after one window that is not timed."""
SHARE_OF_READING = 0.35
"""The time to read tokens, as a share of the time to train on them."""
READINGS = {"tuned": 3, "old": 4}
"""How many times the held-out documents are read at the new length ("tuned") and at the old length ("old")."""
STATE, MEASURED, CHECKPOINT = "state.json", "evaluations", r"checkpoint-\d+"
SMALLER_RATES = "give a smaller --learning-rate or --rows-learning-rate, and another OUT"


@dataclass(frozen=True, eq=False)
class TunePlan:
    """A fine-tuning before it is run.

    starts: the loss of each method that was tried for the new rows, if the method was chosen here. processes: the
    processes that share each batch.
    """

    source: str | Path
    out: Path
    setup: Setup
    resize: Resize
    hashes: Mapping[str, str]
    starts: Mapping[str, float] = field(default_factory=dict)
    processes: Processes = ALONE

    @property
    def settings(self) -> TuneSettings:
        return self.setup.settings

    @property
    def texts(self) -> Any:
        return self.setup.texts

    @property
    def original(self) -> Runnable:
        return self.setup.original

    @cached_property
    def objective(self) -> Objective:
        return OBJECTIVES[self.original.kind](self.setup)

    @property
    def store(self) -> Store:
        return Store(folder_of(self.out), {"question": "tune", **self.settings.to_dict(), **self.hashes}, own=["*"])

    @property
    def seeds(self) -> range:
        return range(self.settings.seed, self.settings.seed + self.settings.seeds)

    @property
    def lengths(self) -> dict[str, int]:
        """The length at which each fine-tuning reads the windows. At the old length, there are no new rows to train."""
        old = {} if self.settings.train == "rows" else {"old": self.setup.old_length}
        return {**old, "tuned": self.settings.length}

    @property
    def places(self) -> dict[str, Path]:
        """The folder that each fine-tuning is written to, OUT last."""
        old = beside(self.out, self.setup.old_length)
        return {which: self.out if which == "tuned" else old for which in self.lengths}

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON: the settings, and the numbers of documents and windows."""
        return {
            "settings": self.settings.to_dict(),
            "old_length": self.setup.old_length,
            "training_documents": len(self.texts.training),
            "held_out_documents": len(self.texts.held_out),
            "queries": 0 if self.setup.collection is None else len(self.setup.collection.queries),
            "shorter_documents": len(self.texts.short),
            "windows": len(self.texts.windows),
        }

    def run(self, progress: Progress = silent) -> Tuned:
        """Runs what earlier calls have not finished, and writes OUT."""
        first = self.processes.first
        if self.settings.batch % self.processes.count:
            raise ArgumentError(
                f"batch: expected a multiple of the number of processes, {self.processes.count}; got "
                f"{self.settings.batch}; give another --batch, or start another number of processes"
            )
        first(lambda: refuse_places(self))  # another process may have begun or finished since this was planned
        with ExitStack() as held:
            held.enter_context(writing(self.store.path))
            first(lambda: held.enter_context(self.store.locked()))
            size = size_of(self.original, self.settings) | self.known
            resized = first(
                lambda: self.store.once(RESIZED, lambda place: resize_checkpoint(self.source, place, **size))
            )
            refuse_changed(self, resized)
            first(lambda: self.objective.prepare(self.store, progress))
            if self.processes.rank:
                self.objective.prepare(self.store, progress)  # reads what the first process has kept
            steps = first(self.steps)
            for seed, which in product(self.seeds, self.lengths):
                self.tuned_once(which, seed, steps, progress)
            tuned = self.measured(steps, progress)
            first(self.write)
        return tuned

    def write(self) -> None:
        for which, place in self.places.items():
            if not wrote(self, place):
                write(self, which, place)

    def tuned_once(self, which: str, seed: int, steps: int, progress: Progress) -> None:
        """Fine-tunes with one seed, unless an earlier call has finished it."""
        place, tune = self.place(which, seed), partial(self.tune, which, seed, steps, progress)
        if not self.processes.first(place.exists):
            if self.processes.rank:
                tune(place)
            else:
                self.store.once(place.name, tune)
        self.processes.first(lambda: refuse_changed(self, place))
        self.processes.first(lambda: unfinished_steps(place).discard(CHECKPOINT))

    def place(self, which: str, seed: int) -> Path:
        """Returns the folder that keeps a fine-tuned checkpoint."""
        return self.store.path / f"seed-{seed}-{which}"

    def start(self, which: str) -> Runnable:
        """Returns the checkpoint that a fine-tuning starts from."""
        return self.opened(self.store.path / RESIZED) if which == "tuned" else self.original

    def opened(self, place: Path) -> Runnable:
        return (open_image_model if self.original.kind == "images" else open_runnable)(place, **self.known)

    @property
    def known(self) -> dict[str, Any]:
        """The type of the model, if its config.json does not say it."""
        return {"model_type": self.original.checkpoint.model_type or None}

    def steps(self) -> int:
        """Returns the number of steps. Minutes are turned into steps only once, so that a continued run has as many."""
        if self.settings.steps is not None:
            return self.settings.steps

        def count(place: Path) -> None:
            write_whole(place, json.dumps({"steps": int(self.estimate()["steps"])}).encode(), refusal=None)

        place = self.store.once(STATE, count)
        steps = read_json(place).get("steps") if place.is_file() else None
        if type(steps) is not int or steps < 1:
            raise CheckpointError(f"{place} is damaged: it has no number of steps; remove it, and repeat the command")
        return steps

    def trainable(self, which: str, start: Runnable, seed: int) -> Trainable:
        model = start.model(device_named(self.setup.device))
        return trainable(model, start.checkpoint, self.settings, self.resize.edit, resized=which == "tuned", seed=seed)

    def model(self, which: str, method: str | None) -> Any:
        """Returns the original model, resized in memory if ``which`` is "tuned".

        It is loaded outside of inference mode: weights from a pickle could not be trained otherwise.
        """
        model: Any = self.original.model(device_named(self.setup.device)).float()
        if which == "tuned":
            resize_model_(model, **{**size_of(self.original, self.settings), "method": method})
        return model

    @cached_property
    def per_step(self) -> dict[str, float]:
        """The estimated seconds of a step at each length, from the loss and its gradients on a few windows."""
        found = {}
        for which, length in self.lengths.items():
            model, times = self.model(which, self.settings.method), list[float]()
            for item in range(1 + PROBED):
                began = time.perf_counter()
                self.objective.loss(model, [item], length=length, seed=self.settings.seed).backward()
                times.append(time.perf_counter() - began)
            found[which] = min(times[1:]) * self.settings.batch / self.processes.count
            del model  # frees its memory before the next model is loaded
        return found

    def estimate(self) -> dict[str, float]:
        """Returns the number of steps, and the estimated seconds of each part of a run on this machine. The steps get
        the minutes that the other parts leave, but there is at least one step."""
        per_step, seeds = self.per_step, self.settings.seeds
        window = {which: SHARE_OF_READING * seconds / self.settings.batch for which, seconds in per_step.items()}
        shortest = window.get("old", window["tuned"])
        read = sum(window.get(which, shortest) * times for which, times in READINGS.items())
        others = {
            "prepare": self.objective.windows_once * shortest,
            "measure": self.setup.windows_measured * read * seeds,
        }
        left = 60 * (self.settings.minutes or MINUTES) - sum(others.values())
        steps = self.settings.steps or max(1, int(left / (seeds * sum(per_step.values()))))
        train = {f"train {which}": steps * seconds * seeds for which, seconds in per_step.items()}
        return {"steps": steps, **others, **train}

    def tune(self, which: str, seed: int, steps: int, progress: Progress, place: Path) -> None:
        """Fine-tunes with one seed, and keeps the result. A batch that does not fit into memory is read in parts."""
        from accelerate.utils.memory import should_reduce_batch_size

        from posembed.tuning.trainer import StepTrainer

        start, length = self.start(which), self.lengths[which]
        name = f"fine-tuning at {length:,}{f', seed {seed}' if len(self.seeds) > 1 else ''}"
        batch = self.settings.batch // self.processes.count
        unfinished = unfinished_steps(place)
        self.processes.first(unfinished.claim)
        how: dict[str, Any] = {"folder": unfinished.path, "steps": steps, "length": length, "seed": seed}
        how |= {"processes": self.processes}
        for parts in [parts for parts in range(1, batch + 1) if batch % parts == 0]:
            trained = self.trainable(which, start, seed)
            try:
                trainer = StepTrainer(
                    trained, self.objective, self.settings, **how, device=self.setup.device, parts=parts
                )
                trainer.run(lambda done: progress(name, done, steps))
                break
            except RuntimeError as error:
                if not should_reduce_batch_size(error):
                    raise
                if parts == batch or self.processes.count > 1:  # the others would wait for this one
                    raise CheckpointError(self.too_large(length)) from error
        changed = trained.changed(start.checkpoint)
        if not_finite := [key for key, value in changed.items() if not all_finite(value)]:
            raise CheckpointError(
                f"after step {steps}, {not_finite[0]} has values that are not finite in "
                f"{str(changed[not_finite[0]].dtype).removeprefix('torch.')}, as in its file; {SMALLER_RATES}"
            )
        if self.processes.rank:
            return
        with whole_copy(start.checkpoint, place) as copy:
            copy.write(tensors=changed, documents=dict(documents(self, which, start.checkpoint, steps)))

    def too_large(self, length: int) -> str:
        pictures = self.original.kind == "images"
        what = f"an image of {length:,} x {length:,} pixels" if pictures else f"a window of {length:,} tokens"
        size = "image-size" if pictures else "length"
        return f"{what} does not fit into memory; give --checkpointing, a smaller --{size} or another --device"

    def measured(self, steps: int, progress: Progress) -> Tuned:
        kept = Kept(self.store.path / MEASURED)
        source, places = str(self.source), {which: str(place) for which, place in self.places.items()}
        names = short_names([source, *places.values()], hub=() if Path(source).exists() else (source,))
        original = self.original.called(names, source)
        keys, old_rows = [change.key for change in self.resize.edit.tables], self.resize.edit.target.length[0]
        resized = open_checkpoint(self.store.path / RESIZED)
        found, near, moved = [], [], []
        for seed in self.seeds:
            made = {which: self.opened(self.place(which, seed)).called(names, at) for which, at in places.items()}
            plan = self.objective.plan(made["tuned"], original, made.get("old"), kept)
            remedy = f"the fine-tuned models are in {self.store.path}"
            plan = replace(plan, seed=seed, remedy=remedy, processes=self.processes)
            found.append(plan.run(progress))
            if (of_seed := self.objective.kept(made["tuned"])) is not None:
                near.append(of_seed.values)
            moved.append(rows_moved(resized, made["tuned"].checkpoint, keys, old=old_rows))
        tuned = Tuned(
            self.out,
            self.settings,
            steps,
            with_seeds(found),
            {which: names[place] for which, place in places.items()},
            kept=estimate([sum(of_text) / len(of_text) for of_text in zip(*near, strict=True)]) if near else None,
            chunked=self.objective.chunked,
            old_rows=old_rows,
            moved=tuple(moved),
        )
        for row in tuned.candidates:
            if row.estimate(tuned.measure, tuned.length) is None:
                raise CheckpointError(
                    f"{row.checkpoint}: its outputs are not finite where the result is measured, after step {steps}; "
                    f"{SMALLER_RATES}; the fine-tuned models are in {self.store.path}"
                )
        return tuned


def unfinished_steps(place: Path) -> Store:
    """Returns the folder of the Trainer's checkpoints during the fine-tuning that writes ``place``."""
    return Store(place.with_name(f"{place.name}-steps"), {"question": "tune"}, own=["*"])


def all_finite(value: Tensor) -> bool:
    if not value.is_floating_point():
        return True
    return bool((value.float() if value.element_size() == 1 else value).isfinite().all())


def size_of(original: Runnable, settings: TuneSettings) -> dict[str, Any]:
    """Returns the arguments of a resize."""
    size = {"image_size" if original.kind == "images" else "length": settings.length}
    return {**size, "method": settings.method}
