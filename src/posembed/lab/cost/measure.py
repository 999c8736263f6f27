"""One measurement of cost: CostSettings -> CostResult."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch

from posembed.errors import ArgumentError
from posembed.lab.cost.growth import GROWTH_SHAPE, grow
from posembed.lab.cost.memory import peak_bytes
from posembed.lab.cost.places import AttentionWith, Places, Shape, writes
from posembed.lab.cost.results import CostResult, CostRow, Passes
from posembed.lab.cost.settings import CostSettings
from posembed.lab.cost.turns import Step, ratio, take_turns
from posembed.lab.encodings import names_for, split_name
from posembed.lab.runs.environment import describe_environment
from posembed.lab.runs.spec import default_window, require_divisible
from posembed.layers.base import PositionEncoding
from posembed.layers.none import NoPosition
from posembed.nn import Attention, Sizes, encoding_by_name
from posembed.statistics import Estimate

Progress: TypeAlias = Callable[[str, int, int], None]
"""(current part, amount done, total amount)."""

PLAIN = "attention without position"


def checked(settings: CostSettings) -> CostSettings:
    """Returns the settings with each encoding once.

    Raises:
        ArgumentError: an unknown encoding or device, a size below 1, or a width that the heads do not divide.
    """
    names = tuple(dict.fromkeys(settings.encodings))
    if not names:
        raise ArgumentError(f"expected at least one encoding; known are {', '.join(names_for('decoder'))}")
    for name in ("batch", "length", "width", "heads", "layers", "vocabulary", "window"):
        size = getattr(settings, name)
        if size is not None and size < 1:
            raise ArgumentError(f"{name} must be at least 1, got {size}")
    require_divisible(settings.width, settings.heads)
    if settings.length < 2:
        raise ArgumentError("length must be at least 2: a single token has no order")
    if settings.longest < GROWTH_SHAPE.length:
        raise ArgumentError(
            f"growth starts at {GROWTH_SHAPE.length} tokens, so longest={settings.longest} is too short"
        )
    if not 0 <= settings.seconds < math.inf:
        raise ArgumentError(f"seconds must be at least 0, got {settings.seconds}")
    device = settings.device
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ArgumentError(f"this machine has no device {device!r} to measure on; use cpu or cuda")
    for name in names:
        split_name(name)
        with torch.device("meta"):
            encoding_of(settings, name)
    return dataclasses.replace(settings, encodings=names)


def shape_of(settings: CostSettings) -> Shape:
    return Shape(settings.batch, settings.length, settings.width, settings.heads)


def encoding_of(settings: CostSettings, name: str, shape: Shape | None = None) -> PositionEncoding:
    """Builds an encoding as the lab does, at the sizes of the settings or of ``shape``."""
    shape = shape or shape_of(settings)
    window = settings.window or default_window(settings.layers, settings.length)
    ring = max(window, default_window(settings.layers, shape.length))
    return encoding_by_name(
        name, Sizes(dim=shape.width, heads=shape.heads, max_len=shape.length, window=window, ring=ring)
    )


def measure_cost(settings: CostSettings, progress: Progress = lambda what, done, total: None) -> CostResult:
    """Measures time, memory and growth of every encoding, all taking turns on this machine.

    Raises:
        ArgumentError: settings that ``checked`` refuses.
    """
    settings = checked(settings)
    started = time.perf_counter()
    shape, device = shape_of(settings), torch.device(settings.device)

    def part(name: str, first: int, last: int) -> Callable[[float], None]:
        return lambda share: progress(name, first + round((last - first) * share), 100)

    forward = _turns(settings, training=False, progress=part("forward", 0, 30))
    backward = _turns(settings, training=True, progress=part("with backward", 30, 75))
    passes = {name: Passes(forward[name], backward[name]) for name in forward}
    grown = grow(
        settings.encodings,
        partial(encoding_of, settings),
        longest=settings.longest,
        device=device,
        progress=part("growth", 75, 100),
    )

    def versus_plain(ours: Passes, *, less: float) -> Passes:
        plain = passes[PLAIN]
        return Passes(ratio(ours.forward, plain.forward, less=less), ratio(ours.backward, plain.backward, less=less))

    def peak(name: str, *, training: bool) -> int:
        return peak_bytes(Places(encoding_of(settings, name), shape, training=training, device=device))

    rows = []
    for name in settings.encodings:
        encoding = encoding_of(settings, name)
        count = sum(parameter.numel() for parameter in encoding.parameters())
        alone, attention = passes[f"alone {name}"], passes[f"with {name}"]
        rows.append(
            CostRow(
                encoding=name,
                parameters=count,
                share_of_embeddings=count / (count + settings.vocabulary * settings.width),
                window=encoding.window,
                alone=alone,
                attention=attention,
                alone_share=versus_plain(alone, less=0.0),
                overhead=versus_plain(attention, less=1.0),
                writes=writes(encoding, shape),
                peak_forward=peak(name, training=False),
                peak_backward=peak(name, training=True),
                growth=grown[name],
            )
        )
    name_of_device = torch.cuda.get_device_name() if settings.device == "cuda" else "cpu"
    return CostResult(
        settings=settings,
        attention=passes[PLAIN],
        rows=tuple(rows),
        growth_width=GROWTH_SHAPE.width,
        growth_heads=GROWTH_SHAPE.heads,
        seconds=time.perf_counter() - started,
        environment=describe_environment() | {"device": name_of_device},
    )


def _turns(settings: CostSettings, *, training: bool, progress: Callable[[float], None]) -> dict[str, Estimate]:
    """Times each encoding alone and with attention, and attention without position, in the same rounds."""
    torch.manual_seed(0)
    device, shape = torch.device(settings.device), shape_of(settings)
    layer = Attention(dim=settings.width, heads=settings.heads, dropout=0.0)
    steps: dict[str, Step] = {PLAIN: AttentionWith(NoPosition(), layer, shape, training=training, device=device)}
    for name in settings.encodings:
        encoding = encoding_of(settings, name)
        steps[f"alone {name}"] = Places(encoding, shape, training=training, device=device)
        steps[f"with {name}"] = AttentionWith(encoding, layer, shape, training=training, device=device)
    seconds = settings.seconds * (2 / 3 if training else 1 / 3)
    return take_turns(steps, seconds=seconds, device=device, on_round=progress)
