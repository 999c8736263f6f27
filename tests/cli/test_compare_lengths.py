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
    heavy = {"transformers", "accelerate", "matplotlib", "scipy", "sklearn", "huggingface_hub", "tokenizers", "jinja2"}
    assert not loaded & heavy
    assert "torch" not in loaded_by("from posembed import errors, files")
