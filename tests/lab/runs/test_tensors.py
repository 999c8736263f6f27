from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posembed.errors import RunFolderError
from posembed.lab.runs.tensors import load_tables, save_tables, snapshot_steps
from together import together


@together("steps", [1, 2, 5, 12, 13, 500, 2000, 100_000])
def test_the_steps_are_about_a_dozen_spaced_geometrically_before_the_last(steps: int) -> None:
    kept = snapshot_steps(steps)
    assert list(kept) == sorted(set(kept))
    assert all(1 <= step < steps for step in kept)
    assert len(kept) == min(len(kept), 12)
    if steps >= 500:
        assert len(kept) >= 11
        ratios = [later / earlier for earlier, later in zip(kept[5:], [*kept[6:], steps], strict=True)]
        assert max(ratios) < 1.2 * min(ratios)


def test_tables_come_back_by_their_steps(tmp_path: Path) -> None:
    rows = {step: torch.randn(4, 6) for step in (0, 2, 11, 30)}
    file = tmp_path / "tables.safetensors"
    save_tables(file, {0: rows[0], 11: rows[11], 2: rows[2], 30: rows[30]})
    there = load_tables(file, 30)
    assert list(there) == [0, 2, 11, 30]
    assert all(torch.equal(there[step], rows[step]) for step in rows)
    save_tables(file, {0: rows[0].bfloat16(), 30: rows[30].bfloat16()})
    assert {table.dtype for table in load_tables(file, 30).values()} == {torch.float32}


@pytest.mark.parametrize("lost", [0, 30])
def test_a_table_without_its_first_or_last_rows_is_refused(lost: int, tmp_path: Path) -> None:
    file = tmp_path / "tables.safetensors"
    save_tables(file, {step: torch.randn(4, 6) for step in (0, 2, 30) if step != lost})
    with pytest.raises(RunFolderError, match="the first or the last rows are missing"):
        load_tables(file, 30)
