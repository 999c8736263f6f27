"""Tiny models of transformers, for the tests of what replaces their position table."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from posembed import LearnedPositionalEmbedding
from posembed.checkpoints.find import find_tables
from posembed.tables import TableLayout

CACHE = next(name for name in ("cache", "past_key_values") if name in signature(hf.GPT2LMHeadModel.forward).parameters)
"""The name that this version of transformers gives to a cache."""
RECOMPUTING = "activation" if hasattr(hf.PreTrainedModel, "activation_checkpointing_enable") else "gradient"
"""What this version calls the checkpointing of activations; 5.23 renamed it."""
VOCABULARY, LENGTH, LAYERS = 50, 32, 2
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": LENGTH, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
IMAGE: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": LAYERS, "num_attention_heads": 2, "intermediate_size": 32,
    "image_size": 16, "patch_size": 4,
}  # fmt: skip
GPT2 = {**TEXT, "initializer_range": 0.3}
MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "gpt2": (hf.GPT2LMHeadModel, GPT2),
    "gpt_neo": (
        hf.GPTNeoForCausalLM,
        {**GPT2, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    ),
    "opt": (hf.OPTForCausalLM, {**TEXT, "ffn_dim": 32, "word_embed_proj_dim": 8, "init_std": 0.3}),
    "biogpt": (hf.BioGptForCausalLM, {**GPT2}),
    "bert": (hf.BertForMaskedLM, {**GPT2}),
    "roberta": (hf.RobertaForMaskedLM, {**GPT2, "max_position_embeddings": LENGTH + 1}),
    "distilbert": (hf.DistilBertForMaskedLM, {**GPT2, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}),
    "electra": (hf.ElectraForMaskedLM, {**GPT2, "embedding_size": 8}),
    "albert": (hf.AlbertForMaskedLM, {**GPT2, "embedding_size": 8}),
    "clip_text": (hf.CLIPTextModel, {**GPT2}),
    "vit": (hf.ViTForImageClassification, IMAGE),
    "deit": (hf.DeiTForImageClassification, IMAGE),
    "clip_vision": (hf.CLIPVisionModel, IMAGE),
    "siglip_vision": (hf.SiglipVisionModel, IMAGE),
    "dinov2_registers": (hf.Dinov2WithRegistersModel, IMAGE),
}
BUILT_ALIKE = ("biogpt", "roberta", "electra", "deit", "clip_vision")
"""Models that are built like another one: with --whole alone, where every model takes long."""
DECODERS = ("gpt2", "gpt_neo", "opt", "biogpt")
ENCODERS = ("bert", "roberta", "distilbert", "electra", "albert")
IMAGES = ("vit", "deit", "clip_vision", "siglip_vision", "dinov2_registers")


def tiny(name: str, **changes: Any) -> Any:
    """Returns a model with random weights, large enough that every position tells, in eval mode."""
    kind, settings = MODELS[name]
    settings = {key: value for key, value in settings.items() if key not in ("num_layers", "num_heads")} | changes
    if name == "gpt_neo":
        settings = {key: value for key, value in settings.items() if not key.startswith("num_")}
        settings |= {"num_layers": LAYERS, "num_heads": 2}
    torch.manual_seed(0)
    return kind(kind.config_class(**settings)).eval()


def inputs(name: str, *, batch: int = 2, length: int = 9, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    if name in IMAGES:
        return {"pixel_values": torch.randn(batch, 3, 16, 16)}
    return {"input_ids": torch.randint(5, VOCABULARY, (batch, length))}


def same_table(model: nn.Module) -> LearnedPositionalEmbedding:
    """Returns a layer with the rows of a model's own table."""
    tensors = {key: tensor.detach() for key, tensor in model.state_dict().items()}
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}  # type: ignore[union-attr,operator]
    (table,) = find_tables(config, tensors).understood
    layout = TableLayout(reserved=table.layout.reserved, pad_row=table.layout.pad_row)
    rows = table.values(tensors).clone()
    return LearnedPositionalEmbedding(
        max_len=table.length + table.layout.prefix, dim=table.width, init=rows, layout=layout, dropout=0
    )
