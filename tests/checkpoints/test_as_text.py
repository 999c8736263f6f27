"""What a notebook shows of a result: a few lines, and no values of tensors."""

from __future__ import annotations

from pathlib import Path

import torch

import posembed
from tiny_models import GPT, saved, tiny_model


def test_a_report_names_each_table_and_its_findings(tmp_path: Path) -> None:
    report = posembed.inspect_checkpoint(saved(tiny_model("gpt2", GPT), tmp_path))
    first, *lines = repr(report).splitlines()
    assert first == f"{tmp_path}, gpt2: {report.parameters:,} parameters"
    [table] = report.tables
    assert lines[0].strip() == f"{table.table.key}: {GPT['n_positions']} x {GPT['n_embd']}, learned"
    assert [line.strip() for line in lines[1:]] == [f"! {finding}" for finding in table.findings]
    assert repr(table) == "\n".join(lines)


def test_a_resize_is_a_line_per_change(tmp_path: Path) -> None:
    source = saved(tiny_model("gpt2", GPT), tmp_path / "source")
    before, after = GPT["n_positions"], 2 * GPT["n_positions"]
    resized = posembed.resize_checkpoint(source, tmp_path / "out", length=after)
    table = f"{before} x {GPT['n_embd']} -> {after} x {GPT['n_embd']}"
    assert any(line.startswith("wpe.weight: " + table) for line in repr(resized).splitlines())
    assert f"config.json: n_positions: {before} -> {after}" in repr(resized).splitlines()
    edit = posembed.resize_model_(torch.nn.ModuleDict({"position_embeddings": torch.nn.Embedding(8, 4)}), length=16)
    assert repr(edit) == "position_embeddings.weight: 8 x 4 -> 16 x 4, tile; leading rows unchanged: 8"
