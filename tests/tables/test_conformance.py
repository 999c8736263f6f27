"""docs/conformance.json, against the libraries that made it and against resize_table."""

from __future__ import annotations

import json
import sys
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

import timm_peer
from posembed.tables.layout import TableLayout
from posembed.tables.resize import resize_table
from posembed.tables.resize_methods import stretch
from tolerance import assert_close

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import conformance

FILE = json.loads(conformance.FILE.read_text(encoding="utf-8"))
MOST_BYTES = 40_000


def test_the_libraries_still_compute_these_values() -> None:
    timm_peer.vision_transformer()
    pytest.importorskip("transformers")
    assert FILE["tables"] == {name: conformance.listed(table) for name, table in conformance.tables().items()}
    made = conformance.document()["cases"]

    def what(case: dict[str, Any]) -> tuple[Any, ...]:
        library, _, call = case["made_by"].partition(": ")
        return case["method"], library.partition(" ")[0], call, case["table"], case["size"]

    assert [what(case) for case in FILE["cases"]] == [what({**case, "size": sized(case["size"])}) for case in made]
    for stored, now in zip(FILE["cases"], made, strict=True):
        assert_close(torch.tensor(now["expected"]), torch.tensor(stored["expected"]), msg=stored["made_by"])


def sized(size: Any) -> Any:
    return list(size) if isinstance(size, tuple) else size


def test_resize_table_gives_these_values() -> None:
    tables = {name: torch.tensor(table) for name, table in FILE["tables"].items()}
    for case in FILE["cases"]:
        table, size = tables[case["table"]], case["size"]
        method: Any = case["method"] if case["method"] != "stretch, keep=3" else partial(stretch, keep=3)
        if case["table"] == "line":
            new = resize_table(table, length=size, method=method)
        else:
            layout = TableLayout(grid=(len(table), len(table[0])))
            new = resize_table(table.flatten(0, 1), grid=tuple(size), method=method, layout=layout).unflatten(0, size)
        assert_close(new, torch.tensor(case["expected"]), msg=f"{case['method']}, {case['made_by']}, {size}")


def test_no_two_methods_agree_at_all_sizes() -> None:
    """Otherwise an implementation of the wrong one could pass. The cases of one method agree at all sizes."""
    found: dict[Any, dict[tuple[str, str], torch.Tensor]] = {}
    for case in FILE["cases"]:
        here = found.setdefault((case["table"], str(case["size"])), {})
        here[case["method"], case["made_by"]] = torch.tensor(case["expected"])
    agree: dict[frozenset[str], list[bool]] = {}
    for here in found.values():
        for ((one, _), ours), ((other, _), theirs) in combinations(here.items(), 2):
            agree.setdefault(frozenset({one, other}), []).append(bool(((ours - theirs).abs() < 1e-3).all()))
    assert all(all(alike) == (len(methods) == 1) for methods, alike in agree.items())
    assert conformance.FILE.stat().st_size < MOST_BYTES
