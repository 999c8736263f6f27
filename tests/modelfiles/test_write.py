"""Writing: untouched bytes stay, the copy is whole or absent, and the original is never touched."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import posembed
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.copies import whole_copy
from posembed.modelfiles.raw_files import copy_bytes
from posembed.modelfiles.safetensors import read_header
from tiny_models import TEXT, saved, tiny_model
from together import asked, together

TABLE = "embeddings.position_embeddings.weight"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return saved(tiny_model("bert", TEXT), tmp_path / "source")


def hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def assert_only_the_table_differs(before: Path, after: Path) -> None:
    """Every other tensor: the same bytes under the same key, dtype and shape."""
    old, new = open_checkpoint(before).tensors, open_checkpoint(after).tensors
    assert old.keys() == new.keys()
    for key in old.keys() - {TABLE}:
        assert (old[key].dtype, old[key].shape) == (new[key].dtype, new[key].shape)
        raw = [t.path.read_bytes()[t.start : t.stop] for t in (old[key], new[key])]
        assert raw[0] == raw[1]


def test_every_other_byte_stays(source: Path, tmp_path: Path) -> None:
    (source / "notes").mkdir()
    (source / "notes" / "a.txt").write_bytes(b"\0\1\2")
    before = hashes(source)
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert hashes(source) == before
    assert_only_the_table_differs(source, tmp_path / "out")
    after = hashes(tmp_path / "out")
    assert {name for name in after if after[name] != before.get(name)} == {
        "model.safetensors",
        "config.json",
        "posembed.json",
    }


def test_shards_stay_shards(tmp_path: Path) -> None:
    model = tiny_model("bert", TEXT)
    model.save_pretrained(tmp_path / "source", max_shard_size="8KB")
    before = json.loads((tmp_path / "source" / "model.safetensors.index.json").read_text())
    assert len(set(before["weight_map"].values())) > 2
    posembed.resize_checkpoint(tmp_path / "source", tmp_path / "out", length=64)
    after = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert after["weight_map"] == before["weight_map"]
    added = 24 * 32
    assert after["metadata"]["total_size"] == before["metadata"]["total_size"] + 4 * added
    assert after["metadata"]["total_parameters"] == before["metadata"]["total_parameters"] + added
    assert_only_the_table_differs(tmp_path / "source", tmp_path / "out")
    holder = before["weight_map"][TABLE]
    old, new = hashes(tmp_path / "source"), hashes(tmp_path / "out")
    assert {name for name in old if name.startswith("model-") and new[name] != old[name]} == {holder}


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    tiny_model("bert", TEXT).save_pretrained(tmp_path / "source", max_shard_size="8KB")
    monkeypatch.setattr("posembed.modelfiles.copies.copy_file", full)
    with pytest.raises(CheckpointError, match="the disk is full; nothing was left there"):
        posembed.resize_checkpoint(tmp_path / "source", tmp_path / "out", length=64)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def other_content(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def another_file(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


@together("change", [other_content, another_file, Path.unlink])
@together("name", ["the shard of the table", "another shard", "index", "config.json", "README.md"])
def test_a_checkpoint_that_is_saved_anew_meanwhile_is_refused(
    name: str, change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers are read first and bytes later, so a file in between must be the same one, unchanged."""
    from posembed.checkpoints import resize as module

    source = tmp_path / "source"
    tiny_model("bert", TEXT).save_pretrained(source, max_shard_size="8KB")
    (source / "README.md").write_text("# A model")
    index = source / "model.safetensors.index.json"
    holder = json.loads(index.read_text())["weight_map"][TABLE]
    other = next(path.name for path in sorted(source.glob("model-*")) if path.name != holder)
    names = {"the shard of the table": holder, "another shard": other, "index": index.name}
    documents = module.new_documents

    def meanwhile(*args: Any) -> Any:
        made = documents(*args)
        change(source / names.get(name, name))
        return made

    monkeypatch.setattr(module, "new_documents", meanwhile)
    with pytest.raises(CheckpointError):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_refusal_leaves_nothing(tmp_path: Path) -> None:
    tiny_model("bert", TEXT).save_pretrained(tmp_path / "source", max_shard_size="8KB")
    with pytest.raises(posembed.errors.ArgumentError, match="already holds"):
        posembed.resize_checkpoint(tmp_path / "source", tmp_path / "out", length=40)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_pickles_become_safetensors(tmp_path: Path) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    half = len(weights) // 2
    parts = [dict(list(weights.items())[:half]), dict(list(weights.items())[half:])]
    names = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for name, part in zip(names, parts, strict=True):
        torch.save(part, source / name)
    weight_map = {key: name for name, part in zip(names, parts, strict=True) for key in part}
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    names = sorted(path.name for path in (tmp_path / "out").iterdir() if path.name.startswith("model"))
    assert names == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    for key, tensor in open_checkpoint(tmp_path / "out").tensors.items():
        if key != TABLE:
            assert torch.equal(tensor.read(), weights[key])


def test_a_bare_file(source: Path, tmp_path: Path) -> None:
    bare = source / "model.safetensors"
    posembed.resize_checkpoint(bare, tmp_path / "only.safetensors", length=64)  # its only candidate
    assert load_file(tmp_path / "only.safetensors")[TABLE].shape == (64, 32)
    with pytest.raises(CheckpointError, match=r"is written as \.safetensors; give it"):
        posembed.resize_checkpoint(bare, tmp_path / "out", length=64, table=TABLE)
    posembed.resize_checkpoint(bare, tmp_path / "out.safetensors", length=64, table=TABLE)
    assert load_file(tmp_path / "out.safetensors")[TABLE].shape == (64, 32)
    _, metadata = read_header(tmp_path / "out.safetensors")
    assert json.loads(metadata["posembed"])["resizes"][-1]["to"] == 64


