"""The result of a run, and the run folder, which has one file per finished run."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Generic

from posembed.errors import RunFolderError
from posembed.files import json_object, reason, remove_leftovers, write_text
from posembed.lab.runs.spec import DRAWS, MeasuredT, SpecT
from posembed.settings import restored, settings_from
from posembed.words import listed

NORMS_AT_START = 10
"""The number of first steps whose gradient norms are all kept."""
SETTINGS, OF_COST = "settings.json", "cost.json"


@dataclass(frozen=True)
class RunResult(Generic[SpecT, MeasuredT]):
    """The result of one run. ``failure``: the reason why it has no measurements; None if it has measurements."""

    spec: SpecT
    parameters: int
    position_parameters: int
    window: int | None
    """The causal window that the model applied."""
    losses: tuple[tuple[int, float], ...]
    """Pairs (step, training loss in nats) for about a hundred steps, including the last step."""
    measurements: MeasuredT | None
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
    """The version of the random draws that it was trained with; 1 in results that do not record it."""

    @property
    def shares_batches(self) -> bool:
        """Whether an earlier version trained it, which drew the same batches for all seeds."""
        return self.draws < self.spec.oldest_draws

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError)  # raised by reading a damaged JSON file


def measured_values(measurements: Any) -> dict[str, float]:
    """Returns all numbers in the measurements, by names such as "same_tokens/512"."""

    def named(name: str, value: Any) -> dict[str, float]:
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if isinstance(value, dict):
            return {k: v for key, held in value.items() for k, v in named(f"{name}/{key}", held).items()}
        return {name.removeprefix("/"): value} if isinstance(value, int | float) else {}

    return named("", dataclasses.asdict(measurements))


def result_from_json(text: str, kind: type[SpecT]) -> RunResult[SpecT, Any]:
    """Reads a result whose spec is a ``kind``. Raises ValueError for any other text."""
    whole: Any = RunResult
    found: RunResult[SpecT, Any] = restored(whole[kind, kind.Measured], {"draws": 1} | json_object(text))
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
        """``asked``: the reading of a command, which ``prepare`` saves for the page."""
        self.path, self.kind, self.asked = Path(path), kind, asked
        self.reading_file = self.path / "reading.json"
        self.tracking = self.path / "tracking"

    def file(self, folder: str, spec: SpecT) -> Path:
        """Returns the path of a run's file in ``folder``, which is a key of ``FILES``."""
        return self.path / folder / f"{spec.key()}.{FILES[folder]}"

    def check(self, *specs: SpecT) -> None:
        """Checks that the folder's runs, if any, can be compared with those of ``specs``: they have the same settings,
        and seeds other than 0 did not share their batches. Writes nothing. Raises RunFolderError if they cannot."""
        if os.path.lexists(self.path / SETTINGS):
            refuse_other_settings(self.path, specs[0].shared_settings(), ignore=specs[0].labels())
        if any(spec.seed for spec in specs):
            self.refuse_shared_batches()

    def prepare(self, *specs: SpecT) -> None:
        """Creates the folder, or checks its runs. Raises the errors of ``claim`` and ``check``."""
        claim(self.path, specs[0].shared_settings(), ignore=specs[0].labels(), folders=FILES)
        self.check(*specs)
        for file in self._result_files():  # a run that was killed as it finished may leave its checkpoint
            with suppress(OSError):
                (self.path / "checkpoints" / f"{file.stem}.pt").unlink()
        if self.asked is not None:
            write_text(self.reading_file, json.dumps(dataclasses.asdict(self.asked)) + "\n")

    def refuse_shared_batches(self) -> None:
        """Raises RunFolderError if an earlier version trained runs with other seeds than 0, which have the batches of
        seed 0."""
        shared = [result for result in self.results() if result.shares_batches]
        if shared:
            raise RunFolderError(
                f"{self.path} holds runs ({seeds_of(shared)}) of an earlier version, which drew the same batches for "
                "all seeds, so intervals over their seeds are too narrow. Train them again in another folder. To keep "
                "the runs with seed 0, copy the folder, delete */*-seed-[1-9]* in the copy, and use the copy. Nothing "
                "was changed"
            )

    def _result_files(self) -> list[Path]:
        return sorted((self.path / "results").glob("[!.]*.json"))

    def reading(self, kind: type[Any]) -> Any:
        """Returns the reading of the last command, or the defaults if none is saved. Raises RunFolderError for a
        damaged file."""
        try:
            return settings_from(kind, json_object(self.reading_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return kind()
        except DAMAGED as error:
            raise RunFolderError(f"{self.reading_file} is damaged ({error}); delete it to use the defaults") from error

    def results(self) -> list[RunResult[SpecT, Any]]:
        """Returns every finished run, in the order in which they finished. Raises RunFolderError for a damaged file."""
        files = self._result_files()
        results = []
        for file in files:
            try:
                results.append(result_from_json(file.read_text(encoding="utf-8"), self.kind))
            except DAMAGED as error:
                raise RunFolderError(
                    f"{file} is not a run of this version ({error}); nothing was changed. Another version may have "
                    "written it. "
                    f"Repair or delete it: the other {len(files) - 1} results stay, and its run is trained again"
                ) from error
        return sorted(results, key=lambda result: result.finished)

    def add(self, result: RunResult[SpecT, Any]) -> None:
        """Saves a finished run and removes its checkpoint; ``prepare`` removes a checkpoint that remains."""
        now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        write_text(self.file("results", result.spec), dataclasses.replace(result, finished=now).to_json() + "\n")
        with suppress(OSError):
            self.file("checkpoints", result.spec).unlink()


def seeds_of(results: Iterable[RunResult[Any, Any]]) -> str:
    """Returns the seeds of runs in words, such as "seeds 1 and 2"."""
    seeds = sorted({result.spec.seed for result in results})
    return f"seed{'s' * (len(seeds) > 1)} {listed([str(seed) for seed in seeds])}"


def claim(
    folder: Path, settings: Mapping[str, Any], *, ignore: Collection[str] = (), folders: Iterable[str] = ()
) -> None:
    """Creates ``folder``, with the subfolders ``folders``, for results with these settings (including the question). If
    it exists, checks that its results have the same settings, except for the names in ``ignore``.

    Raises RunFolderError if the folder holds other results or cannot be written.
    """
    file = folder / SETTINGS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("permission denied")
        if not file.exists():
            if os.path.lexists(folder / OF_COST):
                raise FileExistsError(f"this version did not write its {OF_COST}")
            write_text(file, json.dumps(settings, indent=2) + "\n", replace=False)
        refuse_other_settings(folder, settings, ignore=ignore)
        for name in folders:
            (folder / name).mkdir(exist_ok=True)
        remove_leftovers(folder)
    except OSError as error:
        raise RunFolderError(
            f"the run folder {folder} cannot be written: {reason(error)}; choose another --out"
        ) from error


def refuse_other_settings(folder: Path, settings: Mapping[str, Any], *, ignore: Collection[str] = ()) -> None:
    """Raises RunFolderError if the results of a folder have other settings, or if its settings cannot be read."""
    wanted, existing = json.loads(json.dumps(settings)), read_settings(folder)
    differ = "; ".join(
        f"{name}: {existing.get(name)} there, {wanted.get(name)} now"
        for name in wanted | existing
        if name not in ignore and existing.get(name) != wanted.get(name)
    )
    if differ:
        raise RunFolderError(
            f"{folder} holds results with other settings ({differ}); use the same settings to continue, or another "
            "--out"
        )


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
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} is damaged ({reason(error)}); restore it, or use another --out") from error
    return settings
