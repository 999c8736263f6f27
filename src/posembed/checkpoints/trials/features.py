"""How many tokens of a text stand for an image: found by running the model, on the meta device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posembed.checkpoints.found import IMAGE_TOKENS, Config, Size
from posembed.checkpoints.rebuild import build_on_meta, class_of, config_object, is_of_timm
from posembed.checkpoints.trials.small_copies import undisturbed
from posembed.errors import CheckpointError


def tokens_of_images(configs: Sequence[Config], sizes: Sequence[Size]) -> list[int | None]:
    """Returns the number of tokens for each pair of a config and the (height, width) of its images; None where no run
    shows it."""
    found = list[int | None]()
    for config, size in zip(configs, sizes, strict=True):
        try:
            known = config_object(config)
            built = known is not None and not is_of_timm(known) and class_of(known) is not None
            found.append(tokens_of_image(build_on_meta(known), size) if built else None)
        except CheckpointError:
            found.append(None)
    return found


def tokens_of_image(model: Any, size: Size) -> int | None:
    stated = (getattr(module, field, None) for module in model.modules() for field in IMAGE_TOKENS)
    if (number := next((each for each in stated if type(each) is int), None)) is not None:
        return number
    if not hasattr(model, "get_image_features"):
        return None
    for lead in ((1,), (1, 1)):
        try:
            with torch.no_grad(), undisturbed():
                features = model.get_image_features(pixel_values=torch.empty(*lead, 3, *size, device="meta"))
        except Exception:  # each model raises its own errors
            continue
        features = getattr(features, "pooler_output", features)
        parts = [features] if isinstance(features, Tensor) else features
        return sum(each.numel() // each.shape[-1] for each in parts)
    return None
