"""Settings that repeat a length or an image size: of the tokenizer, of generation, of the image processor."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from posembed.checkpoints.choose import Target
from posembed.checkpoints.files import Checkpoint
from posembed.checkpoints.json_files import LargeJson
from posembed.checkpoints.layouts import pair
from posembed.errors import CheckpointError

# sentence-transformers names its settings after the model that it first wrapped.
SENTENCE_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "xlm-roberta", "camembert", "albert", "xlnet")
)
TOKENIZER = "tokenizer.json"
SOUND_SIZES = ("chunk_length", "n_samples", "nb_max_frames")
IMAGE_SIZES = ("size", "crop_size", "pad_size", "image_size")
# The names of a size's numbers, and what each is of an image (height, width).
SIDES: Mapping[str, Callable[[tuple[int, int]], int]] = {
    "height": itemgetter(0), "max_height": itemgetter(0), "width": itemgetter(1), "max_width": itemgetter(1),
    "shortest_edge": min, "longest_edge": max,
}  # fmt: skip
IMAGE_TOKENS = ("image_seq_length", "num_image_tokens")


@dataclass(frozen=True)
class Setting:
    """One value in one JSON file that changes. path: where it stands in the file."""

    file: str
    path: tuple[str, ...]
    before: Any
    after: Any


def config_settings(checkpoint: Checkpoint, target: Target) -> Iterator[Setting]:
    """The config's own field, and what repeats it there: GPT-2's n_ctx, timm's input_size, tokens per image."""
    config, table = checkpoint.config, target.tables[0][0]
    if config is None or table.config_field is None:
        return
    name, path = checkpoint.config_name, table.config_field
    before = at(config, path[:-1]).get(path[-1])
    yield Setting(name, path, before, list(target.value) if isinstance(target.value, tuple) else target.value)
    if config.get("n_ctx") == table.config_value and path == ("n_positions",):
        yield Setting(name, ("n_ctx",), config["n_ctx"], target.value)
    if target.image_size is None:
        return
    trained = at(config, ("pretrained_cfg",)).get("input_size")
    if isinstance(trained, list) and len(trained) == 3:
        yield Setting(name, ("pretrained_cfg", "input_size"), trained, [trained[0], *target.image_size[1]])
    prepared = at(config, ("preprocess_cfg",)).get("size")
    if (sides := sides_of(prepared)) and sides == sides_of(prepared, of=target.image_size[0]):
        yield Setting(name, ("preprocess_cfg", "size"), prepared, scaled(prepared, *target.image_size))
    for above in ((), ("text_config",), ("vision_config",)):
        for field in IMAGE_TOKENS:
            if at(config, above).get(field) == target.length[0]:
                yield Setting(name, (*above, field), target.length[0], target.length[1])


def length_settings(checkpoint: Checkpoint, old: int, new: int) -> Iterator[Setting]:
    """What says how many tokens a person may feed. old, new: usable lengths."""
    tokenizer = checkpoint.settings("tokenizer_config.json")
    if tokenizer is not None and (limit := tokenizer.get("model_max_length")) != within(limit, old, new):
        yield Setting("tokenizer_config.json", ("model_max_length",), limit, within(limit, old, new))
    if checkpoint.folder is not None and (checkpoint.folder / TOKENIZER).exists():
        large = LargeJson(checkpoint.folder / TOKENIZER)
        longest = large.get("truncation", "max_length")
        if longest is not None and longest != within(longest, old, new):
            yield Setting(TOKENIZER, ("truncation", "max_length"), longest, within(longest, old, new))
        padded = large.get("padding", "strategy", "Fixed")
        if type(padded) is int and padded > new:
            yield Setting(TOKENIZER, ("padding", "strategy", "Fixed"), padded, new)
    for name in SENTENCE_SETTINGS:
        longest = (sentence := checkpoint.settings(name) or {}).get("max_seq_length")
        if "max_seq_length" in sentence and longest != within(longest, old, new):
            yield Setting(name, ("max_seq_length",), longest, within(longest, old, new))


