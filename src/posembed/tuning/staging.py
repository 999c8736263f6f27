"""The folder of an unfinished fine-tuning, ``.OUT.tune`` next to OUT: what a repeated command continues from.

``settings.json``, which is written first and removed last, marks the folder as posembed's. No other folder is removed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file
from torch import Tensor

from posembed.errors import CheckpointError
from posembed.files import PARTIAL, reason, remove, renamed, write_text, written_whole
from posembed.tuning.settings import SHORTEST, TuneSettings

SETTINGS, STATE, LOCK = "settings.json", "state.json", ".lock"
UNFINISHED = re.compile(rf"\..+{PARTIAL}", re.DOTALL)
"""Matches the name of a file or folder that was being written."""


ANY_SETTINGS = TuneSettings(length=SHORTEST)
"""For a folder of which only the place and the state are asked."""


class TakenError(CheckpointError):
    """Another process holds the folder."""


def vectors_once(path: Path, make: Callable[[], Tensor]) -> Tensor:
    """Returns the vectors that a file keeps, or else computes them and writes the file."""
    if not path.exists():
        vectors = make()
        with written_whole(path) as staging:
            save_file({"vectors": vectors}, staging)
    return load_file(path)["vectors"]


def whole_lines(path: Path) -> Path:
    """Removes what a kill or a full disk left of a file's last line. Returns the path."""
    if path.exists():
        content = path.read_bytes()
        if (stop := content.rfind(b"\n") + 1) < len(content):
            os.truncate(path, stop)
    return path


