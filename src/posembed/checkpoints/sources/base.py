"""The base of the sources, which are the libraries that build models: how a model is built from its config.

Models are built on PyTorch's ``meta`` device, which needs no memory, and so have no values.
"""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from posembed.checkpoints.position_tables import Config, ConfigField, fields_in
from posembed.errors import CheckpointError
from posembed.words import last_line

if TYPE_CHECKING:
    from posembed.checkpoints.choose import Target

LAYERS = re.compile(r"layers?$|^(n|num)_.*blocks$|^depths?$")
# The limits for a config. The deepest published models have 1,000 layers of about 20 modules.
MOST_LAYERS, MOST_MODULES = 1_000, 25_000

Shape = tuple[int, ...]
Few = tuple[int, int] | None  # cells along an axis of two copies; None for the true sizes
HALF = (0, 0)  # half the true sizes


class Source:
    """Plain files: no installed library builds their model. This is also the base of the other sources.

    library: the name of the library. kept: parameters of at most this many values are on the device of the buffers.
    in_order: whether the models are known to read the differences of an oblong grid in order.
    has_rows: whether families.json has rows for the models.
    repeats_lengths: whether sections of a config repeat the length of a text, as they repeat the size of an image.
    """

    library = ""
    kept = 0
    in_order = has_rows = repeats_lengths = False

    def name_of(self, known: Any) -> str:
        return type(known).__name__

    def kind_of(self, known: Any) -> Any:
        """Returns the class or function that builds the model of a config object, or None."""

    def copy_of(self, model: nn.Module) -> Any:
        """Returns the class or function that builds a part of a model again, from another config object."""
        return self.kind_of(model.config)

    def in_json(self, known: Any, name: str, value: Any) -> Any:
        """Returns the value that states a size in config.json."""
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

    def base_prefix(self, model: nn.Module) -> str:
        """Returns the prefix that models with a head add for the base model."""
        return ""

    def loaded_names(self, model: nn.Module, keys: Iterable[str]) -> dict[str, str]:
        """Maps names of the built model's tensors to their keys in files, if the library renames them on loading."""
        return {}

    def keep_sizes(self, rebuilt: Any, known: Any, fields: Mapping[ConfigField, Any]) -> None:
        """Copies what was found out for the old config object, ``known``, to that of the new size, ``rebuilt``."""

    def resized_windows(self, old_model: nn.Module, new_model: nn.Module, target: Target) -> Target:
        """Returns a target without the window tables whose size the library does not change."""
        return target

    def said_of_loading(self, new: Any, tables: Mapping[str, Any]) -> Iterable[str]:
        """Returns sentences on how the library itself resizes tables when it loads a file. tables: each table before
        and after, by key. new: the new model, or the old config object if no model is built."""
        return ()

    def same_layers(self, models: Sequence[nn.Module]) -> None:
        """Makes the small copies of two models have the same layers."""

    def build(self, known: Any, *, buffers: bool = False) -> nn.Module:
        """Builds the model of a config object on the meta device. With ``buffers``, its buffers are on the CPU."""
        kind = self.kind_of(known)
        if kind is None:
            raise CheckpointError(f"config.json: {self.library} has no model for {type(known).__name__}")
        try:
            with quiet(), torch.device("cpu" if buffers else "meta"), sketched(self.kept if buffers else 0):
                model: nn.Module = kind(copy.deepcopy(known))
        except Exception as error:
            why = f"{self.library} cannot build {self.name_of(known)} from it ({last_line(error)})"
            raise CheckpointError(f"config.json: {why}") from error
        return model


class ConfigObject:
    """The base of config objects for libraries that have none. source: the Source of the library."""

    source: Source


def refuse_depth(config: Mapping[str, Any]) -> None:
    """Refuses too many layers. Called before a config object is built, because some build a list of all layers."""
    for path, value in fields_in(config):
        counts = value if isinstance(value, list) else [value]
        if LAYERS.search(path[-1]) and any(type(layers) is int and layers > MOST_LAYERS for layers in counts):
            raise CheckpointError(f"config.json: expected at most {MOST_LAYERS:,} layers; got {path[-1]}={value}")


@contextmanager
def sketched(kept: int = 0) -> Iterator[None]:
    """Moves every new parameter to the meta device, and stops the construction of a model with too many modules.

    kept: parameters of at most this many values are not moved.
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


def read_whole(kind: Any, folder: Path, **how: Any) -> tuple[Any, dict[str, Any]]:
    """Loads a folder with a class of transformers. Returns the model, and transformers' report of its keys.

    Raises ValueError if a weight has another shape than the config states. transformers' own error only refers to its
    log.
    """
    with quiet():
        model, report = kind.from_pretrained(
            folder, output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False, **how
        )
    for key, found, expected in sorted(report["mismatched_keys"]):
        raise ValueError(f"{key} is {tuple(found)} in its weights, and {tuple(expected)} by its config")
    return model, report


@contextmanager
def quiet() -> Iterator[None]:
    """Silences warnings of Python and transformers, and turns off transformers' cache of tensors. transformers caches
    some tensors by their sizes (BEiT's indices, DETR's sinusoids), for all models of a process. Tensors on the meta
    device have no values: if cached, they would make a user's model compute garbage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "transformers" not in sys.modules:
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
            yield
        finally:
            pytorch_utils.is_torchdynamo_compiling = compiling
            logging.set_verbosity(verbosity)
            if shows_bars:
                logging.enable_progress_bar()


def takes_text(model: nn.Module) -> bool:
    return "input_ids" in signature(model.forward).parameters


def shapes_of(model: nn.Module) -> dict[str, Shape]:
    return {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
