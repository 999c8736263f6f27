"""Jobs: work that compare, evaluate and tune do once, keep in a folder, and continue after a kill.

A ``Store`` is the folder. Its ``settings.json``, written first, says which results it holds. A result gets its final
name only when it is complete, so a file with that name is finished, and the same command does only what is missing. A
store removes only unfinished files of its own jobs. ``Kept`` keeps measurements by key.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from posembed.errors import DataError, RunFolderError
from posembed.files import PARTIAL, is_page, json_object, leftovers, reason, remove, remove_leftovers, write_text
from posembed.settings import restored

SETTINGS, LOCK = "settings.json", ".lock"
OF_EVALUATE = re.compile(rf"settings\.json|[0-9a-f]{{64}}\.json|\.[^/]+{PARTIAL}", re.DOTALL)
"""Matches the names that evaluate writes into its folder, which may also contain the user's files."""
OF_RUNS = re.compile(
    r"(settings|reading|cost)\.json|report\.html|(results/)?\.[^/]*\.partial|results/[^/]*\.json|tracking/.*", re.DOTALL
)
"""Matches the paths of the text files that compare writes into a run folder."""
RUNS_HOLD = {"question", "layers", "batch"}
"""Keys that identify the settings.json of a run folder."""
Progress = Callable[[str, int, int], None]
"""A function that is called with the name of the running job, the amount done and the total amount."""


def silent(name: str, done: int, total: int) -> None:
    """Shows no progress."""


@dataclass(frozen=True)
class Planned:
    """A job before it runs: a training run, with its steps and position parameters, a measured encoding, or a part of
    a fine-tuning, which has no number of parameters. seconds: the estimated time. kept: whether its result is in the
    folder already."""

    name: str
    parameters: int | None
    seconds: float
    position_parameters: int | None = None
    steps: int | None = None
    kept: bool = False

    @property
    def kind(self) -> str:
        return "encoding" if self.steps is None else "run"

    def to_dict(self) -> dict[str, Any]:
        left_out = {"name"} if self.kept else {"name", "kept"}
        values = {name: value for name, value in vars(self).items() if value is not None and name not in left_out}
        return {self.kind: self.name, **values}


