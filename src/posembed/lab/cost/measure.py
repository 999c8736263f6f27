"""One measurement of cost: CostSpec -> CostResult."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import TypeAlias

import torch

from posembed.errors import ArgumentError
from posembed.lab import presets
from posembed.lab.cost.growth import GROWTH_SHAPE, grow
from posembed.lab.cost.memory import peak_bytes
from posembed.lab.cost.places import AttentionWith, Places, Shape, parameters, writes
from posembed.lab.cost.results import CostResult, CostRow, CostSpec, Passes
from posembed.lab.cost.turns import Spread, Step, ratio, spread, take_turns
from posembed.lab.encodings import build_encoding, names_for, split_name
from posembed.lab.runs.environment import describe_environment
from posembed.lab.runs.spec import TrainingSpec
from posembed.layers.none import NoPosition
from posembed.nn import Attention

Progress: TypeAlias = Callable[[str, int, int], None]
"""(what is done now, how much is done, of how much)."""

PLAIN = "attention without position"


def cost_spec(
    encodings: tuple[str, ...] | None = None,
    *,
    batch: int = 1,
    length: int = 512,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    vocabulary: int = 50_257,
    window: int | None = None,
    longest: int = 131_072,
    seconds: float = 30.0,
    device: str = "cpu",
) -> CostSpec:
    """Checked sizes; without encodings all of the lab's.

    Raises:
        ArgumentError: an unknown encoding or device, a size below 1, a width that the heads do not divide.
    """
    encodings = names_for("decoder") if encodings is None else tuple(dict.fromkeys(encodings))
    if not encodings:
        raise ArgumentError(f"expected at least one encoding; known are {', '.join(names_for('decoder'))}")
    sizes = {"batch": batch, "length": length, "width": width, "heads": heads, "layers": layers}
    sizes |= {"vocabulary": vocabulary, "window": 1 if window is None else window}
    for name, size in sizes.items():
        if size < 1:
            raise ArgumentError(f"{name} must be at least 1, got {size}")
    if width % heads:
        raise ArgumentError(
            f"width {width} is not divisible by {heads} heads; try a width of {heads * max(width // heads, 1)}"
        )
    if length < 2:
        raise ArgumentError("length must be at least 2: a single token has no order")
    if longest < GROWTH_SHAPE.length:
        raise ArgumentError(f"growth starts at {GROWTH_SHAPE.length} tokens, so longest={longest} is too short")
    if not 0 <= seconds < math.inf:
        raise ArgumentError(f"seconds must be at least 0, got {seconds}")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ArgumentError(f"there is no device {device!r} here to measure on; use cpu or cuda")
    spec = CostSpec(encodings, batch, length, width, heads, layers, vocabulary, window, longest, seconds, device)
    for name in encodings:
        split_name(name)
        with torch.device("meta"):
            build_encoding(run_spec(spec, name))
    return spec


def run_spec(spec: CostSpec, encoding: str, *, shape: Shape | None = None) -> TrainingSpec:
    """How the lab builds an encoding at these sizes, or at those of ``shape``."""
    shape = Shape(spec.batch, spec.length, spec.width, spec.heads) if shape is None else shape
    settings = presets.settings(
        "small",
        data_sha256="",
        train_length=shape.length,
        test_lengths=(shape.length,),
        layers=spec.layers,
        width=shape.width,
        heads=shape.heads,
        window=spec.window or presets.default_window(spec.layers, spec.length),
    )
    return dataclasses.replace(settings, encoding=encoding)


def measure_cost(spec: CostSpec, progress: Progress = lambda what, done, total: None) -> CostResult:
    """Time, memory and growth of every encoding, all taking turns on this machine."""
    started = time.perf_counter()
    forward = _turns(spec, training=False, progress=lambda share: progress("forward", round(30 * share), 100))
    backward = _turns(
        spec, training=True, progress=lambda share: progress("with backward", 30 + round(45 * share), 100)
    )
    grown = grow(
        spec.encodings,
        lambda name, shape: build_encoding(run_spec(spec, name, shape=shape)),
        longest=spec.longest,
        device=torch.device(spec.device),
        progress=lambda share: progress("growth", 75 + round(25 * share), 100),
    )
    rows = []
    for name in spec.encodings:
        encoding = build_encoding(run_spec(spec, name))
        of_encoding = parameters(encoding)
        alone, attention = (Passes(forward[key], backward[key]) for key in (f"alone {name}", f"with {name}"))
        rows.append(
            CostRow(
                encoding=name,
                parameters=of_encoding,
                share_of_embeddings=of_encoding / (of_encoding + spec.vocabulary * spec.width),
                window=encoding.window,
                alone=alone,
                attention=attention,
                alone_share=Passes(ratio(alone.forward, forward[PLAIN]), ratio(alone.backward, backward[PLAIN])),
                overhead=Passes(
                    _less_one(ratio(attention.forward, forward[PLAIN])),
                    _less_one(ratio(attention.backward, backward[PLAIN])),
                ),
                writes=writes(encoding, _shape(spec)),
                peak_forward=_peak(spec, name, training=False),
                peak_backward=_peak(spec, name, training=True),
                growth=grown[name],
            )
        )
    return CostResult(
        spec=spec,
        attention=Passes(forward[PLAIN], backward[PLAIN]),
        rows=tuple(rows),
        growth_width=GROWTH_SHAPE.width,
        growth_heads=GROWTH_SHAPE.heads,
        seconds=time.perf_counter() - started,
        environment=describe_environment() | {"device": _device_name(spec)},
    )


def _turns(spec: CostSpec, *, training: bool, progress: Callable[[float], None]) -> dict[str, Spread]:
    """Each encoding alone and with attention, and attention without position, in the same rounds."""
    torch.manual_seed(0)
    device, shape = torch.device(spec.device), _shape(spec)
    layer = Attention(spec.width, spec.heads, dropout=0.0)
    steps: dict[str, Step] = {PLAIN: AttentionWith(NoPosition(), layer, shape, training=training, device=device)}
    for name in spec.encodings:
        encoding = build_encoding(run_spec(spec, name))
        steps[f"alone {name}"] = Places(encoding, shape, training=training, device=device)
        steps[f"with {name}"] = AttentionWith(encoding, layer, shape, training=training, device=device)
    seconds = spec.seconds * (2 / 3 if training else 1 / 3)
    return take_turns(steps, seconds=seconds, device=device, on_round=progress)


def _peak(spec: CostSpec, name: str, *, training: bool) -> int:
    encoding = build_encoding(run_spec(spec, name))
    return peak_bytes(Places(encoding, _shape(spec), training=training, device=torch.device(spec.device)))


def _shape(spec: CostSpec) -> Shape:
    return Shape(spec.batch, spec.length, spec.width, spec.heads)


def _less_one(ratio_of_times: Spread) -> Spread:
    return spread([value - 1 for value in ratio_of_times.values])


def _device_name(spec: CostSpec) -> str:
    return torch.cuda.get_device_name() if spec.device == "cuda" else "cpu"
