"""The figures of the documentation are those of the documentation, and a run folder's those of its runs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from made_up_runs import runs, save
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.advice.evidence import PUBLISHED, published_studies, read_studies, study_of_folder

ROOT = Path(__file__).parents[3]


def script() -> ModuleType:
    """benchmarks/evidence.py, which writes the file."""
    spec = importlib.util.spec_from_file_location("evidence_script", ROOT / "benchmarks" / "evidence.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_published_figures_equal_the_pages() -> None:
    assert published_studies() == script().studies(), "run python benchmarks/evidence.py"


def test_the_file_has_one_encoding_per_line() -> None:
    text = PUBLISHED.read_text(encoding="utf-8")
    assert script().write_studies(read_studies(text)) == text
    rows = [json.loads(line.rstrip(",")) for line in text.splitlines() if line.startswith("  ")]
    assert len(rows) == sum(len(study.rows) for study in published_studies())


def test_the_learned_table_ends_and_the_ring_does_not() -> None:
    broad = next(study for study in published_studies() if study.source == "docs/measured.md")
    learned, rolling = broad.row("learned"), broad.row("rolling")
    assert learned is not None
    assert rolling is not None
    assert learned.by_length[broad.longest] is None
    assert rolling.by_length[broad.longest] is not None


def test_studies_with_the_most_seeds_come_first() -> None:
    seeds = [max(row.seeds for row in study.rows) for study in published_studies()]
    assert seeds == sorted(seeds, reverse=True)


def test_a_run_folder_is_ones_own(tmp_path: Path) -> None:
    folder = save(tmp_path / "runs", runs(2))
    study = study_of_folder(folder.path)
    assert study.own
    row = study.rows[0]
    assert row.seeds == 2
    value = row.by_length[study.train_length]
    assert value is not None
    assert value.low is not None
    assert value.low < value.value


def test_a_folder_that_is_none_or_of_another_question(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        study_of_folder(tmp_path)
    folder = save(tmp_path / "runs", runs(1))
    for result in folder.results():
        folder.file("results", result.spec).unlink()
    with pytest.raises(ArgumentError, match="no finished run yet"):
        study_of_folder(folder.path)
    (folder.path / "settings.json").write_text(json.dumps({"question": "tasks"}))
    with pytest.raises(RunFolderError, match="holds runs of posembed compare tasks"):
        study_of_folder(folder.path)
