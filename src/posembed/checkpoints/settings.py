"""Settings of the config, tokenizer, generation config and processors that repeat a length or an image size."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from posembed.checkpoints.choose import Target
from posembed.checkpoints.plan import Edit
from posembed.checkpoints.position_tables import (
    IMAGE_TOKENS,
    TILED,
    Config,
    ConfigField,
    Size,
    pair,
    section,
    tiled_sizes,
)
from posembed.checkpoints.sources.configs import config_object
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint
from posembed.modelfiles.copies import recorded
from posembed.modelfiles.json_files import LargeJson
from posembed.modelfiles.training_files import nodes
from posembed.tables.families import FieldPath
from posembed.words import least

# sentence-transformers names its settings after the model that it first wrapped.
SENTENCE_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "xlm-roberta", "camembert", "albert", "xlnet")
)
OF_QUERIES = ("query_length",)
SENTENCE_LIMITS = (("max_seq_length",), ("document_length",), OF_QUERIES, ("processing_kwargs", "text", "max_length"))
TOKENIZER = "tokenizer.json"
ROTATES = re.compile(r"(.*_)?(rope|rotary)")
"""Matches the names of settings of RoPE."""
GENERATION = "generation_config.json"
NO_LIMIT = 10**12
"""Numbers from here on mean no limit: transformers writes 10^30 for a tokenizer without one."""
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
OF_IMAGES = ("image_processor", "video_processor")
"""The sections of processor_config.json for images."""
SOUND_SIZES = ("chunk_length", "n_samples", "nb_max_frames")
IMAGE_SIZES = ("size", "crop_size", "pad_size", "image_size", "img_size")
# Of labels, a fraction of the image: SAM's masks; for FLAVA, the image of a codebook, and the patches on a side.
LABEL_SIZES = ("mask_size", "mask_pad_size", "codebook_size", "codebook_crop_size", "input_size_patches")
PATCH = "patch_size"
TILE = "max_image_size"  # of an image that is cut into tiles (Idefics3), whose own size stays
# The names of the numbers in a size setting, and functions that compute them from an image's (height, width).
SIDES: Mapping[str, Callable[[Size], int]] = {
    "height": itemgetter(0), "max_height": itemgetter(0), "width": itemgetter(1), "max_width": itemgetter(1),
    "shortest_edge": min, "longest_edge": max,
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Setting:
    """A change to one value in a JSON file. path: the names that lead to the value."""

    file: str
    path: FieldPath
    before: Any
    after: Any

    def __repr__(self) -> str:
        before = "none" if self.before is None else self.before
        return f"{self.file}: {'.'.join(self.path)}: {before} -> {self.after}"


def changed_settings(checkpoint: Checkpoint, edit: Edit) -> tuple[Setting, ...]:
    target = edit.target
    settings = [Setting(checkpoint.config_name, ("model_type",), None, checkpoint.model_type or None)]
    settings += config_settings(checkpoint, edit)
    if target.image_size is not None:
        settings += image_settings(checkpoint, *target.image_size, edit)
    elif not target.is_text:
        settings += (*audio_settings(checkpoint, *target.length), *same_settings(checkpoint, target))
    else:
        if "encoder" in edit.sides:
            settings += length_settings(checkpoint, *target.length, tokenizer_of(checkpoint, target.field))
        for name, longest in generation_limits(checkpoint) if "decoder" in edit.sides else ():
            settings.append(Setting(name, ("max_length",), longest, generated(longest, *target.length)))
    return tuple(setting for setting in settings if setting.before != setting.after)


def generation_limits(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    """Yields the length of generated texts that a checkpoint states, which is in config.json in old ones."""
    for name in (GENERATION, checkpoint.config_name):
        settings: Config = checkpoint.settings(name)
        yield name, settings.get("max_length")


def generated(longest: Any, old: int, new: int) -> Any:
    """Returns the length of generated texts after the table changes from ``old`` to ``new`` positions."""
    return new if type(longest) is int and (longest == old or longest > new) else longest


def config_settings(checkpoint: Checkpoint, edit: Edit) -> Iterator[Setting]:
    """Yields the changed config fields, and fields that repeat them, such as GPT-2's n_ctx and timm's input_size."""
    target, name, config = edit.target, checkpoint.config_name, checkpoint.config
    if config is None or target.field is None:
        return
    for path in (field.path for field in edit.fields):
        yield Setting(name, path, *(section(each, path[:-1]).get(path[-1]) for each in (config, edit.config or {})))
    if config.get("n_ctx") == target.field.value and target.field.path == ("n_positions",):
        yield Setting(name, ("n_ctx",), config["n_ctx"], target.value)
    if target.image_size is None:
        return
    trained = section(config, ("pretrained_cfg",)).get("input_size")
    if isinstance(trained, list) and len(trained) == 3:
        yield Setting(name, ("pretrained_cfg", "input_size"), trained, [trained[0], *target.image_size[1]])
    prepared = section(config, ("preprocess_cfg",)).get("size")
    if (sides := sides_of(prepared)) and sides == sides_of(prepared, of=target.image_size[0]):
        yield Setting(name, ("preprocess_cfg", "size"), prepared, scaled(prepared, *target.image_size))
    yield from image_tokens_of_config(config, edit, name)


def tokenizer_of(checkpoint: Checkpoint, field: ConfigField | None) -> str:
    """Returns the subfolder of the tokenizer for the section of a config field, as in InstructBLIP (qformer_tokenizer/
    for qformer_config) and RAG; "" for the tokenizer beside the weights."""
    section_name = field.path[0].removesuffix("_config") if field is not None and len(field.path) > 1 else ""
    inside = f"{section_name}_tokenizer"
    own = section_name and checkpoint.folder is not None and (checkpoint.folder / inside).is_dir()
    return f"{inside}/" if own else ""


def length_settings(checkpoint: Checkpoint, old: int, new: int, inside: str = "") -> Iterator[Setting]:
    """Yields the limits on the number of input tokens. old, new: the usable lengths before and after. inside: the
    subfolder of the tokenizer."""
    name = f"{inside}tokenizer_config.json"
    if tokenizer := checkpoint.settings(name):
        limit = tokenizer.get("model_max_length")
        yield Setting(name, ("model_max_length",), limit, within(limit, old, new))
    name = f"{inside}{TOKENIZER}"
    if checkpoint.folder is not None and (checkpoint.folder / name).exists():
        large = LargeJson(checkpoint.folder / name)
        if (longest := large.get("truncation", "max_length")) is not None:
            yield Setting(name, ("truncation", "max_length"), longest, within(longest, old, new))
        if type(padded := large.get("padding", "strategy", "Fixed")) is int:
            yield Setting(name, ("padding", "strategy", "Fixed"), padded, min(padded, new))
    for name, path in product(() if inside else SENTENCE_SETTINGS, SENTENCE_LIMITS):
        part = section(checkpoint.settings(name), path[:-1])
        longest = part.get(path[-1])
        if type(longest) is int or (path == SENTENCE_LIMITS[0] and path[-1] in part):
            after = min(longest, new) if path == OF_QUERIES and longest else within(longest, old, new)
            yield Setting(name, path, longest, after)


def within(limit: Any, old: int, new: int) -> Any:
    """Returns a limit on text length after the table changes from ``old`` to ``new`` positions: ``new`` if the table
    grows, or the smaller of ``limit`` and ``new`` if it shrinks."""
    return min(limit, new) if new < old and isinstance(limit, int | float) else new


def same_settings(checkpoint: Checkpoint, target: Target) -> Iterator[Setting]:
    """Yields the processor settings with the name and the old value of the config field, such as AST's max_length."""
    if target.field is None:
        return
    for name, above, part in processor_sections(checkpoint, "feature_extractor", *OF_IMAGES):
        if part.get(target.field.path[-1]) == target.field.value:
            yield Setting(name, (*above, target.field.path[-1]), target.field.value, target.value)


