"""Settings that repeat a length or an image size: of the tokenizer, of generation, of the image processor."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from posembed.checkpoints.choose import Target
from posembed.checkpoints.files import Checkpoint
from posembed.checkpoints.json_files import LargeJson
from posembed.checkpoints.layouts import pair

# sentence-transformers names its settings after the model that it first wrapped.
SENTENCE_SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "xlm-roberta", "camembert", "albert", "xlnet")
)
TOKENIZER = "tokenizer.json"
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
    if prepared is not None and (after := resized(prepared, *target.image_size)) is not None:
        yield Setting(name, ("preprocess_cfg", "size"), prepared, after)
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
    limit = (checkpoint.settings("generation_config.json") or {}).get("max_length")
    if type(limit) is int and (limit == old or limit > new):
        yield Setting("generation_config.json", ("max_length",), limit, new)


def within(limit: Any, old: int, new: int) -> Any:
    """A limit on texts for another length: it follows a longer table, and a shorter one only where it must."""
    return min(limit, new) if new < old and isinstance(limit, int | float) else new


def image_settings(
    checkpoint: Checkpoint, old: tuple[int, int], new: tuple[int, int], cells: tuple[int, int]
) -> Iterator[Setting]:
    """What says how large an image is made. old, new: (height, width); cells: patches before and after."""
    for name in ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"):
        settings = checkpoint.settings(name) or {}
        for above in ((), ("image_processor",)):
            section = at(settings, above)
            for field in ("size", "crop_size"):
                after = resized(section.get(field), old, new)
                if after is not None:
                    yield Setting(name, (*above, field), section[field], after)
            for field in IMAGE_TOKENS:
                if section.get(field) == cells[0]:
                    yield Setting(name, (*above, field), cells[0], cells[1])


def resized(value: Any, old: tuple[int, int], new: tuple[int, int]) -> Any:
    """An image processor's size in the form that it has, or None where it does not say the old image size."""
    if isinstance(value, dict) and pair([value.get("height"), value.get("width")]) == old:
        return {**value, "height": new[0], "width": new[1]}
    if isinstance(value, dict) and set(value) == {"shortest_edge"} and value["shortest_edge"] == min(old):
        return {"shortest_edge": min(new)}
    if not isinstance(value, dict) and value is not None and pair(value) == old:
        return new[0] if type(value) is int and new[0] == new[1] else list(new)
    return None


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
