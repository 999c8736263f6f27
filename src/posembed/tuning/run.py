"""``posembed.tune_checkpoint``: resizes a checkpoint, fine-tunes it on long texts, and measures whether it paid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from posembed._version import __version__
from posembed.checkpoints.resize import MODEL_CARD, Resize, plan_resize, resize_checkpoint
from posembed.errors import ArgumentError, CheckpointError
from posembed.evaluation.api import check, device_named, is_list, is_path
from posembed.evaluation.measures import MEASUREMENTS
from posembed.evaluation.results import ResultsFile
from posembed.evaluation.runnable import Runnable, open_runnable
from posembed.evaluation.texts import read_documents, special_tokens
from posembed.files import remove
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint
from posembed.modelfiles.copies import RECORD, refuse_full_disk, refuse_unsafe_place, whole_copy
from posembed.modelfiles.folders import other_files
from posembed.modelfiles.json_files import json_text, read_json
from posembed.tuning.objectives import Objective, Progress, Setup, objective_of
from posembed.tuning.own import identity
from posembed.tuning.result import Tuned, over_seeds
from posembed.tuning.settings import MINUTES, TuneSettings
from posembed.tuning.staging import Staging
from posembed.tuning.texts import Texts, split
from posembed.tuning.trainable import Trainable, trainable

FEWEST_HELD_OUT = 5
"""Held-out documents below which an interval tells little."""
PROBED = 2
"""Windows that are timed before a fine-tuning, after one that is not."""


def tune_checkpoint(
    source: str | Path,
    out: str | Path,
    text: str | Path | Sequence[str | Path],
    *,
    objective: Any = None,
    device: str | None = None,
    progress: Progress = lambda name, done, total: None,
    **settings: Any,
) -> Tuned:
    """Resizes a checkpoint, fine-tunes it on long texts, and measures whether the longer table pays.

    Measures on held-out documents, against the original model, which truncates or chunks them, and against the same
    fine-tuning at the old length with the same tokens.

    Args:
        source: a folder in the format of transformers or sentence-transformers, or a hub name: a causal or masked
            language model, or a sentence encoder.
        out: the new folder. It is complete or absent. The same call continues after a kill.
        text: a file, several files, or a folder. A file is split into documents at WikiText titles, or else at blank
            lines; each file of a folder is one document.
        objective: your own loss, a function of (model, ids (B, L), mask (B, L)), or a class with the methods of
            ``posembed.tuning.objectives.Objective``. Default: the objective of the model's kind.
        device: the device that runs the models. Default: an accelerator if available.
        progress: a function of what is running, the amount done and the total amount.
        settings: the fields of ``posembed.tuning.settings.TuneSettings``; length is required.

    Raises:
        ArgumentError: an argument cannot be used.
        CheckpointError: the checkpoint cannot be fine-tuned, or files cannot be written.
        DataError: the text cannot be read or is too short.
    """
    return plan_tuning(source, out, text, TuneSettings(**settings), objective=objective, device=device).run(progress)


def plan_tuning(
    source: str | Path,
    out: str | Path,
    text: str | Path | Sequence[str | Path],
    settings: TuneSettings,
    *,
    objective: Any = None,
    device: str | None = None,
) -> TunePlan:
    """Returns the plan of ``tune_checkpoint``, with its arguments and errors. Writes nothing."""
    check(is_path(text) or is_list(text, is_path), "text", "the path of a file or a folder, or a list of paths", text)
    check(is_path(out), "out", "the path of a new folder", out)
    device_named(device)
    original, out = open_runnable(source), Path(out)
    old = original.old_length
    if old is None or original.length is None:
        raise CheckpointError(f"{source}: it has no length that a table limits; there is nothing to lengthen")
    if settings.length <= original.length:
        raise ArgumentError(
            f"length: expected more than {original.length:,} tokens, which {source} takes already; got "
            f"{settings.length:,}; choose a larger length, or train at this length with your own training code"
        )
    resize = plan_resize(
        original.checkpoint, original.checkpoint.root.name, length=settings.length, **methods(settings)
    )
    refuse_places(original.checkpoint, out, beside(out, original.length))
    tokenizer = original.tokenizer()
    around = sum(map(len, special_tokens(tokenizer)))
    texts = split(
        read_documents(text),
        tokenizer,
        width=settings.length - around,
        around=around,
        fewest=max(FEWEST_HELD_OUT, MEASUREMENTS[original.kind].fewest_texts),
        held_out=settings.held_out,
        seed=settings.seed,
    )
    setup = Setup(original, tokenizer, texts, settings, original.length, device)
    hashes = {"checkpoint": original.sha256, "texts": texts.sha256, "objective": identity(objective)}
    staging = Staging.of(out, settings, hashes)
    staging.refuse_other()
    return TunePlan(source, out, setup, objective_of(setup, objective), resize, staging)


def methods(settings: TuneSettings) -> dict[str, Any]:
    return {"method": settings.method}


def beside(out: Path, old_length: int) -> Path:
    """Returns the path of the same fine-tuning at the old length."""
    return out.parent / f"{out.name}-at-{old_length}"


def refuse_places(checkpoint: Checkpoint, *places: Path) -> None:
    kept, _ = other_files(checkpoint)
    for place in places:
        refuse_unsafe_place(checkpoint, place)
        if place.exists() or place.is_symlink():
            raise CheckpointError(f"{place}: it exists; choose another OUT")
        refuse_full_disk(checkpoint, kept, place)


@dataclass(frozen=True, eq=False)
class TunePlan:
    """A fine-tuning before it is run."""

    source: str | Path
    out: Path
    setup: Setup
    objective: Objective
    resize: Resize
    staging: Staging

    @property
    def settings(self) -> TuneSettings:
        return self.setup.settings

    @property
    def texts(self) -> Texts:
        return self.setup.texts

    @property
    def seeds(self) -> range:
        return range(self.settings.seed, self.settings.seed + self.settings.seeds)

    @cached_property
    def lengths(self) -> dict[str, int]:
        """The length at which each of the two fine-tunings reads the windows."""
        return {"tuned": self.settings.length, "old": self.setup.old_length}

    def run(self, progress: Progress = lambda name, done, total: None) -> Tuned:
        """Runs what earlier calls have not finished, writes OUT, and removes the folder of the unfinished run."""
        self.staging.open()
        path = self.staging.path
        if not (path / "resized").exists():
            resize_checkpoint(self.source, path / "resized", length=self.settings.length, **methods(self.settings))
        self.objective.prepare(path, progress)
        steps = self.steps()
        for seed in self.seeds:
            for which in self.lengths:
                if not self.place(which, seed).exists():
                    self.tune(which, seed, steps, progress)
        tuned = self.measured(steps, progress)
        for which, out in (("tuned", self.out), ("old", beside(self.out, self.setup.old_length))):
            self.write(which, out, tuned)
        self.staging.remove()
        return tuned

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON: what would be trained, on how many documents, for how long."""
        texts = self.texts
        return {
            "settings": self.settings.to_dict(),
            "old_length": self.setup.old_length,
            "training_documents": len(texts.training),
            "held_out_documents": len(texts.held_out),
            "shorter_documents": texts.short,
            "windows": len(texts.windows),
        }

    def place(self, which: str, seed: int) -> Path:
        return self.staging.path / f"seed-{seed}" / which

    def start(self, which: str) -> Runnable:
        """Returns the checkpoint that a fine-tuning starts from."""
        return open_runnable(self.staging.path / "resized") if which == "tuned" else self.setup.original

    def steps(self) -> int:
        """Returns the number of steps. Minutes are turned into steps once, so that a continued run has as many."""
        if self.settings.steps is not None:
            return self.settings.steps
        if "steps" not in self.staging.state:
            seconds = self.seconds_per_step("tuned", self.start("tuned"))
            minutes = MINUTES if self.settings.minutes is None else self.settings.minutes
            self.staging.keep(steps=max(1, int(60 * minutes / seconds)))
        return int(self.staging.state["steps"])

    def trainable(self, which: str, start: Runnable) -> Trainable:
        model = start.model(device_named(self.setup.device))
        edit = self.resize.edit if which == "tuned" else None
        return trainable(model, start.checkpoint, self.settings, edit)

    def seconds_per_step(self, which: str, start: Runnable) -> float:
        """Times the loss and its gradients of a few windows."""
        trained, length = self.trainable(which, start), self.lengths[which]
        times = []
        for item in range(1 + PROBED):
            began = time.perf_counter()
            self.objective.loss(trained.model, [item], length=length, seed=self.settings.seed).backward()
            times.append(time.perf_counter() - began)
        return min(times[1:]) * self.settings.batch

    def tune(self, which: str, seed: int, steps: int, progress: Progress) -> None:
        from posembed.tuning.trainer import train

        start, place, length = self.start(which), self.place(which, seed), self.lengths[which]
        trained = self.trainable(which, start)
        name = f"fine-tuning at {length:,}{f', seed {seed}' if len(self.seeds) > 1 else ''}"
        folder = place.with_name(f"{which}-steps")
        train(
            trained,
            self.objective,
            self.settings,
            folder=folder,
            steps=steps,
            length=length,
            seed=seed,
            device=self.setup.device,
            tick=lambda done: progress(name, done, steps),
        )
        with whole_copy(start.checkpoint, place) as copy:
            copy.write(tensors=trained.changed(start.checkpoint), documents={})
        remove(folder)

    def measured(self, steps: int, progress: Progress) -> Tuned:
        kept = ResultsFile(self.staging.path / "evaluations.jsonl")
        original = replace(self.setup.original, name=str(self.source))
        names = {"tuned": str(self.out), "old": str(beside(self.out, self.setup.old_length))}
        found = []
        for seed in self.seeds:
            tuned, old = (replace(open_runnable(self.place(which, seed)), name=names[which]) for which in names)
            plan = self.objective.plan(tuned, original, old, kept)
            found.append(self.objective.by_document(plan.run(progress)))
        return Tuned(self.out, self.settings, steps, over_seeds(found), tuple(found), names["tuned"], names["old"])

    def write(self, which: str, out: Path, tuned: Tuned) -> None:
        """Writes a fine-tuned checkpoint with its record and the model card's paragraph."""
        if out.exists():  # written before a kill
            return
        checkpoint = open_checkpoint(self.place(which, self.settings.seed))
        with whole_copy(checkpoint, out) as copy:
            copy.write(tensors={}, documents=dict(self.documents(which, checkpoint, tuned)))

    def documents(self, which: str, checkpoint: Checkpoint, tuned: Tuned) -> Iterator[tuple[Path, str]]:
        path = checkpoint.root / RECORD
        record = read_json(path) if path.exists() else {}
        entry = {
            "source": Path(self.source).name if Path(self.source).exists() else str(self.source),
            "time": int(time.time()),
            "length": self.lengths[which],
            "steps": tuned.steps,
            "settings": self.settings.to_dict(),
            "hashes": self.staging.hashes,
            "posembed": __version__,
        }
        yield Path(RECORD), json_text({**record, "tunings": [*record.get("tunings", []), entry]})
        card = checkpoint.root / MODEL_CARD
        before = card.read_bytes().decode("utf-8", "surrogateescape").rstrip("\n") + "\n\n" if card.is_file() else ""
        yield Path(MODEL_CARD), before + tuned.card_paragraph(self.lengths[which])
