"""The run of a fine-tuning: resize, fine-tune, measure, write. A call goes on where an earlier one was stopped."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from posembed._version import __version__
from posembed.checkpoints.live import resize_model_
from posembed.checkpoints.resize import MODEL_CARD, NOT_TRAINED, Resize, resize_checkpoint
from posembed.errors import CheckpointError
from posembed.evaluation.api import device_named
from posembed.evaluation.pictures import open_image_model
from posembed.evaluation.results import Evaluation, ResultsFile
from posembed.evaluation.runnable import Runnable, open_runnable
from posembed.files import flush_one, remove, renamed, write_whole
from posembed.measure.jobs import Progress, Store, silent
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint
from posembed.modelfiles.copies import RECORD, refuse_full_disk, refuse_unsafe_place, whole_copy
from posembed.modelfiles.folders import other_files
from posembed.modelfiles.json_files import json_text, read_json
from posembed.statistics import Estimate, estimate
from posembed.tuning.objectives import RESIZED, Objective, Setup
from posembed.tuning.remedies import memory, too_large, writing
from posembed.tuning.result import Tuned, means, with_seeds
from posembed.tuning.settings import MINUTES, TuneSettings, folder_of
from posembed.tuning.trainable import Trainable, rows_moved, trainable

PROBED = 3
"""Windows that are timed before a fine-tuning, after one that is not."""
SHARE_OF_READING = 0.35
"""The time to read tokens, as a share of the time to train on them."""
READINGS = {"tuned": 3, "old": 4}
"""How often the held-out documents are read at the new length, and at the old."""
STATE = "state.json"
COPIES = 3
"""Copies of the weights in a checkpoint of the Trainer: the weights, and two averages of AdamW."""
SMALLER_RATES = "give a smaller --learning-rate or --rows-learning-rate, and another OUT"


@dataclass(frozen=True, eq=False)
class TunePlan:
    """A fine-tuning before it is run.

    starts: the loss of each method that was tried for the new rows, if the method was chosen here.
    """

    source: str | Path
    out: Path
    setup: Setup
    objective: Objective
    resize: Resize
    store: Store
    hashes: Mapping[str, str]
    starts: Mapping[str, float] = field(default_factory=dict)

    @property
    def settings(self) -> TuneSettings:
        return self.setup.settings

    @property
    def texts(self) -> Any:
        return self.setup.texts

    @property
    def original(self) -> Runnable:
        return self.setup.original

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
        beside = place_beside(self.out, self.setup.old_length)
        return {which: self.out if which == "tuned" else beside for which in self.lengths}

    def refuse_places(self) -> None:
        """Raises CheckpointError if a folder to write exists, unless this fine-tuning wrote it."""
        kept, _ = other_files(self.original.checkpoint)
        for place in self.places.values():
            refuse_unsafe_place(self.original.checkpoint, place)
            if not self.wrote(place):
                refuse_existing(place)
        if not self.store.begun:
            copies = 1 + len(self.lengths) * (1 + self.settings.seeds) + 2 * COPIES
            refuse_full_disk(self.original.checkpoint, kept, self.out, copies=copies)

    def wrote(self, place: Path) -> bool:
        with suppress(CheckpointError, KeyError, IndexError, TypeError, AttributeError):
            last = read_json(place / RECORD)["tunings"][-1]
            settings = json.loads(json.dumps(self.settings.to_dict()))
            return self.store.begun and (last["hashes"], last["settings"]) == (self.hashes, settings)
        return False

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
        self.refuse_places()  # another process may have begun or finished since this was planned
        with writing(self.store.path), self.store.locked():
            size = size_of(self.original, self.settings)
            self.store.once(RESIZED, lambda place: resize_checkpoint(self.source, place, **size))
            self.objective.prepare(self.store, progress)
            steps = self.steps()
            for seed in self.seeds:
                for which in self.lengths:
                    self.store.once(name_of(which, seed), partial(self.tune, which, seed, steps, progress))
            tuned = self.measured(steps, progress)
            for which, place in self.places.items():
                if not self.wrote(place):
                    self.write(which, place, tuned)
        return tuned

    def place(self, which: str, seed: int) -> Path:
        """Returns the folder that keeps a fine-tuned checkpoint."""
        return self.store.path / name_of(which, seed)

    def start(self, which: str) -> Runnable:
        """Returns the checkpoint that a fine-tuning starts from."""
        return self.opened(self.store.path / RESIZED) if which == "tuned" else self.original

    def opened(self, place: Path) -> Runnable:
        return open_image_model(place) if self.original.kind == "images" else open_runnable(place)

    def steps(self) -> int:
        """Returns the number of steps. Minutes are turned into steps once, so that a continued run has as many."""
        if self.settings.steps is not None:
            return self.settings.steps

        def count(place: Path) -> None:
            write_whole(place, json.dumps({"steps": int(self.estimate()["steps"])}).encode(), refusal=None)

        state = self.store.once(STATE, count)
        try:
            return int(read_json(state)["steps"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{state} is damaged; remove {self.store.path} to start again") from error

    def trainable(self, which: str, start: Runnable, seed: int) -> Trainable:
        model = start.model(device_named(self.setup.device))
        return trainable(model, start.checkpoint, self.settings, self.resize.edit, resized=which == "tuned", seed=seed)

    @cached_property
    def per_step(self) -> dict[str, float]:
        return {which: self.seconds_per_step(which) for which in self.lengths}

    def seconds_per_step(self, which: str) -> float:
        """Times the loss and its gradients of a few windows. Writes nothing."""
        model: Any = self.original.model(device_named(self.setup.device)).float()
        if which == "tuned":
            resize_model_(model, **size_of(self.original, self.settings))
        times, length = [], self.lengths[which]
        for item in range(1 + PROBED):
            began = time.perf_counter()
            with memory(too_large(length, self.original)):
                self.objective.loss(model, [item], length=length, seed=self.settings.seed).backward()
            times.append(time.perf_counter() - began)
        return min(times[1:]) * self.settings.batch

    def estimate(self) -> dict[str, float]:
        """Returns the number of steps, and the estimated seconds of each part of a run on this machine. The steps take
        what the minutes leave beside the other parts, but there is at least one."""
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
        from posembed.tuning.trainer import StepTrainer

        start, length = self.start(which), self.lengths[which]
        name = f"fine-tuning at {length:,}{f', seed {seed}' if len(self.seeds) > 1 else ''}"
        folder, batch = place.with_name(f"{place.name}-steps"), self.settings.batch
        for parts in [parts for parts in range(1, batch + 1) if batch % parts == 0]:
            trained = self.trainable(which, start, seed)
            with memory(too_large(length, self.original), retried=parts < batch):
                trainer = StepTrainer(
                    trained,
                    self.objective,
                    self.settings,
                    folder=folder,
                    steps=steps,
                    length=length,
                    seed=seed,
                    device=self.setup.device,
                    parts=parts,
                )
                trainer.run(lambda done: progress(name, done, steps))
                break
        changed = trained.changed(start.checkpoint)
        if not_finite := [key for key, value in changed.items() if not all_finite(value)]:
            dtype = str(changed[not_finite[0]].dtype).removeprefix("torch.")
            raise CheckpointError(
                f"after step {steps}, {not_finite[0]} has values that are not finite in {dtype}, as in its file; "
                f"{SMALLER_RATES}; nothing was written to {self.out}"
            )
        with whole_copy(start.checkpoint, place) as copy:
            copy.write(tensors=changed, documents={})
        remove(folder)

    def measured(self, steps: int, progress: Progress) -> Tuned:
        kept = ResultsFile(self.store.path / "evaluations.jsonl")
        original = replace(self.original, name=str(self.source))
        found, near = list[Evaluation](), list[Estimate]()
        too_much = (
            "the measurement does not fit into memory; free some or give another --device, and repeat the command"
        )
        too_much += f"; it continues from {self.store.path}"
        for seed in self.seeds:
            made = {
                which: replace(self.opened(self.place(which, seed)), name=str(place))
                for which, place in self.places.items()
            }
            with memory(too_much):
                plan = self.objective.plan(made["tuned"], original, made.get("old"), kept)
                plan = replace(plan, seed=seed, remedy=f"the fine-tuned models are in {self.store.path}")
                found.append(plan.run(progress))
                if (of_seed := self.objective.kept(made["tuned"])) is not None:
                    near.append(of_seed)
        names = {which: str(place) for which, place in self.places.items()}
        cosine = estimate(means([each.values for each in near])) if near else None
        resized = open_checkpoint(self.store.path / RESIZED)
        keys, old_rows = [change.key for change in self.resize.edit.tables], self.resize.edit.target.length[0]
        moved = tuple(
            rows_moved(resized, open_checkpoint(self.place("tuned", seed)), keys, old=old_rows) for seed in self.seeds
        )
        tuned = Tuned(
            self.out,
            self.settings,
            steps,
            with_seeds(found),
            names,
            kept=cosine,
            chunked=self.objective.chunked,
            old_length=self.setup.old_length,
            old_rows=old_rows,
            moved=moved,
        )
        self.refuse_not_finite(tuned)
        return tuned

    def refuse_not_finite(self, tuned: Tuned) -> None:
        """Raises CheckpointError if a candidate has no values on the held-out texts, because its outputs are not
        finite."""
        lacking = [row.checkpoint for row in tuned.candidates if row.estimate(tuned.measure, tuned.length) is None]
        if tuned.kept is not None and not math.isfinite(tuned.kept.value):
            lacking.append(tuned.names["tuned"])
        if lacking:
            raise CheckpointError(
                f"{lacking[0]}: its outputs are not finite where the result is measured, after step {tuned.steps}; "
                f"{SMALLER_RATES}; the fine-tuned models are in {self.store.path}"
            )

    def write(self, which: str, place: Path, tuned: Tuned) -> None:
        """Writes a fine-tuned checkpoint with its record and the model card's paragraph.

        It is written into the store and then renamed, so that a kill leaves nothing beside ``place``.
        """
        checkpoint = open_checkpoint(self.place(which, self.settings.seed))

        def copied(whole: Path) -> None:
            with whole_copy(checkpoint, whole) as copy:
                copy.write(tensors={}, documents=dict(self.documents(which, checkpoint, tuned)))

        if os.path.lexists(place) or not renamed(self.store.once(f"whole-{which}", copied), place):
            raise CheckpointError(
                f"{place}: something else was written there during the fine-tuning; move it away, and repeat the "
                f"command; it continues from {self.store.path}"
            )
        with suppress(OSError):
            flush_one(place.parent)

    def documents(self, which: str, checkpoint: Checkpoint, tuned: Tuned) -> Iterator[tuple[Path, str]]:
        path = checkpoint.root / RECORD
        record = read_json(path) if path.exists() else {}
        entry = {
            "source": Path(self.source).name if Path(self.source).exists() else str(self.source),
            "time": int(time.time()),
            "length": self.lengths[which],
            "steps": tuned.steps,
            "settings": self.settings.to_dict(),
            "hashes": self.hashes,
            "posembed": __version__,
        }
        yield Path(RECORD), json_text({**record, "tunings": [*record.get("tunings", []), entry]})
        card = checkpoint.root / MODEL_CARD
        before = card.read_bytes().decode("utf-8", "surrogateescape") if card.is_file() else ""
        before = before.replace(f"{NOT_TRAINED}\n", "").rstrip("\n")
        yield Path(MODEL_CARD), before + "\n\n" * bool(before) + tuned.card_paragraph(self.lengths[which])


def store_of(out: Path, settings: TuneSettings, hashes: Mapping[str, str]) -> Store:
    return Store(folder_of(out), {"question": "tune", **settings.to_dict(), **hashes}, own=["*"])


def name_of(which: str, seed: int) -> str:
    return f"seed-{seed}-{which}"


def place_beside(out: Path, old_length: int) -> Path:
    """Returns the folder of the fine-tuning at the old length."""
    return out.with_name(f"{out.name}-at-{old_length}")


def refuse_existing(place: Path) -> None:
    if os.path.lexists(place):
        raise CheckpointError(f"{place}: it exists; choose another OUT, or remove it yourself")


def all_finite(value: Tensor) -> bool:
    if not value.is_floating_point():
        return True
    return bool((value.float() if value.element_size() == 1 else value).isfinite().all())


def size_of(original: Runnable, settings: TuneSettings) -> dict[str, Any]:
    """Returns the arguments of a resize."""
    size = {"image_size" if original.kind == "images" else "length": settings.length}
    return {**size, "method": settings.method}
