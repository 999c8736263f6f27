"""Claim: `import posembed` and `posembed --help` load no torch, and take a small part of the time of torch's import.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 2    # to try it out

Each command runs in a fresh process, and all of them take turns; `pass` is the interpreter alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import pages

from posembed.lab.cost.instruments import ratio, take_turns
from posembed.statistics import Estimate

COMMANDS = {
    "`pass`": ["-c", "pass"],
    "`import posembed`": ["-c", "import posembed"],
    "`posembed --version`": ["-m", "posembed", "--version"],
    "`posembed --help`": ["-m", "posembed", "--help"],
    "`posembed compare lengths --help`": ["-m", "posembed", "compare", "lengths", "--help"],
    "`from posembed import LearnedPositionalEmbedding`": ["-c", "from posembed import LearnedPositionalEmbedding"],
    "`import torch`": ["-c", "import torch"],
}
TORCH = "`import torch`"
AT_MOST = {"`import posembed`": 0.1, "`posembed --help`": 0.5}
"""The largest allowed shares of the time of torch's import."""


def run(arguments: list[str]) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def row(name: str, taken: Estimate, torch_taken: Estimate) -> list[str]:
    interval = "" if taken.low is None or taken.high is None else f"{1e3 * taken.low:.0f} to {1e3 * taken.high:.0f}"
    return [name, f"{1e3 * taken.value:.0f}", interval, f"{ratio(taken, torch_taken).value:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds

    steps = {name: lambda arguments=arguments: run(arguments) for name, arguments in COMMANDS.items()}
    times = take_turns(steps, seconds=0.0, fewest=rounds)
    lines = ["# Starting", "", "    python benchmarks/startup.py", "", pages.machine(), ""]
    lines += [f"Each command runs in a fresh process. Medians of {rounds} rounds in which all commands take turns.", ""]
    lines += pages.table(
        ["", "ms", "95 % interval", "of torch's import"],
        [row(name, times[name], times[TORCH]) for name in COMMANDS],
    )
    for name, share in AT_MOST.items():
        found = ratio(times[name], times[TORCH]).value
        word = "holds" if found <= share else "DOES NOT HOLD"
        lines.append(f"- {name}: {found:.2f} of torch's import, at most {share}: {word}.")
    pages.write("startup", lines, keep=rounds == parser.get_default("rounds"))


if __name__ == "__main__":
    main()
