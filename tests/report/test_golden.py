"""The wording of every page. After a change that you mean: ``python tests/report/golden.py``, and read the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from report.golden import FOLDERS, golden, text_of


@pytest.mark.parametrize("name", FOLDERS)
def test_the_page_reads_as_it_did(name: str, tmp_path: Path) -> None:
    assert text_of(name, tmp_path) == golden(name).read_text(encoding="utf-8")
