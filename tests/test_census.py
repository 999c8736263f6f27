"""The census of position tables counts "no need" only where inspect, or a refusal of this table, says so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from census import needs
from census_families import rows_of
from transformers import ViTConfig, ViTModel

NO_NEED, UNKNOWN = "its rows are buckets, so they need no resize", "its rows are unknown"
TABLE = {"fixed": False, "shape": [8, 4], "sizes": []}


def result(outcome: str, inspected: dict[str, str], *calls: dict[str, Any]) -> dict[str, Any]:
    names = ("real", "bucket")
    return {"outcome": outcome, "tables": dict.fromkeys(names, TABLE), "keys": {name: name for name in names},
            "inspect": inspected, "calls": list(calls)}  # fmt: skip


def refused(why: str, *names: str) -> dict[str, Any]:
    return {"outcome": "refused", "tables": sorted(names), "why": why}


@pytest.mark.parametrize("names", [("real",), ("real", "bucket")])
@pytest.mark.parametrize(
    "first", ["no table is understood; found real (", "bucket: not resized: ", "real: not resized: "]
)
def test_a_refusal_that_mentions_another_table_is_no_lack_of_need(first: str, names: tuple[str, ...]) -> None:
    call = refused(f"{first}{UNKNOWN}); bucket ({NO_NEED})", *names)
    assert needs(result("refused", {"real": UNKNOWN, "bucket": NO_NEED}, call))["outcome"] == "refused"


def test_each_table_may_need_no_resize() -> None:
    assert needs(result("refused", dict.fromkeys(("real", "bucket"), NO_NEED)))["outcome"] == "no need"
    alone = refused(f"bucket: not resized: {NO_NEED}", "bucket")
    assert needs(result("refused", {"real": NO_NEED}, alone))["outcome"] == "no need"
    assert needs(result("refused", {"real": UNKNOWN}, alone))["outcome"] == "refused"
    resized = {"outcome": "resized", "tables": ["real"], "resized": ["real"]}
    assert needs(result("in part", {"real": "", "bucket": NO_NEED}, resized, alone))["outcome"] == "in full"


@pytest.mark.parametrize("outcome", ["WRONG", "crashed"])
def test_wrong_results_and_crashes_are_counted(outcome: str) -> None:
    assert needs(result(outcome, dict.fromkeys(("real", "bucket"), NO_NEED)))["outcome"] == outcome


def test_the_method_of_the_model_itself_is_found(tmp_path: Path) -> None:
    """transformers interpolates a ViT's table with bicubic weights, posembed by default otherwise."""
    sizes = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "intermediate_size": 16}
    ViTModel(ViTConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(tmp_path)
    call = {"options": {"image_size": [48, 48]}, "outcome": "resized", "wrong": []}
    (row,) = rows_of(tmp_path, [call])
    assert row["own"] == "bicubic"
