"""The device of a run, and the machine and versions that its result depends on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from posembed._version import __version__
from posembed.errors import ArgumentError
from posembed.versions import names_versions

if TYPE_CHECKING:
    from accelerate import Accelerator


LAST: dict[str, str | None] = {"precision": None}
"""The precision of the last Accelerator that ``make_accelerator`` made."""


def make_accelerator(
    precision: str = "no", device: str | None = None, *, track: str | None = None, tracking: Path | None = None
) -> Accelerator:
    """Returns an Accelerator on ``device``, or on the fastest device it finds. ``track`` (tensorboard or wandb) logs to
    the folder ``tracking``. Raises ArgumentError for a precision or device that this machine does not have."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, is_initialized

    if precision not in ("no", "bf16", "fp16"):
        raise ArgumentError(f'precision must be "no" (float32), "bf16" or "fp16", got {precision!r}')
    if device not in (None, "cpu", "cuda", "mps", "xpu"):
        raise ArgumentError(f"device must be cpu, cuda, mps or xpu, or left out; got {device!r}")
    # All Accelerators of a process share one precision. Only that of an earlier call is changed here, not the user's.
    earlier = AcceleratorState() if is_initialized() else None
    ours = earlier is not None and earlier.mixed_precision == LAST["precision"] and not earlier.use_distributed
    if ours and precision != LAST["precision"]:
        with names_versions("accelerate"):
            AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator(mixed_precision=precision, cpu=device == "cpu", log_with=track, project_dir=tracking)
    except ValueError as error:  # such as fp16 without a GPU
        raise ArgumentError(f"precision {precision} cannot be used here: {error}") from error
    LAST["precision"] = precision
    if device not in (None, accelerator.device.type):
        raise ArgumentError(f"this machine has no {device} device; Accelerate found {accelerator.device.type}")
    return accelerator


def describe_environment(accelerator: Accelerator | None = None) -> dict[str, str]:
    """Returns the versions and hardware to record with a run, without host or user names."""
    environment = {
        "posembed": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
    }
    if accelerator is not None:
        on_cuda = accelerator.device.type == "cuda"
        environment["processes"] = str(accelerator.num_processes)
        environment["device"] = torch.cuda.get_device_name(accelerator.device) if on_cuda else accelerator.device.type
    return environment


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
