"""What a run answered, and the folder that keeps runs: one file each that is finished."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_origin, get_type_hints

from posembed.errors import RunFolderError
from posembed.files import json_object, reason, remove_leftovers, write_text
from posembed.lab.runs.spec import TrainingSpec

if TYPE_CHECKING:
    from posembed.lab.tasks.task import Task

OF_COST = "cost.json"
"""The file of posembed compare cost, whose folder holds no runs."""

SpecT = TypeVar("SpecT", bound=TrainingSpec)
MeasuredT = TypeVar("MeasuredT")


@dataclass(frozen=True)
class RunResult(Generic[SpecT, MeasuredT]):
    """One finished run. ``failure`` says why it has no measurements, if it has none."""

    spec: SpecT
    parameters: int
    position_parameters: int
    window: int | None
    """The window that the model applied."""
    losses: tuple[tuple[int, float], ...]
    """(step, training loss in nats), some hundred of them, the last step's included."""
    measurements: MeasuredT | None
    failure: str | None
    seconds: float
    tokens_per_second: float
    environment: dict[str, str] = field(default_factory=dict)
    """Machine and versions."""
    finished: str = field(default="", compare=False)
    """When it was added to its folder, in UTC."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


def measured_values(measurements: Any) -> dict[str, float]:
    """What a run measured, by names such as "same_tokens/512"; what was not measured is left out."""
    values: dict[str, float] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, held in value.items():
                add(f"{name}/{key}" if name else str(key), held)
        elif isinstance(value, list | tuple):
            add(name, dict(enumerate(value)))
        elif isinstance(value, int | float):
            values[name] = value

    add("", dataclasses.asdict(measurements))
    return values


def result_from_json(text: str, task: type[Task[SpecT, MeasuredT]]) -> RunResult[SpecT, MeasuredT]:
    """Raises ValueError, KeyError or TypeError where the text is not a run of this task."""
    values = json_object(text)
    spec = restored(task.Spec, values.pop("spec"))
    measured = values.pop("measurements")
    if measured is not None:
        measured = restored(task.Measured, measured)
    curve = tuple((int(step), float(loss)) for step, loss in values.pop("losses"))
    return RunResult(spec=spec, measurements=measured, losses=curve, **values)


def restored(kind: type[Any], values: dict[str, Any]) -> Any:
    """A dataclass from what JSON made of it, which knows no tuples and no keys but text."""
    hints = get_type_hints(kind)

    def restore(name: str, value: Any) -> Any:
        if get_origin(hints[name]) is tuple:
            return tuple(value)
        if get_origin(hints[name]) is dict:
            of_key = hints[name].__args__[0]
            return {of_key(key): held for key, held in value.items()}
        return value

    return kind(**{name: restore(name, value) for name, value in values.items()})


class RunFolder(Generic[SpecT, MeasuredT]):
    """A folder of runs of one task that share all settings but those that are compared.

    settings.json        the question, and what they share
    results/KEY.json     of a finished run
    checkpoints/KEY.pt   of a run that is not finished
    tables/KEY.safetensors   the learned rows of a finished run: "initial", "step 33" and others, "final"
    attention/KEY.safetensors   of a finished run: the mean weight of each head by distance

    Any number of processes may add runs at once. No file is shared but the settings, which are written once, and
    each is written whole: what one process does, or how it dies, takes nothing from another.
    """

    def __init__(self, path: str | Path, task: type[Task[SpecT, MeasuredT]]) -> None:
        self.path = Path(path)
        self.task = task
        self.settings_file = self.path / "settings.json"

    def result(self, spec: SpecT) -> Path:
        return self.path / "results" / f"{spec.key()}.json"

    def checkpoint(self, spec: SpecT) -> Path:
        return self.path / "checkpoints" / f"{spec.key()}.pt"

    def table(self, spec: SpecT) -> Path:
        return self.path / "tables" / f"{spec.key()}.safetensors"

    def attention(self, spec: SpecT) -> Path:
        return self.path / "attention" / f"{spec.key()}.safetensors"

    def prepare(self, spec: SpecT) -> None:
        """Make the folder, or check that it was made for runs like this one."""
        if os.path.lexists(self.path / OF_COST):
            raise RunFolderError(f"{self.path} keeps a result of posembed compare cost; choose another --out")
        asked = {"question": spec.QUESTION, **spec.shared_settings()}
        settings = json.loads(json.dumps(asked))
        try:
            for folder in ("results", "checkpoints", "tables", "attention"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            if not self.settings_file.exists():
                write_text(self.settings_file, json.dumps(settings, indent=2) + "\n", replace=False)
            remove_leftovers(self.path)
            self._remove_checkpoints()
        except OSError as error:
            raise RunFolderError(
                f"the run folder {self.path} cannot be written: {reason(error)}; choose another --out"
            ) from error
        made_with = self.settings()
        differ = [
            f"{name}: {made_with.get(name)} there, {settings.get(name)} now"
            for name in settings | made_with
            if made_with.get(name) != settings.get(name) and name not in spec.labels()
        ]
        if differ:
            raise RunFolderError(
                f"{self.path} holds runs made with other settings ({'; '.join(differ)}); "
                "use the same settings to go on, or another --out"
            )

    def _remove_checkpoints(self) -> None:
        """Those of finished runs, which a kill in the moment after may have left."""
        for file in (self.path / "results").glob("[!.]*.json"):
            (self.path / "checkpoints" / f"{file.stem}.pt").unlink(missing_ok=True)

    def settings(self) -> dict[str, Any]:
        return read_settings(self.path)

    def results(self) -> list[RunResult[SpecT, MeasuredT]]:
        """Every finished run, in the order in which they finished."""
        files = sorted((self.path / "results").glob("[!.]*.json"))
        results = []
        for file in files:
            try:
                results.append(result_from_json(file.read_text(encoding="utf-8"), self.task))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise RunFolderError(
                    f"{file} is not a run ({error}); nothing was changed. "
                    f"Mend or delete it: the other {len(files) - 1} stay, and its run is trained again"
                ) from error
        return sorted(results, key=lambda result: result.finished)

    def add(self, result: RunResult[SpecT, MeasuredT]) -> None:
        """Keep a finished run."""
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        write_text(self.result(result.spec), dataclasses.replace(result, finished=now).to_json() + "\n")

    def forget(self, spec: SpecT) -> None:
        """Remove the checkpoint of a finished run. One that stays is removed by ``prepare``."""
        with suppress(OSError):
            self.checkpoint(spec).unlink()


def read_settings(folder: Path) -> dict[str, Any]:
    """What the runs of a folder share; "question" among it says of what task they are.

    Raises:
        RunFolderError: no folder of runs.
    """
    file = folder / "settings.json"
    try:
        settings = json_object(file.read_text(encoding="utf-8"))
        if not isinstance(settings.get("question"), str):
            raise ValueError("it has no question")
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(
            f"{folder} is not a run folder (it has no settings.json); "
            "make one with: posembed compare lengths --out FOLDER"
        ) from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} is broken ({error}); restore it, or use another --out") from error
    return settings
