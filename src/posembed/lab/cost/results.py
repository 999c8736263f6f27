"""The settings and the result of a cost measurement, its metrics and summary, and the folder that keeps the result."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from posembed.errors import RunFolderError
from posembed.files import json_object, reason, write_text
from posembed.lab.metrics import GROUPS, metrics
from posembed.lab.runs.results import DAMAGED
from posembed.measure.estimates import X
from posembed.measure.frame import Frame
from posembed.measure.jobs import SETTINGS, Store
from posembed.measure.metrics import Metric
from posembed.measure.summary import Axis, Summary, plain
from posembed.settings import Count, Names, NotNegative, Settings, TwoOrMore, option, restored
from posembed.statistics import INTERVAL, Estimate, estimate_median

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


PLAIN = "attention without position"
MEASURED = metrics(*(group for group in GROUPS if group.startswith("cost: ")), **vars(GROWTH_SHAPE))
METRICS = {each.name: each for each in MEASURED}
OVERHEAD = METRICS["overhead, with backward"]


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


@dataclass(frozen=True)
class CostRow:
    name: str
    seeds: tuple[int, ...] = (0,)
    failures: tuple[str, ...] = ()


class CostSummary(Summary):
    """The costs of all encodings: medians over rounds, with their intervals."""

    of_each, items, past_end, whole_axis = "encoding", "rounds", "not tried past", True
    dots = f"Dots are medians, ticks are rounds, and bars are {INTERVAL}s."
    bands = "A cross marks the last length tried, if the next would not fit in memory or time."

    def __init__(self, result: CostResult) -> None:
        super().__init__(result.frame, result.settings.encodings)
        self.result, self.rows = result, [CostRow(name) for name in result.settings.encodings]
        self.metrics = list(METRICS.values())
        self.axis = Axis("tokens", max(result.frame.xs("time by length")))

    def mean(self, metric: Metric, name: str, x: X = None) -> Estimate | None:
        """Estimates the median over rounds."""
        values = [part.value for part in self.runs(name)[0].found.get((metric.name, x), []) if part.value is not None]
        return estimate_median(values) if values else None

    def end(self, name: str) -> int | None:
        longest = self.runs(name)[0].value("longest tried")
        return int(longest) if longest is not None and name in self.result.stopped else None

    @property
    def writing(self) -> list[str]:
        """The encodings that write something. “none” writes nothing; its time is only overhead."""
        written = [metric for name, metric in METRICS.items() if name.startswith("written")]
        return [name for name in self.names if any(self.by_seed(metric, name).get(0) for metric in written)]

    def about(self) -> str:
        """Describes in three sentences how the costs were measured."""
        environment, rounds = self.result.environment, self.runs(PLAIN)[0].found
        machine = environment["device"]
        if self.result.settings.device == "cpu":
            machine = f"{environment['processor']} (threads: {environment['threads']})"
        plain = [METRICS[f"time of the layer, {which}"] for which in ("forward", "with backward")]
        forward, backward = (len(rounds[metric.name, None]) for metric in plain)
        alone = [metric.write(found.value) for metric in plain if (found := self.mean(metric, PLAIN))]
        return (
            f"Measured on {machine}, at {sizes_in_words(self.result.settings)}: each encoding in turn, alone and in an "
            f"attention layer. Values are medians, with {INTERVAL}s, of {forward} rounds forward and {backward} rounds "
            f"forward and backward. Attention without position takes {alone[0]} forward, {alone[1]} with backward."
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the settings, the machine and every estimate as plain values."""
        about = {name: value for name, value in dataclasses.asdict(self.result).items() if name != "frame"}
        return {"question": "cost", **plain(about), "estimates": self.estimates()}


def store_of(folder: Path, settings: CostSettings) -> Store:
    return Store(folder, {"question": "cost", **dataclasses.asdict(settings)}, own=[OF_COST])


def kept(folder: Path, settings: CostSettings) -> bool:
    """Returns whether the folder has a finished measurement. Raises RunFolderError if it holds other results, or if the
    measurement cannot be read."""
    store_of(folder, settings).check()
    if not os.path.exists(folder / OF_COST):
        return False
    load(folder)
    return True


def measured_once(folder: Path, settings: CostSettings, measure: Callable[[], CostResult]) -> CostResult:
    """Returns the finished measurement of the folder. If there is none, measures, and writes it to cost.json. Raises
    RunFolderError if the folder holds other results, cannot be written, or another process measures into it."""
    store = store_of(folder, settings)
    with store.locked():
        store.once(OF_COST, lambda file: write_text(file, json.dumps(dataclasses.asdict(measure())) + "\n"))
    return load(folder)


def load(folder: Path) -> CostResult:
    """Reads cost.json. Raises RunFolderError if it is missing or cannot be read."""
    file = folder / OF_COST
    try:
        result: CostResult = restored(CostResult, json_object(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        made = shlex.join(["posembed", "compare", "cost", "--out", str(folder)])
        begun = ", with the options that began it" if os.path.lexists(folder / SETTINGS) else ""
        raise RunFolderError(f"{folder} holds no {OF_COST}; create it with: {made}{begun}") from None
    except DAMAGED as error:
        raise RunFolderError(
            f"{file} cannot be read ({reason(error)}); measure again with posembed compare cost into another --out"
        ) from error
    return result
