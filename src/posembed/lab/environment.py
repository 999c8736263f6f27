"""The machine and the versions that a result depends on. No names of hosts or people."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from posembed._version import __version__

if TYPE_CHECKING:
    from accelerate import Accelerator


def describe_environment(accelerator: Accelerator | None = None) -> dict[str, str]:
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
        environment["processes"] = str(accelerator.num_processes)
        environment["device"] = accelerator.device.type
        if accelerator.device.type == "cuda":
            environment["device"] = torch.cuda.get_device_name(accelerator.device)
    return environment


def processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