@dataclass(frozen=True)
class Staging:
    """A folder for one fine-tuning. path: the folder. key: the settings, and hashes of the checkpoint and the texts."""

    path: Path
    settings: TuneSettings
    hashes: Mapping[str, str]

    @classmethod
    def of(cls, out: Path, settings: TuneSettings = ANY_SETTINGS, hashes: Mapping[str, str] | None = None) -> Staging:
        return cls(out.parent / f".{out.name}.tune", settings, hashes or {})

    def refuse_other(self) -> None:
        """Raises CheckpointError if the folder holds another fine-tuning, and names what differs, or if it is somebody
        else's. Changes nothing."""
        self.refuse_foreign()
        if not self.path.exists() or is_new(self.path):
            return
        earlier, hashes = known(self.path)
        differs = self.settings.differences(earlier)
        differs += [f"the {name}" for name, found in self.hashes.items() if hashes.get(name) != found]
        if differs:
            raise CheckpointError(
                f"{self.path} holds an unfinished fine-tuning, which differs in {', '.join(differs)}; repeat its "
                "command to continue it, choose another OUT, or remove that folder"
            )

    def refuse_foreign(self) -> None:
        """Raises CheckpointError if the folder, or that of its removal, is somebody else's."""
        for path in (self.path, self.removed):
            if os.path.lexists(path) and not is_own(path):
                raise CheckpointError(
                    f"{path}: not the folder of a fine-tuning; remove it yourself, or choose another OUT"
                )

    @property
    def method(self) -> Any:
        """The method of the fine-tuning that the folder holds, if any."""
        for path in (self.path, self.removed):
            with suppress(OSError, ValueError, KeyError, TypeError):
                return known(path)[0].get("method")
        return None

    def make(self) -> None:
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {reason(error)}") from error

    @property
    def begun(self) -> bool:
        """Whether an earlier process opened the folder, and none has removed it."""
        return (self.path / SETTINGS).exists()

    def open(self) -> None:
        """Creates the folder with its settings. Raises CheckpointError if it cannot be written."""
        self.make()
        if not (self.path / SETTINGS).exists():
            text = json.dumps({"settings": self.settings.to_dict(), "hashes": self.hashes}, indent=2)
            write_text(self.path / SETTINGS, text)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder, which it creates, for one process. Removes it at the end if it is still new. Raises
        TakenError, a CheckpointError, if another process has it."""
        while True:
            self.refuse_foreign()
            self.make()
            try:
                lock = FileLock(self.path / LOCK).acquire(timeout=0)
            except Timeout:
                raise TakenError(
                    f"{self.path}: another process is running this fine-tuning; wait for it, or choose another OUT"
                ) from None
            except OSError as error:
                if not self.path.exists():  # another process has just removed it
                    continue
                raise CheckpointError(f"{self.path}: cannot be written: {reason(error)}") from error
            with lock:
                if not (self.path / LOCK).exists():  # another process removed the folder before we had its lock
                    continue
                try:
                    yield
                finally:
                    if is_new(self.path):
                        self.remove()
                return

    @property
    def state(self) -> dict[str, Any]:
        """What was decided once, such as the number of steps."""
        path = self.path / STATE
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def keep(self, **decided: Any) -> None:
        write_text(self.path / STATE, json.dumps({**self.state, **decided}, indent=2))

    @property
    def removed(self) -> Path:
        """The name under which the folder is removed, so that a kill leaves the folder whole or nothing of it."""
        return self.path.with_name(f"{self.path.name}.removed")

    @property
    def half_removed(self) -> bool:
        """Whether a kill left something of a removal."""
        return not self.path.exists() and is_own(self.removed)

    def end(self) -> None:
        """Removes the folder, unless another process has it, which removes it later."""
        if not (self.path.exists() or self.half_removed):
            return
        try:
            with self.locked():
                if os.name == "posix":  # elsewhere, a folder that holds an open file cannot be renamed
                    self.remove()
        except TakenError:
            return
        self.remove()

    def remove(self) -> None:
        """Removes the folder. Raises CheckpointError if it is not ours, or if its removal needs the name of something
        that is not ours."""
        self.clean()
        if not is_own(self.path):
            return
        with suppress(FileNotFoundError):
            if not renamed(self.path, self.removed):
                raise CheckpointError(
                    f"{self.removed}: it exists, and {self.path} is removed under that name; move it away, and repeat "
                    "the command"
                )
        self.clean()

    def clean(self) -> None:
        """Removes what a kill left of an earlier removal. The mark of the folder goes last."""
        if not is_own(self.removed):
            return
        with suppress(FileNotFoundError):
            for path in self.removed.iterdir():
                if path.name != SETTINGS:
                    remove(path)
        with suppress(OSError):
            if {path.name for path in self.removed.iterdir()} <= {SETTINGS}:
                (self.removed / SETTINGS).unlink(missing_ok=True)
                self.removed.rmdir()

    def clean_unfinished(self) -> None:
        """Removes what a kill left of a file or folder that was being written. For the process that has the folder."""
        for path in self.path.iterdir():
            if UNFINISHED.fullmatch(path.name):
                remove(path)


def known(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the settings and the hashes of the fine-tuning that a folder holds. Raises OSError, ValueError, KeyError
    or TypeError if it holds none."""
    found = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    return dict(found["settings"]), dict(found["hashes"])


def is_own(folder: Path) -> bool:
    """Returns whether posembed made a folder: its settings mark it, or it is new. A link is somebody else's."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    with suppress(OSError, ValueError, KeyError, TypeError):
        known(folder)
        return True
    return is_new(folder)


def is_new(folder: Path) -> bool:
    """Returns whether a folder holds nothing but the lock and unfinished settings: a process that was killed at once
    left it."""
    unfinished = re.compile(re.escape(f".{SETTINGS}") + PARTIAL)

    def is_nothing(path: Path) -> bool:
        state = path.lstat()
        empty = stat.S_ISREG(state.st_mode) and state.st_size == 0
        return (empty and path.name == LOCK) or bool(stat.S_ISREG(state.st_mode) and unfinished.fullmatch(path.name))

    try:
        return folder.is_dir() and all(map(is_nothing, folder.iterdir()))
    except OSError:
        return False
