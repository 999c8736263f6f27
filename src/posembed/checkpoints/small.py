"""Small copies of transformers' models, cheap enough to be run once, and their inputs."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.found import Size
from posembed.checkpoints.rebuild import LAYERS

HEADS = re.compile(r"heads$|^n_head$")
FEED_FORWARD = re.compile(r"intermediate_size$|ffn_dim$")
FEW = 2  # layers, heads
FEW_TOKENS = 1024  # rows of a vocabulary
SHORT_TEXT = 8
MOST_NUMBERS = 64_000_000  # in a copy or an image: 256 MB


class NotTried(Exception):  # noqa: N818 - never leaves this folder
    """Why no small copy of a model could be run."""


class TooLarge(NotTried):
    """Why none was run: it, or its input, would take too much memory."""


def models_around(model: nn.Module, name: str) -> Iterator[str]:
    """Yields the paths of transformers' models inside ``model`` that hold the parameter ``name``, smallest first."""
    from transformers import PreTrainedModel

    parts = name.split(".")
    for end in reversed(range(len(parts))):
        path = ".".join(parts[:end])
        if isinstance(model.get_submodule(path), PreTrainedModel):
            yield path


def small_copy(model: nn.Module, *, narrow: bool) -> nn.Module:
    """Builds a model of the same class on the CPU with few layers and tokens and, if ``narrow``, few heads."""
    config: Any = copy.deepcopy(model.config)
    make_small(config, narrow=narrow)
    kind: Any = type(model)
    with torch.device("meta"):
        sketch = kind(copy.deepcopy(config))
    if sum(tensor.numel() for tensor in (*sketch.parameters(), *sketch.buffers())) > MOST_NUMBERS:
        raise TooLarge(f"{kind.__name__} is too large to be tried")
    small: nn.Module = kind(config).float().eval()
    for parameter in small.parameters():
        if not parameter.any():  # gates and scales that start at zero would hide which rows are read
            nn.init.normal_(parameter, std=0.02)
    return small


def make_small(config: Any, *, narrow: bool) -> None:
    """Changes a config object, and those inside it, in place. Lengths and image sizes stay."""
    from transformers import PretrainedConfig

    numbers = {name: value for name, value in vars(config).items() if type(value) is int}
    heads = next((getattr(config, name, None) for name in ("num_attention_heads", "num_heads")), None)
    width = getattr(config, "hidden_size", None)
    narrow_width = None
    if narrow and type(heads) is type(width) is int and heads > FEW:
        narrow_width = config.hidden_size = width // heads * FEW
    for name, value in numbers.items():
        if LAYERS.search(name) and value > FEW:
            for other, items in list(vars(config).items()):
                if isinstance(items, list | tuple) and len(items) == value:  # a list with an item per layer
                    setattr(config, other, items[:FEW])
            setattr(config, name, FEW)
        elif narrow and HEADS.search(name):
            setattr(config, name, min(value, FEW))
        elif narrow_width and FEED_FORWARD.search(name):
            setattr(config, name, min(value, 4 * narrow_width))
        elif name.endswith("vocab_size"):
            setattr(config, name, min(value, FEW_TOKENS))
        elif name.endswith("_token_id"):
            setattr(config, name, min(value, FEW_TOKENS - 1))
    if isinstance(getattr(config, "mask_ratio", None), float):
        config.mask_ratio = 0.0  # MAE's encoder drops most patches
    for inner in list(vars(config).values()):
        if isinstance(inner, PretrainedConfig):
            make_small(inner, narrow=narrow)


def takes_text(model: nn.Module) -> bool:
    return "input_ids" in inspect.signature(model.forward).parameters


def text_inputs(model: nn.Module, tokens: int) -> dict[str, Any]:
    """Returns the arguments of a model's forward for a random text. Raises NotTried if it takes none."""
    if not takes_text(model):
        raise NotTried("it takes no text")
    accepted = inspect.signature(model.forward).parameters
    sections = (model.config, getattr(model.config, "text_config", None))
    sizes = [size for section in sections if type(size := getattr(section, "vocab_size", None)) is int]
    special = {value for name, value in vars(model.config).items() if name.endswith("_token_id")}
    ordinary = [token for token in range(sizes[0] if sizes else FEW_TOKENS) if token not in special]
    ids = torch.tensor(ordinary or [0])[torch.randint(len(ordinary) or 1, (1, tokens))]
    given = {
        "input_ids": ids,
        "decoder_input_ids": ids,
        "bbox": torch.zeros(1, tokens, 4, dtype=torch.int64),
        "visual_feats": torch.zeros(1, 3, getattr(model.config, "visual_feat_dim", 1)),
        "visual_pos": torch.zeros(1, 3, 4),
    }
    number = inspect.Parameter.POSITIONAL_OR_KEYWORD
    others = {name: 1 for name, p in accepted.items() if p.kind is number and p.default is p.empty}
    return others | {name: value for name, value in given.items() if name in accepted}


def image_inputs(model: nn.Module, size: Size) -> Iterator[dict[str, Any]]:
    """Yields the arguments of a model's forward for a random image or video, with a text if it takes both.

    The image is the last of them.
    """
    accepted = inspect.signature(model.forward).parameters
    texts = text_inputs(model, SHORT_TEXT) if takes_text(model) else {}
    name = next((name for name in ("pixel_values", "image", "images") if name in accepted), None)
    if name is not None:
        channels, frames = getattr(model.config, "num_channels", 3), getattr(model.config, "num_frames", None)
        for shape in ((1, channels),) if frames is None else ((1, frames, channels), (frames, channels)):
            if math.prod((*shape, *size)) > MOST_NUMBERS:
                raise TooLarge("its images are too large to be tried")
            yield {**texts, name: torch.randn(*shape, *size)}


def floats_in(outputs: Any) -> Iterator[Tensor]:
    """Yields the tensors of a model's output through which a gradient can flow."""
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point() and outputs.requires_grad:
            yield outputs
    elif isinstance(outputs, Mapping | list | tuple):
        for value in outputs.values() if isinstance(outputs, Mapping) else outputs:
            yield from floats_in(value)
