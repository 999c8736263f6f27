"""Which key of the files holds which tensor of the built model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn


def loaded_names(model: nn.Module, keys: Iterable[str]) -> dict[str, str]:
    """Returns names in the built model -> the keys that transformers renames to them when it loads the files."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
    except ImportError:  # before transformers 5
        return {}
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    held = model.state_dict()
    names: dict[str, str] = {}
    for key in keys:
        name, converted = rename_source_key(key, renamings, converters, model.base_model_prefix, held)
        if name in held and converted is None:
            names.setdefault(name, key)
    return names


def key_in_files(name: str, keys: Iterable[str], loaded: Mapping[str, str]) -> str | None:
    """Returns the key of a model's tensor in the files; None if none or several fit.

    Beyond what transformers renames (``loaded``), a model with a head puts its base model's name in front of every
    key, and composites have been renamed over the years. So it is the only key that shares the longest end with the
    name.
    """
    if name in keys:
        return name
    if name in loaded:
        return loaded[name]
    parts = name.split(".")
    for start in range(1, len(parts)):
        if len(parts) - start < 2 and len(parts) > 2:
            break
        end = ".".join(parts[start:])
        found = [key for key in keys if key == end or key.endswith("." + end)]
        if found:
            return found[0] if len(found) == 1 else None
    prefixed = [key for key in keys if key.endswith("." + name)]
    return prefixed[0] if len(prefixed) == 1 else None
