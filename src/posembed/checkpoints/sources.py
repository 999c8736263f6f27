"""Where the models of a checkpoint come from: transformers, timm, or no installed library (plain files).

``source_of`` chooses. A source knows how its library builds a model, how a config.json holds a size, what follows from
it, and how a small copy of a model is made. Models are built on PyTorch's ``meta`` device, which needs no memory.
"""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from posembed.calls import unknown
from posembed.checkpoints.position_tables import Config, ConfigField, Size, pair, section, tiled_sizes
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint
from posembed.tables.families import FieldPath
from posembed.versions import check_version
from posembed.words import last_line

if TYPE_CHECKING:
    from posembed.checkpoints.choose import Target

LAYERS = re.compile(r"layers?$|^(n|num)_.*blocks$|^depths?$")
HEADS = re.compile(r"heads$|^n_head$")
FEED_FORWARD = re.compile(r"intermediate_size$|ffn_dim$")
FEW = 2  # layers, heads
FEW_TOKENS = 1024  # rows of a vocabulary
MOST_CELLS = 1024  # of a grid, in copies of the true size
# Cells along an axis, before and after, of copies whose true size would take too long. Some models have blocks of 8.
FEW_CELLS = (12, 16), (16, 32)
WHOLE = ("Model", "Transformer", "Backbone")  # the last words in the names of whole models
# The limits for a config. The deepest published models have 1,000 layers of about 20 modules.
MOST_LAYERS, MOST_MODULES = 1_000, 25_000

Shape = tuple[int, ...]
Few = tuple[int, int] | None  # cells along an axis of two copies; None for the true sizes
HALF = (0, 0)  # half the true sizes


class Source:
    """Plain files: no installed library builds their model.

    library: its name. kept: the number of values up to which a parameter is on the device of the buffers.
    in_order: whether the differences of a grid that is not square are known to be read in order.
    in_blocks: whether a grid may be stored block by block. has_rows: whether families.json has rows of its models.
    repeats_lengths: whether sections of a config repeat the length of a text, as they repeat the size of an image.
    """

    library = ""
    kept = 0
    in_order = in_blocks = has_rows = repeats_lengths = False

    def in_json(self, known: Any, name: str, value: Any) -> Any:
        """Returns what a config.json says for a size."""
        return value

    def roomy(self, known: Any, config: Config) -> Config:
        """Returns a config.json whose images are large enough for larger windows."""
        return config

    def follows(
        self, config: Config, changed: Config, known: Any, fields: Iterable[ConfigField]
    ) -> dict[ConfigField, Any]:
        """Returns the fields that follow from the changed ones, with their new values.

        changed: the config.json with its new sizes. known: the config object for ``config``.
        """
        return {}

    def tiles(self, known: Any, old: Size, new: Size) -> dict[FieldPath, Any]:
        """Returns the sizes of images that are cut into tiles, for tiles of another size."""
        return {}

    def base_prefix(self, model: nn.Module | None) -> str:
        """Returns the prefix that models with a head add for the base model."""
        return ""

    def loaded_names(self, model: nn.Module, keys: Iterable[str]) -> dict[str, str]:
        """Maps names of the built model's tensors to their keys in files, where the library renames them on loading."""
        return {}

    def keep_sizes(self, rebuilt: Any, known: Any, fields: Mapping[ConfigField, Any]) -> None:
        """Gives the config object of a new size what was found out for the old one."""

    def resized_windows(self, old_model: nn.Module, new_model: nn.Module, target: Target) -> Target:
        """Returns a target without the tables of windows that the library keeps smaller."""
        return target

    def said_of_loading(self, new: Any, tables: Mapping[str, Any]) -> Iterable[str]:
        """Says what the library itself does with tables when it loads a file, given each table before and after. new:
        the new model, or the config object of the old one where none is built."""
        return ()

    def same_layers(self, models: Sequence[nn.Module]) -> None:
        """Sees to it that small copies of two models have the same layers."""


