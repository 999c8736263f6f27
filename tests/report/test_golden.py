"""What every page and terminal says. After a change that you mean, run ``python tests/report/golden.py``."""

from __future__ import annotations

from report.golden import FOLDERS, OTHERS, no_pictures, texts_of
from together import together


@together("name", [*FOLDERS, *OTHERS])
def test_it_reads_as_it_did(name: str) -> None:
    with no_pictures():
        texts = texts_of(name)
    for file, text in texts.items():
        assert text == file.read_text(encoding="utf-8")
