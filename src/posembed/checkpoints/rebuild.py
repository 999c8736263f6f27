"""Which tensors hang on a model's length, learned from the model itself instead of from a list of families.

Where transformers knows a config, the model is built from it without memory (PyTorch's ``meta`` device), and again
with one length-like field doubled. What changes shape hangs on that field, and nothing else does.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from posembed.checkpoints.found import FieldPath, FieldValue
from posembed.errors import CheckpointError

LENGTH_LIKE = re.compile(r"pos|len|ctx|context|frames|block_size|image_size|img_size|input_size|resolution|grid_size")
OTHER_SIZES = re.compile(
    r"token|vocab|hidden|intermediate|bottleneck|kernel|conv|stride|dim|layers|units|bins|buckets|rope"
)

LAYERS = re.compile(r"layers?$|^(n|num)_.*blocks$|^depths?$")
# What a config may ask to be built. The deepest models that are published have 1,000 layers, of about 20 modules.
MOST_LAYERS, MOST_MODULES = 1_000, 25_000


@dataclass(frozen=True)
class Response:
    """What changes shape when one config field is doubled: state-dict keys -> shapes before and after."""

    field: FieldPath
    value: FieldValue
    changes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]


def config_object(config: Mapping[str, Any]) -> Any:
    """transformers' config for a config.json, or None where transformers is not installed or does not know it.

    Code that came with a model is never run.

    Raises:
        CheckpointError: transformers knows the model type and refuses these values, or there are too many layers.
    """
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        return None
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        return None
    refuse_depth(config)
    try:
        with quiet():
            return CONFIG_MAPPING[model_type].from_dict(with_floats(config))
    except Exception as error:  # each family checks its own values, with errors of every kind
        raise CheckpointError(f"config.json: transformers' {model_type} refuses it ({first_line(error)})") from error


def refuse_depth(config: Mapping[str, Any]) -> None:
    """Bound the number of layers before a config object is made: some list what is in each layer."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            refuse_depth(value)
        elif LAYERS.search(str(name)):
            counts = value if isinstance(value, list) else [value]
            if any(type(layers) is int and layers > MOST_LAYERS for layers in counts):
                raise CheckpointError(
                    f"config.json: {name}={value}; models of at most {MOST_LAYERS:,} layers are built"
                )


def with_floats(value: Any) -> Any:
    """A copy of a config.json in which ``{"__float__": "Infinity"}``, as transformers 5 writes it, is a number."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
            return float(value["__float__"])
        return {name: with_floats(item) for name, item in value.items()}
    return [with_floats(item) for item in value] if isinstance(value, list) else value


def build_on_meta(config: Any, *, buffers: bool = False) -> nn.Module:
    """The model of a config object, every tensor on the meta device; with ``buffers``, these on the CPU.

    Raises:
        CheckpointError: transformers cannot build it, or it has more than ``MOST_MODULES`` modules.
    """
    import transformers

    name = (getattr(config, "architectures", None) or [None])[0]
    kind = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        kind = transformers.MODEL_MAPPING.get(type(config), None)
        kind = kind[0] if isinstance(kind, tuple | list) else kind
    if kind is None:
        raise CheckpointError(f"config.json: transformers has no model for {type(config).__name__}")
    try:
        with quiet(), torch.device("cpu" if buffers else "meta"), at_most(MOST_MODULES), parameters_on_meta():
            return kind(copy.deepcopy(config))
    except Exception as error:
        raise CheckpointError(
            f"config.json: transformers cannot build {kind.__name__} from it ({first_line(error)})"
        ) from error


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Give every new parameter to the meta device as soon as a module holds it."""

    def move(*registered: Any) -> Any:
        parameter = registered[-1]
        if parameter is None or parameter.is_meta:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    hook = register_module_parameter_registration_hook(move)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """Stop building a model when it has more modules than this: a config may name any number of layers."""
    registered = count(1)

    def stop(*_: object) -> None:
        if next(registered) > most:
            raise CheckpointError(f"it has more than {most:,} modules, the most that are built here")

    hook = register_module_module_registration_hook(stop)
    try:
        yield
    finally:
        hook.remove()


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def responses(config: Mapping[str, Any], known: Any, model: nn.Module) -> list[Response]:
    """Double each length-like field of a config in turn; one Response for each that changes a shape.

    config: config.json as it lies there. known: its config object. model: that object's model, on meta.
    """
    before = shapes_of(model)
    found = []
    for field, value in length_like_fields(known.to_dict()):
        double = 2 * value if isinstance(value, int) else [2 * side for side in value]
        try:
            grown = config_object(with_field(config, known, field, double))
            after = shapes_of(build_on_meta(grown))
        except CheckpointError:
            continue  # this family does not take that value: not a field that can be raised
        changes = {key: (shape, after[key]) for key, shape in before.items() if after.get(key, shape) != shape}
        if changes:
            found.append(Response(field, value, changes))
    return found


def length_like_fields(config: Mapping[str, Any], above: FieldPath = ()) -> Iterator[tuple[FieldPath, FieldValue]]:
    """Fields that may say a length or an image size, by their names, in a config and in the configs inside it."""
    for name, value in config.items():
        if not isinstance(name, str):
            continue
        if isinstance(value, dict):
            yield from length_like_fields(value, (*above, name))
        elif LENGTH_LIKE.search(name) and not OTHER_SIZES.search(name):
            if type(value) is int and value > 1:
                yield (*above, name), value
            elif isinstance(value, list | tuple) and len(value) == 2 and all(type(side) is int for side in value):
                yield (*above, name), (value[0], value[1])


def section_of(known: Any, field: FieldPath) -> dict[str, Any]:
    """The part of a config, all defaults filled in, that a field stands in."""
    section = known.to_dict()
    for name in field[:-1]:
        section = section[name]
    return section


def with_field(config: Mapping[str, Any], known: Any, field: FieldPath, value: Any) -> dict[str, Any]:
    """A config.json with one field set, under its canonical name; its aliases are taken away.

    An alias left beside the canonical field can win over it: GPT-2 with ``n_positions`` and
    ``max_position_embeddings`` reads the second. OpenAI's CLIP holds its sections twice, and ``text_config_dict``
    wins over ``text_config``; both are changed.
    """
    changed = copy.deepcopy(dict(config))
    sections, part = [changed], known
    for name in field[:-1]:
        for section in sections:
            if not isinstance(section.get(name), dict):
                section[name] = {}
        again = [s[f"{name}_dict"] for s in sections if isinstance(s.get(f"{name}_dict"), dict)]
        sections, part = [*(section[name] for section in sections), *again], getattr(part, name, None)
    for section in sections:
        for alias, canonical in getattr(part, "attribute_map", {}).items():
            if canonical == field[-1]:
                section.pop(alias, None)
        section[field[-1]] = value
    return changed


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:160]


@contextmanager
def quiet() -> Iterator[None]:
    """Python's and transformers' warnings off: they speak of models that are only tried here."""
    from transformers.utils import logging

    verbosity, shows_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_bars:
            logging.enable_progress_bar()
