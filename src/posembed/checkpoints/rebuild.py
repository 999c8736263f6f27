"""Finds the tensors that depend on a model's length, from the model itself instead of from a list of families.

If transformers supports a config, the model is built from it twice on PyTorch's ``meta`` device, which needs no memory.
The second time, one length-like field is doubled. The tensors whose shapes differ depend on that field.
"""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from posembed.checkpoints.found import ConfigField, pair
from posembed.errors import CheckpointError
from posembed.tables.families import FieldPath
from posembed.versions import check_version
from posembed.words import brief

LENGTH_LIKE = re.compile(r"pos|len|ctx|context|frames|block_size|image_size|img_size|input_size|resolution|grid_size")
OTHER_SIZES = re.compile(
    r"token|vocab|feats|hidden|intermediate|bottleneck|kernel|conv|stride|dim|layers|units|bins|buckets|rope|"
    r"patch_length"
)
# Fields that give the number of cells of a square grid, and fields of sizes that are no lengths of a text.
AREA = re.compile(r"^(num_patches|num_position_embeddings)$")
OTHER_AXES = re.compile(
    r"^((sliding_)?window_size|window_sizes|num_mel_bins|num_image_with_embedding|bias_max_distance|max_num_patches|"
    r"rel_extent|max_text_tokens)$"
)
WINDOW = re.compile(r"^window_sizes?$")
BUCKETS = re.compile(  # of distances
    r"^((relative_attention_|position_bias_)?num_buckets|position_buckets|rel(_2d)?_pos_bins)$"
)
LAYERS = re.compile(r"layers?$|^(n|num)_.*blocks$|^depths?$")
WHOLE = ("Model", "Transformer", "Backbone")  # the last words in the names of whole models
SMALL = 2**20  # values of a table, whose device the buffers of timm's models take
# The limits for a config. The deepest published models have 1,000 layers of about 20 modules.
MOST_LAYERS, MOST_MODULES = 1_000, 25_000

Shape = tuple[int, ...]
Changes = Mapping[str, tuple[Shape, Shape]]  # state-dict keys -> shapes before and after a field was doubled


def config_object(config: Mapping[str, Any]) -> Any:
    """Returns the transformers config object for a config.json, or None if transformers cannot be used for it.

    It cannot be used if it is not installed or does not support the model type. Code that comes with a model is never
    run. Raises CheckpointError for values that transformers rejects.
    """
    from posembed.checkpoints.timm_models import timm_config, with_image_sizes

    model_type = config.get("model_type")
    if isinstance(config.get("architecture"), str) and model_type is None:
        refuse_depth(config)
        return timm_config(config)
    if not isinstance(model_type, str):
        return None
    if find_spec("transformers") is None:
        return None
    check_version("transformers")
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        return None
    refuse_depth(config)
    try:
        with quiet():
            known = CONFIG_MAPPING[model_type].from_dict(with_floats(config))
    except Exception as error:  # each family raises its own errors
        raise CheckpointError(f"config.json: transformers rejects it for {model_type} ({last_line(error)})") from error
    return with_image_sizes(known)


def refuse_depth(config: Mapping[str, Any]) -> None:
    """Refuses too many layers. Called before a config object is built, because some build a list of all layers."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            refuse_depth(value)
        elif LAYERS.search(str(name)):
            counts = value if isinstance(value, list) else [value]
            if any(type(layers) is int and layers > MOST_LAYERS for layers in counts):
                raise CheckpointError(f"config.json: expected at most {MOST_LAYERS:,} layers; got {name}={value}")


def with_floats(value: Any) -> Any:
    """Copies a config.json. Converts ``{"__float__": "Infinity"}``, which transformers 5 writes, to a number."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
            return float(value["__float__"])
        return {name: with_floats(item) for name, item in value.items()}
    return [with_floats(item) for item in value] if isinstance(value, list) else value


def build_on_meta(config: Any, *, buffers: bool = False) -> nn.Module:
    """Builds the model of a config object on the meta device. With ``buffers``, its buffers are on the CPU."""
    kind = class_of(config)
    if kind is None:
        raise CheckpointError(f"config.json: transformers has no model for {type(config).__name__}")
    library = "timm" if is_of_timm(config) else "transformers"
    kept = SMALL if buffers and library == "timm" else 0
    try:
        with quiet(), torch.device("cpu" if buffers else "meta"), sketched(kept):
            return kind(copy.deepcopy(config))
    except Exception as error:
        name = config.architecture if is_of_timm(config) else kind.__name__
        why = f"{library} cannot build {name} from it ({last_line(error)})"
        raise CheckpointError(f"config.json: {why}") from error


def class_of(config: Any) -> Any:
    """Returns the model class of a config object of transformers, or None if there is none.

    It is the class that the config names, the one that AutoModel builds or, for parts of models that AutoModel does not
    know, the first model in the file beside the config's own. For timm, it is the function that builds the model.
    """
    if is_of_timm(config):
        return config.create
    import transformers

    named = config.architectures
    name = str(named[0]) if isinstance(named, list) and named else ""
    if is_model(kind := getattr(transformers, name, None)):
        return kind
    kind = transformers.MODEL_MAPPING.get(type(config), None)
    kind = kind[0] if isinstance(kind, tuple | list) else kind
    path = type(config).__module__
    if kind is not None or not path.startswith("transformers.models."):
        return kind
    try:
        with quiet():
            held = vars(import_module(path.replace("configuration_", "modeling_")))
    except ImportError:  # of a package that the model needs
        return None
    own = [each for each in held.values() if is_model(each) and each.config_class is type(config)]
    own = [each for each in own if not each.__name__.endswith("PreTrainedModel")]
    return min(own, key=lambda each: (each.__name__ != name, not each.__name__.endswith(WHOLE)), default=None)


