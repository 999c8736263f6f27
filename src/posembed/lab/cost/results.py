"""The result of a measurement of cost, and the file that keeps it."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from posembed.errors import RunFolderError
from posembed.files import json_object, reason, write_whole
from posembed.lab.cost.places import Writes
from posembed.lab.cost.settings import CostSettings
from posembed.lab.runs.results import OF_COST, restored
from posembed.statistics import Estimate

FILE = OF_COST


@dataclass(frozen=True)
class Passes:
    """One figure of the forward pass alone, and one of forward and backward together."""

    forward: Estimate
    backward: Estimate


@dataclass(frozen=True)
class Growth:
    """The forward pass of one encoding alone, on one sequence, at growing lengths.

    seconds: medians. peak: bytes. stopped: why no longer length was tried; None if all were.
    """

    lengths: tuple[int, ...]
    seconds: tuple[float, ...]
    peak: tuple[int, ...]
    time_exponent: float | None
    memory_exponent: float | None
    stopped: str | None


@dataclass(frozen=True)
class CostRow:
    """One encoding. Times are medians in seconds, sizes are in bytes.

    share_of_embeddings: its share of the position and token parameters.
    alone: its work for one layer. attention: one attention layer with it.
    alone_share, overhead: both relative to an attention layer without position, paired by round. An overhead of .1
    means 10% more time; it is negative where a window saves work.
    peak_forward, peak_backward: the most memory of the encoding alone.
    """

    encoding: str
    parameters: int
    share_of_embeddings: float
    window: int | None
    alone: Passes
    attention: Passes
    alone_share: Passes
    overhead: Passes
    writes: Writes
    peak_forward: int
    peak_backward: int
    growth: Growth


@dataclass(frozen=True)
class CostResult:
    """A measurement. attention: seconds of an attention layer without position. seconds: of the whole measurement."""

    settings: CostSettings
    attention: Passes
    rows: tuple[CostRow, ...]
    growth_width: int
    growth_heads: int
    seconds: float
    environment: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> CostResult:
        """Raises ValueError, KeyError or TypeError if the text is not a result."""
        result: CostResult = restored(CostResult, json_object(text))
        return result


def save(result: CostResult, folder: Path) -> None:
    """Writes the result to cost.json. Raises RunFolderError if the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, f"{result.to_json()}\n".encode(), refusal=why_not_replaced)
    except OSError as error:
        raise _refusal(folder, reason(error)) from error


def prepare(folder: Path, settings: CostSettings) -> None:
    """Makes the folder.

    Raises:
        RunFolderError: before anything is measured, if ``save`` could not write there, if the folder holds runs
            (its page would hide them), or a result with other settings (this one would replace it).
    """
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
        kept, asked = dataclasses.asdict(load(folder).settings), dataclasses.asdict(settings)
        differ = [f"{name}: {kept[name]} there, {asked[name]} now" for name in asked if kept[name] != asked[name]]
        why = f"it was measured with other settings ({'; '.join(differ)})" if differ else None
    if why is not None:
        raise _refusal(folder, why)


def _refusal(folder: Path, why: str) -> RunFolderError:
    return RunFolderError(f"{folder / FILE} cannot be written: {why}; choose another --out")


def why_not_replaced(path: Path) -> str | None:
    """Returns why a result may not be written over this file; None if it is an earlier result."""
    if path.is_symlink():
        return "it is a link"
    try:
        CostResult.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "the file there is not a result of posembed compare cost"
    return None


def load(folder: Path) -> CostResult:
    """Reads cost.json. Raises RunFolderError if there is none, or none that can be read."""
    file = folder / FILE
    try:
        return CostResult.from_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunFolderError(f"{folder} holds no {FILE}; make it with: posembed compare cost --out {folder}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFolderError(
            f"{file} cannot be read ({error}); measure again with posembed compare cost into another --out"
        ) from error
