"""An encoding as JSON, so that a saved model can build it again, and the encoding that a user names or hands over."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from torch import Tensor

import posembed
from posembed.errors import ArgumentError, CheckpointError
from posembed.integrations.forward_pass import acts_on_queries
from posembed.layers.base import PositionEncoding
from posembed.nn.attention import require_fitting
from posembed.nn.encodings import ENCODINGS, Sizes, encoding_by_name, names_for

Description = dict[str, Any]
FREE = {"init", "std", "dropout", "check_ids"}
"""Arguments of an encoding that do not change what its values mean."""


def acts_at_input(encoding: PositionEncoding) -> bool:
    """Returns whether an encoding adds rows to the input."""
    changed = type(encoding).at_input is not PositionEncoding.at_input
    return changed and getattr(encoding, "place", "input") == "input"


def acts_in_attention(encoding: PositionEncoding) -> bool:
    """Returns whether an encoding changes queries, keys, scores or what a token sees."""
    at_scores = any(
        getattr(type(encoding), name) is not getattr(PositionEncoding, name) for name in ("at_scores", "in_layer")
    )
    limits = encoding.window is not None or encoding.log_length is not None
    return acts_on_queries(encoding) or at_scores or limits


def encoding_for(encoding: PositionEncoding | str, sizes: Mapping[str, Any], *, table_width: int) -> PositionEncoding:
    """Returns an encoding for a model of these sizes, built by name or as given.

    Args:
        sizes: the fields of ``Sizes``; the model's own and the user's.
        table_width: the width of the table that it replaces, which is not D in an ELECTRA.

    Raises:
        ArgumentError: an unknown name or size, or an encoding that does not fit the model.
    """
    unknown = set(sizes) - {field.name for field in fields(Sizes)}
    if unknown:
        known = ", ".join(field.name for field in fields(Sizes))
        raise ArgumentError(f"unknown sizes: {', '.join(sorted(unknown))}; an encoding is built from {known}")
    has_heads = isinstance(sizes["heads"], int)
    heads: int = sizes["heads"] if has_heads else 1
    sizes = {**sizes, "heads": heads}
    model = Sizes(**sizes)
    if isinstance(encoding, str):
        name, grid = encoding, model.grid
        if grid is not None and name not in names_for("images") and name.partition("+")[0] in ENCODINGS:
            model = Sizes(**{**sizes, "grid": None})  # an encoding of a sequence: the patches form a line
        built = encoding_by_name(name, model)
        if acts_at_input(built) and model.dim != table_width:
            heads = heads if table_width % heads == 0 else 1
            model = Sizes(**{**asdict(model), "dim": table_width, "heads": heads})
            built = encoding_by_name(name, model)
    elif isinstance(encoding, PositionEncoding):
        built = encoding
    else:
        raise ArgumentError(
            f'encoding must be a PositionEncoding or one of its names, such as "rope"; got {encoding!r}'
        )
    if not has_heads and acts_in_attention(built):
        raise ArgumentError(
            f"{type(built).__name__} acts in the attention, and this model has no single number of heads; choose an "
            'encoding that acts at the input, such as "learned"'
        )
    width = table_width if acts_at_input(built) else sizes["dim"]
    require_fitting(built, width, heads, causal=model.causal)
    return built


def described(value: Any) -> Description | None:
    """Returns the class and arguments of an encoding of posembed as JSON; None if it cannot be built from them."""
    name = type(value).__name__
    if getattr(posembed, name, None) is not type(value):
        return None
    arguments: Description = {}
    for argument in inspect.signature(type(value)).parameters:
        held = getattr(value, argument, inspect.Parameter.empty)
        if held is inspect.Parameter.empty or isinstance(held, Tensor):
            held = getattr(value, f"initial_{argument}", inspect.Parameter.empty)
        if held is inspect.Parameter.empty or (argument, held) == ("init", "given"):
            continue
        if is_dataclass(held):
            held = described(held)
            if held is None:
                return None
        arguments[argument] = list(held) if isinstance(held, tuple) else held
    description: Description = {"class": name, "arguments": arguments}
    if isinstance(value, PositionEncoding):
        description |= {"window": value.window, "log_length": value.log_length}
        if repr(rebuilt(description)) != repr(value).replace("init='given'", "init='normal'"):
            return None
    return description


def encoding_of(
    entry: Mapping[str, Any], given: PositionEncoding | None, where: object
) -> tuple[PositionEncoding, bool]:
    """Returns the encoding of a saved entry, or the one that is given for it, and whether the model is causal.

    Raises:
        ArgumentError: an encoding that must be given, or that is built otherwise than the saved one.
        CheckpointError: an entry that ``replace_positions`` has not written.
    """
    saved, causal = entry.get("encoding", ""), entry.get("causal")
    if not isinstance(causal, bool) or not (saved is None or isinstance(saved, Mapping)):
        raise CheckpointError(f"{where}: the entry of posembed in config.json is damaged; restore the file")
    if given is None:
        if saved is None:
            raise ArgumentError(
                f"{where}: its encoding is not one of posembed's; pass encoding=, built as the saved one"
            )
        return rebuilt(saved), causal
    now = described(given)
    if saved is not None and now is not None and hasattr(posembed, str(saved.get("class"))):
        before, after = ({**entry.pop("arguments", {}), **entry} for entry in (dict(saved), now))
        differs = {name for name in before.keys() & after.keys() - FREE if before[name] != after[name]}
        if differs:
            raise ArgumentError(
                f"{where} was saved with {rebuilt(saved)}, and encoding= is {given}; leave encoding= out, or call "
                "replace_positions after loading"
            )
    return given, causal


def rebuilt(description: Mapping[str, Any]) -> Any:
    """Builds what ``described`` describes, with new initial values.

    Raises:
        CheckpointError: something else than an encoding of posembed.
    """
    kind = getattr(posembed, str(description.get("class")), None)
    arguments = description.get("arguments")
    known = isinstance(kind, type) and (issubclass(kind, PositionEncoding) or is_dataclass(kind))
    if not known or not isinstance(arguments, Mapping):
        raise CheckpointError(
            f"the entry of posembed in config.json names {description.get('class')!r} with arguments {arguments!r}, "
            "which is no encoding of this version; load the model with the version that saved it, or pass encoding="
        )
    built: Any = kind(**{name: _tuples(value) for name, value in arguments.items()})  # type: ignore[misc]
    for name in ("window", "log_length"):
        if name in description and getattr(built, name) != description[name]:
            setattr(built, name, description[name])
    return built


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return rebuilt(value)
    return tuple(value) if isinstance(value, list) else value
