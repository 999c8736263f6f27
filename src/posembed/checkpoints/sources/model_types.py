"""Finds the type of a model whose config.json does not state it, as in files of 2019."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from posembed.calls import unknown
from posembed.checkpoints.position_tables import Config
from posembed.checkpoints.sources.hugging_face import class_named, is_model
from posembed.errors import ArgumentError
from posembed.modelfiles.checkpoint import Checkpoint, open_checkpoint


def open_model(source: str | Path, model_type: str | None = None) -> Checkpoint:
    """Opens a checkpoint as ``open_checkpoint`` does. Finds the model's type if config.json does not state it (2019).

    model_type: the type. Default: the type of the class that ``architectures`` names, or the only known type with which
    keys begin (``bert.embeddings...``). Raises ArgumentError if transformers has no such type, or if the files show
    another.
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
        named = class_named(config.get("architectures"))
        if named is not None and model_type != (shown := named.config_class.model_type):
            raise ArgumentError(
                f"--model-type {model_type}: architectures in {checkpoint.config_name} names {named.__name__}, of the "
                f"type {shown}; leave out --model-type, or correct architectures"
            )
        kind = MODEL_MAPPING.get(CONFIG_MAPPING[model_type], None)
        own = kind.base_model_prefix if is_model(kind) else ""
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
    """Returns whether a config names its model, for transformers, timm, open_clip or diffusers."""
    return any(config.get(name) is not None for name in ("model_type", "architecture", "model_cfg", "_class_name"))


def type_shown(config: Config, keys: Iterable[str]) -> str | None:
    """Returns the type of the class that config.json names, or else the only known type with which keys begin."""
    from transformers import CONFIG_MAPPING

    if (kind := class_named(config.get("architectures"))) is not None:
        return str(kind.config_class.model_type)
    begins = {key.partition(".")[0] for key in keys}.intersection(CONFIG_MAPPING)
    return begins.pop() if len(begins) == 1 else None
