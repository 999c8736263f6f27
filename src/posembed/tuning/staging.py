"""The folder of an unfinished fine-tuning, ``.OUT.tune`` next to OUT: what a repeated command continues from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors.torch import load_file, save_file
from torch import Tensor

from posembed.errors import CheckpointError
from posembed.files import reason, remove, write_text, written_whole
from posembed.tuning.settings import TuneSettings

SETTINGS, STATE, LOCK = "settings.json", "state.json", ".lock"


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
    hashes: dict[str, str]

    @classmethod
    def of(cls, out: Path, settings: TuneSettings, hashes: dict[str, str]) -> Staging:
        return cls(out.parent / f".{out.name}.tune", settings, hashes)

    def refuse_other(self) -> None:
        """Raises CheckpointError if the folder holds another fine-tuning, and names what differs."""
        self.clean()
        if not self.path.exists() or self.is_new():
            return
        try:
            earlier, hashes = self.known()
        except (OSError, ValueError, KeyError, TypeError):
            raise CheckpointError(f"{self.path}: not the folder of a fine-tuning; remove it yourself") from None
        differs = self.settings.differences(earlier)
        differs += [f"the {name}" for name, found in self.hashes.items() if hashes.get(name) != found]
        if differs:
            raise CheckpointError(
                f"{self.path} holds an unfinished fine-tuning, which differs in {', '.join(differs)}; repeat its "
                "command to continue it, choose another OUT, or remove that folder"
            )

    def known(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Returns the settings and the hashes of the fine-tuning that the folder holds."""
        known = json.loads((self.path / SETTINGS).read_text(encoding="utf-8"))
        return dict(known["settings"]), dict(known["hashes"])

    @property
    def method(self) -> Any:
        """The method of the fine-tuning that the folder holds, if any."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return self.known()[0].get("method")
        return None

    def is_new(self) -> bool:
        """Returns whether the folder is empty: a process that was killed at once left it."""
        return self.path.is_dir() and all(path.name.startswith(".") for path in self.path.iterdir())

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
                    if self.path.exists() and self.is_new():
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

    def end(self) -> None:
        """Removes the folder, unless another process has it, which removes it later."""
        if not self.path.exists():
            return
        try:
            with self.locked():
                if os.name == "posix":  # elsewhere, a folder that holds an open file cannot be renamed
                    self.remove()
        except TakenError:
            return
        self.remove()

    def remove(self) -> None:
        self.clean()
        with suppress(FileNotFoundError):
            self.path.rename(self.removed)
        self.clean()

    def clean(self) -> None:
        """Removes what a kill left of an earlier removal."""
        if self.removed.exists():
            remove(self.removed)
