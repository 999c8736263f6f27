"""The commands as a user runs them: what comes on stdout, what on stderr, and with which exit code."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from asked import means
from fresh_process import run_python
from together import together

SMALL = "--train-length 16 --test-lengths 16,32 --layers 1 --width 8 --heads 2 --steps 3 --batch 2 --test-tokens 200"


def test_from_text_to_table(posembed, text: Path, tmp_path: Path) -> None:
    command = f"compare lengths --data {text} --out {tmp_path}/run {SMALL} --encodings learned,rolling,alibi"
    code, out, err = posembed(command)
    assert code == 0
    for name in ("learned", "rolling", "alibi"):
        assert name in out
        assert f"{name}, seed 0: training loss" in err
    runs = {file: file.read_text() for file in (tmp_path / "run" / "results").iterdir()}
    assert len(runs) == 3
    assert "text: text.txt (1 file)" in err
    code, out, err = posembed(command + " --json")
    assert code == 0
    summary = json.loads(out)
    assert [row["name"] for row in summary["rows"]] == ["learned", "rolling", "alibi"]
    assert means(summary, "perplexity of the same tokens")["learned", 32] is None
    assert "training loss" not in err  # nothing trained again
    values = pandas.read_csv(io.StringIO(posembed(command + " --csv").out))
    assert set(values.run) == {"learned", "rolling", "alibi"}
    assert "log perplexity of the same tokens" in set(values.metric)
    assert {file: file.read_text() for file in (tmp_path / "run" / "results").iterdir()} == runs


def test_the_same_text_by_another_path_goes_on(
    posembed, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    books = tmp_path / "books"
    books.mkdir()
    text.rename(books / "text.txt")
    (tmp_path / "link").symlink_to(books)
    command = f"compare lengths --out {tmp_path}/run {SMALL} --encodings rope --data"
    assert posembed(f"{command} {books}")[0] == 0
    monkeypatch.chdir(tmp_path)
    for path in (f"{books}/", "books", "./books", "link", f"{tmp_path}/link/text.txt"):
        code, _, err = posembed(f"{command} {path}")
        assert (code, "training loss" in err) == (0, False), path
    (books / "text.txt").write_text("other text, and more of it\n" * 100)
    code, _, err = posembed(f"{command} books")
    assert code == 1
    assert "data_sha256: " in err


def test_json_is_json_even_where_a_perplexity_is_beyond_any_float(posembed, text: Path, tmp_path: Path) -> None:
    command = f"compare lengths --data {text} --out {tmp_path}/run {SMALL} --encodings rope,alibi --json"
    code, out, _ = posembed(f"{command} --learning-rate 40 --warmup 0 --width 32")
    assert code == 0

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    summary = json.loads(out, parse_constant=refuse)
    assert None in [mean["value"] for mean in means(summary, "perplexity over whole windows").values()]


def test_inits_from_text_to_table_and_page(posembed, text: Path, tmp_path: Path) -> None:
    small = SMALL.replace("--test-lengths 16,32 ", "")
    command = f"compare inits --data {text} --out {tmp_path}/run {small} --inits normal-0.02,sinusoidal,zero --seeds 2"
    code, out, err = posembed(command)
    assert code == 0
    assert "sinusoidal, seed 1: training loss" in err
    assert "tokens have scale" not in err  # large initial values are part of the question
    assert all(name in out for name in ("normal-0.02", "sinusoidal", "zero"))
    code, out, _ = posembed(command + " --json --loss 1.5 --reference zero")
    assert code == 0
    summary = json.loads(out)
    assert [row["name"] for row in summary["rows"]] == ["normal-0.02", "sinusoidal", "zero"]
    assert (summary["reference"], summary["reading"]["loss"]) == ("zero", 1.5)
    code, out, _ = posembed(f"report {tmp_path}/run")
    assert (code, out) == (0, f"report: {tmp_path}/run/report.html\n")
    code, _, err = posembed(f"compare lengths --data {text} --out {tmp_path}/run {SMALL}")
    assert code == 1
    assert "question: inits there, lengths now" in err


def test_a_tracker_is_looked_for_before_anything_trains(
    posembed, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"compare lengths --data {text} --out {tmp_path}/run {SMALL} --encodings rope"
    code, _, err = posembed(f"{command} --track excel")
    assert (code, err) == (1, "posembed: error: unknown tracker 'excel'; choose from tensorboard, wandb\n")
    monkeypatch.setattr("posembed.lab.runs.sweep.find_spec", lambda name: None)
    code, _, err = posembed(f"{command} --track tensorboard")
    assert code == 1
    assert "needs the library tensorboard; install it with: pip install 'posembed[track]'" in err
    assert not (tmp_path / "run").exists()


def test_dry_run_trains_nothing(posembed, text: Path, tmp_path: Path) -> None:
    code, out, _ = posembed(f"compare lengths --data {text} --out {tmp_path}/run {SMALL} --seeds 2 --dry-run")
    assert code == 0
    assert "alibi, seed 1" in out
    assert "nothing was trained" in out
    assert not (tmp_path / "run").exists()


@together(
    ("options", "code", "message"),
    [
        ("--encodings learned,roap", 1, "unknown encoding 'roap' (did you mean rope?); choose from learned, rolling"),
        ("--heads 3", 1, "width 8 is not divisible by 3 heads"),
        (
            "--test-lengths 16,5000",
            1,
            "tokens, and test lengths up to 5,000 after a training length of 16 need 5,001",
        ),
        ("--test-lengths many", 1, "test_lengths: expected a list, each a whole number of at least 2; got 'many'"),
        ("--rope-factors 1,1", 1, "rope_factors belongs to rope-longrope; none is compared, so leave it out"),
        ("--data nowhere.txt", 1, "no file or folder nowhere.txt"),
        ("--preset enormous", 1, "'enormous'; choose from quick, small, gpt2, documents, documents-quarter"),
        ("--precision fp4", 1, 'precision must be "no" (float32), "bf16" or "fp16"'),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    posembed, text: Path, tmp_path: Path, options: str, code: int, message: str
) -> None:
    given = f"compare lengths --data {text} --out {tmp_path}/run {SMALL} {options}"
    exit_code, out, err = posembed(given)
    assert exit_code == code
    assert out == ""
    assert message in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err
    if code == 1:
        assert err.startswith("posembed: error: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_other_settings_and_broken_files_lose_nothing(posembed, text: Path, tmp_path: Path) -> None:
    command = f"compare lengths --data {text} --out {tmp_path}/run {SMALL} --encodings rope"
    assert posembed(command)[0] == 0
    (file,) = (tmp_path / "run" / "results").iterdir()
    code, _, err = posembed(command + " --learning-rate 0.5")
    assert code == 1
    assert "learning_rate: 0.006 there, 0.5 now" in err
    broken = file.read_text()[:50]
    file.write_text(broken)
    code, _, err = posembed(command)
    assert code == 1
    assert f"{file} is not a run" in err
    assert file.read_text() == broken


def test_a_folder_that_cannot_be_written(posembed, text: Path) -> None:
    code, _, err = posembed(f"compare lengths --data {text} --out {text}/run {SMALL}")
    assert code == 1
    assert "cannot be written" in err


def test_debug_shows_the_traceback(text: Path) -> None:
    done = run_python(*["-m", "posembed", "--debug", "compare", "lengths", "--data", "nowhere.txt"])
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def loaded_by(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_help_answers_without_torch() -> None:
    loaded = loaded_by("import posembed.cli")
    assert not loaded & {"torch", "numpy", "scipy", "matplotlib", "accelerate", "transformers", "tensorboard"}


def test_import_loads_torch_and_nothing_heavier() -> None:
    loaded = loaded_by("import posembed\nfor name in posembed.__all__: getattr(posembed, name)")
    assert "torch" in loaded
    heavy = {
        "transformers",
        "accelerate",
        "matplotlib",
        "scipy",
        "sklearn",
        "huggingface_hub",
        "tokenizers",
        "jinja2",
    }
    assert not loaded & heavy


def test_a_file_of_training_lengths_is_compared(posembed, text: Path, tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("3 9\n16\n", encoding="utf-8")
    sizes = "--layers 1 --width 8 --heads 2 --steps 3 --batch 4 --train-length 16 --test-tokens 64 --data"
    done = posembed(f"compare rows --json --train-lengths full,{file} {sizes}", text, "--out", tmp_path / "runs")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert [row["name"] for row in summary["rows"]] == ["full", str(file)]
    trained = {
        (each["run"], each["x"]): each["mean"] for each in summary["estimates"] if each["metric"] == "times trained"
    }
    assert trained[str(file), 0]["value"] == 12
