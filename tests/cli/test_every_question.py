"""What holds for the command of every question: its options, Python's answer, what is refused, what is kept."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import posembed as library
from posembed.comparison import Prepared, prepare
from posembed.errors import ArgumentError
from posembed.lab.question import TrainedQuestion
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs import train
from posembed.lab.runs.results import result_from_json
from posembed.lab.runs.sweep import sweep
from posembed.settings import options
from report.golden import no_pictures
from together import asked, together
from tolerance import assert_close

MODEL = {"layers": 1, "width": 8, "heads": 2, "steps": 3, "batch": 2}
SMALL: dict[str, dict[str, Any]] = {
    "lengths": MODEL
    | {"train_length": 16, "test_lengths": [16, 32], "test_tokens": 200, "encodings": ["rope", "alibi"]},
    "inits": MODEL | {"train_length": 16, "test_tokens": 200, "inits": ["normal-0.02", "zero"]},
    "sharing": MODEL
    | {
        "problem": "copy",
        "train_size": 3,
        "test_sizes": [3],
        "test_pairs": 4,
        "encodings": ["one-table", "two-tables"],
    },
    "by-task": MODEL | {"train_length": 8, "test_tokens": 200, "tasks": ["causal", "masked"], "seeds": 1},
    "rows": MODEL | {"train_length": 16, "test_tokens": 200},
    "data-efficiency": MODEL
    | {"train_length": 16, "test_tokens": 200, "encodings": ["learned", "rope"], "amounts": ["400", "1/2"]},
    "dropout": MODEL | {"train_length": 16, "test_tokens": 200, "amount": "400", "rates": ["0", "0.3"]},
    "addition": MODEL
    | {"train_size": 3, "test_sizes": [2, 5], "test_problems": 4, "encodings": ["coupled", "abacus", "alibi"]},
    "text": MODEL | {"train_length": 12, "tokenizer": "bytes", "encodings": ["learned", "sinusoidal"]},
    "tags": MODEL | {"train_length": 24, "tokenizer": "bytes", "encodings": ["learned", "sinusoidal"]},
    "spans": MODEL | {"train_length": 40, "tokenizer": "bytes", "encodings": ["learned", "sinusoidal"]},
    "images": MODEL | {"test_sizes": [12], "encodings": ["factorized", "learned-1d"]},
}
TRAINED = [name for name, question in QUESTIONS.items() if isinstance(question, TrainedQuestion)]


def command_of(name: str) -> str:
    group = QUESTIONS[name].group
    return f"compare {f'{group} ' if group else ''}{name}"


def spoken(chosen: dict[str, Any]) -> list[str]:
    """Returns the options that say the same on the command line."""
    words = []
    for option, value in chosen.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [f"--{option.replace('_', '-')}", text]
    return words


@pytest.fixture
def small(text: Path, tmp_path: Path) -> dict[str, dict[str, Any]]:
    labelled = tmp_path / "labelled.csv"
    labelled.write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40)), encoding="utf-8")
    for name, numbers in (("words", range(20)), ("tested", range(50, 58))):
        (tmp_path / f"{name}.conll").write_text("\n\n".join(f"in O\nRome B-LOC\n{i} O" for i in numbers))
    (tmp_path / "lengths.txt").write_text("3 9\n16\n")
    rows = [{"context": f"the cat is {i}", "question": "what?", "answer": "cat", "answer_start": 4} for i in range(20)]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = dict.fromkeys(["lengths", "inits", "by-task", "rows", "data-efficiency", "dropout"], text)
    data |= {"text": labelled, "tags": tmp_path / "words.conll", "spans": tmp_path / "asked.jsonl"}
    own: dict[str, dict[str, Any]] = {name: {"data": str(path)} for name, path in data.items()}
    own["rows"]["train_lengths"] = ["full", str(tmp_path / "lengths.txt")]
    own["tags"]["test_data"] = str(tmp_path / "tested.conll")
    return {name: chosen | own.get(name, {}) for name, chosen in SMALL.items()}


@together("name", QUESTIONS)
def test_every_setting_is_an_option_with_its_help(name: str, posembed) -> None:
    done = posembed(f"{command_of(name)} --help", columns=240)
    assert done.code == 0
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.out).split())
    question: Any = QUESTIONS[name]
    trained = isinstance(question, TrainedQuestion)
    for settings in question.kinds:
        for option, field in options(settings).items():
            assert f"--{option.replace('_', '-')} " in shown
            assert " ".join(field.metadata["help"].split()) in shown, option
    if trained:
        assert f"--{question.compared.replace('_', '-')} " in shown
        assert f"[default: {','.join(question.usual)}]" in shown
        if question.varied is not None:
            assert f"--{question.varied} " in shown
        for setting, value in question.presets[question.preset].items():
            default = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            if setting in (*options(question.Spec), question.varied):
                assert f"[default: {default}]" in shown, setting


@together("name", SMALL)
def test_python_gives_the_command_s_summary(name: str, posembed, small, tmp_path: Path) -> None:
    given = spoken(small[name])
    answer = library.compare(name, out=tmp_path / "python", **small[name])
    # The command finds Python's runs in their folder, and trains nothing again.
    again = posembed(f"{command_of(name)} --json --out", tmp_path / "python", *given)
    assert again.code == 0, again.err
    assert json.loads(again.out) == answer.to_dict()
    assert "training loss" not in again.err
    if name == "lengths" or asked["whole"]:  # training and pages take most of the time
        done = posembed(f"{command_of(name)} --json --out", tmp_path / "command", *given)
        assert json.loads(done.out) == answer.to_dict()
        assert "training loss" in done.err
        with nullcontext() if asked["whole"] else no_pictures():
            assert answer.report().read_bytes() == library_page(tmp_path / "python")


@together("name", SMALL)
def test_a_plan_in_json_holds_every_run(name: str, posembed, small, tmp_path: Path) -> None:
    done = posembed(f"{command_of(name)} --dry-run --json --out", tmp_path / "runs", *spoken(small[name]))
    assert done.code == 0, done.err
    plan, question = json.loads(done.out), QUESTIONS[name]
    assert isinstance(question, TrainedQuestion)
    varied = small[name].get(question.varied or "", [""])
    assert len(plan) == len(small[name][question.compared]) * len(varied)
    names = [part for run in plan for part in run["run"].split(", ") if not part.startswith("seed")]
    assert all(any(each in part for part in names) for each in small[name][question.compared])
    assert all(run.keys() == {"run", "steps", "parameters", "position_parameters", "seconds"} for run in plan)
    assert not (tmp_path / "runs").exists()


@together("name", SMALL)
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(name: str, small, tmp_path: Path) -> None:
    """With a copy of the task, as another process gets it; and the result comes back from its folder."""
    dropout = {"dropout": 0.1} if "dropout" in options(QUESTIONS[name].Spec) else {}  # type: ignore[attr-defined]
    prepared = prepare(name, small[name] | dropout | {"out": tmp_path / "runs"})
    assert isinstance(prepared, Prepared)
    spec, task, accelerator, folder = prepared.specs[0], prepared.task, prepared.accelerator, prepared.folder
    whole = train.run(spec, task, accelerator)
    folder.prepare(spec)

    def press_ctrl_c(progress: train.Step) -> None:
        if progress.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train.run(spec, task, accelerator, folder, press_ctrl_c)
    # The problems of sharing are closures, which Ray pickles by its own means.
    copied = copy.deepcopy(task) if name == "sharing" else pickle.loads(pickle.dumps(task))
    (resumed,) = sweep([spec], copied, folder, accelerator)
    assert (resumed.losses, resumed.measurements) == (whole.losses, whole.measurements)
    assert folder.results() == [resumed] == [result_from_json(resumed.to_json(), type(spec))]
    assert name != "images" or folder.file("tables", spec).exists()  # of the sums of rows and columns


@together("name", SMALL)
def test_processes_share_a_batch_that_depends_on_the_seed_and_the_step_alone(name: str, small, tmp_path: Path) -> None:
    prepared = prepare(name, small[name] | {"seeds": 1, "out": tmp_path / "runs"})
    assert isinstance(prepared, Prepared)
    task, seen = prepared.task, dict[str, set[str]]()
    for spec in prepared.specs:
        model = task.build(spec).eval()
        whole, *halves = (task.draw(spec, model, 3, rows) for rows in (slice(0, 2), slice(0, 1), slice(1, 2)))
        assert_close(sum(task.loss(model, *half) for half in halves) / 2, task.loss(model, *whole))
        steps = [str(task.draw(spec, model, step)[0].tolist()) for step in range(4)]
        others = [str(task.draw(replace(spec, seed=7), model, step)[0].tolist()) for step in range(4)]
        assert len({*steps}) > 1
        assert steps != others
        if spec.compared != "coupled":  # which writes numbers the other way round
            seen.setdefault(spec.varied, set()).add(str(steps))
    if QUESTIONS[name].compared == "encodings":  # type: ignore[attr-defined]
        assert {len(batches) for batches in seen.values()} == {1}


def library_page(folder: Path) -> bytes:
    from posembed.report.questions import write_report

    return write_report(folder, folder / "again.html").read_bytes()


@together("name", TRAINED)
def test_what_is_unknown_is_refused_with_what_is_known(name: str, tmp_path: Path) -> None:
    question: Any = QUESTIONS[name]
    usual = question.usual[0]
    names = {question.compared: [usual], "out": tmp_path / "runs"}
    refused = {
        rf"'stepz' of {name} \(did you mean steps\?\); choose from .*{question.compared}.*seeds.*steps": names
        | {"stepz": 1},
        f"unknown preset 'huge'; choose from {', '.join(question.presets)}": names | {"preset": "huge"},
        "'no-such-name'": names | {question.compared: ["no-such-name"]},
    }
    if "reference" in options(question.ReadingType):
        refused[f"the reference 'elsewhere' is not compared; the names are {usual}"] = names | {
            "reference": "elsewhere"
        }
    for message, chosen in refused.items():
        with pytest.raises(ArgumentError, match=message):
            library.compare(name, **chosen)
    assert not (tmp_path / "runs").exists()


def test_an_unknown_question_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ArgumentError, match=r"'length' \(did you mean lengths\?\); choose from lengths, inits, .*images"
    ):
        library.compare("length")


def test_the_page_says_what_the_command_said(posembed, small, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    command = f"{command_of('inits')} --reference zero --loss 1.5 --json --out"
    summary = json.loads(posembed(command, folder, *spoken(small["inits"])).out)
    assert (summary["reference"], summary["reading"]["loss"]) == ("zero", 1.5)
    assert json.loads((folder / "reading.json").read_text()) == {"reference": "zero", "loss": 1.5}
    assert posembed("report", folder).code == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "minus that of zero" in page
    refused = posembed("compare lengths --out", folder, *spoken(small["lengths"])).err
    assert "question: inits there, lengths now" in refused
    # Another reference for one page changes neither the kept reading nor the loss.
    assert posembed("report", folder, "--reference", "normal-0.02").code == 0
    assert "minus that of normal-0.02" in (folder / "report.html").read_text(encoding="utf-8")
    assert json.loads((folder / "reading.json").read_text()) == {"reference": "zero", "loss": 1.5}


def test_a_damaged_reading_is_refused_with_the_way_out(posembed, tmp_path: Path) -> None:
    from made_up_inits import save_inits, typical

    folder = save_inits(tmp_path, typical(1)).path
    reading = folder / "reading.json"
    for damaged in ("", "{", "[]", '{"referense": "zero"}', '{"reference": ["zero"]}', '{"loss": "low"}', "\x00"):
        reading.write_text(damaged)
        done = posembed("report", folder)
        assert (done.code, done.out) == (1, ""), damaged
        assert f"{reading} is damaged" in done.err
        assert "delete it to use the defaults" in done.err
        assert "Traceback" not in done.err


@pytest.mark.parametrize("name", ["lengths", "inits"])
def test_byte_pairs_are_learned_from_any_text(name: str, text: Path, posembed, tmp_path: Path) -> None:
    refused = posembed(f"compare {name} --tokenizer bpe:3 --data", text, "--out", tmp_path / "runs")
    assert (refused.code, refused.out) == (1, "")
    assert "expected a number above 256 after bpe:" in refused.err
    assert not (tmp_path / "runs").exists()
    chosen = SMALL[name] | {"tokenizer": "bpe:300", "data": text, "out": tmp_path / "runs"}
    compared = library.compare(name, **chosen)
    assert {run.spec.tokenizer for run in compared.results} == {"bpe:300"}
    assert not any(run.failure for run in compared.results)


def test_texts_of_numbers_are_lists_in_python_too(text: Path, tmp_path: Path) -> None:
    prepared = prepare("lengths", SMALL["lengths"] | {"test_lengths": "32, 16", "data": text, "out": tmp_path / "runs"})
    assert isinstance(prepared, Prepared)
    assert prepared.specs[0].test_lengths == (16, 32)


# Numbers that no run can have

OPTIONAL = ("dropout", "weight_decay", "warmup", "seconds")
"""Settings that may be zero."""
OTHERS: dict[str, dict[str, tuple[str, ...]]] = {
    "lengths": {"test_lengths": ("0", "1,8", "many", "8,1.5"), "rope_factors": ("nan", "0,1"), "dropout": ("1",)},
    "inits": {"inits": ("normal-" + "9" * 400, "sinusoidal-" + "9" * 400), "loss": ("nan", "0", "-1", "inf")},
    "text": {"train_length": ("1",), "warmup": ("9",)},
    "cost": {"length": ("1",)},
}


def impossible(name: str) -> dict[str, tuple[str, ...]]:
    """Values that no run of a question can have, by setting: of its window, and of what is a number by default."""
    question: Any = QUESTIONS[name]
    fields = {option: field.default for settings in question.kinds for option, field in options(settings).items()}
    usual = fields | question.presets[question.preset]
    numbers = {
        option for option, value in usual.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    known = sorted((numbers | {"window", "ring"}) & fields.keys())
    found = {option: ("-1", "nan", "inf", *["0"] * (option not in OPTIONAL)) for option in known}
    return found | OTHERS.get(name, {})


@together("name", [*SMALL, "cost"])
def test_no_number_trains_that_cannot(name: str, posembed, small, tmp_path: Path) -> None:
    assert len(impossible(name)) > 4
    for option, values in impossible(name).items():
        given = spoken({other: value for other, value in small.get(name, {}).items() if other != option})
        for value in values:
            written = f"--{option.replace('_', '-')}"
            done = posembed(command_of(name), *given, "--out", tmp_path / "runs", written, value)
            assert (done.code, done.out) == (1, ""), (option, value, done)
            assert done.err.startswith("posembed: error: "), (option, value)
            assert not (tmp_path / "runs").exists()


@together("name", QUESTIONS)
def test_an_empty_name_is_no_folder(name: str, posembed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = posembed(command_of(name), "--out", "")
    assert done.code == 1
    assert "expected a path" in done.err
    assert not list(tmp_path.iterdir())


def test_a_warm_up_that_nobody_asked_for_ends_with_the_steps(posembed, text: Path, tmp_path: Path) -> None:
    sizes = "--steps 2 --layers 1 --width 8 --heads 2 --batch 2 --train-length 8 --test-lengths 8 --test-tokens 64"
    out = ["--data", str(text), "--out", str(tmp_path / "runs"), "--encodings", "rope"]
    assert posembed(f"compare lengths {sizes}", *out).code == 0