class Transformers(Source):
    library = "transformers"
    has_rows = True

    def name_of(self, known: Any) -> str:
        return str(class_of(known).__name__)

    def kind_of(self, known: Any) -> Any:
        """Returns what builds the model of a config object, or None."""
        return class_of(known)

    def copy_of(self, model: nn.Module) -> Any:
        """Returns what builds a part of a model again, from another config object."""
        return type(model)

    def models_around(self, model: nn.Module, name: str) -> Iterator[str]:
        """Yields the paths of the models inside ``model`` that hold the parameter ``name``, smallest first."""
        from transformers import PreTrainedModel

        parts = name.split(".")
        for end in reversed(range(len(parts))):
            path = ".".join(parts[:end])
            if isinstance(model.get_submodule(path), PreTrainedModel):
                yield path

    def unsized_tables(self, known: Any, keys: Iterable[str]) -> dict[str, str] | None:
        """Returns the tables that no size changes, each with the reason; None if the built model must show them."""
        return None

    def why_no_table(self, model: nn.Module) -> str:
        sizes = "no length or image size in config.json changes the shape of a tensor"
        return f"{sizes}, and no tensor has the name of a table"

    def follows(
        self, config: Config, changed: Config, known: Any, fields: Iterable[ConfigField]
    ) -> dict[ConfigField, Any]:
        found: dict[ConfigField, Any] = {}
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

    def tiles(self, known: Any, old: Size, new: Size) -> dict[FieldPath, Any]:
        return dict(tiled_sizes(known.to_dict(), old, new))

    def load(self, folder: Path, known: Any) -> tuple[nn.Module, str, str, dict[str, list[str]]]:
        """Loads the model of a folder as its users do. Returns it, the name of its class, the call, in which {folder!r}
        stands for the folder, and the weights that did not fit, by what is wrong with them."""
        kind = class_of(known)
        model, told = kind.from_pretrained(folder, output_loading_info=True, trust_remote_code=False)
        unfit = {
            "weights that its files lack, so that they are random": told["missing_keys"],
            "weights in its files that the model does not have": told["unexpected_keys"],
            "weights of another shape than the model's": told["mismatched_keys"],
        }
        named = {
            what: sorted(key if isinstance(key, str) else str(key[0]) for key in keys) for what, keys in unfit.items()
        }
        return model, f"transformers.{kind.__name__}", f"{kind.__name__}.from_pretrained({{folder!r}})", named

    def base_prefix(self, model: nn.Module | None) -> str:
        return "" if model is None else f"{model.base_model_prefix}."

    def loaded_names(self, model: nn.Module, keys: Iterable[str]) -> dict[str, str]:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

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

    def cells_to_try(self, cells: int, *, of_grid: bool) -> tuple[Few, ...]:
        """Returns the numbers of cells along an axis of copies to try: the true ones first, unless they take too long.

        Some models read images of a few sizes alone, and interpolate their table to them (LW-DETR). cells: the number
        in the largest table.
        """
        return FEW_CELLS if cells > MOST_CELLS else (None, *FEW_CELLS) if of_grid else (None,)

    def make_small(self, config: Any, *, narrow: bool, few_layers: bool = True) -> None:
        """Shrinks a config object and its nested configs in place. Lengths and image sizes stay the same."""
        from transformers import PretrainedConfig

        numbers = [(name, value) for name, value in vars(config).items() if type(value) is int]
        heads = next((getattr(config, name, None) for name in ("num_attention_heads", "num_heads")), None)
        width = getattr(config, "hidden_size", None)
        narrow_width = None
        if narrow and type(heads) is type(width) is int and heads > FEW:
            narrow_width = config.hidden_size = width // heads * FEW
        for name, value in numbers:
            most = value
            if LAYERS.search(name) and value > FEW:
                if not few_layers:
                    continue
                most = FEW
                for other, items in list(vars(config).items()):
                    if isinstance(items, list | tuple) and len(items) == value:  # a list with an item per layer
                        setattr(config, other, items[:FEW])
            elif narrow and HEADS.search(name):
                most = FEW
            elif narrow_width and FEED_FORWARD.search(name):
                most = 4 * narrow_width
            elif name.endswith(("vocab_size", "_token_id")):
                most = FEW_TOKENS - name.endswith("_token_id")
            if value > most:
                setattr(config, name, most)
        if isinstance(getattr(config, "mask_ratio", None), float):
            config.mask_ratio = 0.0  # MAE's encoder drops most patches
        for name, inner in list(vars(config).items()):
            if isinstance(inner, PretrainedConfig):
                self.make_small(inner, narrow=narrow, few_layers=few_layers)
                if name == "vision_config" and few_layers and isinstance(inner.to_dict().get("depths"), list | tuple):
                    inner.depths = [min(depth, FEW) for depth in inner.depths]


class ConfigObject:
    """The base of config objects for a library that has none. source: what builds its models."""

    source: Source


