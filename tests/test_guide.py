"""The guide runs from its first cell to its last, and what is kept of it is what such a run gives."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from run_guide import GUIDE, execute, execute_here
from run_page import shorter
from together import asked

MOST_BYTES = 1_500_000
A_PATH = r"(?<![\w:/])/\w+/\w|[A-Z]:\\|site-packages"
"""On somebody's machine: not the end of an address."""

# Run behind the last cell, in the guide's own names.
VALUES = """
import json

print(json.dumps({
    "shuffled": [without_positions, with_positions],
    "effective rank": [table_spectrum(rows).effective_rank for rows in (before, after)],
    "neighbours": [neighbour_cosine(rows).mean().item() for rows in (before, after)],
    "toeplitz": toeplitz_residual(sinusoids),
    "outlying": outlying,
    "heard": [cosine_similarity(question, read).item() for read in (truncated, whole)],
    "scores": {name: [score(e, m, n) for m, n in ((5, 3), (1005, 1003), (5, 0))] for name, e in
               {"rope": rope, "pope": pope}.items()},
    "times worse": {name: ratio and ratio.value for name in summary.names
                    for ratio in [summary.against(summary.headline, name, 512, summary.axis.base)]},
    "left behind": folder.exists(),
}))
"""


def code_cells(notebook: NotebookNode) -> dict[str, NotebookNode]:
    return {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def kinds(cell: NotebookNode) -> list[tuple[str, ...]]:
    """What a cell shows: "stdout", or the types of a picture or a value."""
    shown = [(o.name,) if o.output_type == "stream" else tuple(sorted(o.data)) for o in cell.outputs]
    return list(dict.fromkeys(shown))


@pytest.fixture(scope="module")
def kept() -> NotebookNode:
    return nbformat.read(GUIDE, as_version=4)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """The guide executed now, its figures and numbers in place of the kept ones; without --whole, in this process, and
    trained shortly, on the text of one module."""
    notebook = nbformat.read(GUIDE, as_version=4)
    for cell in notebook.cells:
        if not asked["whole"]:
            text = f'"data": {argparse.__file__!r}, "device": "cpu"'
            cell.source = shorter(cell.source).replace('"device": "cpu"', text)
    notebook.cells.append(nbformat.v4.new_code_cell(VALUES, id="values"))
    (execute if asked["whole"] else execute_here)(notebook, tmp_path_factory.mktemp("guide"))
    return notebook


@pytest.fixture(scope="module")
def values(run: NotebookNode) -> dict[str, Any]:
    return json.loads(printed(code_cells(run)["values"]))


def test_every_cell_runs_in_order_and_nothing_warns(run: NotebookNode) -> None:
    cells = code_cells(run)
    assert [cell.execution_count for cell in cells.values()] == list(range(1, len(cells) + 1))
    for name, cell in cells.items():
        assert not any(output.get("name") == "stderr" for output in cell.outputs), (name, printed(cell))


def test_what_is_kept_is_of_such_a_run(run: NotebookNode, kept: NotebookNode) -> None:
    executed = code_cells(run)
    for name, cell in code_cells(kept).items():
        assert (cell.execution_count, kinds(cell)) == (executed[name].execution_count, kinds(executed[name])), name


def test_what_is_kept_says_nothing_of_the_machine_or_the_hour(kept: NotebookNode) -> None:
    assert GUIDE.stat().st_size < MOST_BYTES
    assert kept.metadata.kernelspec.name == "python3"
    for cell in kept.cells:
        assert not cell.metadata, cell.id
        outputs = [output for output in cell.get("outputs", []) if "image/png" not in output.get("data", {})]
        assert not re.search(A_PATH, json.dumps(outputs)), cell.id


def test_links_lead_somewhere(kept: NotebookNode) -> None:
    text = "\n".join(cell.source for cell in kept.cells if cell.cell_type == "markdown")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if not target.startswith("https://")]
    assert targets
    for target in targets:
        assert (GUIDE.parent / target).exists(), target


def test_attention_alone_knows_no_order(values: dict[str, Any]) -> None:
    without_positions, with_positions = values["shuffled"]
    assert without_positions < 1e-12
    assert with_positions > 0.01


@pytest.mark.whole
def test_training_orders_the_rows(values: dict[str, Any]) -> None:
    rank_before, rank_after = values["effective rank"]
    near_before, near_after = values["neighbours"]
    assert rank_after < rank_before / 2
    assert abs(near_before) < 0.1
    assert near_after > 0.3
    assert values["toeplitz"] < 1e-9


@pytest.mark.parametrize("name", ["padding", "packing", "cache"])
def test_the_naive_code_is_wrong_and_the_right_one_right(run: NotebookNode, name: str) -> None:
    naive, right = re.findall(r"([\d.]+) apart", printed(code_cells(run)[name]))
    assert float(naive) > 0.05
    assert float(right) == 0


@pytest.mark.parametrize("name", ["rope", "pope"])
def test_a_score_depends_on_the_distance_alone(values: dict[str, Any], name: str) -> None:
    near_start, far_on, farther_apart = values["scores"][name]
    assert near_start == pytest.approx(far_on, abs=1e-3)
    assert near_start != pytest.approx(farther_apart, abs=1e-2)


def test_the_real_table_is_read_and_made_longer(run: NotebookNode, values: dict[str, Any]) -> None:
    assert values["outlying"] == [0, 127, 510, 511]
    assert "the same vector: True" in printed(code_cells(run)["heard"])
    of_the_start, of_the_whole = values["heard"]
    assert of_the_whole > of_the_start + 0.1


@pytest.mark.whole
def test_each_encoding_goes_as_far_as_it_does(values: dict[str, Any]) -> None:
    times_worse = values["times worse"]
    assert times_worse["learned"] is None
    assert times_worse["rolling"] == pytest.approx(1, abs=0.01)
    assert times_worse["alibi"] == pytest.approx(1, abs=0.05)
    assert times_worse["rope"] > 1.3


def test_a_comparison_is_shown_once(run: NotebookNode) -> None:
    [output] = code_cells(run)["comparison"].outputs
    assert "<table" in output.data["text/html"]
    assert "rolling" in output.data["text/plain"]
    assert "\x1b" not in output.data["text/plain"]


def test_advice_differs_by_need(run: NotebookNode) -> None:
    advice = printed(code_cells(run)["advice"])
    for need in (
        *["the lowest of the encodings", "learned rows reused in a ring"] * asked["whole"],
        "a penalty on the scores",
        "in chunks of 512 tokens",
    ):
        assert need in advice


def test_nothing_is_left_behind(values: dict[str, Any]) -> None:
    assert not values["left behind"]
