"""Whole or absent, and nothing of anybody else's replaced: on every kind of system, at every moment of a kill."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from posembed import files
from posembed.files import as_bytes, leftovers, reason, whole_or_absent, write_whole
from posembed.words import brief
from together import together

NAMES = ["out", "[v2]", "50%", 'it\'s "so"', "two\nlines", "-rf", "a b", "é\udcff", ".hidden"]


def no_flags(*args: object, **kwargs: object) -> bool:
    return False


def no_links(*args: object, **kwargs: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.fixture(params=["flags", "no flags", "no flags, no hard links"])
def _systems(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux and macOS; NFS and other systems; FAT there."""
    if request.param != "flags":
        monkeypatch.setattr(files, "system_rename", no_flags)
    if "links" in request.param:
        monkeypatch.setattr(os, "link", no_links)


def put(place: Path, text: str, kind: str) -> None:
    if kind == "folder":
        (place / "inside").mkdir(parents=True)
        (place / "inside" / "a").write_text(text)
        (place / "b").write_text(text)
    else:
        place.write_text(text)


def content(place: Path) -> dict[str, str]:
    paths = [place, *sorted(place.rglob("*"))] if place.is_dir() else [place]
    return {str(path.relative_to(place)): path.read_text() for path in paths if path.is_file()}


def write(out: Path, kind: str, refusal: files.Refusal | None, meanwhile: Callable[[], None]) -> None:
    with whole_or_absent(out, refusal=refusal) as place:
        put(place, "new", kind)
        meanwhile()


def is_own(place: Path) -> str | None:
    return None if "ours" in "".join(content(place).values()) else "it is not ours"


@pytest.mark.usefixtures("_systems")
@together("kind", ["folder", "file"])
@together("name", NAMES)
def test_a_free_name_is_taken_whole(name: str, kind: str, tmp_path: Path) -> None:
    with whole_or_absent(tmp_path / name) as place:
        put(place, "new", kind)
        assert not (tmp_path / name).exists()
    assert set(content(tmp_path / name).values()) == {"new"}
    assert os.listdir(tmp_path) == [name]


@pytest.mark.usefixtures("_systems")
@together("refusal", [None, is_own])
@together("theirs", ["folder", "file", "link"])
@together("kind", ["folder", "file"])
@together("when", ["before", "meanwhile"])
def test_what_is_not_ours_stays(
    when: str, kind: str, theirs: str, refusal: files.Refusal | None, tmp_path: Path
) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    put(elsewhere, "ours, but behind a link", "folder")

    def appear() -> None:
        if theirs == "link":
            out.symlink_to(elsewhere)
        else:
            put(out, "theirs", theirs)

    if when == "before":
        appear()
    with pytest.raises(FileExistsError):
        write(out, kind, refusal, appear)
    assert out.is_symlink() == (theirs == "link")
    assert set(content(out).values()) == {"ours, but behind a link" if theirs == "link" else "theirs"}
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "out"]


@pytest.mark.usefixtures("_systems")
@together("kind", ["folder", "file"])
@together("before", ["folder", "file"])
def test_what_is_ours_is_replaced(before: str, kind: str, tmp_path: Path) -> None:
    put(tmp_path / "out", "ours", before)
    with whole_or_absent(tmp_path / "out", refusal=is_own) as place:
        put(place, "new", kind)
        assert set(content(tmp_path / "out").values()) == {"ours"}
    assert set(content(tmp_path / "out").values()) == {"new"}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.usefixtures("_systems")
def test_ours_that_becomes_theirs_meanwhile_stays(tmp_path: Path) -> None:
    put(tmp_path / "out", "ours", "folder")

    def change() -> None:
        for path in ("b", "inside/a"):
            (tmp_path / "out" / path).write_text("theirs")

    with pytest.raises(FileExistsError, match="not ours"):
        write(tmp_path / "out", "folder", is_own, change)
    assert set(content(tmp_path / "out").values()) == {"theirs"}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError()])
def test_an_error_leaves_nothing(error: BaseException, tmp_path: Path) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        write(tmp_path / "out", "folder", None, fail)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [22, 38, 95])
def test_a_file_system_that_flushes_nothing_is_written_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refused)
    with whole_or_absent(tmp_path / "out") as place:
        put(place, "new", "folder")
    assert set(content(tmp_path / "out").values()) == {"new"}


@together("kind", ["folder", "file"])
def test_everything_is_flushed_before_it_takes_its_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[set[str]] = []

    def renamed(source: Path, target: Path) -> bool:
        flushed.append({str(path.relative_to(source)) for path in seen if source in (path, *path.parents)})
        return rename(source, target)

    seen, flush, rename = list[Path](), files.flush_one, files.renamed
    monkeypatch.setattr(files, "flush_one", lambda path: (seen.append(path), flush(path)))
    monkeypatch.setattr(files, "renamed", renamed)
    write(tmp_path / "out", kind, None, lambda: None)
    assert flushed == [{".", "b", "inside", "inside/a"} if kind == "folder" else {"."}]
    assert seen[-1] == tmp_path, "the new name too"


