"""What holds for the command of every question: its options, Python's answer, what is refused, what is kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import posembed as library
from posembed.comparison import prepare
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.question import Conduct, TrainedQuestion
from posembed.lab.questions import QUESTIONS
from posembed.settings import options
from together import asked, together

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
    "rows": MODEL | {"train_length": 16, "test_tokens": 200, "train_lengths": ["full", "short"]},
    "data-efficiency": MODEL
    | {"train_length": 16, "test_tokens": 200, "encodings": ["learned", "rope"], "amounts": ["400", "1/2"]},
    "dropout": MODEL | {"train_length": 16, "test_tokens": 200, "amount": "400", "rates": ["0", "0.3"]},
    "parity": MODEL | {"train_size": 3, "test_sizes": [2, 5], "test_problems": 4, "encodings": ["rope", "alibi"]},
    "text": MODEL | {"train_length": 12, "tokenizer": "bytes", "encodings": ["learned", "sinusoidal"]},
    "tags": MODEL | {"train_length": 24, "tokenizer": "bytes", "encodings": ["learned", "sinusoidal"]},
    "spans": MODEL | {"train_length": 40, "tokenizer": "bytes", "encodings": ["learned", "sinusoidal"]},
    "images": MODEL | {"test_sizes": [12], "encodings": ["learned-1d", "factorized"]},
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
    (tmp_path / "words.conll").write_text("\n\n".join(f"in O\nRome B-LOC\n{i} O" for i in range(20)))
    rows = [{"context": f"the cat is {i}", "question": "what?", "answer": "cat", "answer_start": 4} for i in range(20)]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data: dict[str, Path] = dict.fromkeys(["lengths", "inits", "by-task", "rows", "data-efficiency", "dropout"], text)
    data |= {"text": labelled}
    data |= {"tags": tmp_path / "words.conll", "spans": tmp_path / "asked.jsonl"}
    return {name: chosen | ({"data": str(data[name])} if name in data else {}) for name, chosen in SMALL.items()}


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
    done = posembed(f"{command_of(name)} --json --out", tmp_path / "command", *given)
    assert done.code == 0, done.err
    answer = library.compare(name, out=tmp_path / "python", **small[name])
    assert answer.to_dict() == json.loads(done.out)
    # The command finds Python's runs in their folder, and trains nothing again.
    again = posembed(f"{command_of(name)} --json --out", tmp_path / "python", *given)
    assert json.loads(again.out) == answer.to_dict()
    assert "training loss" not in again.err
    if name in ("lengths", "sharing") or asked["whole"]:  # pages take most of the time
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


@pytest.mark.parametrize(
    "name", [name for name in SMALL if "train_lengths" in options(getattr(QUESTIONS[name], "Spec", Conduct))]
)
def test_lengths_of_training_sequences_are_read_or_refused(name: str, small, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="unknown training lengths 'nonsense'"):
        prepare(name, small[name] | {"train_lengths": "nonsense"})
    file = tmp_path / "lengths.txt"
    file.write_text("3\n5 2\n400\n")
    plain, full, drawn = (
        prepare(name, small[name] | {"train_lengths": given}).specs[0] for given in (None, "full", str(file))
    )
    assert plain == full
    assert drawn.train_length_counts == ((3, 1), (5, 2), (400, 1))
    assert drawn.tokens_read == round(3 * 2 * (3 + 5 + 5 + plain.train_length) / 4)
    assert plain.tokens_read == 3 * 2 * plain.train_length


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
    reading.unlink()
    assert posembed("report", folder).code == 0


def test_a_reading_that_no_longer_fits_is_refused(posembed, tmp_path: Path) -> None:
    from made_up_inits import save_inits, typical

    folder = save_inits(tmp_path, typical(1)).path
    for reading, message in (
        ({"reference": "gone"}, "'gone', which was not run"),
        ({"loss": -1.0}, "loss: expected a number above 0"),
    ):
        (folder / "reading.json").write_text(json.dumps(reading))
        done = posembed("report", folder)
        assert (done.code, done.out) == (1, "")
        assert message in done.err


def test_a_reference_replaces_a_damaged_reading(posembed, tmp_path: Path) -> None:
    from made_up_runs import runs, save

    folder = save(tmp_path, runs(1, ("rope", "alibi"))).path
    (folder / "reading.json").write_text("{")
    assert posembed("report", folder).code == 1
    assert posembed("report", folder, "--reference", "rope").code == 0


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
    from posembed.comparison import Prepared, prepare

    prepared = prepare("lengths", SMALL["lengths"] | {"test_lengths": "32, 16", "data": text, "out": tmp_path / "runs"})
    assert isinstance(prepared, Prepared)
    assert prepared.specs[0].test_lengths == (16, 32)


def test_a_folder_of_an_unknown_question(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"question": "riddles"}')
    with pytest.raises(RunFolderError, match="the question 'riddles', which this version does not know"):
        library_page(tmp_path)