def is_of_timm(config: Any) -> bool:
    """Returns whether this is a ``TimmConfig``, which builds its model itself."""
    from posembed.checkpoints.timm_models import TimmConfig

    return isinstance(config, TimmConfig)


def is_built_by_timm(module: nn.Module) -> bool:
    """Returns whether ``timm.create_model`` built a module, so that it can build it again."""
    settings = getattr(module, "pretrained_cfg", None)
    known = isinstance(settings, Mapping) and bool(settings.get("architecture")) and hasattr(module, "_model_args")
    return known and type(module).__module__.startswith("timm.")


def is_model(kind: Any) -> bool:
    from transformers import PreTrainedModel

    return isinstance(kind, type) and issubclass(kind, PreTrainedModel)


@contextmanager
def sketched(kept: int = 0) -> Iterator[None]:
    """Moves every new parameter to the meta device, and stops the construction of a model with too many modules.

    kept: the number of values up to which a parameter is not moved.
    """
    registered = count(1)

    def stop(*_: object) -> None:
        if next(registered) > MOST_MODULES:
            raise CheckpointError(f"the model has more than {MOST_MODULES:,} modules, the limit for rebuilding a model")

    def move(module: nn.Module, name: str, parameter: Any) -> Any:
        if parameter is None or parameter.is_meta or parameter.numel() <= kept:
            return None
        return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)

    stops = modules.register_module_module_registration_hook(stop)
    moves = modules.register_module_parameter_registration_hook(move)
    try:
        yield
    finally:
        stops.remove()
        moves.remove()


def shapes_of(model: nn.Module) -> dict[str, Shape]:
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


def responses(
    config: Mapping[str, Any], known: Any, model: nn.Module
) -> tuple[list[tuple[ConfigField, Changes]], dict[ConfigField, str]]:
    """Doubles each field of a config that may be a size in turn. Returns the fields that change shapes, with changes,
    and those that the model does not accept alone, with the reason.

    The number of cells of a square grid is multiplied by four instead, so that the grid stays square.

    known: the config object of transformers.
    """
    before = shapes_of(model)
    found: list[tuple[ConfigField, Changes]] = []
    rejected: dict[ConfigField, str] = {}
    roomy = known.with_larger_images(config) if is_of_timm(known) else config
    fixed = before if roomy is config else shapes_of(build_on_meta(config_object(roomy)))
    for field in size_fields(known.to_dict(), also=(AREA, OTHER_AXES, BUCKETS)):
        in_window = WINDOW.search(field.path[-1]) is not None
        factor = 4 if AREA.search(field.path[-1]) else 2
        double = factor * field.value if isinstance(field.value, int) else [factor * side for side in field.value]
        try:
            changed = with_field(roomy if in_window else config, known, field.path, double)
            after = shapes_of(build_on_meta(config_object(changed)))
        except CheckpointError as error:  # so the field cannot grow
            rejected[field] = f"{field}={double}: {last_line(error.__cause__ or error)}"
            continue
        changes = {
            key: (shape, after[key])
            for key, shape in before.items()
            if after.get(key, shape) != shape and (not in_window or fixed.get(key) == shape)
        }
        if changes:
            found.append((field, changes))
    return found, rejected


def size_fields(
    config: Mapping[str, Any], above: FieldPath = (), *, also: tuple[re.Pattern[str], ...] = ()
) -> Iterator[ConfigField]:
    """Yields the fields whose names suggest a length or an image size, in a config and its nested configs.

    also: patterns of other names.
    """
    for name, value in config.items():
        if not isinstance(name, str):
            continue
        if isinstance(value, dict):
            yield from size_fields(value, (*above, name), also=also)
        elif (LENGTH_LIKE.search(name) and not OTHER_SIZES.search(name)) or any(each.search(name) for each in also):
            if type(value) is int and value > 1:
                yield ConfigField((*above, name), value)
            elif type(value) is not int and (sides := pair(value)) is not None:
                yield ConfigField((*above, name), sides)


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
        section[path[-1]] = known.in_json(path[-1], value) if is_of_timm(known) else value
    return changed


def last_line(error: BaseException) -> str:
    """Returns the last nonblank line of an error's message, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return brief(lines[-1] if lines else type(error).__name__)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the warnings of Python and transformers, since models are only built to be examined.

    transformers remembers some tensors by their sizes (BEiT's indices, DETR's sinusoids), for all models of a process.
    Tensors of the meta device have no values, so none may be remembered: a user's model would compute garbage.
    """
    if "transformers" not in sys.modules:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
        return
    from transformers import pytorch_utils
    from transformers.utils import logging

    compiling = pytorch_utils.is_torchdynamo_compiling  # while compiling, nothing is remembered
    verbosity, shows_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    pytorch_utils.is_torchdynamo_compiling = lambda: True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        pytorch_utils.is_torchdynamo_compiling = compiling
        logging.set_verbosity(verbosity)
        if shows_bars:
            logging.enable_progress_bar()


def models_around(model: nn.Module, name: str) -> Iterator[str]:
    """Yields the paths of the transformers models inside ``model`` that hold the parameter ``name``, smallest first.
    A model of timm is one whole."""
    if is_of_timm(model.config):
        yield ""
        return
    from transformers import PreTrainedModel

    parts = name.split(".")
    for end in reversed(range(len(parts))):
        path = ".".join(parts[:end])
        if isinstance(model.get_submodule(path), PreTrainedModel):
            yield path


def takes_text(model: nn.Module) -> bool:
    return "input_ids" in signature(model.forward).parameters