# --- places that cannot be written


def test_what_is_there_is_not_overwritten_without_a_word(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    posembed.resize_checkpoint(source, out, length=64)
    first = hashes(out)
    with pytest.raises(CheckpointError, match="--overwrite"):
        posembed.resize_checkpoint(source, out, length=80)
    assert hashes(out) == first
    posembed.resize_checkpoint(source, out, length=80, overwrite=True)
    assert posembed.inspect_checkpoint(out).tables[0].table.length == 80
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


@pytest.mark.parametrize("place", ["source", "source/inside", ".", "link"])
def test_the_checkpoint_itself_is_never_written_to(place: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    before = hashes(source)
    with pytest.raises(CheckpointError, match="must be outside"):
        posembed.resize_checkpoint(source, tmp_path / place, length=64, overwrite=True)
    assert hashes(source) == before


def test_what_is_no_place_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.iterdir())
    for out in (tmp_path / "loop", tmp_path / "loop" / "out", tmp_path / "zero\0", tmp_path / ("n" * 250)):
        with pytest.raises(
            CheckpointError, match=r"not a path to write to|make it first|it is a link|cannot be written"
        ):
            posembed.resize_checkpoint(source, out, length=64, overwrite=True)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_is_not_there(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        posembed.resize_checkpoint(source, tmp_path / "no" / "out", length=64)


@pytest.mark.parametrize(
    ("call", "number", "reason"),
    [
        ("os.fsync", errno.ENOSPC, "the disk is full"),
        ("os.fsync", errno.EIO, "Input/output error"),
        ("posembed.files.system_rename", errno.EACCES, "Permission denied"),
        ("pathlib.Path.mkdir", errno.EACCES, "Permission denied"),
    ],
)
def test_an_error_of_the_disk_leaves_it_as_it_was(
    call: str, number: int, reason: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any, **kwargs: Any) -> None:
        raise OSError(number, os.strerror(number))

    before = hashes(tmp_path)
    monkeypatch.setattr(call, failing)
    with pytest.raises(CheckpointError, match=reason):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    monkeypatch.undo()
    assert hashes(tmp_path) == before


@pytest.mark.skipif(sys.platform != "linux", reason="reading /proc/self/mem at 0 fails as a broken disk does")
def test_an_error_of_the_source_names_the_source(tmp_path: Path) -> None:
    with (
        (tmp_path / "out").open("xb", buffering=0) as out,
        pytest.raises(CheckpointError, match="/proc/self/mem: cannot be read: Input/output error"),
    ):
        copy_bytes(Path("/proc/self/mem"), 0, 10, out)


def test_a_file_that_vanishes_while_it_is_copied_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "vocab.txt").write_text("words")
    sync = os.fsync

    def meanwhile(descriptor: int) -> None:
        (source / "vocab.txt").unlink(missing_ok=True)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    with pytest.raises(CheckpointError, match=r"source/vocab\.txt: cannot be read|expected a file"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert not (tmp_path / "out").exists()


def test_a_disk_that_takes_no_more_bytes(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a limit on the size of files, which the system itself enforces in the middle of the weights."""
    import resource

    assert (source / "model.safetensors").stat().st_size > 20_000
    before, limits = hashes(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of a module imported meanwhile, half would be kept
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="out: cannot be written: File too large; nothing was left there"):
            posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert hashes(tmp_path) == before


def test_a_disk_without_the_room_is_refused_at_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(CheckpointError, match="MB of that disk are free"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)


def test_an_interrupt_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


# --- killed


@pytest.mark.usefixtures("one_thread")  # a fork has no other threads
def test_killed_at_many_moments_every_copy_is_whole_or_absent(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    for folder in (source, out):
        folder.mkdir()
    save_file({"a": torch.rand(500, 500), "b": torch.zeros(32, 64)}, source / "model.safetensors")
    (source / "config.json").write_text("{}")
    before = hashes(source)
    with whole_copy(open_checkpoint(source), tmp_path / "whole") as copy:
        copy.write(tensors={"b": torch.ones(64, 64)}, documents={})

    checkpoint, new, dice = open_checkpoint(source), torch.ones(64, 64), random.Random(0)
    moments, until = 30 if asked["whole"] else 18, time.monotonic() + 60
    for moment in range(moments):
        writer = os.fork()
        if not writer:
            try:
                for number in range(10**6):
                    with whole_copy(checkpoint, out / f"{moment}-{number}") as copy:
                        copy.write(tensors={"b": new}, documents={})
            finally:
                os._exit(1)
        while moment % 2 and not (out / f"{moment}-0").exists():  # half of them finish a copy, on slow machines too
            assert time.monotonic() < until
            time.sleep(0.001)
        time.sleep(dice.uniform(0.005, 0.05))
        os.kill(writer, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == -signal.SIGKILL

    copies = sorted(path for path in out.iterdir() if not path.name.startswith("."))
    partial = [path for path in out.iterdir() if path.name.startswith(".")]
    assert len(copies) >= moments // 3
    assert len(partial) >= moments // 3  # most were killed in the middle
    assert all(hashes(copy) == hashes(tmp_path / "whole") for copy in copies)
    assert hashes(source) == before
