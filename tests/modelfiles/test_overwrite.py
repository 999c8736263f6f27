"""--overwrite replaces the unchanged output of an earlier resize and nothing else; what else is there is named."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import posembed
from posembed.cli.checkpoints import resize
from posembed.errors import CheckpointError
from posembed.files import system_rename
from posembed.modelfiles.safetensors import read_header
from posembed.tables.resize import WHY_TEXT_METHOD
from tiny_models import TEXT, saved, tiny_model

TABLE = "embeddings.position_embeddings.weight"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = saved(tiny_model("bert", TEXT), tmp_path / "source")
    (source / "modules.json").write_text('[{"path": ""}, {"path": "1_Pooling"}]')
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("{}")
    (source / "README.md").write_text("# A model\n")
    return source


def contents(folder: Path) -> dict[str, Any]:
    """Every entry of a folder: bytes, the target of a link, None for a folder."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def tuned(out: Path) -> None:
    weights = load_file(out / "model.safetensors")
    save_file({key: value + 1 for key, value in weights.items()}, out / "model.safetensors")


def touched(path: Path) -> None:
    path.write_bytes(path.read_bytes())


OF_THE_USER: dict[str, Callable[[Path], Any]] = {
    "checkpoint-500/": lambda out: (out / "checkpoint-500").mkdir(),
    "checkpoint-500/model.safetensors": lambda out: (
        (out / "checkpoint-500").mkdir(),
        shutil.copy2(out / "model.safetensors", out / "checkpoint-500"),
        touched(out / "checkpoint-500" / "model.safetensors"),
    ),
    "notes.txt": lambda out: (out / "notes.txt").write_text(""),
    "1_Pooling/[a] 50%.md": lambda out: (out / "1_Pooling" / "[a] 50%.md").write_text("a"),
    ".git/HEAD": lambda out: ((out / ".git").mkdir(), (out / ".git" / "HEAD").write_text("a")),
    "model.safetensors": tuned,
    "README.md": lambda out: touched(out / "README.md"),
    "config.json": lambda out: touched(out / "config.json"),
    "link": lambda out: (out / "link").symlink_to("config.json"),
    "1_Pooling/config.json": lambda out: (
        (out / "1_Pooling" / "config.json").unlink(),
        (out / "1_Pooling" / "config.json").symlink_to("../config.json"),
    ),
    "pipe": lambda out: os.mkfifo(out / "pipe"),
    "1_Pooling/config.json, README.md, config.json, model.safetensors, modules.json": lambda out: (
        out / "posembed.json"
    ).unlink(),
    "1_Pooling/config.json, README.md, config.json, model.safetensors, modules.json and 1 more": lambda out: (
        out / "posembed.json"
    ).write_text("{}"),
}


@pytest.mark.parametrize("name", OF_THE_USER)
def test_an_earlier_output_with_anything_of_the_users_stays_and_it_is_named(
    name: str, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    posembed.resize_checkpoint(source, out, length=64)
    OF_THE_USER[name](out)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError) as refused:
        posembed.resize_checkpoint(source, out, length=80, overwrite=True)
    assert f"found {name}; " in str(refused.value)
    assert contents(tmp_path) == before


def web_project(out: Path) -> None:
    (out / "src").mkdir(parents=True)
    (out / "config.json").write_text('{"port": 80}')
    (out / "src" / "index.js").write_text("years of work")


def training_folder(out: Path) -> None:
    tiny_model("bert", TEXT).save_pretrained(out)
    tiny_model("bert", TEXT).save_pretrained(out / "checkpoint-500")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (web_project, r"found config\.json, src/index\.js;"),
        (training_folder, r"found checkpoint-500/config\.json, checkpoint-500/model\.safetensors, config\.json"),
        (Path.touch, "files that cannot be read"),
    ],
)
def test_what_no_resize_wrote_stays(make: Callable[[Path], None], named: str, source: Path, tmp_path: Path) -> None:
    make(tmp_path / "out")
    before = contents(tmp_path)
    for overwrite, reason in ((False, "it exists; choose another name"), (True, named)):
        with pytest.raises(CheckpointError, match=reason):
            posembed.resize_checkpoint(source, tmp_path / "out", length=64, overwrite=overwrite)
    assert contents(tmp_path) == before


def test_an_empty_folder_holds_nothing_to_lose(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="it exists"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    posembed.resize_checkpoint(source, tmp_path / "out", length=64, overwrite=True)


def test_a_link_is_not_replaced(source: Path, tmp_path: Path) -> None:
    posembed.resize_checkpoint(source, tmp_path / "real", length=64)
    (tmp_path / "out").symlink_to("real")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="it is a link"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=80, overwrite=True)
    assert contents(tmp_path) == before


def test_a_copy_with_its_times_can_be_replaced_and_one_without_them_is_safe(source: Path, tmp_path: Path) -> None:
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    shutil.copytree(tmp_path / "out", tmp_path / "moved", copy_function=shutil.copy2)
    posembed.resize_checkpoint(source, tmp_path / "moved", length=80, overwrite=True)
    shutil.copytree(tmp_path / "out", tmp_path / "copied", copy_function=shutil.copy)
    with pytest.raises(CheckpointError, match="unchanged earlier resize"):
        posembed.resize_checkpoint(source, tmp_path / "copied", length=80, overwrite=True)