def audio_settings(checkpoint: Checkpoint, old: int, new: int) -> Iterator[Setting]:
    """Yields the sizes of audio chunks, for a model whose chunks all have the same length (Whisper)."""
    for name, above, part in processor_sections(checkpoint, "feature_extractor"):
        sizes: dict[str, Any] = {field: part.get(field) for field in SOUND_SIZES}
        frames = sizes["nb_max_frames"]
        if any(type(size) is not int for size in sizes.values()) or frames not in (old, 2 * old):
            continue
        for field, size in sizes.items():
            if size * new % old:
                given = f"{field}={size} is for {old} positions, and would not be a whole number for {new}"
                raise CheckpointError(f"{name}: {given}; pass a multiple of {old // math.gcd(old, *sizes.values())}")
            yield Setting(name, (*above, field), size, size * new // old)


def image_settings(checkpoint: Checkpoint, old: Size, new: Size, edit: Edit) -> Iterator[Setting]:
    """Yields the image sizes in the processor settings, and the numbers of tokens that stand for an image."""
    for name, above, part in processor_sections(checkpoint, *OF_IMAGES):
        if sides_of(tile := part.get(TILE)) == sides_of(tile, of=old) != {}:
            yield Setting(name, (*above, TILE), tile, scaled(tile, old, new))
        for path, tiled in tiled_sizes({TILED: part.get(TILED)}, old, new):
            yield Setting(name, (*above, *path), part[TILED], tiled)
        sizes = {field: part[field] for field in IMAGE_SIZES if sides_of(part.get(field))}
        if any(sides_of(size) == sides_of(size, of=old) for size in sizes.values()):
            for field, size in sizes.items():
                after = scaled(size, old, new, covers=field == "size" and "crop_size" in sizes)
                yield Setting(name, (*above, field), size, after)
            for field in LABEL_SIZES:
                if sides_of(size := part.get(field)):
                    yield Setting(name, (*above, field), size, scaled(size, old, new))
        new_patch = next((value for each, value in edit.target.values.items() if each.path[-1] == PATCH), None)
        if edit.target.patch_size is not None and pair(part.get(PATCH)) == edit.target.patch_size[0]:
            yield Setting(name, (*above, PATCH), part[PATCH], new_patch)
        yield from image_tokens(name, above, part, edit)


def unlike_the_image(checkpoint: Checkpoint, edit: Edit, settings: tuple[Setting, ...]) -> Iterator[str]:
    """Yields a sentence for each image processor whose size stays because it differs from the model's image size."""
    changed = {setting.file for setting in settings}
    if edit.target.image_size is None:
        return
    for name, above, part in processor_sections(checkpoint, *OF_IMAGES):
        sizes = [part[field] for field in ("crop_size", "size") if "height" in sides_of(part.get(field))]
        old_sides = sides_of(sizes[0], of=edit.target.image_size[0]) if sizes else {}
        if sizes and name not in changed and sides_of(sizes[0]) != old_sides:
            size, old = (
                "x".join(map(str, sides)) for sides in (sides_of(sizes[0]).values(), edit.target.image_size[0])
            )
            where = ".".join((name, *above))
            yield f"{where} makes images of {size}, not of {old}, and stays; change it if the model takes one size only"


def processor_sections(checkpoint: Checkpoint, *inner: str) -> Iterator[tuple[str, FieldPath, Config]]:
    for name in PROCESSORS:
        settings = checkpoint.settings(name)
        yield name, (), settings
        yield from ((name, (each,), section(settings, (each,))) for each in inner)


def image_tokens_of_config(config: Config, edit: Edit, name: str = "config.json") -> Iterator[Setting]:
    for above in ((), ("text_config",), ("vision_config",)):
        yield from image_tokens(name, above, section(config, above), edit)


def image_tokens(name: str, above: FieldPath, part: Config, edit: Edit) -> Iterator[Setting]:
    """Yields the fields that state how many tokens of a text stand for an image: the number of features that the model
    makes of the image or, if the field states another number, the number of patches."""
    known = edit.image_tokens
    counts = (edit.target.length,) if known is None or known[0] == 1 else (known, edit.target.length)
    for field in IMAGE_TOKENS:
        if (found := next((each for each in counts if each[0] == part.get(field)), None)) is not None:
            yield Setting(name, (*above, field), *found)


def sides_of(size: Any, of: Size | None = None) -> dict[str, int]:
    """Returns the numbers in an image processor's size by name. With ``of``, returns instead the numbers that fit an
    image of this (height, width)."""
    if not isinstance(size, dict):
        both = pair(size)
        size = {} if both is None else dict(zip(("height", "width"), both, strict=True))
    sides = {name: side for name, side in size.items() if name in SIDES and type(side) is int}
    return sides if of is None else {name: SIDES[name](of) for name in sides}


def scaled(size: Any, old: Size, new: Size, *, covers: bool = False) -> Any:
    """Returns a processor's size, scaled like the image, in its original JSON form.

    covers: whether the image is cropped afterwards. The shortest or longest edge is then scaled by the larger of both
    factors, so that the crop fits into the image in either orientation.
    """
    before, after = sides_of(size, of=old), sides_of(size, of=new)
    either = max(new[0] / old[0], new[1] / old[1])
    sides = {
        name: round(side * (either if covers and name.endswith("edge") else after[name] / before[name]))
        for name, side in sides_of(size).items()
    }
    if isinstance(size, dict):
        return {**size, **sides}
    height, width = sides.values()
    if type(size) is not int:
        return [height, width]
    return max(height, width) if height == width or (covers and size != max(old)) else [height, width]


def with_settings(settings: dict[str, Any], changes: list[Setting]) -> dict[str, Any]:
    changed = copy.deepcopy(settings)
    for change in changes:
        set_in(changed, change.path, change.after)
    return changed


def set_in(section: Any, path: FieldPath, value: Any) -> None:
    """Sets a field of a config object, or of a dict in it. Missing dicts are created."""
    name, *inner = path
    held = section.get(name) if isinstance(section, dict) else getattr(section, name, None)
    if inner:
        part = {} if held is None else held
        set_in(part, tuple(inner), value)
        value = part
    if isinstance(section, dict):
        section[name] = value
    elif value is not held:
        setattr(section, name, value)


def limits_of(source: str | Path, key: str = "") -> tuple[int | None, int | None]:
    """Returns ``trained_positions`` of the table with this key, and ``fed_length`` of its checkpoint."""
    checkpoint = open_checkpoint(source)
    return trained_positions(checkpoint, key), fed_length(checkpoint)


def rotates(source: str | Path) -> bool | None:
    """Returns whether the config of a checkpoint has settings of RoPE. None if it has no config with a known type."""
    read = open_checkpoint(source).config or {}
    config = config_object(read) if "model_type" in read else None
    if config is None:
        return None
    settings = [(str(place[-1]), value) for place, value in nodes(config.to_dict()) if place]
    others = {"alibi": True, "position_embedding_type": "nope"}  # of Falcon and Granite
    named = any(ROTATES.match(name) for name, _ in settings)
    return named and not any(name in others and others[name] == value for name, value in settings)


def trained_positions(checkpoint: Checkpoint, key: str) -> int | None:
    """Returns the smallest length that a table has had since the last fine-tuning, by the resizes recorded in
    posembed.json. None if no resize is recorded."""
    resizes, tunings = (
        recorded(checkpoint.root, name) if checkpoint.folder is not None else [] for name in ("resizes", "tunings")
    )
    tuned = max(map(time_of, tunings), default=-math.inf)
    since = [resize for resize in resizes if time_of(resize) > tuned and key in keys_of(resize)]
    lengths = [length for resize in since for name in ("from", "to") if type(length := resize.get(name)) is int]
    return min(lengths, default=None)


def keys_of(resize: Mapping[str, Any]) -> list[Any]:
    """Returns the keys of the tensors that a resize changed, by its entry in posembed.json."""
    tensors = resize.get("tensors")
    return [each.get("key") for each in tensors if isinstance(each, dict)] if isinstance(tensors, list) else []


def time_of(entry: Mapping[str, Any]) -> float:
    time = entry.get("time")
    return time if isinstance(time, int | float) else 0


def fed_length(checkpoint: Checkpoint) -> int | None:
    """Returns the largest number of tokens that sentence-transformers feeds to a model: max_seq_length or, if it is not
    saved (version 6), the tokenizer's limit. None for a checkpoint of anything else."""
    if checkpoint.folder is None or not (checkpoint.root / "modules.json").exists():
        return None
    stated = [checkpoint.settings(name).get("max_seq_length") for name in SENTENCE_SETTINGS]
    limits = [fed for fed in stated if type(fed) is int and fed > 0]
    tokenizer = checkpoint.settings("tokenizer_config.json").get("model_max_length")
    known = type(tokenizer) is int and 0 < tokenizer < NO_LIMIT
    return least(*limits) if limits or not known else tokenizer
