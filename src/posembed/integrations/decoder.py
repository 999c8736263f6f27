"""A transformers decoder, given by a config or a complete checkpoint, that can be built with any encoding."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posembed.checkpoints.sources.base import quiet, read_whole
from posembed.checkpoints.sources.configs import config_object
from posembed.errors import ArgumentError, CheckpointError
from posembed.files import json_object
from posembed.integrations.attention import NAME
from posembed.integrations.install import layers_and_heads, own_rows
from posembed.integrations.transformers import replace_positions
from posembed.layers.base import PositionEncoding
from posembed.layers.none import NoPosition
from posembed.versions import names_versions
from posembed.words import last_line

with names_versions("transformers"):
    from transformers import AutoModelForCausalLM, PreTrainedModel
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
NOT_LOADED = ("*.index.json", "*.safetensors", "*.h5", "*.msgpack", "*.gguf", "pytorch_model_fsdp*")
"""Weights in other formats, or an index whose weights are missing."""
DROPOUT = ("resid_pdrop", "resid_dropout", "hidden_dropout_prob", "dropout")
"""The names in configs for the dropout after a sublayer."""


@dataclass(frozen=True, eq=False)
class GivenDecoder:
    """A decoder that a user gives as files. It can be pickled, including its weights.

    config: its transformers config. weights: its state dict, float32; None for a config alone. rows: the rows (N, D) of
    its position table in these weights, from position 0 on. sha256: a hash of config.json and the weights.
    """

    path: Path
    config: Any
    weights: Mapping[str, Tensor] | None
    rows: Tensor | None
    sha256: str

    @cached_property
    def trial(self) -> PreTrainedModel:
        """The model without position, for trying encodings."""
        return self.build(NoPosition())

    def build(self, encoding: PositionEncoding) -> PreTrainedModel:
        """Returns the model, float32, with an encoding in place of its table.

        If no weights are given, torch's default generator draws them, in the same way for every encoding.

        Raises:
            ArgumentError: ``replace_positions`` refuses the model, or the encoding does not fit.
            CheckpointError: transformers cannot build a model from the config.
        """
        try:
            with quiet():
                model = AutoModelForCausalLM.from_config(copy.deepcopy(self.config), dtype=torch.float32)
        except Exception as error:  # each family has errors of its own
            raise CheckpointError(f"{self.path}: transformers cannot build its model ({last_line(error)})") from error
        if self.weights is not None:
            model.load_state_dict(self.weights)
        return replace_positions(model, encoding)

    @property
    def sizes(self) -> dict[str, Any]:
        """The ``layers``, ``width``, ``heads`` and ``dropout`` in its config."""
        layers, heads = layers_and_heads(self.config, causal=True)
        dropout = float(next((getattr(self.config, n) for n in DROPOUT if hasattr(self.config, n)), 0.0))
        return {"layers": layers, "width": self.config.hidden_size, "heads": heads, "dropout": dropout}

    @property
    def end(self) -> int | None:
        """The id of its end-of-text token; None if its config names no such token in the vocabulary."""
        end = getattr(self.config, "eos_token_id", None)
        end = end[0] if isinstance(end, list) and end else end
        return end if isinstance(end, int) and 0 <= end < self.config.vocab_size else None


def has_weights(path: Path) -> bool:
    return any(file for pattern in WEIGHTS for file in path.glob(pattern))


def open_decoder(path: Path) -> GivenDecoder:
    """Reads a config.json, or a folder with a config.json and, optionally, its weights.

    Raises:
        ArgumentError: the path has no config.json, or the model is not a text decoder whose positions
            ``replace_positions`` can replace.
        CheckpointError: files cannot be read, or weights are incomplete or not in transformers' files.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        wanted = "a config.json of transformers or a folder that holds one"
        raise ArgumentError(f"{path}: expected {wanted}, but there is no file {file}; save the model's config there")
    try:
        settings = json_object(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}; restore it") from error
    if NAME in settings:
        raise ArgumentError(
            f"{path} was saved after replace_positions, so it has no position table of its own; give the original model"
        )
    config = config_object(settings)
    if config is None or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = f"model_type {settings.get('model_type')!r}"
        raise ArgumentError(
            f"{file}: transformers has no language model (AutoModelForCausalLM) for {kind}; give a decoder of text, "
            "such as a GPT-2, GPT-Neo or OPT"
        )
    config._attn_implementation = None  # the one that the config names is replaced
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    weights = rows = None
    if has_weights(path):
        model = _loaded(path)
        weights, rows = model.state_dict(), own_rows(model)
        for name, tensor in sorted(weights.items()):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy())
    elif found := sorted(other.name for pattern in NOT_LOADED for other in path.glob(pattern)):
        raise CheckpointError(
            f"{path} holds {', '.join(found[:3])}; expected weights as model.safetensors or pytorch_model.bin. Save "
            f"the model with save_pretrained, or give {file} to start from random weights"
        )
    decoder = GivenDecoder(path, config, weights, rows, digest.hexdigest())
    if not getattr(decoder.trial.config, NAME)["causal"]:
        raise ArgumentError(
            f"{path} is an encoder: its tokens see the tokens after them, which a language model must predict; give a "
            "decoder of text, such as a GPT-2, GPT-Neo or OPT"
        )
    return decoder


def _loaded(path: Path) -> PreTrainedModel:
    try:
        model, report = read_whole(AutoModelForCausalLM, path, dtype=torch.float32, local_files_only=True)
    except Exception as error:  # each family raises its own errors
        raise CheckpointError(f"{path}: transformers cannot load it ({last_line(error)})") from error
    if missing := sorted(report["missing_keys"]):
        raise CheckpointError(
            f"{path}: its weights lack {', '.join(missing[:3])}, which would be random; give a checkpoint with all of "
            "them, or its config.json alone to train from scratch"
        )
    return model
