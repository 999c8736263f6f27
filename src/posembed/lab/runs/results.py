"""The result of a run, and the run folder, which has one file per finished run."""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Generic

from posembed.errors import RunFolderError
from posembed.files import json_object, reason, write_text
from posembed.lab.metrics import LOGARITHMS, NAMES, Measured
from posembed.lab.runs.spec import DRAWS, SpecT
from posembed.measure.frame import Run
from posembed.measure.jobs import Store, digest
from posembed.settings import restored, settings_from

NORMS_AT_START = 10
"""The number of first steps whose gradient norms are all kept."""
SEAL = "sha256"
"""The key of the hash of the measurements in a run's file."""


@dataclass(frozen=True)
class RunResult(Generic[SpecT]):
    """The result of one run. ``failure``: the reason why it has no measurements; None if it has measurements."""

    spec: SpecT
    parameters: int
    position_parameters: int
    window: int | None
    """The causal window that the model applied."""
    losses: tuple[tuple[int, float], ...]
    """Pairs (step, training loss in nats) for about a hundred steps, including the last step."""
    measurements: Measured | None
    failure: str | None
    seconds: float
    tokens_per_second: float
    environment: dict[str, str] = field(default_factory=dict)
    """Machine and versions."""
    finished: str = field(default="", compare=False)
    """When the run was added to its folder, in UTC."""
    gradient_norms: tuple[tuple[int, float], ...] = ()
    """Pairs (step, norm of the whole gradient before clipping) for the first ten steps and the steps of ``losses``.
    Empty in results of earlier versions."""
    draws: int = DRAWS
    """The version of the random draws that the run was trained with."""

    def to_json(self) -> str:
        values = dataclasses.asdict(self)
        return json.dumps(values | {SEAL: digest(values["measurements"])}, separators=(",", ":"))


DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError)  # raised by reading a damaged JSON file


def measured_values(measured: Measured) -> dict[str, float]:
    """Returns the values over all items, by names such as "repeat gain/512". Names of values that are kept as
    logarithms say so."""
    run, found = Run("", 0, measured.values), dict[str, float]()
    for metric, x in run.found:
        if (value := run.value(metric, x)) is not None:
            found[f"{'log ' * (metric in LOGARITHMS)}{metric}{'' if x is None else f'/{x}'}"] = value
    return found


def result_from_json(text: str, kind: type[SpecT]) -> RunResult[SpecT]:
    """Reads a result whose spec has the class ``kind``. Raises ValueError for other texts or versions of the draws."""
    values = json_object(text)
    if values.get("draws") != DRAWS:
        raise ValueError("its random draws are those of another version")
    if SEAL not in values:
        raise ValueError("its measurements are those of another version")
    if values.pop(SEAL) != digest(values.get("measurements")):
        raise ValueError("its measurements were changed")
    found: RunResult[SpecT] = restored(RunResult[kind], values)  # type: ignore[valid-type]
    for each in found.measurements.values if found.measurements else ():
        if not NAMES.fullmatch(each.metric):
            raise ValueError(f"this version does not measure its {each.metric}")
    return found


FILES = {"results": "json", "checkpoints": "pt", "tables": "safetensors", "attention": "safetensors"}
"""The subfolders of a run folder, and the file extension in each."""


class RunFolder(Generic[SpecT]):
    """A folder with the runs of one question, which share all settings except the compared one and the seed.

    settings.json        the question, and the settings that its runs share
    reading.json         how the last command summarised the runs, such as its reference
    results/KEY.json     one file per finished run
    checkpoints/KEY.pt   one file per unfinished run
    tables/KEY.safetensors   the learned rows of a finished run at several steps: "step 0", "step 33"
    attention/KEY.safetensors   the mean attention weights of a finished run by layer, head and distance
    tracking/            the logs of TensorBoard or wandb

    Any number of processes may add runs at once. They share only the settings and the reading, and write each file
    atomically, so the others lose nothing if one process dies.
    """

    def __init__(self, path: str | Path, kind: type[SpecT], asked: Any = None) -> None:
        """``asked``: how the command summarises the runs, which ``prepare`` saves for the page."""
        self.path, self.kind, self.asked = Path(path), kind, asked
        self.reading_file = self.path / "reading.json"
        self.tracking = self.path / "tracking"

    def store(self, spec: SpecT) -> Store:
        return Store(self.path, spec.shared_settings(), spec.labels(), own=(self.reading_file.name, "results/*.json"))

    def file(self, folder: str, spec: SpecT) -> Path:
        """Returns the path of a run's file in ``folder``, which is a key of ``FILES``."""
        return self.path / folder / f"{spec.key()}.{FILES[folder]}"

    def check(self, *specs: SpecT) -> None:
        """Checks that the folder's runs, if any, can be compared with those of ``specs``: they are of this version, and
        have the same settings. Writes nothing. Raises RunFolderError if they cannot."""
        self.store(specs[0]).check()
        self.results()

    def prepare(self, *specs: SpecT) -> None:
        """Checks the folder's runs, or creates the folder. Raises the errors of ``check`` and ``claim``."""
        self.check(*specs)
        self.store(specs[0]).claim(FILES)
        for file in self._result_files():  # a run that was killed as it finished may leave its checkpoint
            with suppress(OSError):
                (self.path / "checkpoints" / f"{file.stem}.pt").unlink()
        if self.asked is not None:
            write_text(self.reading_file, json.dumps(dataclasses.asdict(self.asked)) + "\n")

    def _result_files(self) -> list[Path]:
        try:
            return sorted((self.path / "results").glob("[!.]*.json"))
        except OSError as error:
            raise RunFolderError(f"{self.path} cannot be read: {reason(error)}; choose another folder") from error

    def reading(self, kind: type[Any]) -> Any:
        """Returns how the last command summarised the runs, or the defaults if nothing is saved. Raises RunFolderError
        for a damaged file."""
        try:
            return settings_from(kind, json_object(self.reading_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return kind()
        except DAMAGED as error:
            raise RunFolderError(f"{self.reading_file} is damaged ({error}); delete it to use the defaults") from error

    def results(self) -> list[RunResult[SpecT]]:
        """Returns every finished run, in the order in which they finished. Raises RunFolderError for a damaged file."""
        files, results, broken = self._result_files(), [], list[tuple[Path, Exception]]()
        for file in files:
            try:
                results.append(result_from_json(file.read_text(encoding="utf-8"), self.kind))
            except DAMAGED as error:
                broken.append((file, error))
        if broken:
            first, why = broken[0]
            more = f", like {len(broken) - 1} more beside it," if broken[1:] else ""
            raise RunFolderError(
                f"{first}{more} is not a run of this version ({why}); nothing was changed. Another version may have "
                f"written it. Repair or delete each such file: the other {len(files) - len(broken)} results stay, and "
                "what is deleted is trained again"
            ) from why
        known = {result.spec: result for result in results}  # a copy of a file is no second run
        return sorted(known.values(), key=lambda result: result.finished)

    def add(self, result: RunResult[SpecT]) -> None:
        """Saves a finished run and removes its checkpoint; ``prepare`` removes a checkpoint that remains."""
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        write_text(self.file("results", result.spec), dataclasses.replace(result, finished=now).to_json() + "\n")
        with suppress(OSError):
            self.file("checkpoints", result.spec).unlink()
