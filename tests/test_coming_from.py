"""docs/coming-from.md: every call in its tables runs, after the page's own code."""

from __future__ import annotations

import re
from pathlib import Path

from fresh_process import run_fresh

PAGE = Path(__file__).parents[1] / "docs" / "coming-from.md"
NAMES = """
from posembed import *
from posembed import inputs
from posembed.nn import Decoder
from posembed.positions import *
import torch
from torch import nn
"""


def calls(text: str) -> list[str]:
    """The code in the last column of every table."""
    rows = [line.rstrip("|").rsplit(" | ", 1)[-1] for line in text.splitlines() if line.startswith("| ")]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row) if not code.startswith("--")]


def test_every_call_in_a_table_runs(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    shown = calls(text)
    assert len(shown) > 30
    status, printed = run_fresh("\n".join([*code, NAMES, *shown]), tmp_path)
    assert status == 0, printed
