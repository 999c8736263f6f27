"""The figures of the package are those of the page, and a run folder's those of its runs."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from made_up_runs import run, runs, save
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.advice.advise import advise
from posembed.lab.advice.candidates import TABLE, built, candidates
from posembed.lab.advice.evidence import MEASURES, PUBLISHED, Study, published_studies, study_of_folder
from posembed.lab.advice.needs import Needs
from posembed.statistics import Estimate
from together import asked

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/evidence.py, which writes the file."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("evidence")


def test_the_file_equals_the_page(script: ModuleType) -> None:
    page = script.every_encoding.PAGE.read_text(encoding="utf-8")
    text = script.write_studies(script.studies(page))
    assert PUBLISHED.read_text(encoding="utf-8") == text, "run python benchmarks/evidence.py"


def test_the_table_of_candidates_is_what_is_built(script: ModuleType, tmp_path: Path) -> None:
    assert script.TABLE.read_text(encoding="utf-8") == script.write_table(), "run python benchmarks/evidence.py"
    texts = [{"length": n, "longest": longest, "width": width, "heads": heads, "encoder": encoder}
             for n, longest in ((8, 8), (512, 4096), (100, None)) for width, heads in ((64, 1), (768, 12), (64, 4))
             for encoder in (False, True)]  # fmt: skip
    images = [{"length": 168, "longest": 400, "grid": (14, 12), "longest_grid": (20, 20), "width": 64}]
    for given in (texts if asked["whole"] else texts[1::6]) + images:
        needs = Needs(**given)
        known = candidates(needs)
        assert known == [built(each, needs) for each in known]
    odd = Needs(length=8, longest=8, width=63, heads=1)
    known = candidates(odd)
    assert any(each.problem for each in known)
    assert known == [built(each, odd) for each in known]


def test_advice_from_the_table_imports_no_torch() -> None:
    code = (
        "import sys; from posembed.cli import main\n"
        "sys.argv = ['posembed', 'advise', '--length', '512', '--longest', '4096']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print({'torch', 'scipy.stats', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("set()\n"), done.stdout[-200:] + done.stderr


def test_the_perplexity_of_every_encoding_was_measured() -> None:
    for study in published_studies():
        names, known = set(study.rows), set(TABLE[study.use])
        assert names == known if study.kind == "perplexity" else names <= known, study.title


def test_the_means_of_the_page_are_those_of_its_seeds(script: ModuleType) -> None:
    page = script.every_encoding.PAGE.read_text(encoding="utf-8")
    cells = [cell for line in page.splitlines() if line.startswith("|") for cell in script.cells_of(line)[1:]]
    measured = [cell for cell in cells if "(" in cell]
    assert len(measured) > 50
    for cell in measured:
        mean, values = float(cell.partition(" ")[0]), script.seeds_of(cell)
        assert min(values) - 0.051 <= mean <= max(values) + 0.051, cell


def test_the_length_that_a_factor_needs() -> None:
    study = next(study for study in published_studies() if study.kind == "perplexity")
    at = study.train_length
    assert [study.length_for(factor) for factor in (0.5, 1, 1.5, 2, 8, 9, math.inf)] == [
        at, at, 2 * at, 2 * at, 8 * at, 8 * at, 8 * at
    ]  # fmt: skip
    for lengths, found in (((16, 32, 128), 32), ((64, 128), 64), ((128, 256), None)):
        own = Study("own", "runs/mine", 64, {"rope": dict.fromkeys(lengths)}, own=True)
        assert own.length_for(1.01) == 128
        if found is not None:
            assert own.length_for(1) == found
            continue
        with pytest.raises(ArgumentError, match=r"runs/mine measures nothing within .* 64 tokens.*add 64 to --test"):
            own.length_for(1)


def test_differences_are_paired() -> None:
    def perplexity(*values: float) -> Estimate:
        return MEASURES["perplexity"].mean(values)

    differ = MEASURES["perplexity"].differ
    assert differ(perplexity(5.0, 6.0, 7.0), perplexity(5.1, 6.12, 7.14))  # 2% each time
    assert not differ(perplexity(5.0, 6.0, 7.0), perplexity(6.0, 7.0, 5.0))
    assert not differ(perplexity(5.0, 6.0), perplexity(5.0, 6.0))
    assert differ(perplexity(5.0), perplexity(5.2))
    assert not differ(perplexity(5.0), perplexity(5.1))
    assert not differ(perplexity(5.0, 4.0, 4.0), perplexity(5.1))  # only the first seed is shared
    assert differ(perplexity(5.0, 6.0), perplexity(5.1, 6.12001, 1.0))
    assert MEASURES["accuracy"].differ(Estimate(50.0, values=(50.0,)), Estimate(56.0, values=(56.0,)))
    assert not MEASURES["accuracy"].differ(Estimate(50.0, values=(50.0,)), Estimate(54.0, values=(54.0,)))


def test_a_run_folder_is_ones_own(tmp_path: Path) -> None:
    folder = save(tmp_path / "runs", runs(2))
    study = study_of_folder(folder.path)
    assert study.own
    assert study.steps == folder.results()[0].spec.steps
    value = next(iter(study.rows.values()))[study.train_length]
    assert value is not None
    assert len(value.values) == 2


def test_only_seeds_that_every_encoding_has_are_compared(tmp_path: Path) -> None:
    """Seed 2 is a bad one, which of the two only ALiBi has; with it, the worse encoding would have the better mean."""
    good, bad = (3.7, 3.8, 3.9, 4.0), (3.9, 4.0, 4.1, 4.2)
    results = [run("alibi", bad if seed == 2 else good, seed=seed) for seed in (2, 1, 0)]
    results += [run("kerple-log", tuple(1.005 * each for each in good), seed=seed) for seed in (0, 1)]
    study = study_of_folder(save(tmp_path / "runs", results).path)
    alibi, kerple = (study.value(name, study.train_length) for name in ("alibi", "kerple-log"))
    assert alibi is not None
    assert kerple is not None
    assert [len(alibi.values), len(kerple.values)] == [2, 2]
    assert [other / own for own, other in zip(alibi.values, kerple.values, strict=True)] == 2 * [
        pytest.approx(1.005, rel=0.02)
    ]
    folder = save(tmp_path / "apart", [run("alibi", seed=0), run("rope", seed=1), run("none", seed=0, failure="NaN")])
    with pytest.raises(ArgumentError, match="finished with every encoding: alibi has 0 and rope has 1;"):
        study_of_folder(folder.path)


def test_an_infinite_perplexity_is_no_evidence(tmp_path: Path) -> None:
    diverged = run("rope")
    assert diverged.measurements is not None
    values = (each._replace(value=each.value and 1000 + each.value) for each in diverged.measurements.values)
    diverged = replace(diverged, measurements=replace(diverged.measurements, values=tuple(values)))
    folder = save(tmp_path / "runs", [run("alibi"), diverged])
    study = study_of_folder(folder.path)
    assert (study.value("rope", 256), study.value("alibi", 256) is None) == (None, False)
    found = advise(runs=folder.path, length=16, longest=64)
    json.dumps(found.to_dict(), allow_nan=False)
    (rope,) = (each for each in found.options if each.name == "rope")
    assert rope.cannot == "its perplexity at 256 tokens is infinite"
    assert not any("none of them has a position" in each for each in found.reasons)
    with pytest.raises(ArgumentError, match="diverged: each encoding has an infinite perplexity"):
        study_of_folder(save(tmp_path / "diverged", [diverged]).path)


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


def test_an_interval_of_percentages_ends_at_0_and_100() -> None:
    for study in published_studies():
        for by_length in study.rows.values():
            for value in filter(None, by_length.values()):
                found = [float(each) for each in re.findall(r"[\d.]+", study.measure.written(value))]
                assert len(found) == (1 if len(value.values) == 1 else 3)
                assert not study.measure.percent or all(0 <= each <= 100 for each in found)
