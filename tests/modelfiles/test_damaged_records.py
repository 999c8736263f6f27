"""A record of resizes that is not one: --overwrite refuses, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posembed.modelfiles.copies import foreign_entries, stamp


@pytest.mark.parametrize(
    "record",
    ["{", "[]", "{}", '{"resizes": []}', '{"resizes": ["abc"]}', '{"resizes": [[1]]}', '{"resizes": [{"time": "x"}]}'],
)
def test_a_damaged_record_makes_every_file_foreign(record: str, tmp_path: Path) -> None:
    (tmp_path / "posembed.json").write_text(record if record == "{" else json.dumps({"files": {}} | dict_of(record)))
    (tmp_path / "mine.txt").write_text("mine")
    stamp(tmp_path)
    assert "mine.txt" in foreign_entries(tmp_path)


def dict_of(record: str) -> dict[str, object]:
    found = json.loads(record)
    return found if isinstance(found, dict) else {}
