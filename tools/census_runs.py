"""Inputs for the models of the census, and their answers."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.position_tables import pair
from posembed.checkpoints.proof.inputs import image_inputs, inputs_of, text_inputs
from posembed.checkpoints.sources.configs import models_around

LONGEST_TEXT = 1024  # in tokens
TEXT_TOKENS = (16, 64, 512)  # in tokens; some models accept only multiples of some number


def around(built: nn.Module, name: str) -> list[str]:
    """Returns the paths of the models that hold a table, the largest first."""
    return list(models_around(built, name))[::-1] if hasattr(built, "config") else [""]


def runs_at_all(built: nn.Module, name: str) -> bool:
    """Returns whether the model around a table can be run at its own size, with any of the inputs known here."""
    for path in around(built, name):
        part: Any = built.get_submodule(path)
        image = pair(getattr(part.config, "image_size", None) or getattr(part.config, "input_size", None))
        for options in ({"length": 32}, {"image_size": image or (224, 224)}):
            try:
                tries = new_inputs(part, options)
            except Exception:
                continue
            for arguments in tries:
                try:
                    answer(part, arguments)
                except Exception:
                    continue
                return True
    return False


def new_inputs(built: Any, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns arguments to try: a text or a sound of the new length, or an image or a video of the new size."""
    if not hasattr(built, "config"):  # of timm
        return [{"x": torch.randn(1, 3, *options["image_size"])}]
    accepted, config = signature(built.forward).parameters, built.config
    length = options.get("length") or options.get("frames")
    found: list[dict[str, Any]] = []
    if length and "input_ids" in accepted:
        found += [text_inputs(built, tokens) for tokens in (min(length, LONGEST_TEXT), *TEXT_TOKENS)]
    if length:
        found += sound_inputs(built, length)
    if {"length", "buckets"} & options.keys():
        return [*found, *inputs_of(built)]
    size = options.get("image_size")
    if "grid" in options:
        size = [side * cells for side, cells in zip(patch_of(config), options["grid"], strict=True)]
    size = size or pair(getattr(config, "image_size", None)) or (224, 224)
    packed = packed_inputs(built, size) if {"grid_thw", "spatial_shapes"} & set(accepted) else []
    return [*found, *packed, *image_inputs(built, tuple(size))]


def patch_of(config: Any) -> tuple[int, int]:
    return pair(getattr(config, "patch_size", None)) or (16, 16)


def packed_inputs(built: Any, size: Any) -> list[dict[str, Any]]:
    """Returns patches in a row with the grid that they come from, as Qwen's, GLM's and SigLIP 2's vision models take
    them."""
    accepted, patch = set(signature(built.forward).parameters), patch_of(built.config)
    cells = [side // each for side, each in zip(size, patch, strict=True)]
    n, width = math.prod(cells), 3 * math.prod(patch)
    if "spatial_shapes" in accepted:
        mask = {"pixel_attention_mask": torch.ones(1, n, dtype=torch.int64)}
        shapes = {"pixel_values": torch.randn(1, n, width), "spatial_shapes": torch.tensor([cells])}
        return [{**shapes, **{name: value for name, value in mask.items() if name in accepted}}]
    name = next(name for name in ("hidden_states", "pixel_values") if name in accepted)
    frames = getattr(built.config, "temporal_patch_size", 1) or 1
    grid = torch.tensor([[1, *cells]])
    patches = [torch.randn(n, width * frames), torch.randn(n, 3, *patch), torch.randn(1, n, 3, *patch)]
    return [{name: each, "grid_thw": grid} for each in patches]


def sound_inputs(built: Any, frames: int) -> list[dict[str, Any]]:
    accepted = signature(built.forward).parameters
    bands = getattr(built.config, "num_mel_bins", 80) or 80
    found: list[dict[str, Any]] = []
    ids = torch.zeros(1, 4, dtype=torch.int64)
    more = {"decoder_input_ids": ids} if "decoder_input_ids" in accepted else {}
    if "input_features" in accepted:
        for steps in (2 * frames, frames, 4 * frames):
            for shape in ((1, bands, steps), (1, steps, bands)):
                found.append({"input_features": torch.randn(shape), **more})
    if "input_values" in accepted:
        found += [{"input_values": torch.randn(shape), **more} for shape in ((1, frames, bands), (1, 16000))]
    return found


def answer(built: nn.Module, arguments: Mapping[str, Any]) -> list[Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        return list(floats(built(*[arguments["x"]] if "x" in arguments else [], **without_x(arguments))))


def without_x(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "x"}


def floats(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point():
            yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for value in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from floats(value)


def last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[-1][:200]}"


def last_frame(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last_line(error)} ({Path(frame.filename).name}:{frame.lineno})"
