"""Random inputs to try with a model: texts, sounds, images, videos and patches, in the forms that models take."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from posembed.checkpoints.position_tables import Size, fields_in, pair
from posembed.checkpoints.sources.base import takes_text
from posembed.checkpoints.sources.hugging_face import FEW_TOKENS

LONGEST_TEXT = 1024  # in tokens; longer tables are tried with texts of this length
SHORT_TEXTS = (16, 64, 512, 8, 4)  # in tokens; some models accept only lengths that are a multiple of some number
SHORT_TEXT = 8
MOST_NUMBERS = 64_000_000  # the maximum number of values in a copy or an image: 256 MB
ANY_IMAGE = (64, 64)  # pixels, for models whose config gives no size of images
SAMPLES = 640  # of a raw sound, for each token
SHORT_SOUND = 64  # frames, which a model may merge to fewer
FRAME_WIDTHS = ("feature_projection_input_dim", "input_dim", "input_size", "hidden_size")  # fields, of a sound's frames
IMAGES = ("pixel_values", "pixel_values_videos", "image", "images", "x")  # arguments; timm takes an x
IMAGE_SIZES = ("pretrain_image_size", "max_img_size", "max_image_size", "image_size", "img_size", "input_size")


class NotTried(Exception):  # noqa: N818 - never leaves the files of the proof
    """Raised if no small copy of a model could be run. The message gives the reason."""


class Misread(Exception):  # noqa: N818 - never leaves the files of the proof
    """Raised if a run contradicts a resize, with the reason to refuse it."""


class TooLarge(NotTried):
    """Raised if a small copy of a model would take too much memory."""


def text_inputs(model: nn.Module, tokens: int) -> dict[str, Any]:
    """Returns arguments for a model's forward with a random text. Raises NotTried if the model takes no text."""
    if not takes_text(model):
        raise NotTried("it takes no text")
    ids, config = random_ids(model, tokens), cast(Any, model.config)
    read, end, known = ids.clone(), *(getattr(config, name, None) for name in ("eos_token_id", "vocab_size"))
    if getattr(config, "is_encoder_decoder", False) and type(end) is type(known) is int and 0 <= end < known:
        read[:, -1] = end  # BART classifies a text by its last token
    boxes = torch.zeros(1, tokens, 4, dtype=torch.int64)
    given = {"input_ids": read, "decoder_input_ids": ids, "bbox": boxes}
    return {name: value for name, value in given.items() if name in signature(model.forward).parameters}


def random_ids(model: nn.Module, tokens: int) -> Tensor:
    """Returns random ids (1, tokens) of a model's ordinary tokens, without special tokens."""
    config = cast(Any, model.config)
    sections = (config, getattr(config, "text_config", None))
    sizes = [size for section in sections if type(size := getattr(section, "vocab_size", None)) is int]
    sizes = sizes or [value for path, value in fields_in(config.to_dict()) if path[-1] == "vocab_size"]
    reserved = [value for name, value in vars(config).items() if name.endswith("_token_id")]
    special = {each for value in reserved for each in (value if isinstance(value, list) else [value])}
    ordinary = [token for token in range(min(sizes, default=FEW_TOKENS)) if token not in special]
    return torch.tensor(ordinary or [0])[torch.randint(len(ordinary) or 1, (1, tokens))]


def text_beside(model: nn.Module) -> dict[str, Any]:
    return text_inputs(model, SHORT_TEXT) if takes_text(model) else {}


def image_inputs(model: nn.Module, size: Size) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a model: a text, if the model takes text, and last a random image or video."""
    accepted, config = signature(model.forward).parameters, cast(Any, model.config)
    name = next((name for name in IMAGES if name in accepted), None)
    if name is None:
        return
    channels, frames = of_images(config, "num_channels") or 3, of_images(config, "num_frames")
    leads: tuple[tuple[int, ...], ...] = ((1,), (1, 2)) if frames is None else ((1, frames), (1,), (frames,))
    cells = math.prod(grid_of(config) or (1, 1))
    order = {"noise": torch.linspace(0, 1, cells)[None]} if "noise" in accepted else {}  # MAE sorts the patches by it
    for lead in leads:
        if math.prod((*lead, channels, *size)) > MOST_NUMBERS and not only_shapes():
            raise TooLarge("its images are too large to be tried")
        images = {name: torch.randn(*lead, channels, *size)}
        yield {**with_image_tokens(model, text_beside(model), images), **order, **images}


def with_image_tokens(model: Any, texts: dict[str, Any], images: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns a text with one image token in front for each feature that the model makes of these images."""
    token = image_token_of(model)
    if "input_ids" not in texts or type(token) is not int or not hasattr(model, "get_image_features"):
        return texts
    try:
        with torch.no_grad():
            features = model.get_image_features(**images)
    except Exception:  # it needs more than images
        return texts
    ids = torch.cat([torch.full((1, features_in(features)), token), texts["input_ids"]], dim=1)
    return {**texts, "input_ids": ids}


