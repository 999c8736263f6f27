"""Models of timm, built from the config.json that timm writes: architecture, model_args, pretrained_cfg.

timm has no config objects. A ``TimmConfig`` takes their place: it holds the sizes that ``timm.create_model`` takes, and
builds the model, which keeps the TimmConfig as ``model.config``.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.position_tables import Config, ConfigField, pair, times
from posembed.checkpoints.sources.base import HALF, ConfigObject, Few, Shape, Source, quiet, shapes_of
from posembed.errors import CheckpointError

if TYPE_CHECKING:
    from posembed.checkpoints.choose import Target

MOST_CELLS = 4096  # of a grid, in copies of the true size: stages and windows fit few sizes of images
ROUNDING = 1e-3  # relative: timm computes where old differences lie in float32
SIZES = ("img_size", "window_size", "window_sizes")  # arguments of timm's models
FEW_LAYERS: tuple[dict[str, Any], ...] = (
    *({"depth": layers} for layers in (2, 3, 4, 6)),
    *({"depths": (1,) * stages} for stages in (3, 4, 5)),
    *({"depths": (2,) * stages} for stages in (3, 4, 5)),
)
# What may be a table, if no size changes it, and what is none.
TABLE = re.compile(
    r"(pos_embed\w*|pos_emb|patch_pos|pixel_pos|attention_biases|relative_position_bias_table|rel_pos_[hw]|"
    r"(height|width)_rel|position_embedding_table)$"
)
SAME_ROWS = (
    "no argument of timm's model changes its shape. The model reads images of other sizes with the same rows, so it "
    "needs no resize"
)
IN_CODE = "no argument of timm's model changes its shape: its size is a number in the model's code"
NO_TABLE = (
    (re.compile(r"cpb_mlp|meta_mlp|rel_pos\.mlp"), "a small network computes a bias from the distance of two patches"),
    (re.compile(r"pos_embe?d\.token_projection"), "a layer reads sines and cosines of the position"),
    (re.compile(r"(pos_(block|conv|enc|embe?d)|cpe|crpe\d?)\.(?!.*qkv).*weight$"), "a convolution stands for them"),
)
NUMBER = re.compile(r"\.\d+(?=\.)")


def size_argument(name: str) -> Any:
    """Returns the property of a ``TimmConfig`` for a size that the model takes as an argument."""

    def value(config: TimmConfig) -> Any:
        return config.sizes.get(name, config.input_size if name == "img_size" else None)

    def assign(config: TimmConfig, value: Any) -> None:
        config.args[name] = config.in_json(name, value)
        config._known = {**config.sizes, name: value}

    return property(value, assign)


class TimmConfig(ConfigObject):
    """The arguments of ``timm.create_model`` for a model.

    architecture: the name of the model. args: its keyword arguments. pretrained: what timm calls pretrained_cfg.
    """

    def __init__(self, architecture: str, args: Mapping[str, Any], pretrained: Mapping[str, Any]) -> None:
        self.architecture, self.args, self.pretrained = architecture, dict(args), dict(pretrained)
        self._known: dict[str, Any] | None = None
        self.windows: list[int] = []  # of each stage

    @staticmethod
    def create(config: TimmConfig) -> nn.Module:
        timm: Any = import_module("timm")
        size = config.pretrained
        model: Any = timm.create_model(config.architecture, pretrained=False, pretrained_cfg=dict(size), **config.args)
        model.config = config
        return model

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes that the model takes as arguments, with their values, and the size and stride of its patches."""
        if self._known is None:
            model = self.source.build(self)
            self._known = patches_of(model) | dict(found_sizes(self, model))
            self.windows = windows_of(model)
        return self._known

    img_size, window_size, window_sizes = map(size_argument, SIZES)

    def twice(self) -> TimmConfig:
        """Returns a copy for images of twice the size, if the model takes an image size."""
        larger = copy.deepcopy(self)
        if "img_size" in larger.sizes:
            larger.img_size = times(larger.img_size, 2)
        return larger

    def in_json(self, name: str, value: Any) -> Any:
        """Returns the argument for a size. If stages have different windows, all windows grow by one factor."""
        if name != "window_sizes":
            return value
        return [Fraction(value, self.sizes[name]) * each // 1 for each in self.windows]

    @property
    def input_size(self) -> Any:
        """The (height, width) of the images that the model was trained on."""
        size = self.pretrained.get("input_size")
        return list(size[1:]) if isinstance(size, list | tuple) and len(size) == 3 else None

    @property
    def num_channels(self) -> int:
        size = self.pretrained.get("input_size")
        channels = self.args.get("in_chans") or (size[0] if isinstance(size, list | tuple) and size else 3)
        return int(channels)

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of config.json, with the sizes that timm uses by default."""
        return {"model_args": {**self.args, **self.sizes, "architecture": self.architecture}}

    @cached_property
    def few_layers(self) -> dict[str, Any]:
        """The arguments that leave few layers, but all tables; {} if the model takes no such arguments."""
        before = shapes_without_layers(self)
        for args in FEW_LAYERS:
            small = copy.deepcopy(self)
            small.args |= args
            with suppress(CheckpointError):
                if shapes_without_layers(small) == before:
                    return args
        return {}


def record_image_size(model: Any, size: tuple[int, int]) -> None:
    """Writes the size of a model's images where timm's transforms read it."""
    if "input_size" in model.pretrained_cfg:
        channels = model.pretrained_cfg["input_size"][0]
        model.pretrained_cfg = model.default_cfg = {**model.pretrained_cfg, "input_size": (channels, *size)}


def is_built_by_timm(module: nn.Module) -> bool:
    """Returns whether ``timm.create_model`` built a module, so that it can build it again."""
    settings = getattr(module, "pretrained_cfg", None)
    known = isinstance(settings, Mapping) and bool(settings.get("architecture")) and hasattr(module, "_model_args")
    return known and type(module).__module__.startswith("timm.")


class Timm(Source):
    library = "timm"
    kept = 2**20  # values of a table
    in_order = True

    def name_of(self, known: TimmConfig) -> str:
        return known.architecture

    def kind_of(self, known: TimmConfig) -> Any:
        return TimmConfig.create

    def load(self, folder: Path, known: TimmConfig) -> tuple[nn.Module, str, str, dict[str, list[str]]]:
        timm: Any = import_module("timm")
        model: Any = timm.create_model(f"local-dir:{folder}", pretrained=True)  # refuses weights that do not fit
        model.config = known
        return (
            model,
            f"timm's {known.architecture}",
            "timm.create_model('local-dir:' + {folder!r}, pretrained=True)",
            {},
        )

    def models_around(self, model: nn.Module, name: str) -> Iterator[str]:
        yield ""  # a model of timm is one whole

    def in_json(self, known: TimmConfig, name: str, value: Any) -> Any:
        return known.in_json(name, value)

    def roomy(self, known: TimmConfig, config: Config) -> Config:
        if "img_size" not in known.sizes:
            return config
        return {**config, "model_args": {**config.get("model_args", {}), "img_size": times(known.img_size, 2)}}

    def keep_sizes(self, rebuilt: TimmConfig, known: TimmConfig, fields: Mapping[ConfigField, Any]) -> None:
        if any(each.path[-1] == "patch_size" for each in fields):
            return  # its stride follows, and perhaps more
        rebuilt._known = known.sizes | {each.path[-1]: value for each, value in fields.items()}
        rebuilt.windows = known.windows

    def unsized_tables(self, known: TimmConfig, keys: Iterable[str]) -> dict[str, str]:
        found = [key for key in keys if TABLE.search(key)]
        if not found:
            return {}
        if reads_larger_images(known):
            return dict.fromkeys(found, SAME_ROWS)
        sides = " x ".join(map(str, pair(known.img_size) or ()))
        return dict.fromkeys(found, f"{IN_CODE}, and the model reads images of {sides} pixels alone")

    def why_no_table(self, model: nn.Module) -> str:
        names = [name for name, _ in model.named_parameters()]
        for pattern, words in NO_TABLE:
            if name := next((name for name in names if pattern.search(name)), ""):
                return f"this model has no table of positions: {words} ({name}), and no image size changes its shape"
        return "no image size changes the shape of a tensor of this model"

    def resized_windows(self, old_model: nn.Module, new_model: nn.Module, target: Target) -> Target:
        before, after = shapes_of(old_model), shapes_of(new_model)
        changes = tuple(
            change
            for change in target.changes
            if not target.of_window or before[change.table.parameter] != after[change.table.parameter]
        )
        if not changes:
            all_full = f"every window is as large as its map, so {target.field} changes none"
            raise CheckpointError(
                f"{target.table.key}: not resized: {all_full}. First set a larger img_size in config.json"
            )
        return replace(target, changes=changes)

    def said_of_loading(self, new: nn.Module, tables: Mapping[str, tuple[Tensor, Tensor]]) -> Iterator[str]:
        theirs = loaded_by_timm(new, {key: before for key, (before, _) in tables.items()})
        pairs = [(theirs[key].double(), after.double()) for key, (_, after) in tables.items() if key in theirs]
        if not pairs:
            return
        apart = max(float((own - ours).norm() / (own.norm() or 1)) for own, ours in pairs)
        some = (
            f"these {len(pairs)} tables" if len(pairs) == len(tables) else f"{len(pairs)} of these {len(tables)} tables"
        )
        all_of = "it" if len(tables) == 1 else some
        same = "the same values" if apart < ROUNDING else f"values that differ by up to {100 * apart:.2g}%"
        yield f"timm resizes {all_of} as well when it loads the old file into a model of the new size, to {same}."

    def cells_to_try(self, cells: int, *, of_grid: bool) -> tuple[Few, ...]:
        return (HALF, None) if cells > MOST_CELLS else (None,)

    def same_layers(self, models: Sequence[nn.Module]) -> None:
        configs: Any = [model.config for model in models]
        configs[1].few_layers = configs[0].few_layers

    def make_small(self, config: TimmConfig, *, narrow: bool, few_layers: bool = True) -> None:
        config.args |= config.few_layers if few_layers else {}


TimmConfig.source = Timm()


def shapes_without_layers(config: TimmConfig) -> list[set[tuple[str, Shape]]]:
    """Returns the names of a model's tensors, without layer numbers, and their shapes, for images of the model's size
    and of twice that size: at one size, a window and a whole image may be equal."""
    return [
        {(NUMBER.sub(".N", name), shape) for name, shape in shapes_of(each.source.build(each)).items()}
        for each in (config, config.twice())
    ]


def timm_config(config: Mapping[str, Any]) -> TimmConfig | None:
    """Returns the TimmConfig for a config.json of timm, or None if timm is not installed or does not know the model.

    Raises CheckpointError if timm is installed and cannot be imported.
    """
    architecture = config["architecture"]
    try:
        timm: Any = import_module("timm")
    except Exception:  # missing, or without the torchvision that it needs
        return None
    if not timm.is_model(architecture):
        return None
    args, trained = config.get("model_args"), config.get("pretrained_cfg", config)  # older files have one level
    trained = dict(trained) if isinstance(trained, Mapping) else {}
    trained |= {name: config[name] for name in ("num_classes",) if name in config}
    known = {each.name for each in fields(import_module("timm.models").PretrainedCfg)}
    trained = {name: value for name, value in trained.items() if name in known}
    return TimmConfig(architecture, args if isinstance(args, Mapping) else {}, trained)


def with_image_sizes(config: Any) -> Any:
    """Adds timm's default image size to the parts of a transformers config that timm builds and that state no image
    size, so that the size can be changed."""
    for part in configs_in(config):
        if part.model_type != "timm_wrapper" or "img_size" in (args := part.model_args or {}):
            continue
        inner = timm_config({"architecture": part.architecture, "model_args": args, "pretrained_cfg": {}})
        with suppress(CheckpointError):
            if inner is not None and "img_size" in inner.sizes:
                part.model_args = {**args, "img_size": inner.sizes["img_size"]}
    return config


def configs_in(config: Any) -> Iterator[Any]:
    from transformers import PretrainedConfig

    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from configs_in(value)


def found_sizes(config: TimmConfig, model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields the sizes that a model takes as arguments, with their present values."""
    shapes = shapes_of(model)
    for name in SIZES:
        candidates = values_of(model, name, config)
        if name in config.args and name != "window_sizes":
            candidates = [config.args[name]]
        for value in candidates:
            given = copy.deepcopy(config)
            given.args[name] = windows_of(model) if name == "window_sizes" else value
            try:
                if shapes_of(given.source.build(given)) == shapes:
                    yield name, value
                    break
            except CheckpointError as error:
                if isinstance(error.__cause__, TypeError):  # it takes no such argument
                    break


def values_of(model: Any, name: str, config: TimmConfig) -> list[Any]:
    """Returns the values that a size argument may have: from modules' attributes and, for images, from the configs."""
    if name == "window_sizes":
        return windows_of(model)[:1]
    held = [getattr(module, name, None) for module in model.modules()]
    default = model.default_cfg.get("input_size", (None,))
    held += [config.input_size, default[1:]] if name == "img_size" else []
    sides = [value for each in held if (value := pair(each if not isinstance(each, tuple) else list(each)))]
    return [list(value) if value[0] != value[1] else value[0] for value in dict.fromkeys(sides)]


def windows_of(model: nn.Module) -> list[int]:
    """Returns the side of the windows in each stage of a model, or [] if the windows are not squares."""
    stages = getattr(model, "stages", ())
    held = [next((m.window_size for m in stage.modules() if hasattr(m, "window_size")), 0) for stage in stages]
    first = next(filter(None, held), None)  # the first stage may have no windows, but takes an argument for them
    return [each or first for each in held] if first and all(type(each) is int for each in held) else []


def patches_of(model: nn.Module) -> dict[str, list[int]]:
    """Returns the size and the stride of the patches; {} unless one convolution without padding makes the patches."""
    embed = getattr(model, "patch_embed", None)
    layers = [layer for layer in embed.modules() if isinstance(layer, nn.Conv2d)] if embed is not None else []
    if len(layers) != 1 or any(map(bool, layers[0].padding)):
        return {}
    return {"patch_size": list(layers[0].kernel_size), "patch_stride": list(layers[0].stride)}


def reads_larger_images(config: TimmConfig) -> bool:
    """Returns whether the model runs on images of twice its size, judged by a run on the meta device (shapes only)."""
    larger, sides = config.twice(), pair(config.img_size) or (224, 224)
    try:
        with torch.no_grad(), torch.device("meta"):
            larger.source.build(larger).eval()(torch.empty(1, config.num_channels, *times(sides, 2)))
    except Exception:  # each model raises its own errors
        return False
    return True


def loaded_by_timm(model: nn.Module, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns old tables as timm itself resizes them when it loads their file into a model of another size.

    model: the new model, on the meta device. Returns {} if timm has no such code for the model.
    """
    load = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if load is None:
        return {}
    try:
        with torch.no_grad(), quiet():
            made = load({**model.state_dict(), **tables}, model)
    except Exception:  # it cannot load another size
        return {}
    shapes = shapes_of(model)
    return {key: made[key] for key in tables if key in made and tuple(made[key].shape) == shapes[key]}
