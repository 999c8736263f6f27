"""Encoders and decoders of two layers with any encoding, far from their small start, so that attention is not even."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from posembed import PositionEncoding
from posembed.nn import Decoder, Encoder, Sizes, encoding_by_name

DIM, LENGTH = 16, 16
Model = TypeVar("Model", bound=nn.Module)


def scrambled(model: Model) -> Model:
    """In float64, in eval mode, and with other weights."""
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.double().eval()


def encoding_of(name: str, *, heads: int = 4, kv_heads: int | None = None) -> PositionEncoding:
    """An encoding by its name, which may begin with "encoder "."""
    causal, factors = not name.startswith("encoder "), tuple(2.0**i for i in range(DIM // heads // 2))
    sizes = Sizes(dim=DIM, heads=heads, kv_heads=kv_heads, max_len=LENGTH, longest=40, window=5, causal=causal,
                  rope_factors=factors)  # fmt: skip
    return encoding_by_name(name.split()[-1], sizes)


def model_of(name: str, *, heads: int = 4, kv_heads: int | None = None, layers: int = 2, **options: Any) -> Any:
    """A decoder with this encoding, or an encoder."""
    kind: Callable[..., Encoder | Decoder] = Encoder if name.startswith("encoder ") else Decoder
    encoding = encoding_of(name, heads=heads, kv_heads=kv_heads)
    return scrambled(kind(dim=DIM, heads=heads, kv_heads=kv_heads, layers=layers, encoding=encoding, **options))


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, DIM, dtype=torch.float64)