def source_of(known: Any) -> Any:
    """Returns the source of a config object: nothing else asks which library builds a model."""
    return Source() if known is None else known.source if isinstance(known, ConfigObject) else Transformers()


def open_model(source: str | Path, model_type: str | None = None) -> Checkpoint:
    """Opens a checkpoint as ``open_checkpoint`` does, and finds the type of its model if its config.json, as those of
    2019, does not say it.

    model_type: the type. Default: that of the class that ``architectures`` names, or the one with which its keys begin
    (``bert.embeddings...``). Raises ArgumentError if it is none of transformers, or not the one that config.json says.
    """
    checkpoint = open_checkpoint(source)
    config = checkpoint.config
    if model_type is not None:
        if config is None:
            raise ArgumentError(f"--model-type (model_type=...) is for a folder with config.json; {source} has none")
        if is_typed(config) and model_type != (stated := config.get("model_type", "another library's")):
            raise ArgumentError(f"{checkpoint.config_name} says that the model is {stated}; leave out --model-type")
        if find_spec("transformers") is None:
            raise ArgumentError("--model-type (model_type=...) names a model of transformers, which is not installed")
        from transformers import CONFIG_MAPPING, MODEL_MAPPING

        if model_type not in CONFIG_MAPPING:
            raise unknown("model type", model_type, CONFIG_MAPPING)
        own = getattr(MODEL_MAPPING.get(CONFIG_MAPPING[model_type], None), "base_model_prefix", "")
        begins = {key.partition(".")[0] for key in checkpoint.tensors}.intersection(CONFIG_MAPPING)
        if own and begins and own not in begins:  # XLM-RoBERTa's own begin with "roberta."
            raise ArgumentError(
                f"--model-type {model_type}: the keys of its weights begin with {own!r}, and those of {source} with "
                f"{sorted(begins)[0]!r}; pass the type that wrote them, or leave out --model-type"
            )
    elif config is not None and not is_typed(config) and find_spec("transformers"):
        model_type = type_shown(config, checkpoint.tensors)
    return replace(checkpoint, model_type="" if config is None or is_typed(config) else model_type or "")


def is_typed(config: Config) -> bool:
    """Returns whether a config says which model it is, for transformers, timm, open_clip or diffusers."""
    return any(config.get(name) is not None for name in ("model_type", "architecture", "model_cfg", "_class_name"))


def type_shown(config: Config, keys: Iterable[str]) -> str | None:
    """Returns the type of the class that a config.json names, or else the one with which all keys of weights begin."""
    from transformers import CONFIG_MAPPING

    if (kind := class_named(config.get("architectures"))) is not None:
        return str(kind.config_class.model_type)
    begins = {key.partition(".")[0] for key in keys}.intersection(CONFIG_MAPPING)
    return begins.pop() if len(begins) == 1 else None


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
    source = source_of(config)
    kind = source.kind_of(config)
    if kind is None:
        raise CheckpointError(f"config.json: transformers has no model for {type(config).__name__}")
    try:
        with quiet(), torch.device("cpu" if buffers else "meta"), sketched(source.kept if buffers else 0):
            return kind(copy.deepcopy(config))
    except Exception as error:
        why = f"{source.library} cannot build {source.name_of(config)} from it ({last_line(error)})"
        raise CheckpointError(f"config.json: {why}") from error


def class_of(config: Any) -> Any:
    """Returns the model class of a config object of transformers, or None if there is none.

    It is the class that the config names, the one that AutoModel builds or, for parts of models that AutoModel does not
    know, the first model in the file beside the config's own.
    """
    import transformers

    if (kind := class_named(config.architectures)) is not None:
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
    return min(
        own,
        key=lambda each: (each.__name__ not in (config.architectures or ()), not each.__name__.endswith(WHOLE)),
        default=None,
    )


def class_named(named: Any) -> Any:
    """Returns the model class of transformers that ``architectures`` of a config.json names, or None."""
    import transformers

    kind = getattr(transformers, str(named[0]), None) if isinstance(named, list) and named else None
    return kind if is_model(kind) else None


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


def models_around(model: nn.Module, name: str) -> Iterator[str]:
    """Yields the paths of the models inside ``model`` that hold the parameter ``name``, smallest first."""
    return source_of(model.config).models_around(model, name)


def takes_text(model: nn.Module) -> bool:
    return "input_ids" in signature(model.forward).parameters


def shapes_of(model: nn.Module) -> dict[str, Shape]:
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
