"""Claim: reading, splitting and tokenizing a million short documents takes less than 20 s and 2 GiB, and the time grows
linearly.

    python benchmarks/many_documents.py
    python benchmarks/many_documents.py --documents 100000    # to try it out

Measures two kinds of data, each in a fresh process: a dataset of rows of text, as `posembed compare lengths --data
hf:...` reads it, and a CSV file of labelled texts, as `posembed compare tasks text --data` does. The time includes the
conversion of the file by the `datasets` library. The memory is the peak of the process, including torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pages

SECONDS, GIBIBYTES = 20.0, 2.0
LINEAR = 1.5
"""The largest allowed growth of the time per document from a quarter of the documents to all of them."""

MEASURED = """
import json, resource, sys, time
import datasets, torch, tokenizers  # what any run loads
from posembed.lab.data.labelled import load_labelled
from posembed.lab.data.text import load_corpus
from posembed.lab.tasks.classification import TextClassification
datasets.disable_progress_bars()
started = time.perf_counter()
if sys.argv[1] == "text":
    load_corpus("hf:" + sys.argv[2])
else:
    TextClassification(load_labelled(sys.argv[2]), "bytes")
seconds = time.perf_counter() - started
print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


def text_of(number: int) -> str:
    apples, pears = number % 977, number % 89
    return f"document {number}: {apples} apples and {pears} pears make {apples + pears} fruits"


def write_rows(folder: Path, count: int) -> Path:
    folder.mkdir()
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for number in range(count):
            file.write(json.dumps({"text": text_of(number)}) + "\n")
    return folder


def write_table(path: Path, count: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        file.write("text,label\n")
        for number in range(count):
            file.write(f"{text_of(number)},{'even' if number % 2 == 0 else 'odd'}\n")
    return path


def measure(kind: str, data: Path, cache: Path) -> tuple[float, float]:
    """Returns the seconds and the peak GiB of a fresh process."""
    environment = os.environ | {"HF_DATASETS_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", MEASURED, kind, str(data)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds, size = json.loads(done.stdout.splitlines()[-1])
    return seconds, size / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    most = parser.parse_args().documents

    rows, verdicts = [], []
    with tempfile.TemporaryDirectory() as place:
        for kind, name in (("text", "rows of text"), ("labels", "labelled texts")):
            each = []
            for count in (most // 4, most // 2, most):
                where = Path(place) / f"{kind}-{count}"
                data = write_rows(where, count) if kind == "text" else write_table(where.with_suffix(".csv"), count)
                seconds, size = measure(kind, data, Path(place) / "cache")
                each.append(seconds / count)
                rows.append([f"{count:,} {name}", f"{seconds:.1f}", f"{size:.2f}", f"{1e6 * each[-1]:.1f}"])
            for holds, claim in (
                (seconds <= SECONDS, f"{name}: {seconds:.1f} s, at most {SECONDS:g} s"),
                (size <= GIBIBYTES, f"{name}: {size:.2f} GiB, at most {GIBIBYTES:g} GiB"),
                (
                    each[-1] <= LINEAR * each[0],
                    f"{name}: {each[-1] / each[0]:.2f} times as long per document as for a quarter of them",
                ),
            ):
                verdicts.append(f"- {claim}: {'holds' if holds else 'DOES NOT HOLD'}.")
    lines = ["# Many documents", "", "    python benchmarks/many_documents.py", "", pages.machine(), ""]
    lines += pages.table(["", "s", "GiB at most", "µs per document"], rows)
    pages.write("many_documents", [*lines, *verdicts], keep=most == parser.get_default("documents"))


if __name__ == "__main__":
    main()
