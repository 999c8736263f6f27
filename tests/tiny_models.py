"""Tiny random models of many families, as transformers writes them: small enough that a test of all is quick."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
}
PAIR = {
    "vocab_size": 60,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 40,
}
GPT = {"vocab_size": 60, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 40}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 32,
    "patch_size": 8,
}
WHISPER = {**PAIR, "max_source_positions": 30, "max_target_positions": 40, "pad_token_id": 1}


def tiny_model(family: str, settings: dict[str, Any]) -> nn.Module:
    """A base model of ``family`` with random weights, in evaluation mode. Its tables are far from zero."""
    from transformers import CONFIG_MAPPING, MODEL_MAPPING, __version__

    if family not in CONFIG_MAPPING:
        pytest.skip(f"transformers {__version__} has no {family}")
    torch.manual_seed(0)
    settings = {key: value for key, value in settings.items() if key not in ("model_type",)}
    if family == "whisper":
        settings.pop("max_position_embeddings", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = CONFIG_MAPPING[family](**settings)
        kind = MODEL_MAPPING[type(config)]
        model = (kind[0] if isinstance(kind, tuple) else kind)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pos" in name and parameter.requires_grad and not is_sinusoid(parameter):
                parameter.normal_()  # many are initialised to zeros, which no test could tell apart
    return model


def loud_model(kind: str, config: Any) -> Any:
    """Builds a model with loud random weights, so that every row of a table changes an answer."""
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def is_sinusoid(parameter: nn.Parameter) -> bool:
    norms = parameter.detach().reshape(-1, parameter.shape[-1]).norm(dim=-1)
    norms = norms[norms > 0]
    return len(norms) > 0 and bool((norms / (parameter.shape[-1] / 2) ** 0.5 - 1).abs().max() < 1e-3)


def saved(model: nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def reloaded(model: nn.Module, folder: Path) -> nn.Module:
    """The checkpoint in ``folder`` as the same class; every key must be there, and of the right shape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new, report = type(model).from_pretrained(folder, output_loading_info=True)
    assert {kind: keys for kind, keys in report.items() if keys} == {}
    return new.eval()


def text_inputs(model: nn.Module, length: int) -> dict[str, torch.Tensor]:
    """What a text model of this kind wants for ``length`` tokens."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(5, 50, (1, length), generator=generator)
    kind = model.config.model_type
    inputs = {"input_ids": ids}
    if kind == "whisper":
        frames = 2 * model.config.max_source_positions
        inputs = {"input_features": torch.zeros(1, model.config.num_mel_bins, frames)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    if kind == "lxmert":
        inputs |= {"visual_feats": torch.ones(1, 3, 2048), "visual_pos": torch.ones(1, 3, 4)}
    if kind in ("layoutlm", "layoutlmv3", "lilt"):
        inputs["bbox"] = torch.zeros(1, length, 4, dtype=torch.long)
    return inputs


def first_output(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers 4 warns of its own calls
        return model(**inputs)[0]
