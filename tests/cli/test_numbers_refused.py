"""Numbers that no run can have are refused before a folder is made, whatever the question."""

from __future__ import annotations

from pathlib import Path

import pytest

from together import together

TRAINING = {
    "--learning-rate": ("0", "-1", "nan", "inf"),
    "--dropout": ("-0.1", "1", "nan"),
    "--weight-decay": ("-1", "nan", "inf"),
    "--warmup": ("-50", "3"),
    "--steps": ("0", "-1"),
    "--batch": ("0", "-1"),
    "--layers": ("0",),
    "--width": ("0", "-8"),
    "--heads": ("0", "-2"),
}
WINDOWS = {"--window": ("0", "-4"), "--ring": ("0", "-1")}
LENGTHS = {"--test-tokens": ("0",), "--train-length": ("0", "-1")}
OF_COMMAND = {
    "lengths --encodings alibi+window": TRAINING
    | WINDOWS
    | LENGTHS
    | {
        "--test-lengths": ("0", "1,8", "-8", "many", "8,1.5"),
        "--rope-factors": ("nan", "0,1", "inf"),
        "--seeds": ("0", "-1"),
    },
    "inits --seeds 1": {"--inits": ("normal-" + "9" * 400, "sinusoidal-" + "9" * 400)},
    "inits": TRAINING | LENGTHS | {"--loss": ("nan", "0", "-1", "inf"), "--seeds": ("0",)},
    "sharing": TRAINING | {"--train-size": ("0",), "--test-pairs": ("0",), "--test-sizes": ("0",), "--seeds": ("0",)},
    "tasks text": TRAINING | {"--train-length": ("0", "1"), "--seeds": ("0",)},
    "tasks images": TRAINING | {"--patch": ("0",), "--seeds": ("0",)},
    "tasks copy --encodings rope+window": TRAINING | WINDOWS | {"--train-size": ("0",), "--test-problems": ("0",)},
    "cost": {
        "--seconds": ("-1", "nan", "inf"),
        "--window": ("0", "-1"),
        "--length": ("0", "1"),
        "--batch": ("0",),
    },
}


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    file = tmp_path / "labelled.csv"
    file.write_text("text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40)), encoding="utf-8")
    return file


@together("command", OF_COMMAND)
def test_no_number_trains_that_cannot(command: str, posembed, text: Path, labelled: Path, tmp_path: Path) -> None:
    data = {"lengths": text, "inits": text, "tasks text": labelled}
    of = next((["--data", str(path)] for name, path in data.items() if command.startswith(name)), [])
    small = [] if command == "cost" else ["--steps", "2"]
    for option, values in OF_COMMAND[command].items():
        for value in values:
            done = posembed(f"compare {command}", *of, *small, "--out", tmp_path / "runs", option, value)
            assert (done.code, done.out) == (1, ""), (option, value, done)
            assert done.err.startswith("posembed: error: "), (option, value)
            assert not (tmp_path / "runs").exists()


@together("command", OF_COMMAND)
def test_an_empty_name_is_no_folder(command: str, posembed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = posembed(f"compare {command}", "--out", "")
    assert done.code == 1
    assert "expected a path" in done.err
    assert not list(tmp_path.iterdir())


def test_a_warm_up_that_nobody_asked_for_ends_with_the_steps(posembed, text: Path, tmp_path: Path) -> None:
    sizes = "--steps 2 --layers 1 --width 8 --heads 2 --batch 2 --train-length 8 --test-lengths 8 --test-tokens 64"
    out = ["--data", str(text), "--out", str(tmp_path / "runs"), "--encodings", "rope"]
    assert posembed(f"compare lengths {sizes}", *out).code == 0
