"""Random inputs to try with a model: texts, sounds, images, videos and patches, in the forms that models take."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from posembed.checkpoints.found import Size, pair
from posembed.checkpoints.rebuild import takes_text
from posembed.checkpoints.trials.small_copies import (
    FEW_TOKENS,
    MOST_NUMBERS,
    NotTried,
    TooLarge,
)

LONGEST_TEXT = 1024  # in tokens; longer tables are tried with texts of this length
SHORT_TEXT = 8
MOST_PATCHES = 4096
ANY_IMAGE = (64, 64)  # pixels, for models whose config gives no size of images
SAMPLES = 640  # of a raw sound, for each token
SHORT_SOUND = 64  # frames, which a model may merge to fewer
FRAME_WIDTHS = ("feature_projection_input_dim", "input_dim", "input_size", "hidden_size")  # fields, of a sound's frames
NUMBERS = ("seq_len", "max_num_patches", "position_embedding_size", "max_ep_len")  # fields: one more than the largest
IMAGES = ("pixel_values", "pixel_values_videos", "image", "images", "x")  # arguments; timm takes an x
IMAGE_SIZES = ("pretrain_image_size", "max_img_size", "max_image_size", "image_size", "img_size", "input_size")


def text_inputs(model: nn.Module, tokens: int) -> dict[str, Any]:
    """Returns arguments for a model's forward with a random text. Raises NotTried if the model takes no text."""
    if not takes_text(model):
        raise NotTried("it takes no text")
    accepted: dict[str, Parameter | None] = dict(signature(model.forward).parameters)
    config: Any = model.config
    sections = (config, getattr(config, "text_config", None))
    sizes = [size for section in sections if type(size := getattr(section, "vocab_size", None)) is int]
    reserved = [value for name, value in vars(config).items() if name.endswith("_token_id")]
    special = {each for value in reserved for each in (value if isinstance(value, list) else [value])}
    ordinary = [token for token in range(min(sizes, default=FEW_TOKENS)) if token not in special]
    ids = torch.tensor(ordinary or [0])[torch.randint(len(ordinary) or 1, (1, tokens))]
    given: dict[str, Any] = {
        "input_ids": ids,
        "decoder_input_ids": ids,
        "bbox": torch.zeros(1, tokens, 4, dtype=torch.int64),
    }
    if "visual_feats" in accepted:  # LXMERT reads parts of images, and their places
        given |= {"visual_feats": torch.zeros(1, 3, config.visual_feat_dim), "visual_pos": torch.zeros(1, 3, 4)}
    if "codebook_idx" in accepted:  # Bark's fine model reads the tokens of several codebooks
        given["input_ids"] = ids[..., None].expand(-1, -1, config.n_codes_total)
    if "conditioning_encoder_inputs_embeds" in accepted:  # CLVP: its logits depend on the text through an argmax
        bands = config.decoder_config.feature_size
        given |= {"input_features": torch.randn(1, bands, SHORT_SOUND), "output_hidden_states": True}
        accepted |= {"output_hidden_states": None}
    number = Parameter.POSITIONAL_OR_KEYWORD
    others = {name: 1 for name, p in accepted.items() if p and p.kind is number and p.default is p.empty}
    return others | {name: value for name, value in given.items() if name in accepted}


def image_inputs(model: nn.Module, size: Size) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a model: a text, if the model takes one, and last a random image or video."""
    accepted, config = signature(model.forward).parameters, cast(Any, model.config)
    texts = text_inputs(model, SHORT_TEXT) if takes_text(model) else {}
    name = next((name for name in IMAGES if name in accepted), None)
    if name is None:
        return
    channels, frames = of_images(config, "num_channels") or 3, of_images(config, "num_frames")
    leads: tuple[tuple[int, ...], ...] = ((1,), (1, 2)) if frames is None else ((1, frames), (1,), (frames,))
    if "aspect_ratio_ids" in accepted:
        leads = ((1, 1, config.max_num_tiles),)
    elif "image_attention_mask" in accepted:  # one image for a text
        leads = ((1, 1),)
    prompts = [each for each in ("prompt_pixel_values", "prompt_masks") if each in accepted]
    height, width = size[0] // 2 if prompts else size[0], size[1]  # SegGPT puts an image below its prompt
    for lead in leads:
        if math.prod((*lead, channels, height, width)) > MOST_NUMBERS and not only_shapes():
            raise TooLarge("its images are too large to be tried")
        images = {each: torch.randn(*lead, channels, height, width) for each in (*prompts, name)}
        beside = beside_images(accepted, lead, config)
        if prompts and "bool_masked_pos" in accepted and (patch := pair(getattr(config, "patch_size", None))):
            beside["bool_masked_pos"] = torch.zeros(1, size[0] // patch[0] * (size[1] // patch[1]), dtype=torch.bool)
        yield {**with_image_tokens(model, texts, images), **beside, **images}


def beside_images(accepted: Collection[str], lead: Sequence[int], config: Any) -> dict[str, Any]:
    """Returns what some models take with images: the number of an aspect ratio, masks, and the order of patches."""
    grid = grid_of(config) or (1, 1)
    given = {
        "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.int64),
        "aspect_ratio_mask": torch.ones(lead, dtype=torch.int64),
        "image_attention_mask": torch.ones(1, SHORT_TEXT, 1),
        "noise": torch.linspace(0, 1, math.prod(grid))[None],  # MAE sorts the patches by it
    }
    return {name: value for name, value in given.items() if name in accepted}


def with_image_tokens(model: Any, texts: dict[str, Any], images: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns a text with as many tokens for images as the model has features for these images."""
    token = getattr(model.config, "image_token_id", None)
    if "input_ids" not in texts or type(token) is not int or not hasattr(model, "get_image_features"):
        return texts
    try:
        with torch.no_grad():
            features = model.get_image_features(**images)
    except Exception:  # it needs more than images
        return texts
    ids = torch.cat([torch.full((1, features_in(features)), token), texts["input_ids"]], dim=1)
    return {**texts, "input_ids": ids}


