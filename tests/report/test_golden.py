"""What every page and terminal says. After a change that you mean, run ``python tests/report/golden.py``."""

from __future__ import annotations

from report.golden import FOLDERS, OTHERS, texts_of
from together import together


@together("name", [*FOLDERS, *OTHERS])
def test_it_reads_as_it_did(name: str) -> None:
    for file, text in texts_of(name).items():
        assert text == file.read_text(encoding="utf-8")
