"""Runs the Python of pages from top to bottom, and writes what each block prints into the text block that follows it.

python tests/run_page.py docs/pitfalls.md
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fresh_process import run_python

WITH_OUTPUTS = (
    "README.md",
    *(f"docs/{name}.md" for name in ("index", "layers", "own-model", "pitfalls", "plots", "checkpoints")),
)
"""The pages that show what their Python prints."""
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", flags=re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
STEPS = re.compile(
    r"""(?<=in range\()\d{3,}|(?<=steps=)\d{3,}|(?<=steps\[)\d{3,}|(?<="steps": )\d{3,}|(?<="warmup": )\d{2,}"""
)
"""Numbers of training steps in code: a hundred or more, or ten or more to warm up."""
LESS = {
    '.glob("*.py")': '.glob("a*.py")',
    "-200_000": "-20_000",
    "-50_000": "-5_000",
    "test_tokens=8192": "test_tokens=1024",
    '"test_tokens": 8192': '"test_tokens": 1024',
}
"""Texts that are trained on or evaluated, and shorter ones."""
RUN = """
import contextlib, io, json, sys
blocks, names = json.loads(sys.argv[1]), {"__name__": "__main__"}
outputs = []
for block in blocks:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(block, names)
    outputs.append(printed.getvalue())
print(json.dumps(outputs))
"""


def blocks(text: str) -> list[tuple[str, str]]:
    """The Python blocks of a page, each with the output that the page shows for it."""
    return [(code, shown or "") for code, shown in BLOCK.findall(text)]


def shorter(code: str) -> str:
    """The same code, trained for a fiftieth of its steps, on less text."""
    for much, less in LESS.items():
        code = code.replace(much, less)
    return STEPS.sub(lambda number: str(max(int(number[0]) // 50, 1)), code)


def outputs(codes: list[str], folder: Path) -> list[str]:
    """What each block of Python prints, run in this folder one after the other. Warnings are errors."""
    done = run_python("-c", RUN, json.dumps(codes), cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def undone(folder: Path) -> Iterator[None]:
    """Code runs in this folder, and what it changes of its process is as before afterwards."""
    before, environment = Path.cwd(), dict(os.environ)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    logging = import_module("transformers.utils.logging") if find_spec("transformers") else None
    said = logging and (logging.get_verbosity(), logging.is_progress_bar_enabled())
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        if logging and said:
            logging.set_verbosity(said[0])
            (logging.enable_progress_bar if said[1] else logging.disable_progress_bar)()
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")


def outputs_here(codes: list[str], folder: Path) -> list[str]:
    """What ``outputs`` returns, of code that runs in this process, where what it imports is often imported already."""
    names, printed = {"__name__": "__main__"}, []
    with undone(folder):
        for code in codes:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(code, names)
            printed.append(out.getvalue())
    return printed


def agree(printed: str, shown: str, tolerance: float = 0.15) -> bool:
    """Whether two outputs have the same words, the same whole numbers, and others that machines may differ by."""

    def close(one: str, other: str) -> bool:
        one, other = one.replace(",", ""), other.replace(",", "")
        return one == other or ("." in one and math.isclose(float(one), float(other), rel_tol=tolerance, abs_tol=1e-4))

    if NUMBER.sub("#", printed).split() != NUMBER.sub("#", shown).split():
        return False
    return all(map(close, NUMBER.findall(printed), NUMBER.findall(shown)))


def same_words(printed: str, shown: str) -> bool:
    """Whether two outputs have the same kinds of lines, whatever the numbers in them and however often each comes."""

    def lines(text: str) -> set[str]:
        return {" ".join(line.split()) for line in re.sub(f"-?({NUMBER.pattern})", "#", text).splitlines()}

    return lines(printed) == lines(shown)


def with_outputs(text: str, printed: list[str]) -> str:
    each = iter(printed)

    def block(match: re.Match[str]) -> str:
        output = next(each)
        return f"```python\n{match[1]}```\n" + (f"\n```text\n{output}```\n" if output else "")

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        with TemporaryDirectory() as folder:
            text = page.read_text(encoding="utf-8")
            page.write_text(
                with_outputs(text, outputs([code for code, _ in blocks(text)], Path(folder))), encoding="utf-8"
            )
