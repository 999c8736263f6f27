"""The metrics of the cost of encodings, and the summary that the cost page shows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from posembed.lab.cost.results import GROWTH_SHAPE, CostResult, sizes_in_words
from posembed.lab.metrics import GROUPS, metrics
from posembed.measure.estimates import X
from posembed.measure.metrics import Metric
from posembed.measure.summary import Axis, Summary, plain
from posembed.statistics import INTERVAL, Estimate, estimate_median

PLAIN = "attention without position"
MEASURED = metrics(*(group for group in GROUPS if group.startswith("cost: ")), **vars(GROWTH_SHAPE))
METRICS = {each.name: each for each in MEASURED}
OVERHEAD = METRICS["overhead, with backward"]


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