def generation_settings(checkpoint: Checkpoint, old: int, new: int) -> Iterator[Setting]:
    """What says how many tokens are written. old, new: usable lengths."""
    limit = (checkpoint.settings("generation_config.json") or {}).get("max_length")
    if type(limit) is int and (limit == old or limit > new):
        yield Setting("generation_config.json", ("max_length",), limit, new)


def within(limit: Any, old: int, new: int) -> Any:
    """A limit on texts for another length: it follows a longer table, and a shorter one only where it must."""
    return min(limit, new) if new < old and isinstance(limit, int | float) else new


def audio_settings(checkpoint: Checkpoint, old: int, new: int) -> Iterator[Setting]:
    """What says how long a piece of sound is cut, for a model that wants exactly that (Whisper).

    Raises:
        CheckpointError: the processor cuts whole seconds, and the new length is none.
    """
    for name in ("preprocessor_config.json", "processor_config.json"):
        settings = checkpoint.settings(name) or {}
        for above in ((), ("feature_extractor",)):
            section = at(settings, above)
            sizes: dict[str, Any] = {field: section.get(field) for field in SOUND_SIZES}
            frames = sizes["nb_max_frames"]
            if any(type(size) is not int for size in sizes.values()) or frames not in (old, 2 * old):
                continue
            for field, size in sizes.items():
                if size * new % old:
                    raise CheckpointError(
                        f"{name}: {field}={size} is for {old} positions, and is no whole number for {new}; pass a "
                        f"multiple of {old // math.gcd(old, *sizes.values())} positions"
                    )
                yield Setting(name, (*above, field), size, size * new // old)


def image_settings(
    checkpoint: Checkpoint, old: tuple[int, int], new: tuple[int, int], cells: tuple[int, int]
) -> Iterator[Setting]:
    """What says how large an image is made. old, new: (height, width); cells: patches before and after."""
    for name in ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"):
        settings = checkpoint.settings(name) or {}
        for above in ((), ("image_processor",)):
            section = at(settings, above)
            sizes = {field: section[field] for field in IMAGE_SIZES if sides_of(section.get(field))}
            if any(sides_of(size) == sides_of(size, of=old) for size in sizes.values()):
                for field, size in sizes.items():
                    covers = field == "size" and "crop_size" in sizes
                    if (after := scaled(size, old, new, covers=covers)) != size:
                        yield Setting(name, (*above, field), size, after)
            for field in IMAGE_TOKENS:
                if section.get(field) == cells[0]:
                    yield Setting(name, (*above, field), cells[0], cells[1])


def sides_of(size: Any, of: tuple[int, int] | None = None) -> dict[str, int]:
    """The numbers in an image processor's size by name, or what an image (height, width) has in their place."""
    if not isinstance(size, dict):
        both = pair(size)
        size = {} if both is None else dict(zip(("height", "width"), both, strict=True))
    sides = {name: side for name, side in size.items() if name in SIDES and type(side) is int}
    return sides if of is None else {name: SIDES[name](of) for name in sides}


def scaled(size: Any, old: tuple[int, int], new: tuple[int, int], *, covers: bool = False) -> Any:
    """A size in the form that it has, changed as the image's is, so that what stood over a crop still does.

    covers: whether the image is then cropped, so that an edge that may be either side must do for both.
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


def at(settings: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The section under ``path``, or an empty one."""
    for name in path:
        section = settings.get(name)
        settings = section if isinstance(section, dict) else {}
    return settings


def with_settings(settings: Mapping[str, Any], changes: list[Setting]) -> dict[str, Any]:
    """A copy of a JSON object with its changes made."""
    changed = copy.deepcopy(dict(settings))
    for change in changes:
        section = changed
        for name in change.path[:-1]:
            section = section.setdefault(name, {})
        section[change.path[-1]] = change.after
    return changed
