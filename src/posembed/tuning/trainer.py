"""One fine-tuning by the Trainer of transformers, which continues from its last checkpoint after a kill."""

from __future__ import annotations

import json
import math
import signal
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import patch_environment
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from posembed.checkpoints.sources.base import quiet
from posembed.errors import CheckpointError
from posembed.measure.jobs import delayed_signals
from posembed.measure.processes import ALONE, Processes
from posembed.tuning.draws import number_of
from posembed.tuning.objectives import Objective
from posembed.tuning.settings import TuneSettings
from posembed.tuning.trainable import Trainable

SECONDS_BETWEEN_CHECKPOINTS = 60.0
WEIGHTS = "trained.safetensors"
STATE = "trainer_state.json"
PICKLES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
"""Files that the Trainer writes beside these two."""

Tick = Callable[[int], None]
"""A function that is called with the number of steps done."""


class StepTrainer(Trainer):
    """A Trainer whose batches are the next items of an objective, and whose checkpoints hold only what is trained.

    folder: where the checkpoints are. length: the tokens of a piece that is read at once. parts: the number of parts of
    a batch, which are read one after the other. processes: each reads an equal share of a batch; the first writes the
    checkpoints.
    """

    def __init__(
        self,
        trained: Trainable,
        objective: Objective,
        settings: TuneSettings,
        *,
        folder: Path,
        steps: int,
        length: int,
        seed: int,
        device: str | None,
        parts: int,
        processes: Processes = ALONE,
    ) -> None:
        self.trained, self.objective, self.pieces, self.folder = trained, objective, (length, seed), folder
        self.processes, batch = processes, settings.batch // processes.count
        if str(device).startswith("cuda:"):
            torch.cuda.set_device(device)
        on_gpu = (device is None and torch.cuda.is_available()) or str(device).startswith("cuda")
        half = on_gpu and torch.cuda.is_bf16_supported()
        current = torch.device("cuda", torch.cuda.current_device()) if on_gpu else None
        # A precision in the environment would change the result. Gradients are averaged below, because an objective may
        # call any part of the model, of which accelerate would not know.
        known = {"ACCELERATE_MIXED_PRECISION": "bf16" if half else "no", "LOCAL_RANK": "-1", "WORLD_SIZE": "1"}
        with patch_environment(**known), quiet():
            arguments = TrainingArguments(
                output_dir=str(folder),
                max_steps=steps,
                per_device_train_batch_size=batch // parts,
                gradient_accumulation_steps=parts,
                max_grad_norm=settings.clip,
                lr_scheduler_type="cosine",
                # The first step of a warmup has the rate 0, so a single step must have none.
                warmup_steps=min(math.ceil(settings.warmup * steps), steps - 1),
                bf16=half,
                seed=settings.seed,
                use_cpu=device == "cpu",
                save_strategy="no",
                save_total_limit=2,
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                remove_unused_columns=False,
                dataloader_pin_memory=False,
            )
            arguments._n_gpu = min(arguments.n_gpu, 1)  # a batch is too small to be split between devices
            if current not in (None, vars(arguments)["_setup_devices"]):  # the Trainer takes the first GPU
                vars(arguments)["_setup_devices"] = current
                torch.cuda.set_device(current)
            optimizer = torch.optim.AdamW(trained.groups, weight_decay=0.0)
            items: Any = [
                {"item": step * settings.batch + processes.rank * batch + item}
                for step in range(steps)
                for item in range(batch)
            ]
            super().__init__(trained.model, arguments, train_dataset=items, optimizers=(optimizer, None))
        self.remove_callback(PrinterCallback)

    def run(self, tick: Tick) -> None:
        """Trains the model in place, and continues from the last checkpoint in the folder.

        Raises CheckpointError if the loss is not finite, and KeyboardInterrupt, after writing a checkpoint, on Ctrl-C.
        """
        with delayed_signals() as signals:
            self.add_callback(Keeper(tick, signals, self.processes))
            self.train(resume_from_checkpoint=self.processes.first(lambda: last_checkpoint(self.folder)))
            self.processes.first(lambda: None)  # no process ends before the checkpoint is written

    def _get_train_sampler(self, *dataset: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], *others: Any, **named: Any) -> Tensor:
        (length, seed), items = self.pieces, inputs["item"].tolist()
        torch.manual_seed(number_of(seed, f"item {items[0]}"))  # for what a model draws itself
        loss = self.objective.loss(model, items, length=length, seed=seed)
        if self.processes.any(not loss.isfinite()):  # before the step changes any weight
            checkpoint = last_checkpoint(self.folder)
            kept = f"its last checkpoint is {checkpoint}" if checkpoint else "there is no checkpoint"
            raise CheckpointError(
                f"the loss of step {self.state.global_step + 1} is not finite; give a smaller --learning-rate or "
                f"--rows-learning-rate, and another OUT; {kept}"
            )
        return loss.to(self.args.device)

    def training_step(self, *given: Any, **named: Any) -> Tensor:
        loss = super().training_step(*given, **named)
        if self.accelerator.sync_gradients:  # the last part of a batch
            held = (each.grad for group in self.trained.groups for each in group["params"])
            self.processes.average_(grad for grad in held if grad is not None)
        return loss

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.processes.rank:
            return
        try:
            super()._save_checkpoint(model, trial)
        except RuntimeError as error:  # torch.save, which does not say why it cannot write
            raise OSError("PyTorch cannot write a checkpoint there; the disk may be full") from error

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        values = {name: value.detach().contiguous() for name, value in self.trained.parameters.items()}
        save_file(values, folder / WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        values = load_file(Path(resume_from_checkpoint) / WEIGHTS)
        with torch.no_grad():
            for name, parameter in self.trained.parameters.items():
                parameter.copy_(values[name])


class Keeper(TrainerCallback):
    """Writes a checkpoint every minute and on Ctrl-C, which also stops all processes after the current step. Reports
    the steps."""

    def __init__(self, tick: Tick, signals: list[int], processes: Processes) -> None:
        self.tick, self.signals, self.processes = tick, signals, processes
        self.due = time.monotonic() + SECONDS_BETWEEN_CHECKPOINTS

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.tick(state.global_step)
        if self.processes.any(bool(self.signals)):
            self.signals[:] = self.signals or [signal.SIGINT]
            control.should_save = control.should_training_stop = True
        elif time.monotonic() > self.due:
            self.due = time.monotonic() + SECONDS_BETWEEN_CHECKPOINTS
            control.should_save = True


def last_checkpoint(folder: Path) -> str | None:
    """Returns the last complete checkpoint: the Trainer writes its state last, but a power failure may truncate any
    file."""
    found: dict[int, Path] = {}
    for path in folder.glob(f"checkpoint-*/{STATE}"):
        with suppress(ValueError, KeyError, TypeError, OSError, SafetensorError):
            step = int(json.loads(path.read_text(encoding="utf-8"))["global_step"])
            load_file(path.parent / WEIGHTS)
            if all(zipfile.is_zipfile(path.parent / name) for name in PICKLES):
                found[step] = path.parent
    return str(found[max(found)]) if found else None
