"""What a copy keeps and what it goes without: nothing that may hold the old table, nothing dropped in silence."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

import posembed
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.folders import other_files
from tiny_models import TEXT, saved, tiny_model

BINARY = os.urandom(4096) + b"\0"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return saved(tiny_model("bert", TEXT), tmp_path / "source")


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def write(folder: Path, names: list[str], content: bytes = BINARY) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


STALE = [
    "pytorch_model.bin", "optimizer.pt", "tf_model.h5", "tf_model.h5.index.json", "flax_model.msgpack",
    "model.onnx", "model.onnx.data", "model.onnx_data", "model.onnx_data_1", "saved_model.pb", "model.keras",
    "variables/variables.data-00000-of-00001", "variables/variables.index", "checkpoint", "bert.ckpt.index",
    "bert.ckpt.data-00000-of-00001", "model_state.pdparams", "model.pdiparams", "model.pdopt", "rust_model.ot",
    "model.gguf", "vit.npz", "openvino/openvino_model.xml", "openvino/openvino_model.bin", "adapter_config.json",
    "adapter_model.safetensors", "checkpoint-500/config.json", "checkpoint-500/model.safetensors", "weights",
    "checkpoint-500/tokenizer.json", "onnx/config.json", "onnx/model.onnx", "onnx/onnx__MatMul_1", "model.data",
    "a.mlpackage/Data/model.mlmodel", "a.mlpackage/Data/weights/weight.bin", "of.a.kind.nobody.knows",
]  # fmt: skip
KEPT = [
    "vocab.txt", "merges.txt", "spiece.model", "LICENSE", "images/a.png", "speakers/a.npy", "code.py",
    "2_Dense/model.safetensors", "2_Dense/config.json", "modules/3/pytorch_model.bin", "modules/3/config.json",
    "modules/3/deep/a.bin", "model.onnx-notes.md", "config.other.json", "a b/[c] 50%.txt", ".gitattributes",
]  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"text", BINARY], ids=["empty", "text", "binary"])
def test_each_file_is_copied_as_it_is_or_left_out_and_named(content: bytes, source: Path, tmp_path: Path) -> None:
    own = files(source)
    write(source, [*STALE, *KEPT], content)
    write(source, ["LICENSE", ".gitattributes"], b"text")
    write(source, ["modules.json"], b'[{"path": ""}, {"path": "2_Dense/"}, {"path": "modules/3"}]')
    resized = posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    unknown = {"weights", "model.data", "of.a.kind.nobody.knows"}  # kept where they are text
    stale = set(STALE) - (set() if content == BINARY else unknown)
    assert set(resized.left_out) == stale
    kept = files(tmp_path / "out") - own - {"posembed.json", "modules.json"}
    assert kept == (set(KEPT) | set(STALE)) - stale
    for name in kept:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_what_is_no_file_is_named(source: Path, tmp_path: Path) -> None:
    write(source, [".git/HEAD", ".cache/huggingface/a.json"])
    os.mkfifo(source / "pipe")
    resized = posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert tuple(resized.left_out) == (".cache/", ".git/", "pipe")
    assert files(tmp_path / "out") == {"config.json", "model.safetensors", "posembed.json"}


@pytest.mark.parametrize("folder", ["", "2_Dense/", "assets/"])
@pytest.mark.parametrize("name", [".git", ".hg", ".svn", ".jj"])
def test_files_of_version_control_are_left_out(name: str, folder: str, source: Path, tmp_path: Path) -> None:
    """In a worktree and in a submodule .git is a file, and a copy of it would be that worktree again."""
    write(source, ["modules.json"], b'[{"path": ""}, {"path": "2_Dense/"}]')
    write(source, [folder + name], b"gitdir: /elsewhere/.git/worktrees/model")
    resized = posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert tuple(resized.left_out) == (folder + name,)
    assert not (tmp_path / "out" / folder / name).exists()


# --- links


def test_links_into_the_hub_cache_become_files(source: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    (snapshot / "1_Pooling").mkdir(parents=True)
    (source / "vocab.txt").write_text("words")
    for number, path in enumerate(source.iterdir()):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    (blobs / "pooling").write_text("{}")
    (snapshot / "1_Pooling" / "config.json").symlink_to("../../../blobs/pooling")
    posembed.resize_checkpoint(snapshot, tmp_path / "out", length=64)
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert {"vocab.txt", "1_Pooling/config.json"} < files(tmp_path / "out")
    assert other_files(open_checkpoint(snapshot))[1] == ()


def test_links_inside_the_checkpoint_become_files_and_folders(source: Path, tmp_path: Path) -> None:
    write(source, ["parts/pooling/config.json", "vocab.txt"], b"{}")
    (source / "1_Pooling").symlink_to("parts/pooling")
    (source / "words.txt").symlink_to("vocab.txt")
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert {"1_Pooling/config.json", "parts/pooling/config.json", "words.txt"} < files(tmp_path / "out")
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("name", ["tokenizer.json", "1_Pooling", "config.json", "nowhere", "loop"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_link_to_anywhere_else_is_refused_by_name(name: str, dry_run: bool, source: Path, tmp_path: Path) -> None:
    write(tmp_path, ["secret/id_rsa"], b"secret")
    target = {
        "1_Pooling": tmp_path / "secret", "nowhere": tmp_path / "gone", "loop": source,
        "config.json": tmp_path / "config.json",
    }.get(name, tmp_path / "secret" / "id_rsa")  # fmt: skip
    if (source / name).exists():
        (source / name).rename(target)
    (source / name).symlink_to(target)
    with pytest.raises(CheckpointError, match=rf"source/{name}: a link"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64, dry_run=dry_run)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("link", ["blobs", "snapshots"])
def test_a_folder_that_only_looks_like_the_hub_cache_leads_nowhere(link: str, source: Path, tmp_path: Path) -> None:
    write(tmp_path, ["secret/id_rsa"], b"secret")
    cache = tmp_path / "models--a--b"
    (cache / "snapshots").mkdir(parents=True)
    source.rename(cache / "snapshots" / "0123")
    if link == "blobs":
        (cache / "blobs").symlink_to(tmp_path / "secret")
        target = cache / "blobs" / "id_rsa"
    else:
        target = tmp_path / "secret" / "id_rsa"
    (cache / "snapshots" / "0123" / "tokenizer.json").symlink_to(target)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: a link to .*id_rsa, outside"):
        posembed.resize_checkpoint(cache / "snapshots" / "0123", tmp_path / "out", length=64)


def test_a_folder_of_links_to_another_model_is_copied(source: Path, tmp_path: Path) -> None:
    """Also over two steps: into the hub cache, from there into its blobs."""
    blobs, snapshot = tmp_path / "models--a--b" / "blobs", tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    write(source, ["1_Pooling/config.json", "vocab.txt"], b"{}")
    snapshot.parent.mkdir()
    source.rename(snapshot)
    for number, path in enumerate([path for path in snapshot.iterdir() if path.is_file()]):
        path.rename(blobs / str(number))
        path.symlink_to(f"../../blobs/{number}")
    posembed.resize_checkpoint(snapshot, tmp_path / "straight", length=64)
    links = tmp_path / "links"
    links.mkdir()
    for path in snapshot.iterdir():
        (links / path.name).symlink_to(path)
    posembed.resize_checkpoint(links, tmp_path / "out", length=64)
    assert files(tmp_path / "out") == files(tmp_path / "straight")
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert (tmp_path / "out" / "1_Pooling" / "config.json").read_bytes() == b"{}"
    (links / "model.safetensors").unlink()  # weights may have any name elsewhere
    (links / "model.safetensors").symlink_to((snapshot / "model.safetensors").resolve())
    posembed.resize_checkpoint(links, tmp_path / "again", length=64)


@pytest.mark.parametrize("step", ["file", "folder"])
def test_a_link_over_another_model_to_a_private_file_is_refused(step: str, source: Path, tmp_path: Path) -> None:
    write(tmp_path, ["secret/tokenizer.json"], b"secret")
    other = tmp_path / "other"
    write(other, ["model.safetensors"])
    if step == "file":
        (other / "tokenizer.json").symlink_to(tmp_path / "secret" / "tokenizer.json")
        link = source / "tokenizer.json"
    else:
        (other / "1_Pooling").symlink_to(tmp_path / "secret")
        (source / "1_Pooling").mkdir()
        link = source / "1_Pooling" / "tokenizer.json"
    link.symlink_to(other / link.relative_to(source))
    with pytest.raises(CheckpointError, match=r"a link to .*secret.*outside"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "link", ["{}.hidden/../words.txt", "{}more/.hidden/../words.txt", "{}more/./.hidden/../words.txt"]
)
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("dry_run", [True, False])
def test_two_dots_behind_a_link_are_followed_as_the_system_does(
    link: str, absolute: bool, dry_run: bool, source: Path, tmp_path: Path
) -> None:
    """``A/../words.txt`` is beside the folder that the link A leads to, not beside A, where a model may be."""
    write(tmp_path, ["secret/words.txt", "secret/deeper/file"], b"secret")
    write(source, ["more/model.safetensors", "more/words.txt"])
    for folder in (source, source / "more"):
        (folder / ".hidden").symlink_to(tmp_path / "secret" / "deeper")
    (source / "words.txt").symlink_to(link.format(f"{source}/" if absolute else ""))
    assert (source / "words.txt").read_bytes() == b"secret"
    with pytest.raises(CheckpointError, match=r"words\.txt: a link to .*secret.*outside"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=64, dry_run=dry_run)
    assert not (tmp_path / "out").exists()


def test_a_link_that_is_not_copied_may_lead_anywhere(source: Path, tmp_path: Path) -> None:
    write(tmp_path, ["elsewhere/pytorch_model.bin"])
    (source / "pytorch_model.bin").symlink_to(tmp_path / "elsewhere" / "pytorch_model.bin")
    assert set(posembed.resize_checkpoint(source, tmp_path / "out", length=64).left_out) == {"pytorch_model.bin"}


# --- permissions


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("pickled", [True, False])
def test_permissions_stay(pickled: bool, source: Path, tmp_path: Path) -> None:
    write(source, ["README.md", "vocab.txt", "tokenizer_config.json", "1_Pooling/config.json"], b"{}")
    weights = "model.safetensors"
    if pickled:
        tensors = {key: tensor.read() for key, tensor in open_checkpoint(source).tensors.items()}
        (source / weights).unlink()
        weights = "pytorch_model.bin"
        torch.save(tensors, source / weights)
    modes = {
        weights: 0o600, "config.json": 0o640, "README.md": 0o604, "vocab.txt": 0o400, ".": 0o750,
        "tokenizer_config.json": 0o660, "1_Pooling/config.json": 0o644, "1_Pooling": 0o711,
    }  # fmt: skip
    for name, wanted in modes.items():
        (source / name).chmod(wanted)
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    for name, wanted in modes.items():
        assert mode(tmp_path / "out" / name.replace("pytorch_model.bin", "model.safetensors")) == wanted, name
    posembed.resize_checkpoint(source, tmp_path / "out", length=80, overwrite=True)


def test_the_permissions_of_a_bare_file_stay(source: Path, tmp_path: Path) -> None:
    bare, out = source / "model.safetensors", tmp_path / "out.safetensors"
    bare.chmod(0o600)
    posembed.resize_checkpoint(bare, out, length=64, table="embeddings.position_embeddings.weight")
    assert mode(out) == 0o600


def test_nobody_reads_along_while_the_copy_is_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        seen.extend(mode(place) for place in tmp_path.glob(".out*"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    source.chmod(0o700)
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    assert set(seen) == {0o700}