def image_token_of(model: Any) -> Any:
    """Returns the id of the token that stands for an image in a text; None if there is none."""
    return getattr(model.config, "image_token_id", None)


def features_in(features: Any) -> int:
    """Returns how many vectors are in the result of a model's ``get_image_features``."""
    if not isinstance(features, Tensor | list | tuple):  # since transformers 5
        features = features.pooler_output
    return sum(each.numel() // each.shape[-1] for each in ([features] if isinstance(features, Tensor) else features))


def only_shapes() -> bool:
    """Returns whether new tensors are made on the meta device, where they have no values and need no memory."""
    return torch.empty(0).is_meta


def of_images(config: Any, name: str) -> int | None:
    """Returns a whole number from a config or its vision_config; None if neither has this field."""
    held = (getattr(section, name, None) for section in (config, getattr(config, "vision_config", None)))
    return next((value for value in held if type(value) is int), None)


def inputs_of(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a model: patches, a sound, a text with boxes, an image or a video."""
    accepted, config = signature(model.forward).parameters, cast(Any, model.config)
    grid, side = grid_of(config), getattr(config, "patch_size", None)
    if grid is not None and type(side) is int:
        yield from packed_patches(model, accepted, grid, side)
    if "past_values" in accepted:  # a series of times
        yield {"past_values": torch.randn(1, config.context_length, config.num_input_channels)}
    largest = getattr(config, "max_2d_position_embeddings", None)
    if "bbox" in accepted and type(largest) is int:
        corner = torch.linspace(0, largest - 1, SHORT_TEXT).long()
        box = torch.stack([torch.zeros_like(corner), torch.zeros_like(corner), corner, corner], dim=-1)
        yield {**text_inputs(model, SHORT_TEXT), "bbox": box[None]}
    if not {"pixel_values", "bbox"} & set(accepted):
        for tokens in (SHORT_SOUND, SHORT_TEXT, 2):
            yield from line_inputs(model, tokens)
    sections = (config, getattr(config, "vision_config", None))
    sizes = [size for name in IMAGE_SIZES for each in sections if (size := pair(getattr(each, name, None))) is not None]
    inner = (pair(value) for path, value in fields_in(config.to_dict()) if path[-1] in IMAGE_SIZES)  # of timm's models
    for size in sizes or [*filter(None, inner)] or [ANY_IMAGE]:
        yield from image_inputs(model, size)
    if grid is not None and type(side) is int and "pixel_values" in accepted:  # patches without a grid
        yield {"pixel_values": torch.randn(1, math.prod(grid), getattr(config, "num_channels", 3) * side * side)}


def grid_of(config: Any) -> Size | None:
    """Returns the grid of patches (height, width) that a config's learned positions stand for."""
    for name in ("num_patches", "num_position_embeddings"):
        if type(area := getattr(config, name, None)) is int and area:
            return math.isqrt(area), math.isqrt(area)
    if sides := pair(getattr(config, "posemb_grid_size", None)):
        return sides
    if sides := pair([getattr(config, f"pos_emb_{side}", None) for side in ("height", "width")]):
        return sides
    patch = pair(getattr(config, "patch_size", None))
    size = next(filter(None, (pair(getattr(config, name, None)) for name in IMAGE_SIZES)), None)
    return None if patch is None or size is None else (size[0] // patch[0], size[1] // patch[1])


def packed_patches(model: nn.Module, accepted: Collection[str], grid: Size, side: int) -> Iterator[dict[str, Any]]:
    """Yields an image that is already cut into patches, with its grid, in the forms that models take."""
    config, cells = cast(Any, model.config), math.prod(grid)
    name = "hidden_states" if "hidden_states" in accepted else "pixel_values"
    if name not in accepted:
        return
    channels, frames = (
        next((getattr(config, each) for each in names if hasattr(config, each)), usual)
        for names, usual in ((("num_channels", "in_channels"), 3), (("temporal_patch_size", "patch_temporal"), 1))
    )
    flat, merged = channels * side * side, getattr(config, "spatial_merge_size", 1)
    if "spatial_shapes" in accepted:
        masks = [each for each in ("pixel_attention_mask", "attention_mask") if each in accepted]
        mask = {each: torch.ones(1, cells) for each in masks[:1]}
        shapes = {"spatial_shapes": torch.tensor([grid])}
        yield {**text_beside(model), **mask, name: torch.randn(1, cells, flat), **shapes}
    for sizes in ("grid_thw", "image_grid_thw"):
        if sizes in accepted:
            here = torch.tensor([[1, *grid]])
            yield {name: torch.randn(cells, frames * flat), sizes: here}
            for lead in ((cells,), (1, cells)):
                yield {name: torch.randn(*lead, channels, side, side), sizes: here}
            blocks, block = cells // merged**2, merged * side
            yield {name: torch.randn(blocks, block, block, channels), sizes: here // torch.tensor([1, merged, merged])}
    if "target_sizes" in accepted:
        yield {name: torch.randn(1, channels, side, cells * side), "target_sizes": torch.tensor([grid])}


def line_inputs(model: nn.Module, tokens: int) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a text or sound model: ``tokens`` random tokens, frames or hidden states."""
    accepted, config = signature(model.forward).parameters, model.config
    if takes_text(model):
        yield text_inputs(model, tokens)
    for name in ("input_features", "hidden_states", "input_values", "inputs_embeds"):
        linear = (layer.in_features for layer in model.modules() if isinstance(layer, nn.Linear))
        widths = (*(getattr(config, each, None) for each in FRAME_WIDTHS), next(linear, None))
        if name == "input_values" in accepted:  # of a raw sound
            yield {name: torch.randn(1, SAMPLES * tokens)}
        for width in widths if name in accepted else ():
            if type(width) is int:
                masks = {name: None for name in ("mask",) if name in accepted}
                yield {name: torch.randn(1, tokens, width), **masks}


@dataclass(frozen=True)
class Sizes:
    """The sizes that a checkpoint's tables allow. read, written: the most tokens of a text that the model reads, and
    that its decoder writes. others: lengths of other inputs, such as sounds. image: the image size in the config."""

    read: int | None
    written: int | None
    others: tuple[int, ...]
    image: Size | None


def full_inputs(model: nn.Module, sizes: Sizes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields inputs of the full size to try, each with this size in words: text and images, or else sounds."""
    tokens, image = sizes.read or SHORT_TEXT, sizes.image
    text = text_inputs(model, tokens) if takes_text(model) else {}
    if "decoder_input_ids" in text:
        text["decoder_input_ids"] = text["decoder_input_ids"][:, : sizes.written]
    words = f"at {tokens} token{'s' * (tokens != 1)}"
    if image is not None:
        pixels = f"at {image[0]}x{image[1]} pixels"
        for form in image_inputs(model, image):
            # Where tokens stand for an image, a random text has the wrong number of them.
            if text and sizes.read is not None and image_token_of(model) is None:
                yield f"{words} and {pixels}", {**form, **text}
            else:
                yield pixels, form
    elif text:
        yield words, text
    else:
        for length in sizes.others:
            written = f" and {sizes.written} tokens" * (sizes.written is not None)
            yield from ((f"at {length} positions{written}", each) for each in sounds(model, length, sizes.written))
        for length in (*sizes.others, *filter(None, (sizes.read,))):
            yield from ((f"at {length} positions", inputs) for inputs in line_inputs(model, length))
        yield from (("on a short input", inputs) for inputs in inputs_of(model))


def sounds(model: nn.Module, positions: int, written: int | None) -> Iterator[dict[str, Any]]:
    """Yields a spectrogram (1, bands, frames) that a model's convolutions turn into ``positions`` positions, and a text
    for its decoder."""
    layers = [each for each in model.modules() if isinstance(each, nn.Conv1d)]
    accepted = signature(model.forward).parameters
    if "input_features" in accepted and layers:
        frames = positions * math.prod(each.stride[0] for each in layers)
        text = {"decoder_input_ids": random_ids(model, written)} if written and "decoder_input_ids" in accepted else {}
        yield {"input_features": torch.randn(1, layers[0].in_channels, frames), **text}
