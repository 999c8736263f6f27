"""Finds the tensors that depend on a model's length, from the model itself instead of from a list of families.

If transformers supports a config, the model is built from it twice on PyTorch's ``meta`` device, which needs no memory.
The second time, one length-like field is doubled. The tensors whose shapes differ depend on that field.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from posembed.checkpoints.position_tables import ConfigField, fields_in, pair, times
from posembed.checkpoints.sources.base import Shape, shapes_of
from posembed.checkpoints.sources.configs import build_on_meta, config_object, source_of
from posembed.errors import CheckpointError
from posembed.tables.families import FieldPath

LENGTH_LIKE = re.compile(r"pos|len|ctx|context|frames|block_size|image_size|img_size|input_size|resolution|grid_size")
OTHER_SIZES = re.compile(
    r"token|vocab|feats|hidden|intermediate|bottleneck|kernel|conv|stride|dim|layers|units|bins|buckets|rope|"
    r"patch_length"
)
# Fields that give the number of cells of a square grid, and fields of sizes that are no lengths of a text.
AREA = re.compile(r"^(num_patches|num_position_embeddings)$")
OTHER_AXES = re.compile(
    r"^((sliding_)?window_size|window_sizes|num_mel_bins|num_image_with_embedding|bias_max_distance|max_num_patches|"
    r"rel_extent|max_text_tokens|num_queries|group_detr)$"
)
WINDOWED = re.compile(r"^window_sizes?$")
BUCKETS = re.compile(  # of distances
    r"^((relative_attention_|position_bias_)?num_buckets|position_buckets|rel(_2d)?_pos_bins)$"
)
Changes = Mapping[str, tuple[Shape, Shape]]  # state-dict keys -> shapes before and after a field was doubled


def responses(config: Mapping[str, Any], known: Any, model: nn.Module) -> list[tuple[ConfigField, Changes]]:
    """Doubles each config field that may be a size, one at a time. Returns the fields that change shapes, with changes.

    known: the config object of transformers.
    """
    before = shapes_of(model)
    found: list[tuple[ConfigField, Changes]] = []
    roomy = source_of(known).roomy(known, config)
    fixed = before if roomy is config else shapes_of(build_on_meta(config_object(roomy)))
    for field in size_fields(known.to_dict(), also=(AREA, OTHER_AXES, BUCKETS)):
        in_window = WINDOWED.search(field.path[-1]) is not None
        try:
            changed = with_field(roomy if in_window else config, known, field.path, doubled(field))
            after = shapes_of(build_on_meta(config_object(changed)))
        except CheckpointError:  # so the field cannot grow
            continue
        changes = {
            key: (shape, after[key])
            for key, shape in before.items()
            if after.get(key, shape) != shape and (not in_window or fixed.get(key) == shape)
        }
        if changes:
            found.append((field, changes))
    return found


def doubled(field: ConfigField) -> int | list[int]:
    """Returns the value that a rebuild tries: twice the field's value or, for the number of cells of a square, four
    times, so that the grid stays square."""
    value: int | list[int] = times(field.value, 4 if AREA.search(field.path[-1]) else 2)
    return value


def size_fields(config: Mapping[str, Any], *, also: tuple[re.Pattern[str], ...] = ()) -> Iterator[ConfigField]:
    """Yields the fields whose names suggest a length or an image size, in a config and its nested configs.

    also: patterns of further names.
    """
    for path, value in fields_in(config):
        name = path[-1]
        if (LENGTH_LIKE.search(name) and not OTHER_SIZES.search(name)) or any(each.search(name) for each in also):
            if type(value) is int and value > 1:
                yield ConfigField(path, value)
            elif type(value) is not int and (sides := pair(value)) is not None:
                yield ConfigField(path, sides)


def with_field(config: Mapping[str, Any], known: Any, path: FieldPath, value: Any) -> dict[str, Any]:
    """Copies a config.json with one field set under its canonical name, without the field's aliases.

    An alias can override the canonical field: with both ``n_positions`` and ``max_position_embeddings``, GPT-2 uses
    the second. The config of OpenAI's CLIP contains each section twice, and ``text_config_dict`` overrides
    ``text_config``, so both are changed.
    """
    changed = copy.deepcopy(dict(config))
    sections, part = [changed], known
    for name in path[:-1]:
        for section in sections:
            if not isinstance(section.get(name), dict):
                section[name] = {}
        inner = [section.get(each) for section in sections for each in (name, f"{name}_dict")]
        sections, part = [each for each in inner if isinstance(each, dict)], getattr(part, name, None)
    for section in sections:
        for alias, canonical in getattr(part, "attribute_map", {}).items():
            if canonical == path[-1]:
                section.pop(alias, None)
        section[path[-1]] = source_of(known).in_json(known, path[-1], value)
    return changed
