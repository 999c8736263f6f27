"""Which library builds the model of a config.json: transformers, timm, or none that is installed (plain files).

``source_of`` returns the library's Source. It knows how the library builds a model, how config.json states a size,
which fields follow from a size, and how to make a small copy of a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from torch import nn

from posembed.checkpoints.sources.base import ConfigObject, Source, refuse_depth
from posembed.checkpoints.sources.hugging_face import Transformers, config_of
from posembed.checkpoints.sources.timm import timm_config, with_image_sizes
from posembed.versions import check_version


def source_of(known: Any) -> Any:
    """Returns the Source of a config object: the library that builds its model. None stands for plain files."""
    return Source() if known is None else known.source if isinstance(known, ConfigObject) else Transformers()


def config_object(config: Mapping[str, Any]) -> Any:
    """Returns the config object of transformers or timm for a config.json, or None if neither can be used.

    A library cannot be used if it is not installed or does not know the model. Code that comes with a model is never
    run. Raises CheckpointError for values that transformers rejects.
    """
    model_type = config.get("model_type")
    if isinstance(config.get("architecture"), str) and model_type is None:
        refuse_depth(config)
        return timm_config(config)
    if not isinstance(model_type, str) or find_spec("transformers") is None:
        return None
    check_version("transformers")
    from transformers import CONFIG_MAPPING

    return with_image_sizes(config_of(config)) if model_type in CONFIG_MAPPING else None


def build_on_meta(config: Any, *, buffers: bool = False) -> nn.Module:
    """Builds the model of a config object on the meta device. With ``buffers``, its buffers are on the CPU."""
    model: nn.Module = source_of(config).build(config, buffers=buffers)
    return model


def models_around(model: nn.Module, name: str) -> Iterator[str]:
    """Yields the paths of the models inside ``model`` that hold the parameter ``name``, smallest first."""
    return source_of(model.config).models_around(model, name)
