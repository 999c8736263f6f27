"""A measurement of cost, made up."""

from __future__ import annotations

from posembed.lab.cost.measure import by_round
from posembed.lab.cost.results import PLAIN, CostResult, CostSettings
from posembed.measure.frame import Frame, Run, Value
from posembed.statistics import estimate_median

LENGTHS = (512, 1024, 2048, 4096)
# The share of attention, the overhead, the bytes at the input, at queries and keys and as scores, the parameters
MADE = {
    "learned": (0.0065, 0.0, (3_145_728, 0, 0), 393_216),
    "rolling": (0.04, -0.12, (0, 6_291_456, 0), 24_576),
    "rope": (0.026, 0.03, (0, 6_291_456, 0), 0),
    "alibi": (0.015, 0.3, (0, 0, 12_582_912), 0),
    "none": (0.0002, 0.0, (0, 0, 0), 0),
}


def rounds(metric: str, value: float, noise: float) -> list[Value]:
    found = estimate_median([value + noise * step for step in (-3, -2, -1, 0, 1, 2, 3)])
    return [each for which in ("forward", "with backward") for each in by_round(f"{metric}, {which}", found)]


def run(name: str) -> Run:
    share, added, written, parameters = MADE[name]
    power = 2 if written[2] else 1
    lengths = LENGTHS if power == 2 else (*LENGTHS, 8192)
    whole = {
        "share of all layers": share if written[1] else share / 12,
        "parameters": parameters,
        "share of the position and token parameters": parameters / (parameters + 50_257 * 768),
        **({"window": 32} if name == "rolling" else {}),
        **dict(zip((f"written bytes, {at}" for at in ("input", "queries and keys", "scores")), written, strict=True)),
        "peak bytes, forward": 2 * sum(written),
        **({"times what is written": 2.0} if sum(written) else {}),
        "peak bytes, with backward": 3 * sum(written),
        "exponent of time": power,
        "exponent of memory": power,
        "longest tried": lengths[-1],
    }
    values = [
        *rounds("share of attention", share, 1e-5),
        *rounds("time alone", 0.1 * share, 1e-6),
        *rounds("overhead", added, 0.002),
        *rounds("time of the layer", 0.1 * (1 + added), 0.001),
        *(Value(metric, value) for metric, value in whole.items()),
        *(Value("time by length", 1e-6 * (n / 512) ** power, n) for n in lengths),
        *(Value("peak bytes by length", 1000 * n**power, n) for n in lengths),
    ]
    return Run(name, 0, tuple(values))


def result(*names: str) -> CostResult:
    names = names or tuple(MADE)
    return CostResult(
        CostSettings(encodings=names),
        Frame((Run(PLAIN, 0, tuple(rounds("time of the layer", 0.1, 0.001))), *map(run, names))),
        {"alibi": "8,192 tokens would need about 4 GiB, more than 2"} if "alibi" in names else {},
        60.0,
        {"processor": "A <Processor>", "threads": "1", "torch": "2.9", "device": "cpu"},
    )
