"""Models of timm, built from the config.json that timm writes: architecture, model_args, pretrained_cfg.

timm has no config objects. A ``TimmConfig`` stands for one: it has the sizes that ``timm.create_model`` takes, under the
names that it takes them by, and builds the model, which keeps it as ``model.config``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from posembed.checkpoints.found import pair
from posembed.checkpoints.rebuild import Shape, build_on_meta, shapes_of
from posembed.errors import CheckpointError

SIZES = ("img_size", "window_size")  # arguments of timm's models
FEW_LAYERS = 2
SAVED = ("num_classes", "global_pool")  # settings that timm reads from the top of config.json


class TimmConfig:
    """The arguments of ``timm.create_model`` for a model.

    architecture: the name of the model. args: its keyword arguments. pretrained: what timm calls pretrained_cfg.
    """

    def __init__(self, architecture: str, args: Mapping[str, Any], pretrained: Mapping[str, Any]) -> None:
        self.architecture, self.args, self.pretrained = architecture, dict(args), dict(pretrained)
        self._known: dict[str, Any] | None = None

    @staticmethod
    def create(config: TimmConfig) -> nn.Module:
        """Builds the model."""
        timm: Any = import_module("timm")
        size = config.pretrained
        model: Any = timm.create_model(config.architecture, pretrained=False, pretrained_cfg=dict(size), **config.args)
        model.config = config
        return model

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes that the model takes as arguments, with their values, and those of its patches."""
        if self._known is None:
            model = build_on_meta(self)
            self._known = patches_of(model) | dict(found_sizes(self, model))
        return self._known

    @property
    def img_size(self) -> Any:
        return self.sizes.get("img_size", self.input_size)

    @img_size.setter
    def img_size(self, value: Any) -> None:
        self._set("img_size", value)

    @property
    def window_size(self) -> Any:
        return self.sizes.get("window_size")

    @window_size.setter
    def window_size(self, value: Any) -> None:
        self._set("window_size", value)

    def _set(self, name: str, value: Any) -> None:
        self._known = {**self.sizes, name: value}
        self.args[name] = value

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
        """Returns the content of config.json, with the sizes that timm takes by default."""
        return {"model_args": {**self.args, **self.sizes, "architecture": self.architecture}}

    def make_small(self) -> None:
        """Leaves few layers, if the architecture takes their number as an argument and keeps its tables."""
        before = {length(name) for name in shapes_of(build_on_meta(self))}
        for args in ({"depth": FEW_LAYERS}, *({"depths": (1,) * stages} for stages in (3, 4, 5))):
            small = copy.deepcopy(self)
            small.args |= args
            with suppress(CheckpointError):
                if {length(name) for name in shapes_of(build_on_meta(small))} == before:
                    self.args |= args
                    return


def length(name: str) -> str:
    """Returns the name of a tensor without the number of its layer."""
    return ".".join("N" if part.isdigit() else part for part in name.split("."))


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
    trained, args = config.get("pretrained_cfg"), config.get("model_args")
    trained = dict(trained) if isinstance(trained, Mapping) else {}
    trained |= {name: config[name] for name in SAVED if name in config}
    return TimmConfig(architecture, args if isinstance(args, Mapping) else {}, trained)


def is_of_timm(module: nn.Module) -> bool:
    """Returns whether ``timm.create_model`` built the module."""
    timm = sys.modules.get("timm")  # already imported if the module is one of its models
    return (
        timm is not None
        and type(module).__module__.startswith("timm.")
        and isinstance(getattr(module, "pretrained_cfg", None), Mapping)
        and bool(module.pretrained_cfg.get("architecture"))  # type: ignore[union-attr, operator]
    )


def found_sizes(config: TimmConfig, model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields the sizes that a model takes as arguments, with the values that it has without them."""
    shapes = shapes_of(model)
    for name in SIZES:
        candidates = [config.args[name]] if name in config.args else values_of(model, name, config)
        for value in candidates:
            given = copy.deepcopy(config)
            given.args[name] = value
            try:
                if shapes_of(build_on_meta(given)) == shapes:
                    yield name, value
                    break
            except CheckpointError as error:
                if isinstance(error.__cause__, TypeError):  # it takes no such argument
                    break


def values_of(model: nn.Module, name: str, config: TimmConfig) -> list[Any]:
    """Returns the values that an argument of a model may have: those of its modules' attributes, the first one first."""
    held = [getattr(module, name, None) for module in model.modules()]
    default = getattr(model, "default_cfg", {}).get("input_size", (None,))
    held += [config.input_size, default[1:]] if name == "img_size" else []
    sides = [value for each in held if (value := pair(each if not isinstance(each, tuple) else list(each)))]
    return [list(value) if value[0] != value[1] else value[0] for value in dict.fromkeys(sides)]


def patches_of(model: nn.Module) -> dict[str, list[int]]:
    """Returns the size and the stride of the patches that an image is cut into; {} if they reach beyond the image."""
    embed = getattr(model, "patch_embed", None)
    layers = [layer for layer in embed.modules() if isinstance(layer, nn.Conv2d)] if embed is not None else []
    if len(layers) != 1 or any(map(bool, layers[0].padding)):
        return {}
    return {"patch_size": list(layers[0].kernel_size), "patch_stride": list(layers[0].stride)}


def loaded_by_timm(model: nn.Module, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns what timm itself makes of old tables when it loads their file into a model of another size.

    model: the new model, on the meta device. Returns {} if timm has no such code for the model.
    """
    load = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    if load is None:
        return {}
    try:
        with torch.no_grad():
            made = load({**model.state_dict(), **tables}, model)
    except Exception:  # it cannot load another size
        return {}
    shapes = shapes_of(model)
    return {key: made[key] for key in tables if key in made and tuple(made[key].shape) == shapes[key]}