def test_leftovers_are_those_of_this_name_alone(tmp_path: Path) -> None:
    for name in NAMES:
        for other in NAMES:
            (tmp_path / f".{other}.0123abcd.partial").touch()
            (tmp_path / f".{other}.0123abcd.old").touch()
        assert [path.name for path in leftovers(tmp_path / name)] == [
            f".{name}.0123abcd.{kind}" for kind in ("old", "partial")
        ]


def test_a_folder_that_cannot_be_listed_has_no_leftovers(tmp_path: Path) -> None:
    assert leftovers(tmp_path / "no" / "out") == []


def test_text_with_half_a_character(tmp_path: Path) -> None:
    write_whole(tmp_path / "page", as_bytes("é\ud800\n"), refusal=None)
    assert (tmp_path / "page").read_bytes() == "é".encode() + b"\\ud800\n"


# --- killed

WRITER = """
import os, signal, sys
from pathlib import Path
from posembed import files

out, moment, flags, kind, before = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
if flags == "no flags":
    files.system_rename = lambda *args, **kwargs: False

def is_own(place):
    texts = [p.read_text() for p in ([place, *place.rglob("*")] if place.is_dir() else [place]) if p.is_file()]
    return None if "ours" in texts else "it is not ours"

def write(place, text):
    if kind == "folder":
        place.mkdir()
        for name in "abc":
            (place / name).write_text(text)
    else:
        place.write_text(text)

seen = 0
def killed_before(event, arguments):
    global seen
    if event.split(".")[0] in ("os", "open", "ctypes", "shutil"):
        seen += 1
        if seen == moment:
            os.kill(os.getpid(), signal.SIGKILL)

while True:
    writer = os.fork()
    if writer == 0:
        try:
            with files.whole_or_absent(out, refusal=is_own) as place:
                if before == "theirs":  # it appears while the copy is being made
                    write(out, "theirs")
                sys.addaudithook(killed_before)
                write(place, "new")
        except FileExistsError:
            pass
        os._exit(0)
    _, status = os.waitpid(writer, 0)
    print(out.name, os.WIFSIGNALED(status), flush=True)
    if sys.stdin.readline() == "":
        break
    moment += 1
"""


def killed_before_each_call(out: Path, *settings: str) -> Iterator[bool]:
    """Runs one writer after another, each killed one call later than the last; False after the one that ended."""
    command = [sys.executable, "-c", WRITER, str(out), "1", *settings]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            killed = line.split()[1] == "True"
            yield killed
            if not killed:
                process.stdin.close()
                break
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0


@together("flags", ["flags", "no flags"])
@together("kind", ["folder", "file"])
@together("before", ["nothing", "ours", "theirs"])
def test_killed_before_each_call_nothing_is_lost(before: str, kind: str, flags: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole = {"new": 3 if kind == "folder" else 1, "ours": 2 if kind == "folder" else 1}
    whole["theirs"] = whole["new"]
    moments = 0

    def again() -> None:
        for path in tmp_path.iterdir():
            files.remove(path)
        if before == "ours":
            put(out, before, kind)

    again()
    for killed in killed_before_each_call(out, flags, kind, before):
        moments += killed
        there = [list(content(path).values()) for path in [out, *leftovers(out)] if path.exists()]
        if out.exists():
            (text,) = set(there[0])
            assert text in (before, "new")
            assert len(there[0]) == whole[text]
        if before == "theirs":
            assert ["theirs"] * whole["theirs"] in there
        elif before == "ours" and not out.exists():
            assert flags == "no flags"  # between its two renames; the old one is beside it, whole
            assert ["ours"] * whole["ours"] in there
        if not killed:
            assert os.listdir(tmp_path) == ["out"]
        again()
    assert moments > 2


def test_two_processes_on_one_name(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from posembed.files import whole_or_absent\n"
        "for _ in range(60):\n"
        "    with whole_or_absent(Path(sys.argv[1]), refusal=lambda place: None) as place:\n"
        "        place.mkdir()\n"
        "        for name in 'abc': (place / name).write_text(sys.argv[2])\n"
    )
    place = tmp_path / "out"
    writers = [subprocess.Popen([sys.executable, "-c", script, str(place), text]) for text in ("one", "two")]
    appeared = False
    while any(writer.poll() is None for writer in writers):
        assert place.exists() or not appeared
        appeared = appeared or place.exists()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(set(content(tmp_path / "out").values())) == 1
    assert os.listdir(tmp_path) == ["out"]


def test_a_reason_says_what_is_wrong_and_no_path_twice(tmp_path: Path) -> None:
    """Whether Python, a library in Rust or a number of the system reports it."""
    from safetensors import SafetensorError

    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "none").read_bytes()
    assert reason(missing.value) == "No such file or directory"
    assert reason(OSError(errno.ENOSPC, "No space left on device", "x")) == "the disk is full"
    assert reason(SafetensorError("I/O error: No space left on device (os error 28)")) == "the disk is full"
    assert reason(ValueError("two\n  lines")) == "two lines"


def test_a_long_reason_ends_after_a_whole_word() -> None:
    text = "a reason of several words that goes on and on"
    for most in range(4, len(text) + 2):
        shown = brief(text, most)
        assert len(shown) <= most + 1
        assert shown == text or text.startswith(f"{shown[:-1]} ")
    assert brief("x" * 50, 10) == "x" * 9 + "\N{HORIZONTAL ELLIPSIS}"