def test_times_fit_archives_that_count_by_two_seconds(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(time, "time", lambda: 1_577_836_801.5)
    posembed.resize_checkpoint(source, out, length=64)
    assert json.loads((out / "posembed.json").read_text())["resizes"][0]["time"] == 1_577_836_800
    assert {path.stat().st_mtime for path in out.rglob("*") if path.is_file()} == {1_577_836_800}


def test_a_fine_tuned_copy_stays(source: Path, tmp_path: Path) -> None:
    """Its record ends with a fine-tuning, whatever the times of its files."""
    out = tmp_path / "out"
    posembed.resize_checkpoint(source, out, length=64)
    record = json.loads((out / "posembed.json").read_text())
    seconds = record["resizes"][-1]["time"]
    (out / "posembed.json").write_text(json.dumps({**record, "tunings": [{"time": seconds}]}))
    os.utime(out / "posembed.json", (seconds, seconds))
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="unchanged earlier resize"):
        posembed.resize_checkpoint(source, out, length=80, overwrite=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("moment", ["even", "of the record"])
@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors", "README.md", "1_Pooling/config.json"])
def test_one_time_for_all_files_hides_no_work(name: str, moment: str, source: Path, tmp_path: Path) -> None:
    """Archives give all files one time (tar --mtime, zip's two seconds), sometimes that of another file."""
    out = tmp_path / "out"
    posembed.resize_checkpoint(source, out, length=64)
    seconds = 1_577_836_800 if moment == "even" else os.stat(out / "posembed.json").st_mtime
    OF_THE_USER[name](out) if name in ("notes.txt", "model.safetensors") else (out / name).write_text('{"a": 1}')
    for path in out.rglob("*"):
        os.utime(path, (seconds, seconds))
    before = contents(tmp_path)
    named = "unchanged earlier resize" if moment == "even" else f"found {name}; "
    with pytest.raises(CheckpointError, match=named):
        posembed.resize_checkpoint(source, out, length=80, overwrite=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("moment", ["even", "of the record"])
def test_one_time_hides_no_work_in_a_bare_file(moment: str, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    posembed.resize_checkpoint(source / "model.safetensors", out, length=64, table=TABLE)
    seconds = 1_577_836_800 if moment == "even" else os.stat(out).st_mtime
    metadata = read_header(out)[1]
    save_file({key: value + 1 for key, value in load_file(out).items()}, out, metadata=metadata)
    os.utime(out, (seconds, seconds))
    tuned_bytes = out.read_bytes()
    with pytest.raises(CheckpointError, match="changed since"):
        posembed.resize_checkpoint(source / "model.safetensors", out, length=80, table=TABLE, overwrite=True)
    assert out.read_bytes() == tuned_bytes


def test_every_resize_of_a_bare_file_stays_in_its_record(source: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    posembed.resize_checkpoint(source / "model.safetensors", first, length=64, table=TABLE)
    posembed.resize_checkpoint(first, second, length=80, table=TABLE)
    resizes = json.loads(read_header(second)[1]["posembed"])["resizes"]
    assert [(resize["from"], resize["to"]) for resize in resizes] == [(40, 64), (64, 80)]


@pytest.mark.parametrize("change", ["none", "other weights", "posembed's metadata lost"])
def test_a_bare_file(change: str, source: Path, tmp_path: Path) -> None:
    bare, out = source / "model.safetensors", tmp_path / "out.safetensors"
    posembed.resize_checkpoint(bare, out, length=64, table=TABLE)
    with pytest.raises(CheckpointError, match="--overwrite"):
        posembed.resize_checkpoint(bare, out, length=80, table=TABLE)
    if change == "none":
        posembed.resize_checkpoint(bare, out, length=80, table=TABLE, overwrite=True)
        assert load_file(out)[TABLE].shape == (80, 32)
        return
    metadata = {"posembed": "{}"} if change == "other weights" else None
    save_file({"years": torch.ones(3)}, out, metadata=metadata)
    with pytest.raises(CheckpointError, match="changed since"):
        posembed.resize_checkpoint(bare, out, length=80, table=TABLE, overwrite=True)
    assert load_file(out).keys() == {"years"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_out_that_appears_while_the_copy_is_made_stays(
    overwrite: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from posembed.checkpoints import resize as module

    plan = module.plan_resize

    def meanwhile(*args: Any, **arguments: Any) -> Any:
        web_project(tmp_path / "out")
        return plan(*args, **arguments)

    monkeypatch.setattr(module, "plan_resize", meanwhile)
    with pytest.raises(CheckpointError, match=r"out: it"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64, overwrite=overwrite)
    assert (tmp_path / "out" / "src" / "index.js").read_text() == "years of work"
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_the_next_run_names_what_a_killed_one_left(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (".out.0123abcd.partial", ".other.0123abcd.partial"):
        (tmp_path / name).mkdir()
    posembed.resize_checkpoint(source, tmp_path / "old", length=64)
    (tmp_path / "old").rename(tmp_path / ".out.01234567.old")
    resize([str(source), str(tmp_path / "out"), "--length", "80"], standalone_mode=False)
    printed = capsys.readouterr().out
    assert f"tile is the default: {WHY_TEXT_METHOD}" in printed
    assert ".other" not in printed
    for name in (".out.0123abcd.partial", ".out.01234567.old"):
        assert f"{tmp_path / name}: an unfinished copy or the earlier OUT" in printed
        assert (tmp_path / name).exists()
    resize([str(source), str(tmp_path / "out"), "--length", "90", "--dry-run", "--json"], standalone_mode=False)
    names = [str(tmp_path / name) for name in (".out.01234567.old", ".out.0123abcd.partial")]
    assert json.loads(capsys.readouterr().out)["leftovers"] == names


def test_names_are_exchanged_here(tmp_path: Path) -> None:
    """Otherwise the tests of an exchange would try the two renames twice."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    assert system_rename(tmp_path / "a", tmp_path / "b", exchange=True)
    assert (tmp_path / "a").read_text() == "b"
