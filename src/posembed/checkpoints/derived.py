"""Finds the fields of a config.json that its config class computes from a size, and saves beside it.

When transformers loads such a field, the saved value wins: a SAM whose ``image_size`` alone has changed keeps its old
``image_embedding_size``, and fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from inspect import signature
from typing import Any

from posembed.checkpoints.found import Config, ConfigField, pair, section
from posembed.checkpoints.rebuild import config_object, is_of_timm, with_floats
from posembed.tables.families import FieldPath


def derived_fields(
    config: Config, changed: Config, known: Any, fields: Iterable[ConfigField]
) -> dict[ConfigField, Any]:
    """Returns the fields that follow from the changed ones, with their new values.

    changed: the config.json with its new sizes. known: the config object of transformers for ``config``.
    """
    found: dict[ConfigField, Any] = {}
    if known is None or is_of_timm(known):
        return found
    for path in {field.path[:-1] for field in fields}:
        names = names_not_declared(section(config, path), part_of(known, path))
        if not names:
            continue
        before, after = (part_of(config_object(without(each, path, names)), path) for each in (config, changed))
        for name in names:
            old, new = (getattr(each, name, None) for each in (before, after))
            value = section(config, path)[name]
            if is_size(old) and is_size(new) and old != new and old == value:
                found[ConfigField((*path, name), value)] = new
    return found


def names_not_declared(held: Mapping[str, Any], part: Any) -> list[str]:
    """Returns the names of sizes in a section that its config class does not take as arguments, or as other names of
    them."""
    from transformers import PretrainedConfig

    if not isinstance(part, PretrainedConfig):  # a dictionary in a config, whose content nothing declares
        return []
    known = {*signature(type(part).__init__).parameters, *part.attribute_map}
    return [name for name, value in held.items() if name not in known and is_size(value)]


def is_size(value: Any) -> bool:
    return type(value) is int or (isinstance(value, list) and pair(value) is not None)


def part_of(known: Any, path: FieldPath) -> Any:
    return reduce(lambda part, name: getattr(part, name, None), path, known)


def without(config: Config, path: FieldPath, names: Iterable[str]) -> dict[str, Any]:
    """Copies a config.json without these fields of a section."""
    changed: Any = with_floats(config)
    held: Any = section(changed, path)
    for name in names:
        held.pop(name, None)
    return changed
