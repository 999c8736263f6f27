"""Runs of an earlier version, in which all seeds of a question on text or images drew the same batches."""

from __future__ import annotations

import dataclasses
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from asked import runs_of, shared
from posembed import RunFolderError
from posembed.comparison import Prepared
from posembed.lab.advice.evidence import study_of_folder
from posembed.lab.question import Conduct, Reading
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.spec import DRAWS, TrainingSpec, Watcher
from posembed.lab.runs.sweep import sweep
from posembed.lab.runs.train import run
from posembed.lab.tasks import classification, language, problems
from posembed.lab.tasks.classification import ImageClassification, TextClassification
from posembed.lab.tasks.classification_specs import ImageSpec, TextSpec
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.problems import ProblemSolving
from posembed.lab.tasks.sharing import Rewriting
from posembed.lab.tasks.task import draw_seed
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.report.questions import write_report

REFUSED = r"holds runs \(seed 1\) .* same batches .*another folder"
TINY = {"layers": 1, "width": 16, "heads": 2, "steps": 3, "batch": 6, "warmup": 1}


def earlier(file: Path) -> None:
    """Makes a result what the earlier version would have written: without the version of its draws."""
    values = json.loads(file.read_text())
    assert values.pop("draws") == DRAWS
    file.write_text(json.dumps(values))


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


class Trained(Watcher):
    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, spec: TrainingSpec) -> None:
        self.names.append(spec.name)


def test_the_runs_refused_are_those_whose_seeds_shared_batches(
    task: LanguageModelling,
    spec: LengthSpec,
    text_task: TextClassification,
    text_spec: TextSpec,
    image_task: ImageClassification,
    image_spec: ImageSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Draws batches as the earlier version did, with seeds of more than 32 bits for torch's generators."""
    for module in (language, classification, problems):
        monkeypatch.setattr(module, "torch_seed", draw_seed)
    addition = shared("addition", train_size=5, test_sizes=(5,), test_problems=4, **TINY)
    reverse = shared("sharing", problem="reverse", train_size=5, test_sizes=(5,), test_pairs=4, **TINY)
    cases: list[tuple[Any, TrainingSpec, str]] = [
        (task, spec, "rope"),
        (text_task, text_spec, "rope"),
        (image_task, image_spec, "learned-2d"),
        (ProblemSolving("addition"), addition, "rope"),
        (Rewriting("reverse"), reverse, "one-table"),
    ]
    found = []
    for of, settings, name in cases:
        runs = [dataclasses.replace(settings, encoding=name, seed=seed) for seed in range(3)]
        batches = [of.draw(each, of.build(each), 1)[0] for each in runs]
        alike = all(a.shape == b.shape and bool((a == b).all()) for a, b in pairwise(batches))
        found.append(alike)
        for each in runs:
            old, new = (RunResult(each, 1, 0, None, (), None, None, 1.0, 1.0, draws=draws) for draws in (1, DRAWS))
            assert old.shares_batches == (alike and each.seed > 0)
            assert not new.shares_batches
    assert found == [True, True, True, False, False]


def test_an_earlier_folder_is_left_as_it_is_and_its_seed_0_stays_in_use(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, tmp_path: Path
) -> None:
    spec = dataclasses.replace(spec, steps=2)
    folder = RunFolder(tmp_path / "old", LengthSpec, QUESTIONS["lengths"].ReadingType())
    whole = sweep(runs_of(spec, ["rope"], 2), task, folder, accelerator)
    for file in (folder.path / "results").iterdir():
        earlier(file)
    before = contents(folder.path)
    with pytest.raises(RunFolderError, match=REFUSED):
        study_of_folder(folder.path)
    for names, seeds in ((["rope"], 2), (["rope"], 3), (["alibi"], 2)):
        specs = runs_of(spec, names, seeds)
        with pytest.raises(RunFolderError, match=REFUSED):
            Prepared(QUESTIONS["lengths"], task, specs, Reading(), Conduct(), folder, accelerator).plan()
        with pytest.raises(RunFolderError, match=REFUSED):
            sweep(specs, task, folder, accelerator)
        assert contents(folder.path) == before

    trained = Trained()
    sweep(runs_of(spec, ["rope", "alibi"], 1), task, folder, accelerator, trained)
    assert trained.names == ["alibi, seed 0"]

    copy = RunFolder(shutil.copytree(folder.path, tmp_path / "copy"), LengthSpec)
    for file in copy.path.glob("*/*-seed-[1-9]*"):  # what the error says to delete
        file.unlink()
    assert [row.seeds for row in study_of_folder(copy.path).rows] == [1, 1]
    results = sweep(runs_of(spec, ["rope"], 2), task, copy, accelerator, trained)
    assert trained.names == ["alibi, seed 0", "rope, seed 1"]
    assert [(r.spec, r.losses, r.measurements) for r in results] == [(r.spec, r.losses, r.measurements) for r in whole]
    sweep(runs_of(spec, ["rope", "alibi"], 2), task, copy, accelerator, trained)
    assert trained.names == ["alibi, seed 0", "rope, seed 1", "alibi, seed 1"]


def test_an_earlier_checkpoint_continues_with_seed_0_alone(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, tmp_path: Path
) -> None:
    for seed in (0, 1):
        each = dataclasses.replace(spec, encoding="rope", seed=seed, steps=6)
        folder = RunFolder(tmp_path / str(seed), LengthSpec)
        folder.prepare(each)
        whole = run(each, task, accelerator, folder)
        file = folder.file("checkpoints", each)
        written = torch.load(file, weights_only=True)
        assert written.pop("draws") == DRAWS
        torch.save(written, file)
        if seed == 0:
            assert run(each, task, accelerator, folder).losses == whole.losses
        else:
            with pytest.raises(RunFolderError, match=r"same batches for all seeds.*-seed-1-.*delete it"):
                run(each, task, accelerator, folder)


def test_the_page_of_an_earlier_folder_says_so(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path, LengthSpec)
    sweep(runs_of(dataclasses.replace(spec, steps=1), ["rope"], 3), task, folder, accelerator)
    note = "same batches for all seeds"
    assert note not in write_report(tmp_path).read_text(encoding="utf-8")
    for file in (tmp_path / "results").iterdir():
        earlier(file)
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count(f"trained 2 of these runs (seeds 1 and 2) and drew the {note}") == page.count(note) == 1
    for file in tmp_path.glob("results/*-seed-[1-9]*"):
        file.unlink()
    assert note not in write_report(tmp_path).read_text(encoding="utf-8")
