"""Settings that go together, by name. Anything in them can be overridden."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from posembed.errors import ArgumentError
from posembed.lab.tasks.language import LanguageSpec

COMMON: dict[str, Any] = {
    "data": "stdlib",
    "tokenizer": "bytes",
    "dropout": 0.0,
    "batch": 32,
    "weight_decay": 0.1,
    "clip": 1.0,
    "precision": "no",
}

PRESETS: dict[str, dict[str, Any]] = {
    # Minutes on two cores: what `make demo` runs.
    "quick": {
        "train_length": 64,
        "test_lengths": (64, 128, 256, 512),
        "layers": 3,
        "width": 96,
        "heads": 4,
        "steps": 500,
        "learning_rate": 6e-3,
        "warmup": 50,
        "test_tokens": 32_768,
    },
    # An hour on two cores with three seeds and five encodings.
    "small": {
        "train_length": 128,
        "test_lengths": (128, 256, 512, 1024),
        "layers": 3,
        "width": 128,
        "heads": 4,
        "steps": 2000,
        "learning_rate": 5e-3,
        "warmup": 100,
        "test_tokens": 65_536,
    },
    # GPT-2's smallest, for a GPU.
    "gpt2": {
        "train_length": 1024,
        "test_lengths": (1024, 2048, 4096, 8192),
        "layers": 12,
        "width": 768,
        "heads": 12,
        "steps": 20_000,
        "learning_rate": 6e-4,
        "warmup": 1000,
        "test_tokens": 1_048_576,
        "precision": "bf16",
    },
}


def settings(preset: str, *, data_sha256: str, **overrides: Any) -> LanguageSpec:
    """A LanguageSpec without encoding and seed. Overrides that are None leave the preset's value.

    Raises ArgumentError for a preset that is not known, or values that no run can have.
    """
    if preset not in PRESETS:
        raise ArgumentError(f"unknown preset {preset!r}; known are {', '.join(PRESETS)}")
    chosen = merged(COMMON | PRESETS[preset], overrides)
    chosen["test_lengths"] = tuple(sorted(set(chosen["test_lengths"])))
    require_trainable(chosen, "train_length", "layers", "width", "heads", "steps", "batch", "test_tokens")
    if not chosen["test_lengths"] or min(chosen["test_lengths"]) < 2:
        raise ArgumentError(
            f"test lengths must be 2 tokens or more, got {', '.join(map(str, chosen['test_lengths'])) or 'none'}"
        )
    chosen.setdefault("window", default_window(chosen["layers"], chosen["train_length"]))
    chosen.setdefault("ring", chosen["window"])
    return LanguageSpec(encoding="", seed=0, data_sha256=data_sha256, **chosen)


def merged(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults under overrides that are not None. A warm-up that nobody asked for ends with the steps."""
    given = {name: value for name, value in overrides.items() if value is not None}
    steps = given.get("steps", defaults["steps"])
    return {**defaults, "warmup": min(defaults["warmup"], max(steps, 0)), **given}


def require_trainable(values: Mapping[str, Any], *counts: str) -> None:
    """Raise ArgumentError for one of the counts, the window or the ring below 1, or another number that no run can
    have."""
    for name in (*counts, *({"window", "ring"} & values.keys())):
        if values[name] < 1:
            raise ArgumentError(f"{name} must be at least 1, got {values[name]}")
    if not 0 < values["learning_rate"] < math.inf or not 0 <= values["dropout"] < 1:
        raise ArgumentError(
            f"expected a learning rate above 0 and a dropout of at least 0 and below 1, got "
            f"{values['learning_rate']} and {values['dropout']}"
        )
    if not 0 <= values["weight_decay"] < math.inf or not 0 < values["clip"] < math.inf:
        raise ArgumentError(
            f"expected a weight decay of at least 0 and a clip above 0, got {values['weight_decay']} and "
            f"{values['clip']}"
        )
    if not 0 <= values["warmup"] <= values["steps"]:
        raise ArgumentError(
            f"warmup is a part of the steps: expected 0 to {values['steps']:,}, got {values['warmup']:,}"
        )
    if not all(0 < factor < math.inf for factor in values.get("rope_factors", ())):
        raise ArgumentError(f"rope_factors must be numbers above 0, got {list(values['rope_factors'])}")


def default_window(layers: int, train_length: int) -> int:
    """The largest power of two whose reach through n layers, n (w - 1) + 1 tokens, is within the training length.

    A longer one would show a model, past its training length, more than it ever saw.
    """
    window = 1
    while layers * (2 * window - 1) + 1 <= train_length:
        window *= 2
    return window
