"""Models of transformers, built from the config.json that transformers writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from torch import nn

from posembed.checkpoints.position_tables import Config, ConfigField, pair, section
from posembed.checkpoints.sources.base import LAYERS, Few, Source, quiet, read_whole, refuse_depth
from posembed.errors import CheckpointError
from posembed.tables.families import FieldPath
from posembed.words import last_line

HEADS = re.compile(r"heads$|^n_head$")
FEED_FORWARD = re.compile(r"intermediate_size$|ffn_dim$")
FEW = 2  # layers, heads
FEW_TOKENS = 1024  # rows of a vocabulary
MOST_CELLS = 1024  # of a grid, in copies of the true size
# Cells along an axis, before and after, of copies whose true size would take too long. Some models have blocks of 8.
FEW_CELLS = (12, 16), (16, 32)
WHOLE = ("Model", "Transformer", "Backbone")  # the last words in the names of whole models


class Transformers(Source):
    library = "transformers"
    has_rows = True

    def name_of(self, known: Any) -> str:
        return str(class_of(known).__name__)

    def kind_of(self, known: Any) -> Any:
        return class_of(known)

    def copy_of(self, model: nn.Module) -> Any:
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
            before, after = (part_of(config_of(without(each, path, names)), path) for each in (config, changed))
            for name in names:
                old, new = (getattr(each, name, None) for each in (before, after))
                value = section(config, path)[name]
                if is_size(old) and is_size(new) and old != new and old == value:
                    found[ConfigField((*path, name), value)] = new
        return found

    def load(self, folder: Path, known: Any, **how: Any) -> tuple[nn.Module, str, str, dict[str, list[str]]]:
        """Loads the model of a folder as its users do. Returns the model, the name of its class, the code of the call
        ({folder!r} stands for the folder), and the keys of weights that did not fit, by problem. With
        device_map="meta", no weights are read."""
        kind = class_of(known)
        model, told = read_whole(kind, folder, **how)
        unfit = {
            "weights that its files lack, so that they are random": sorted(told["missing_keys"]),
            "weights in its files that the model does not have": sorted(told["unexpected_keys"]),
        }
        return model, f"transformers.{kind.__name__}", f"{kind.__name__}.from_pretrained({{folder!r}})", unfit

    def base_prefix(self, model: nn.Module) -> str:
        return f"{model.base_model_prefix}."

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
        """Returns the numbers of cells along an axis to try: first the true ones (None), unless they take too long.

        Some models read only images of a few sizes, and interpolate their table to these (LW-DETR). cells: the number
        of cells in the largest table.
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


def config_of(config: Mapping[str, Any]) -> Any:
    """Returns the config object for a config.json of a type that transformers knows. Raises CheckpointError for values
    that transformers rejects."""
    from transformers import CONFIG_MAPPING

    model_type = config["model_type"]
    refuse_depth(config)
    try:
        with quiet():
            return CONFIG_MAPPING[model_type].from_dict(with_floats(config))
    except Exception as error:  # each family raises its own errors
        raise CheckpointError(f"config.json: transformers rejects it for {model_type} ({last_line(error)})") from error


def with_floats(value: Any) -> Any:
    """Copies a config.json. Converts ``{"__float__": "Infinity"}``, which transformers 5 writes, to a number."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
            return float(value["__float__"])
        return {name: with_floats(item) for name, item in value.items()}
    return [with_floats(item) for item in value] if isinstance(value, list) else value


def class_of(config: Any) -> Any:
    """Returns the model class of a config object of transformers, or None if there is none.

    The class is the one that the config names, or else the one that AutoModel builds. For parts of models, which
    AutoModel does not know, it is a class in the modeling file next to the config's file.
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

    kind: Any = getattr(transformers, str(named[0]), None) if isinstance(named, list) and named else None
    typed = is_model(kind) and kind.config_class is not None  # PreTrainedModel itself is of no type
    return kind if typed else None


def is_model(kind: Any) -> bool:
    from transformers import PreTrainedModel

    return isinstance(kind, type) and issubclass(kind, PreTrainedModel)


def names_not_declared(held: Mapping[str, Any], part: Any) -> list[str]:
    """Returns the sizes in a section that are neither arguments of its config class nor aliases of arguments."""
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
    changed: Any = with_floats(config)
    held: Any = section(changed, path)
    for name in names:
        held.pop(name, None)
    return changed