def features_in(features: Any) -> int:
    """Returns how many vectors are in the result of a model's ``get_image_features``."""
    if not isinstance(features, Tensor | list | tuple):  # since transformers 5
        features = features.pooler_output
    return sum(each.numel() // each.shape[-1] for each in ([features] if isinstance(features, Tensor) else features))


def only_shapes() -> bool:
    """Returns whether new tensors are made on the meta device, where they have no values and need no memory."""
    return torch.empty(0).is_meta


def of_images(config: Any, name: str) -> int | None:
    """Returns a field of a config, or of the section for images in the config of a model of texts and images."""
    held = (getattr(section, name, None) for section in (config, getattr(config, "vision_config", None)))
    return next((value for value in held if type(value) is int), None)


def inputs_of(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a model: patches, a sound, an image or a video, or a text with boxes."""
    accepted, config = signature(model.forward).parameters, cast(Any, model.config)
    area, side = getattr(config, "num_patches", None), getattr(config, "patch_size", None)
    if {"pixel_values", "spatial_shapes"} <= set(accepted) and type(area) is int and type(side) is int:
        edge, channels = math.isqrt(area), getattr(config, "num_channels", 3)
        texts = text_inputs(model, SHORT_TEXT) if takes_text(model) else {}
        mask = {name: torch.ones(1, area) for name in ("pixel_attention_mask", "attention_mask") if name in accepted}
        yield {
            **texts,
            **dict(list(mask.items())[:1]),
            "pixel_values": torch.randn(1, area, channels * side * side),
            "spatial_shapes": torch.tensor([[edge, edge]]),
        }
    yield from numbered_inputs(accepted, config)
    yield from merged_patches(model, accepted)
    grid = grid_of(config)
    if grid is not None and type(side) is int:
        yield from packed_patches(accepted, config, grid, side)
    bins, frames = (getattr(config, name, None) for name in ("num_mel_bins", "max_length"))
    if "input_values" in accepted and type(bins) is int and type(frames) is int:
        yield {"input_values": torch.randn(1, frames, bins)}
    if "is_longer" in accepted and type(bins) is int:  # CLAP folds a spectrogram into a square image
        texts = text_inputs(model, SHORT_TEXT) if takes_text(model) else {}
        yield {**texts, "input_features": torch.randn(1, 1, SHORT_SOUND, bins), "is_longer": torch.tensor([[False]])}
    if "past_values" in accepted:  # a series of times
        yield {"past_values": torch.randn(1, config.context_length, config.num_input_channels)}
    largest = getattr(config, "max_2d_position_embeddings", None)
    if "bbox" in accepted and type(largest) is int:
        inputs = text_inputs(model, SHORT_TEXT)
        corner = torch.linspace(0, largest - 1, SHORT_TEXT).long()
        box = torch.stack([torch.zeros_like(corner), torch.zeros_like(corner), corner, corner], dim=-1)
        yield {**inputs, "bbox": box[None]}
        yield {**inputs, "bbox": box[None] / (largest - 1)}  # UDOP's coordinates are shares of the page
    of_bands = "input_values" in accepted and type(bins) is int
    if not of_bands and not {"pixel_values", "bbox"} & set(accepted):
        for tokens in (SHORT_SOUND, SHORT_TEXT, 2):
            yield from line_inputs(model, tokens)
    if "patch_embeds" in accepted and grid is not None:
        yield {"patch_embeds": torch.randn(1, config.hidden_size, *grid)}
    sections = (config, getattr(config, "vision_config", None))
    sizes = [size for name in IMAGE_SIZES for each in sections if (size := pair(getattr(each, name, None))) is not None]
    for size in sizes or [ANY_IMAGE]:
        yield from image_inputs(model, size)
    if grid is not None and type(side) is int and "pixel_values" in accepted:  # patches without a grid
        yield {"pixel_values": torch.randn(1, math.prod(grid), getattr(config, "num_channels", 3) * side * side)}


def numbered_inputs(accepted: Collection[str], config: Any) -> Iterator[dict[str, Any]]:
    """Yields inputs that come with numbers of rows and columns, or of steps, up to the largest one."""
    most = next((size for name in NUMBERS if type(size := getattr(config, name, None)) is int), None)
    if most is None:
        return
    numbers = torch.linspace(0, most - 1, SHORT_TEXT).long()
    if "flattened_patches" in accepted:
        depth = getattr(config, "patch_embed_hidden_size", None) or config.num_channels * config.patch_size**2
        yield {
            "flattened_patches": torch.cat([numbers[:, None].expand(-1, 2), torch.randn(SHORT_TEXT, depth)], 1)[None]
        }
    if "pixel_position_ids" in accepted:  # of a whole image, because blocks of patches are merged
        merged = config.pooling_kernel_size
        side = -(-most // merged) * merged
        if side * side > MOST_PATCHES and not only_shapes():
            raise TooLarge("its images are too large to be tried")
        numbers = torch.arange(side).clamp(max=most - 1)
        places = torch.cartesian_prod(numbers, numbers)
        patches = torch.randn(1, len(places), 3 * config.patch_size**2)
        yield {"pixel_values": patches, "pixel_position_ids": places[None]}
    if "timesteps" in accepted:
        widths = {"states": config.state_dim, "actions": config.act_dim, "rewards": 1, "returns_to_go": 1}
        steps = {name: torch.randn(1, SHORT_TEXT, width) for name, width in widths.items() if name in accepted}
        yield {**steps, "timesteps": numbers[None]}


def merged_patches(model: nn.Module, accepted: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yields a text and patches with the numbers of their rows and columns, for a Gemma 4 without a vision model."""
    images: Any = getattr(model.config, "vision_config", None)
    most = getattr(images, "mm_posemb_size", None)
    if {"input_ids", "pixel_values", "image_position_ids"} <= set(accepted) and type(most) is int:
        numbers = torch.linspace(0, most - 1, SHORT_TEXT).long()
        given = {
            "pixel_values": torch.randn(1, SHORT_TEXT, 3 * images.model_patch_size**2),
            "image_position_ids": numbers[None, :, None].expand(-1, -1, 2),
        }
        yield {**with_image_tokens(model, text_inputs(model, SHORT_TEXT), given), **given}


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
    sizes = (pair(getattr(config, name, None)) for name in IMAGE_SIZES)
    size = next(filter(None, sizes), None)
    return None if patch is None or size is None else (size[0] // patch[0], size[1] // patch[1])


def packed_patches(accepted: Collection[str], config: Any, grid: Size, side: int) -> Iterator[dict[str, Any]]:
    """Yields the patches of an image, cut out beforehand, with its grid, in the forms that models take."""
    name = "hidden_states" if "hidden_states" in accepted else "pixel_values"
    if name not in accepted:
        return
    cells = math.prod(grid)
    channels = next((getattr(config, each) for each in ("num_channels", "in_channels") if hasattr(config, each)), 3)
    frames = next(
        (getattr(config, each) for each in ("temporal_patch_size", "patch_temporal") if hasattr(config, each)), 1
    )
    merged = getattr(config, "spatial_merge_size", 1)
    for sizes in ("grid_thw", "image_grid_thw"):
        if sizes in accepted:
            here = torch.tensor([[1, *grid]])
            yield {name: torch.randn(cells, channels * frames * side * side), sizes: here}
            for lead in ((cells,), (1, cells)):
                yield {name: torch.randn(*lead, channels, side, side), sizes: here}
            blocks, block = cells // merged**2, merged * side
            yield {name: torch.randn(blocks, block, block, channels), sizes: here // torch.tensor([1, merged, merged])}
    if "target_sizes" in accepted:
        yield {name: torch.randn(1, channels, side, cells * side), "target_sizes": torch.tensor([grid])}


def line_inputs(model: nn.Module, tokens: int) -> Iterator[dict[str, Any]]:
    """Yields arguments to try with a model of a text or a sound: this many tokens, frames or states."""
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