@dataclass(frozen=True)
class Store:
    """A folder of results that share their settings.

    ignore: names of settings that may differ. own: glob patterns of the names that posembed writes there; a folder that
    has such a file but no settings is not posembed's.
    """

    path: Path
    settings: Mapping[str, Any]
    ignore: Collection[str] = ()
    own: Collection[str] = ()

    @property
    def begun(self) -> bool:
        return os.path.lexists(self.path / SETTINGS)

    def check(self) -> None:
        """Raises RunFolderError if the folder holds other results, or is not posembed's. Writes nothing."""
        self.refuse_foreign()
        if self.begun:
            self._refuse_other_settings()

    def refuse_foreign(self) -> None:
        """Raises RunFolderError if the folder is not posembed's, or cannot be read."""
        if not os.path.lexists(self.path):
            return
        if not os.path.isdir(self.path):
            raise RunFolderError(f"{self.path} cannot be written: it is not a folder; move it away, or use another")
        if not os.access(self.path, os.R_OK | os.X_OK):
            raise RunFolderError(f"{self.path} cannot be read: permission denied; choose another output folder")
        found = {path for each in self.own for path in self.path.glob(each)} - set(leftovers(self.path / SETTINGS))
        if found and not self.begun:
            raise RunFolderError(
                f"{self.path} is not a folder of this command (it has no {SETTINGS}); move its {min(found).name} away, "
                "or choose another output folder"
            )

    def claim(self, folders: Iterable[str] = ()) -> None:
        """Creates the folder with its settings and subfolders. Raises RunFolderError, as ``check`` does, or if the
        folder cannot be written."""
        self.check()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError("permission denied")
            if not self.begun:
                write_text(self.path / SETTINGS, json.dumps(self.settings, indent=2) + "\n", replace=False)
            self._refuse_other_settings()  # another process may have written them
            remove_leftovers(self.path, SETTINGS)
            for name in folders:
                (self.path / name).mkdir(exist_ok=True)
                remove_leftovers(self.path / name)
        except OSError as error:
            raise RunFolderError(
                f"the run folder {self.path} cannot be written: {reason(error)}; choose another output folder"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Claims the folder for one process. Raises RunFolderError, as ``claim`` does, or if another process has it. A
        folder that is read-only is not locked: its results can be read."""
        from filelock import FileLock, Timeout

        if self.begun and not os.access(self.path, os.W_OK):
            self.check()
            yield
            return
        self.claim()
        try:
            lock = FileLock(self.path / LOCK).acquire(timeout=0)
        except Timeout:
            raise RunFolderError(
                f"{self.path}: another process is running this command; wait for it, or use another output folder"
            ) from None
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be written: {reason(error)}") from error
        with lock:
            yield

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Returns the file or folder of a finished job. If it is missing, ``make`` writes it, whole or not at all. Only
        for the process that has locked the folder."""
        place = self.path / name
        if not place.exists():
            if not os.access(self.path, os.W_OK):
                raise RunFolderError(f"{self.path} cannot be written: permission denied; make it writable")
            for unfinished in leftovers(place):
                remove(unfinished)
            make(place)
        return place

    def discard(self, made: str) -> None:
        """If posembed began the folder, removes the files that match the pattern ``made``, then the folder if nothing
        else is in it. The settings are removed last, so that after a kill the folder still counts as posembed's."""
        with suppress(RunFolderError):  # somebody else's settings
            if not self.begun or self.path.is_symlink() or read_settings(self.path) != self.settings:
                return
            for path in self.path.iterdir():
                if re.fullmatch(made, path.name):
                    remove(path)
            if not {*self.path.iterdir()} - {self.path / SETTINGS, *leftovers(self.path / SETTINGS)}:
                remove(self.path)

    def _refuse_other_settings(self) -> None:
        wanted, existing = json.loads(json.dumps(self.settings)), read_settings(self.path)
        differ = "; ".join(
            f"{name}: {shown(existing.get(name))} there, {shown(wanted.get(name))} now"
            for name in wanted | existing
            if name not in self.ignore and existing.get(name) != wanted.get(name)
        )
        if differ:
            raise RunFolderError(
                f"{self.path} holds results with other settings ({differ}); use the same settings to continue, or "
                "another output folder"
            )


Values = dict[str, tuple[list[float | None], list[float]]]
"""The values of all items and their weights, by measure. A value that is not finite is None."""


class Kept:
    """The results of jobs by key, each in a JSON file of a folder. A file is read when its key is looked up. Several
    processes may add files, and a kill leaves no partial file. Without a folder, results are only in memory.

    Raises DataError if the folder cannot be read, and ``key in kept`` raises it if the file of the key is not a result.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder, self.values = folder, dict[str, Any]()
        if folder is not None and os.path.lexists(folder) and not os.path.isdir(folder):
            raise DataError(f"{folder}: expected a folder of results; move it away, or name another folder")
        if folder is not None and os.path.lexists(folder) and not os.access(folder, os.R_OK | os.X_OK):
            raise DataError(f"{folder} cannot be read: permission denied; name another folder of results")

    def __contains__(self, key: str) -> bool:
        if key not in self.values and self.folder is not None:
            file = self.folder / f"{key}.json"
            if os.path.lexists(file):
                self.values[key] = self._read(file)
        return key in self.values

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self.values[key]

    def _read(self, file: Path) -> Any:
        try:
            if not file.is_file():
                raise ValueError("it is not a file")
            held = json_object(file.read_text(encoding="utf-8"))
            found = held.get("values")
            restored(Values, found)
            if held.get("sha256") != digest(found):
                raise ValueError("it was changed")
        except (OSError, ValueError) as error:
            why = reason(error)
            raise DataError(f"{file} is not a result ({why}); move it away, or name another folder") from error
        return found

    def add(self, key: str, values: Any) -> None:
        self.values[key] = values
        if self.folder is not None:
            write_text(self.folder / f"{key}.json", json.dumps({"values": values, "sha256": digest(values)}))

    def prepare(self) -> None:
        """Creates the folder. Raises RunFolderError if nothing can be written there."""
        if self.folder is not None:
            Store(self.folder, {"question": "evaluate"}).claim()
            remove_leftovers(self.folder, f"{'[0-9a-f]' * 64}.json")


def digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def written(files: Collection[Path]) -> set[Path]:
    """Returns the files that posembed wrote: pages, results of compare and evaluate, and all files in a folder of tune,
    at any depth."""
    found = {file for file in files if is_page(file)}
    for folder in (file.parent for file in files if file.name == SETTINGS):
        with suppress(RunFolderError):
            settings = read_settings(folder)
            below = [(file, file.relative_to(folder).as_posix()) for file in files if folder in file.parents]
            own = {"tune": re.compile(".*", re.DOTALL), "evaluate": OF_EVALUATE}.get(settings["question"])
            if own is None and settings.keys() >= RUNS_HOLD:
                own = OF_RUNS
            found.update(file for file, name in below if own is not None and own.fullmatch(name))
    return found


def shown(value: Any) -> Any:
    """Returns a setting; a hash is shortened to its first eight characters."""
    return f"{value[:8]}…" if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else value


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings that the results of a folder share, including their question. Raises RunFolderError if the
    settings are missing or damaged."""
    file = folder / SETTINGS
    try:
        settings = json_object(file.read_text(encoding="utf-8"))
        if not isinstance(settings.get("question"), str):
            raise ValueError("it has no question")
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(
            f"{folder} is not a run folder of this version (it has no {SETTINGS}); "
            "create one with: posembed compare lengths --out FOLDER"
        ) from None
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read: {reason(error)}; make it readable") from error
    except ValueError as error:
        raise RunFolderError(
            f"{file} is damaged ({reason(error)}); restore it, or use another output folder"
        ) from error
    return settings


@contextmanager
def delayed_signals() -> Iterator[list[int]]:
    """Yields the list of signals received so far, for a job that saves its state before it ends. A first Ctrl-C or
    SIGTERM raises KeyboardInterrupt at the end of the block; a second one raises it at once."""
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = {}
    if threading.current_thread() is threading.main_thread():  # Python accepts handlers only here
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: a handler that Python did not install
    if came:
        raise KeyboardInterrupt
