"""What ``measure_cost`` is asked and what it answers, and the file that keeps both."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posembed.errors import RunFolderError
from posembed.files import reason, write_whole
from posembed.lab.cost.places import Writes
from posembed.lab.runs.results import OF_COST
from posembed.lab.runs.whole_files import json_object
from posembed.statistics import Estimate

FILE = OF_COST


@dataclass(frozen=True)
class CostSpec:
    """The sizes that everything is measured at."""

    encodings: tuple[str, ...]
    batch: int
    length: int
    width: int
    heads: int
    layers: int
    vocabulary: int
    window: int | None
    """Of the encodings that need one; None takes the lab's default for these layers and this length."""
    longest: int
    """How far growth is followed, doubling from 512."""
    seconds: float
    """How long encodings take turns, at least."""
    device: str


@dataclass(frozen=True)
class Passes:
    """The same thing forward alone, and forward with backward."""

    forward: Estimate
    backward: Estimate


@dataclass(frozen=True)
class Growth:
    """The encoding alone, forward, one sequence, at growing lengths."""

    lengths: tuple[int, ...]
    seconds: tuple[float, ...]
    """Medians."""
    peak: tuple[int, ...]
    """Bytes."""
    time_exponent: float | None
    memory_exponent: float | None
    stopped: str | None
    """Why no longer length was tried, where one was asked for."""


@dataclass(frozen=True)
class CostRow:
    """One encoding."""

    encoding: str
    parameters: int
    share_of_embeddings: float
    """Of its parameters among them and the token table's."""
    window: int | None
    alone: Passes
    """Seconds, at all of its places, for one layer."""
    attention: Passes
    """Seconds of a layer of attention with it."""
    alone_share: Passes
    """``alone`` as a ratio to a layer of attention without position, round by round."""
    overhead: Passes
    """``attention`` as a ratio to the same, less 1: what it really adds. Below 0 where a window saves work."""
    writes: Writes
    peak_forward: int
    """Bytes, of the encoding alone."""
    peak_backward: int
    growth: Growth


@dataclass(frozen=True)
class CostResult:
    spec: CostSpec
    attention: Passes
    """Seconds of a layer of attention without position."""
    rows: tuple[CostRow, ...]
    growth_width: int
    growth_heads: int
    seconds: float
    """All of it."""
    environment: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> CostResult:
        """Raises ValueError, KeyError or TypeError where the text is none."""
        values = json_object(text)
        spec = values.pop("spec")
        spec["encodings"] = tuple(spec["encodings"])
        rows = tuple(_row(row) for row in values.pop("rows"))
        return CostResult(spec=CostSpec(**spec), attention=_passes(values.pop("attention")), rows=rows, **values)


def save(result: CostResult, folder: Path) -> None:
    """Raises RunFolderError where the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, f"{result.to_json()}\n".encode(), refusal=why_not_replaced)
    except OSError as error:
        raise RunFolderError(f"{folder / FILE} cannot be written: {reason(error)}; choose another --out") from error


def prepare(folder: Path, spec: CostSpec) -> None:
    """Make the folder, or raise the RunFolderError of ``save`` before anything is measured; also where the folder
    keeps runs, which its page would hide, or a result at other sizes, which this one would replace."""
    file, why = folder / FILE, None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = reason(error)
    if why is None and not os.access(folder, os.W_OK):
        why = "permission denied"
    if os.path.lexists(folder / "settings.json"):
        why = "the folder keeps runs of another question"
    if why is None and os.path.lexists(file) and (why := why_not_replaced(file)) is None:
        there, asked = dataclasses.asdict(load(folder).spec), dataclasses.asdict(spec)
        differ = [f"{name}: {there[name]} there, {asked[name]} now" for name in asked if there[name] != asked[name]]
        why = f"it was measured with other settings ({'; '.join(differ)})" if differ else None
    if why is not None:
        raise RunFolderError(f"{file} cannot be written: {why}; choose another --out")


def why_not_replaced(path: Path) -> str | None:
    """Why a result may not be written over this file; None if it is an earlier result."""
    if path.is_symlink():
        return "it is a link"
    try:
        CostResult.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "the file there is not a result of posembed compare cost"
    return None


def load(folder: Path) -> CostResult:
    """Raises RunFolderError where there is none, or none that can be read."""
    file = folder / FILE
    try:
        return CostResult.from_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{folder} holds no {FILE}; make it with: posembed compare cost --out {folder}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(f"{file} cannot be read ({error}); make it anew with posembed compare cost") from error


def _row(values: dict[str, Any]) -> CostRow:
    growth = values["growth"]
    growth |= {name: tuple(growth[name]) for name in ("lengths", "seconds", "peak")}
    values |= {name: _passes(values[name]) for name in ("alone", "attention", "alone_share", "overhead")}
    values |= {"growth": Growth(**growth), "writes": Writes(**values["writes"])}
    return CostRow(**values)


def _passes(values: dict[str, Any]) -> Passes:
    spreads = {name: Estimate(**(value | {"values": tuple(value["values"])})) for name, value in values.items()}
    return Passes(**spreads)
