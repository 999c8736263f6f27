"""What a run is asked and what it answers, and the folder that keeps both: one line a finished run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posembed.errors import RunFolderError

# What may differ between runs that share a folder: these are what a comparison compares.
COMPARED = ("encoding", "seed")


@dataclass(frozen=True)
class RunSpec:
    """Everything that decides the outcome of one run; two equal specs give the same numbers."""

    encoding: str
    seed: int
    data: str
    data_sha256: str
    tokenizer: str
    train_length: int
    test_lengths: tuple[int, ...]
    """Ascending."""
    layers: int
    width: int
    heads: int
    window: int
    """Of the encodings that need one, and of those named with "+window"."""
    ring: int
    """Rows of the rolling table."""
    dropout: float
    steps: int
    batch: int
    learning_rate: float
    warmup: int
    weight_decay: float
    clip: float
    precision: str
    test_tokens: int
    """How much held-out text each length is measured on."""

    def key(self) -> str:
        """A short name, safe in a file system, that no other spec has."""
        digest = hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()
        name = re.sub("[^a-z0-9]+", "-", self.encoding)
        return f"{name}-seed{self.seed}-{digest[:10]}"

    def shared_settings(self) -> dict[str, Any]:
        settings = dataclasses.asdict(self)
        return {name: value for name, value in settings.items() if name not in COMPARED}


@dataclass(frozen=True)
class Measurements:
    """Mean losses in nats a token on held-out text, by test length; None where the encoding has no position."""

    nonoverlapping: dict[int, float | None]
    """Over non-overlapping windows of each length (as the ALiBi paper reports perplexity)."""
    same_tokens: dict[int, float | None]
    """Of the same tokens, the last of every longest window, seen with that many tokens of context."""
    chopped: dict[int, float]
    """Over the same windows as ``nonoverlapping``, each fed in pieces of the training length."""
    chopped_same_tokens: dict[int, float]
    """Of the same tokens as ``same_tokens``, fed likewise."""
    repeat_gain: dict[int, float | None]
    """By the number of tokens between: how much lower the loss of a passage is for having been seen before."""
    bytes_per_token: float


@dataclass(frozen=True)
class RunResult:
    """One finished run. ``failure`` says why it has no measurements, if it has none."""

    spec: RunSpec
    parameters: int
    position_parameters: int
    window: int | None
    """The causal window that the model applied."""
    losses: tuple[tuple[int, float], ...]
    """(step, training loss in nats a token), some hundred of them, the last step's included."""
    measurements: Measurements | None
    failure: str | None
    seconds: float
    tokens_per_second: float
    environment: dict[str, str] = field(default_factory=dict)
    """Machine and versions."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(line: str) -> RunResult:
        """Raises ValueError, KeyError or TypeError where the line is not a run."""
        values: dict[str, Any] = json.loads(line)
        spec = values.pop("spec")
        spec["test_lengths"] = tuple(spec["test_lengths"])
        measured = values.pop("measurements")
        if measured is not None:
            bytes_per_token = measured.pop("bytes_per_token")
            by_length = {name: {int(k): v for k, v in losses.items()} for name, losses in measured.items()}
            measured = Measurements(**by_length, bytes_per_token=bytes_per_token)
        curve = tuple((int(step), float(loss)) for step, loss in values.pop("losses"))
        return RunResult(spec=RunSpec(**spec), measurements=measured, losses=curve, **values)


class RunFolder:
    """A folder of runs that share all settings but encoding and seed.

    settings.json        what they share
    results.jsonl        one line a finished run
    checkpoints/KEY.pt   of a run that is not finished
    tables/KEY.safetensors   the learned rows of a finished run, "initial" and "final"
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.results_file = self.path / "results.jsonl"
        self.settings_file = self.path / "settings.json"

    def checkpoint(self, spec: RunSpec) -> Path:
        return self.path / "checkpoints" / f"{spec.key()}.pt"

    def table(self, spec: RunSpec) -> Path:
        return self.path / "tables" / f"{spec.key()}.safetensors"

    def prepare(self, spec: RunSpec) -> None:
        """Make the folder, or check that it was made for runs like this one."""
        settings = json.loads(json.dumps(spec.shared_settings()))
        try:
            for folder in ("checkpoints", "tables"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            if not self.settings_file.exists():
                write_whole(self.settings_file, json.dumps(settings, indent=2) + "\n")
        except OSError as error:
            raise RunFolderError(
                f"the run folder {self.path} cannot be written: {error.strerror}; choose another --out"
            ) from error
        made_with = self.settings()
        differ = [
            f"{name}: {made_with.get(name)} there, {settings.get(name)} now"
            for name in settings | made_with
            if made_with.get(name) != settings.get(name)
        ]
        if differ:
            raise RunFolderError(
                f"{self.path} holds runs made with other settings ({'; '.join(differ)}); "
                "use the same settings to go on, or another --out"
            )

    def settings(self) -> dict[str, Any]:
        try:
            return json.loads(self.settings_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunFolderError(
                f"{self.path} is not a run folder (it has no settings.json); "
                "make one with: posembed compare lengths --out FOLDER"
            ) from None
        except ValueError as error:
            raise RunFolderError(
                f"{self.settings_file} is broken ({error}); restore it, or use another --out"
            ) from error

    def results(self) -> list[RunResult]:
        """Every finished run, in the order in which they finished."""
        if not self.results_file.exists():
            return []
        results = []
        lines = self.results_file.read_text(encoding="utf-8", errors="replace").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                results.append(RunResult.from_json(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RunFolderError(
                    f"line {number} of {self.results_file} is not a run ({error}); nothing was changed. "
                    f"Mend or delete that line: the other {len(lines) - 1} stay, and its run is trained again"
                ) from error
        return results

    def add(self, result: RunResult) -> None:
        """Append one line. The file is replaced whole, so that no crash can leave half a line."""
        before = self.results_file.read_text(encoding="utf-8") if self.results_file.exists() else ""
        write_whole(self.results_file, before + result.to_json() + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file or leave the one that is there: never half."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
