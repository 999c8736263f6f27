"""Converts encodings to JSON and back, for saved models, and builds the encoding that a user names or passes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from posembed import layers, tables
from posembed.errors import ArgumentError, CallError, CheckpointError
from posembed.layers.base import PositionEncoding, overrides, reads_content
from posembed.layers.concatenated import ConcatenatedPositionalEmbedding
from posembed.nn.attention import require_fitting
from posembed.nn.encodings import ENCODINGS, Sizes, encoding_by_name, names_for
from posembed.nn.per_layer import PerLayer, each_of

Description = dict[str, Any]
FREE = {"init", "std", "dropout", "check_ids"}
"""Arguments of an encoding that do not change what its values mean."""
LIMITS = ("window", "log_length")
"""Attributes of every encoding that the model, not the encoding, applies."""


def acts_in_attention(encoding: PositionEncoding) -> bool:
    """Returns whether an encoding changes queries, keys, scores or the set of tokens that a token sees."""
    limits = encoding.window is not None or encoding.log_length is not None
    return limits or overrides(encoding, "before_queries_keys", "at_queries_keys", "at_scores", "in_layer")


def encoding_for(encoding: PositionEncoding | str, sizes: Mapping[str, Any], *, table_width: int) -> PositionEncoding:
    """Returns an encoding for a model of these sizes, built by name or as given.

    Args:
        sizes: the fields of ``Sizes``, from the model and from the user.
        table_width: the width of the replaced table, which differs from D in ELECTRA.

    Raises:
        ArgumentError: a name or size is unknown, or the encoding does not fit the model.
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
        if overrides(built, "at_input") and model.dim != table_width:
            head_width = model.head_dim if has_heads else None
            heads = heads if table_width % heads == 0 else 1
            model = Sizes(**{**asdict(model), "dim": table_width, "heads": heads, "head_width": head_width})
            built = encoding_by_name(name, model)
    elif isinstance(encoding, PositionEncoding):
        built = encoding
    else:
        raise ArgumentError(
            f'encoding must be one PositionEncoding or name, such as "rope", for all layers; got {encoding!r}'
        )
    if isinstance(built, ConcatenatedPositionalEmbedding):
        raise ArgumentError(
            f"{type(built).__name__} replaces components of each token, but this model can only add rows to tokens; "
            'choose an encoding that adds rows, such as "learned", or build the model from posembed.nn'
        )
    if isinstance(built, PerLayer) or reads_content(built):
        kinds = "/".join(dict.fromkeys(type(each).__name__ for each in each_of(built)))
        raise ArgumentError(
            f"{kinds} needs to know which layer asks, or what the layer reads, and the attention of "
            "this model tells neither; choose one encoding of positions alone, or build the model from posembed.nn"
        )
    if not has_heads and acts_in_attention(built):
        raise ArgumentError(
            f"{type(built).__name__} acts in the attention, and this model has no single number of heads; choose an "
            'encoding that acts at the input, such as "learned"'
        )
    width = table_width if overrides(built, "at_input") else sizes["dim"]
    head_dim = sizes["dim"] // sizes["heads"] if has_heads else None
    require_fitting(built, width, heads, causal=model.causal, head_dim=head_dim)
    return built


def class_named(name: str) -> Any:
    """Returns the public class with this name, of an encoding or of an argument of one; None if there is none."""
    return getattr(layers, name, None) or getattr(tables, name, None)


def described(value: Any) -> Description | None:
    """Returns the class and arguments of a posembed encoding as JSON; None if it cannot be rebuilt from them."""
    name = type(value).__name__
    if class_named(name) is not type(value):
        return None
    arguments: Description = {}
    for argument in inspect.signature(type(value)).parameters:
        held = getattr(value, argument, inspect.Parameter.empty)
        if held is inspect.Parameter.empty or isinstance(held, Tensor):
            held = getattr(value, f"initial_{argument}", inspect.Parameter.empty)
        if held is inspect.Parameter.empty or (argument, held) == ("init", "given"):
            continue
        parts = [_described(part) for part in held] if isinstance(held, tuple) else [_described(held)]
        if _UNKNOWN in parts:
            return None
        arguments[argument] = parts if isinstance(held, tuple) else parts[0]
    description: Description = {"class": name, "arguments": arguments}
    if isinstance(value, PositionEncoding):
        description |= {name: getattr(value, name) for name in LIMITS}
        if built_like(rebuilt(description)) != built_like(value):
            return None
    return description


def built_like(encoding: PositionEncoding) -> tuple[str, dict[str, type], dict[str, torch.Size]]:
    """Returns what a rebuilt encoding must have in common with an encoding: the arguments, the classes of its modules
    and the shapes of its tensors. A module or parameter that the user has added makes them differ."""
    modules = {name: type(module) for name, module in encoding.named_modules()}
    arguments = repr(encoding).replace("init='given'", "init='normal'")
    return arguments, modules, {name: tensor.shape for name, tensor in encoding.state_dict().items()}


_UNKNOWN: Description = {}


def _described(value: Any) -> Any:
    """Returns an argument as JSON. An encoding or a dataclass becomes its description, or _UNKNOWN without one."""
    if is_dataclass(value) or isinstance(value, PositionEncoding):
        return described(value) or _UNKNOWN
    return value


def encoding_of(
    entry: Mapping[str, Any], given: PositionEncoding | None, where: object
) -> tuple[PositionEncoding, bool]:
    """Returns the encoding (the given one, or the one that the saved entry describes), and whether the model is causal.

    Raises:
        ArgumentError: the encoding must be given, or the given one differs from the saved one.
        CheckpointError: ``replace_positions`` did not write this entry.
    """
    saved, causal = entry.get("encoding", ""), entry.get("causal")
    if not isinstance(causal, bool) or not (saved is None or isinstance(saved, Mapping)):
        raise CheckpointError(f"{where}: the posembed entry of config.json is damaged; restore the file")
    if given is None:
        if saved is None:
            raise ArgumentError(f"{where}: its encoding is not from posembed; pass encoding=, built like the saved one")
        return rebuilt(saved), causal
    now = described(given)
    if saved is not None and now is not None and class_named(str(saved.get("class"))) is not None:
        before, after = ({**entry.pop("arguments", {}), **entry} for entry in (dict(saved), now))
        differs = {name for name in before.keys() & after.keys() - FREE if before[name] != after[name]}
        if differs:
            raise ArgumentError(
                f"{where} was saved with {rebuilt(saved)}, and encoding= is {given}; leave encoding= out, or call "
                "replace_positions after loading"
            )
    return given, causal


def rebuilt(description: Mapping[str, Any]) -> Any:
    """Builds the encoding from a description by ``described``, with new initial values.

    Raises:
        CheckpointError: the description does not fit a posembed encoding.
    """
    kind = class_named(str(description.get("class")))
    arguments = description.get("arguments")
    known = isinstance(kind, type) and (issubclass(kind, PositionEncoding) or is_dataclass(kind))
    unknown = CheckpointError(
        f"the posembed entry of config.json names {description.get('class')!r} with arguments {arguments!r}, "
        "which is not an encoding of this version; load the model with the version that saved it, or pass encoding="
    )
    if not known or not isinstance(arguments, Mapping):
        raise unknown
    try:
        built: Any = kind(**{name: _tuples(value) for name, value in arguments.items()})
    except CallError as error:
        raise unknown from error
    for name in LIMITS:
        if name in description and getattr(built, name) != description[name]:
            setattr(built, name, description[name])
    return built


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return rebuilt(value)
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
