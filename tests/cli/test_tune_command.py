"""posembed tune: the plan, the answer, the page, JSON, and what is refused."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluated_models import save_encoder, write_texts
from together import together

WORDS = ["tune", "model", "out", "--text", "text", "--device", "cpu"]
HOW = [*WORDS, "--length", "128", "--steps", "2", "--batch", "2", "--passage", "8", "--query", "8"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_encoder(Path("model"))
    write_texts(Path("text"), number=24, words=300)
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_dry_run_writes_nothing(posembed, folder: Path) -> None:
    before = files(folder)
    done = posembed("", *HOW, "--dry-run")
    assert done.code == 0
    said = " ".join(done.out.split())
    assert "To train on: 14 documents of 128 tokens or more, in 42 windows; 2 steps of 2 windows, so that" in said
    assert "each window is read 0.10 times. To measure the result: 10 other documents, which are held out." in said
    assert re.search(r"fine-tuning at 128 tokens 2 \d+ s the same fine-tuning at 64 tokens 2 \d+ s", said)
    assert "To write: out-at-64 and out." in said
    assert said.endswith("in total on this machine; nothing was trained.")
    planned = json.loads(
        posembed("", *WORDS, "--length", "128", "--passage", "8", "--query", "8", "--dry-run", "--json").out
    )
    assert planned["held_out_documents"] == 10
    parts = [seconds for part, seconds in planned["estimate"].items() if part != "steps"]
    assert sum(parts) == pytest.approx(15 * 60, rel=0.2)  # --minutes 15 is the default, for the whole command
    assert files(folder) == before


def test_the_answer_and_the_page(posembed, folder: Path) -> None:
    done = posembed("", *HOW)
    assert done.code == 0
    said = " ".join(done.out.split())
    assert "NDCG@10 (higher is better)" in said
    assert "On this text, use model, not fine-tuned, with “chunks of 64, mean”: its NDCG@10 is" in said
    assert "out on whole texts of up to 128 tokens." in said
    assert "written: out-at-64 written: out report: out.html" in said
    page = Path("out.html").read_text(encoding="utf-8")
    for words in ("Is it worth fine-tuning model at 128 tokens?", "On this text, use model", "10 held-out documents"):
        assert words in page
    assert files(folder) == ["model", "out", "out-at-64", "out.html", "out.tune", "text"]
    again = posembed("", *HOW)
    assert (again.code, again.out) == (0, done.out)
    assert posembed("", *HOW, "--csv").out.startswith("run,seed,item,metric,x,value,weight\n")
    printed = posembed("", *(word.replace("out", "rows") for word in HOW), "--train", "rows", "--json")
    found = json.loads(printed.out)
    assert (found["recommended"], found["pays"]) == ("model, chunks of 64, mean", False)
    assert "report: rows.html" in printed.err


@together(
    ("options", "message"),
    [
        (WORDS, "length: expected a whole number of at least 16; got none"),
        ([*HOW, "--report", "text"], "the page text cannot be written"),
        ([*HOW, "--report", "out-at-64"], "report: out-at-64 is a folder that this command writes; name another file"),
        ([*HOW, "--images", "text"], "images: an image model is trained and measured on images only"),
        (["tune", "model", ".", *HOW[3:]], "out: expected the path of a new folder; got '.'"),
        ([*HOW, "--report", "no/page.html"], "the folder no does not exist; name another file (--report)"),
    ],
)
def test_refusals(posembed, folder: Path, options: list[str], message: str) -> None:
    before = files(folder)
    done = posembed("", *options)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert files(folder) == before


CONTINUES = "the same command continues from out.tune"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C has its usual effect: a shell's background jobs ignore it."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, earlier)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("where", "left", "message"),
    [
        (
            "posembed.tuning.plan.plan_resize",
            ["model", "text"],
            "nothing was written, and the same command starts again",
        ),
        ("posembed.tuning.run.rows_moved", None, CONTINUES),
        pytest.param("posembed.tuning.outs.renamed", None, CONTINUES, marks=pytest.mark.whole),
        ("posembed.report.page.write_whole", None, CONTINUES),
        pytest.param("posembed.report.tuning.render", None, CONTINUES, marks=pytest.mark.whole),
    ],
)
def test_ctrl_c(posembed, folder: Path, monkeypatch, where: str, left: list[str] | None, message: str) -> None:
    with monkeypatch.context() as patched:
        original = pkgutil.resolve_name(where)
        patched.setattr(where, lambda *given, **named: os.kill(os.getpid(), signal.SIGINT) or original(*given, **named))
        done = posembed("", *HOW, "--train", "rows")
    assert done.code == 130
    assert f"posembed: stopped; {message}" in done.err
    assert left is None or files(folder) == left
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert posembed("", *HOW, "--train", "rows").code == 0
    assert files(folder) == ["model", "out", "out.html", "out.tune", "text"]
