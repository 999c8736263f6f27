"""The docstring of every public name: its example runs, and it gives shapes and errors."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from posembed.errors import PosEmbedError
from public_names import public_names
from together import together

NAMES = {name: value for name, value in public_names().items() if callable(value)}
"""Without ``PADDING`` and ``ENCODINGS``, which are values."""
RAISE_NOTHING = {"Comparison", "Declaration", "Finding", "gpt2_init_"}
SHAPE = re.compile(r"\((?:\.\.\.|\d+|[A-Z]\w*)(?: [-+x] \w+)*(?:,[^)]*)?\)|torch\.Size")


def docstrings(value: Any) -> str:
    """The docstring of a function; of a class also those of its methods."""
    own = [inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        own += [inspect.getdoc(method) or "" for _, method in inspect.getmembers(value, inspect.isfunction)]
    return "\n".join(own)


@together("name", NAMES)
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    docstring = inspect.getdoc(NAMES[name]) or ""
    example = doctest.DocTestParser().get_doctest(docstring, {}, name, None, None)
    assert example.examples, f"{name} has no example"
    said: list[str] = []
    torch.manual_seed(0)
    assert doctest.DocTestRunner().run(example, out=said.append).failed == 0, "".join(said)


@together("name", NAMES)
def test_errors_are_listed(name: str) -> None:
    value = NAMES[name]
    if not (inspect.isclass(value) and issubclass(value, PosEmbedError)) and name.split(".")[-1] not in RAISE_NOTHING:
        assert "Raises:" in (inspect.getdoc(value) or ""), f"{name} does not say what it raises"


@together("name", NAMES)
def test_shapes_are_given(name: str) -> None:
    value = NAMES[name]
    takes_tensors = inspect.isclass(value) and issubclass(value, torch.nn.Module)
    takes_tensors |= inspect.isfunction(value) and "Tensor" in str(inspect.signature(value))
    assert not takes_tensors or SHAPE.search(docstrings(value)), f"{name} gives no shape"
