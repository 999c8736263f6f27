"""The settings and the result of a cost measurement, and the folder that keeps them."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from posembed.errors import RunFolderError
from posembed.files import json_object, reason, write_text
from posembed.lab.runs.results import DAMAGED
from posembed.measure.frame import Frame, Run, Value
from posembed.measure.jobs import Store
from posembed.settings import Count, Names, NotNegative, Settings, TwoOrMore, option, restored
from posembed.statistics import Estimate

if TYPE_CHECKING:
    from pandas import DataFrame

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
class Passes:
    """A value for the forward pass alone, and a value for the forward and backward passes together."""

    forward: Estimate
    backward: Estimate


@dataclass(frozen=True)
class Writes:
    """The bytes, in float32, of the tensors that an encoding passes to the model. It must write at least these.

    input: the tokens with their rows added (B, L, D), written once per forward pass.
    queries_keys: the queries and keys, written in each layer: 2 B L D numbers if they are rotated or rows are added to
        them, 4 B L D numbers if both happen or if they are widened.
    scores: the bias (H, L, L), written once per forward pass.
    """

    input: int
    queries_keys: int
    scores: int

    @property
    def all(self) -> int:
        return self.input + self.queries_keys + self.scores


@dataclass(frozen=True)
class Growth:
    """The cost of the forward pass of one encoding by itself, for one sequence, at growing lengths.

    seconds: median times. peak: peak memory in bytes. stopped: the reason why longer lengths were not tried; None if
    all lengths were tried.
    """

    lengths: tuple[int, ...]
    seconds: tuple[float, ...]
    peak: tuple[int, ...]
    time_exponent: float | None
    memory_exponent: float | None
    stopped: str | None


@dataclass(frozen=True)
class CostRow:
    """The cost of one encoding. Times are medians in seconds, sizes are in bytes.

    share_of_embeddings: its share of the position and token parameters.
    alone: the time of the encoding by itself, for one layer. attention: the time of an attention layer with it.
    alone_share: ``alone`` relative to an attention layer without position, paired by round.
    overhead: the relative change in that layer's time with the encoding, paired by round. An overhead of .1 means 10%
        more time; it is negative if a window saves work.
    peak_forward, peak_backward: the peak memory of the encoding by itself, without and with the backward pass.
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

    def values(self) -> Iterator[Value]:
        yield from by_round("time alone", self.alone)
        yield from by_round("time of the layer", self.attention)
        for metric, value in {
            "parameters": self.parameters,
            "share of the position and token parameters": self.share_of_embeddings,
            "written bytes": self.writes.all,
            "peak bytes, forward": self.peak_forward,
            "peak bytes, with backward": self.peak_backward,
        }.items():
            yield Value(metric, value)
        for length, seconds, peak in zip(self.growth.lengths, self.growth.seconds, self.growth.peak, strict=True):
            yield from (Value("time by length", seconds, length), Value("peak bytes by length", peak, length))


@dataclass(frozen=True)
class CostResult:
    """The costs of all encodings. attention: the time in seconds of an attention layer without position. seconds: the
    time of the whole measurement."""

    settings: CostSettings
    attention: Passes
    rows: tuple[CostRow, ...]
    growth_width: int
    growth_heads: int
    seconds: float
    environment: dict[str, str]

    def frame(self) -> Frame:
        """Returns every measured value: one run per encoding, one item per round, and by length (x) how the cost of the
        encoding alone grows. Times are in seconds and sizes in bytes."""
        attention = Run("attention without position", 0, tuple(by_round("time of the layer", self.attention)))
        return Frame((attention, *(Run(row.encoding, 0, tuple(row.values())) for row in self.rows)))

    def to_pandas(self) -> DataFrame:
        return self.frame().to_pandas()


def by_round(metric: str, passes: Passes) -> Iterator[Value]:
    for name, found in (("forward", passes.forward), ("with backward", passes.backward)):
        yield from (Value(f"{metric}, {name}", value, item=number) for number, value in enumerate(found.values))


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
