"""The three examples of docs/own-model.md: each prints what the page shows, and the page shows their code."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from run_page import agree, outputs, outputs_here, same_words, shorter
from together import asked

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^    python examples/(\w+)\.py\n.*?```text\n(.*?)```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("name", "shown"), SHOWN, ids=[name for name, _ in SHOWN])
def test_it_prints_what_the_page_shows(name: str, shown: str, tmp_path: Path) -> None:
    """In this process, and trained for a fiftieth of its steps, an example prints the same words.

    With --whole it runs as a reader runs it, and prints the same numbers too.
    """
    if name == "trainer":
        pytest.importorskip("transformers")
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    assert shorter(source) != source
    [printed] = outputs([source], tmp_path) if asked["whole"] else outputs_here([shorter(source)], tmp_path)
    printed = printed.replace(tempfile.gettempdir(), "/tmp")
    if name == "classifier":  # a piece and its mirror image get one answer
        assert re.search(r"without positions: +50\.0%", printed)
    if not asked["whole"]:
        assert same_words(printed, shown), f"prints\n{printed}\nand the page shows\n{shown}"
        return
    # Another version of Python has another standard library, and so another text.
    assert agree(printed, shown, tolerance=0.3), f"prints\n{printed}\nand the page shows\n{shown}"


def test_the_code_on_the_page_is_that_of_the_examples() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.py"))
    assert len(SHOWN) == 3
    for code in re.findall(r"```py\n(.*?)```", PAGE, flags=re.DOTALL):
        assert code in sources, code
