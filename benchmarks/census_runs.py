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

from posembed.checkpoints.found import pair
from posembed.checkpoints.rebuild import models_around
from posembed.checkpoints.trial import image_inputs, text_inputs

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
    """Returns arguments to try: a text of the new length, or an image of the new size."""
    if not hasattr(built, "config"):  # of timm
        return [{"x": torch.randn(1, 3, *options["image_size"])}]
    if "length" in options:
        accepted = signature(built.forward).parameters
        found = []
        if "input_ids" in accepted:
            found += [text_inputs(built, t) for t in (min(options["length"], LONGEST_TEXT), *TEXT_TOKENS)]
        return found + sound_inputs(built, options["length"])
    size = options.get("image_size")
    if size is None:
        patch = pair(getattr(built.config, "patch_size", None)) or (16, 16)
        size = [side * cells for side, cells in zip(patch, options.get("grid", (16, 16)), strict=True)]
    found = list(image_inputs(built, tuple(size)))
    if "interpolate_pos_encoding" in signature(built.forward).parameters:
        return found
    flat = {"pixel_values", "image_grid_thw", "grid_thw", "hidden_states"} & set(signature(built.forward).parameters)
    return found + (packed_inputs(built, size, flat) if "grid_thw" in flat else [])


def packed_inputs(built: Any, size: Any, names: set[str]) -> list[dict[str, Any]]:
    """Returns patches in a row with the grid they come from, as Qwen's vision models take them."""
    config = built.config
    patch = pair(config.patch_size) or (16, 16)
    cells = [side // each for side, each in zip(size, patch, strict=True)]
    width = 3 * getattr(config, "temporal_patch_size", 1) * patch[0] * patch[1]
    name = "hidden_states" if "hidden_states" in names else "pixel_values"
    return [{name: torch.randn(math.prod(cells), width), "grid_thw": torch.tensor([[1, *cells]])}]


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
        found += [{"input_values": torch.randn(shape), **more} for shape in ((1, 16000), (1, frames, bands))]
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
