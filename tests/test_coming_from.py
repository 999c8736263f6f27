"""docs/coming-from.md: every call in its tables runs, after the page's own code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import posembed
from posembed.calls import OTHER_CLASSES

PAGE = Path(__file__).parents[1] / "docs" / "coming-from.md"
NAMES = """
from posembed import *
from posembed import inputs
from posembed.layers import *
from posembed.tables import *
from posembed.nn import Decoder
from posembed.positions import *
import torch
from torch import nn
"""


def calls(text: str) -> list[str]:
    """The code in the last column of every table."""
    rows = [line.rstrip("|").rsplit(" | ", 1)[-1] for line in text.splitlines() if line.startswith("| ")]
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row) if not code.startswith("--")]


def test_every_call_in_a_table_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    shown = calls(text)
    assert len(shown) > 30
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for each in (*code, NAMES, *shown):
        exec(compile(each, each, "exec"), names)


def test_names_of_other_libraries_are_answered_with_ours() -> None:
    for here, theirs in OTHER_CLASSES.items():
        for name in theirs.split():
            with pytest.raises(ImportError, match=f"posembed has no {name}: here it is posembed.(layers.)?{here} "):
                exec(f"from posembed import {name}")
            assert here in {*posembed.__all__, *posembed.MODULES, *posembed.layers.__all__}
    for name, home in {
        "TableLayout": "tables",
        "from_mask": "positions",
        "Decoder": "nn",
        "BertInput": "inputs",
    }.items():
        with pytest.raises(ImportError, match=rf"posembed has no {name}: here it is posembed\.{home}\.{name} "):
            exec(f"from posembed import {name}")
    with pytest.raises(ImportError, match=r"here it is posembed\.LearnedPositionalEmbedding"):
        exec("from posembed import LearnedPositionalEmbeding")
    for name in ("anything", "_private", "Rotary", "transformer", "layers.rotary"):
        assert not hasattr(posembed, name)


def test_a_star_import_leaves_other_modules_alone() -> None:
    names: dict[str, object] = {}
    exec("from torch import nn\nfrom posembed import *", names)
    assert names["nn"] is torch.nn
    assert not {*posembed.MODULES} & names.keys() - {"nn"}


def test_the_names_of_every_day() -> None:
    """A longer list is none that one can know. The others are one level down."""
    assert len({*posembed.__all__, *posembed.MODULES} - {"__version__"}) <= 28


def test_a_state_with_other_names_is_answered_with_the_call_that_reads_it() -> None:
    layer = posembed.LearnedPositionalEmbedding(max_len=8, dim=4)
    with pytest.raises(RuntimeError, match="from_state_dict or from_module of the layer"):
        layer.load_state_dict({"pe.weight": torch.zeros(8, 4)})
    assert layer.load_state_dict({}, strict=False).missing_keys == ["weight"]
    with pytest.raises(posembed.errors.ArgumentError, match=r"\.rows\(position_ids\)"):
        layer(torch.zeros(8, 4))
    with pytest.raises(posembed.errors.ArgumentError, match="max_len="):
        posembed.nn.Decoder(dim=8, heads=2, layers=1, encoding="learned")
    with pytest.raises(posembed.PosEmbedError, match=r"max_len=64, dim=512.*or .*max_len=512, dim=64"):
        posembed.LearnedPositionalEmbedding(64, 512)
