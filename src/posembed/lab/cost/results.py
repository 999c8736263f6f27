"""The settings and the result of a cost measurement, and the folder that keeps them."""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from posembed.errors import RunFolderError
from posembed.files import json_object, reason, write_text
from posembed.lab.runs.results import DAMAGED
from posembed.measure.frame import Frame
from posembed.measure.jobs import Store
from posembed.settings import Count, Names, NotNegative, Settings, TwoOrMore, option, restored

OF_COST = "cost.json"


def every_encoding() -> tuple[str, ...]:
    from posembed.nn.encodings import names_for

    return names_for("decoder")


SHORTEST = 512
"""The length at which the growth measurement starts."""


@dataclass(frozen=True)
class Shape:
    batch: int
    length: int
    width: int
    heads: int


GROWTH_SHAPE = Shape(batch=1, length=SHORTEST, width=64, heads=2)
"""The first shape of the growth measurement: one sequence, and the fewest heads that every encoding accepts."""


@dataclass(frozen=True, kw_only=True)
class CostSettings(Settings):
    """The sizes at which all encodings are measured. ``measure.checked`` refuses invalid sizes."""

    encodings: Names = option(
        "Encodings, separated by commas. NAME+window adds a window. Default: all.", default_factory=every_encoding
    )
    batch: Count = option("Sequences per batch.", default=1)
    length: TwoOrMore = option("Tokens per sequence.", default=512)
    width: Count = option("Width of the model.", default=768)
    heads: Count = option("Attention heads.", default=12)
    layers: Count = option("Layers, which also decide the default window.", default=12)
    vocabulary: Count = option("Rows of the token table.", default=50_257)
    window: Count | None = option(
        "Causal window of the encodings that need one. Default: the lab's for these layers and this length.",
        default=None,
    )
    longest: Annotated[int, Ge(SHORTEST)] = option(
        f"Longest sequence of the growth measurement, which doubles from {SHORTEST}.", default=131_072
    )
    seconds: NotNegative = option("Minimum time to spend on timing, in seconds.", default=30.0)
    device: str = option("cpu or cuda.", default="cpu")

    @property
    def shape(self) -> Shape:
        return Shape(self.batch, self.length, self.width, self.heads)


@dataclass(frozen=True)
class CostResult:
    """The costs of all encodings, as they were measured.

    frame: all values. It has one run per encoding and one run of attention without position. Timed values have one item
    per round; the growth of the encoding alone is stored by length (x). Times are in seconds and sizes in bytes.
    stopped: the reason why no longer lengths were tried, by encoding. seconds: the time of the whole measurement.
    """

    settings: CostSettings
    frame: Frame
    stopped: dict[str, str]
    seconds: float
    environment: dict[str, str]


def sizes_in_words(settings: CostSettings) -> str:
    return f"batch {settings.batch:,}, length {settings.length:,}, width {settings.width:,}, heads {settings.heads:,}"


def prepare(folder: Path, settings: CostSettings) -> None:
    """Creates the folder. Raises RunFolderError if it holds other results or cannot be written."""
    Store(folder, {"question": "cost", **dataclasses.asdict(settings)}, own=[OF_COST]).claim()


def save(result: CostResult, folder: Path) -> None:
    """Writes the result to cost.json, replacing an earlier result. Raises the errors of ``prepare``."""
    prepare(folder, result.settings)
    write_text(folder / OF_COST, json.dumps(dataclasses.asdict(result)) + "\n")


def load(folder: Path) -> CostResult:
    """Reads cost.json. Raises RunFolderError if it is missing or cannot be read."""
    file = folder / OF_COST
    try:
        result: CostResult = restored(CostResult, json_object(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        made = shlex.join(["posembed", "compare", "cost", "--out", str(folder)])
        raise RunFolderError(f"{folder} holds no {OF_COST}; create it with: {made}") from None
    except DAMAGED as error:
        raise RunFolderError(
            f"{file} cannot be read ({reason(error)}); measure again with posembed compare cost into another --out"
        ) from error
    return result
