"""Pre-norm Transformer layers and stacks that take any PositionEncoding: LayerNorm, attention, an MLP with GELU."""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding
from posembed.nn.attention import Attention, Positioned
from posembed.nn.positions import Positions


class _Layer(Positioned):
    SEES_THE_FUTURE: ClassVar[bool]

    def __init__(
        self,
        *,
        dim: int,
        heads: int,
        encoding: PositionEncoding | str | None = None,
        max_len: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        causal = not self.SEES_THE_FUTURE
        super().__init__(dim=dim, heads=heads, encoding=encoding, max_len=max_len, causal=causal, dropout=dropout)
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim=dim, heads=heads, causal=causal, dropout=dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def read(self, x: Tensor, positions: Positions) -> Tensor:
        x = x + self.attention(self.attention_norm(x), positions=positions)
        return x + self.mlp(self.mlp_norm(x))


class EncoderLayer(_Layer):
    """x + attention(norm(x)), then x + mlp(norm(x)), 4 D wide, each token seeing all. Arguments as in ``Attention``."""

    SEES_THE_FUTURE = True


class DecoderLayer(_Layer):
    """The layer of ``EncoderLayer`` with causal attention: token i sees the tokens up to i."""

    SEES_THE_FUTURE = False


class _Stack(Positioned):
    LAYER: ClassVar[type[_Layer]]

    def __init__(
        self,
        *,
        dim: int,
        heads: int,
        layers: int,
        encoding: PositionEncoding | str | None = None,
        max_len: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        causal = not self.LAYER.SEES_THE_FUTURE
        super().__init__(dim=dim, heads=heads, encoding=encoding, max_len=max_len, causal=causal, dropout=dropout)
        if layers < 1:
            raise ArgumentError(f"layers must be at least 1; got {layers}")
        self.layers = nn.ModuleList(self.LAYER(dim=dim, heads=heads, dropout=dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def read(self, x: Tensor, positions: Positions) -> Tensor:
        positions.share_bias(self.dim // self.heads)
        for layer in self.layers:
            x = layer(x, positions=positions)
        return self.norm(x)


class Encoder(_Stack):
    """``layers`` EncoderLayers that share one encoding, and a LayerNorm after the last. Called as an ``Attention``.

    It reads embedded tokens or patches (B, L, D) and returns (B, L, D); embeddings and heads are the model's own.
    """

    LAYER = EncoderLayer


class Decoder(_Stack):
    """``layers`` DecoderLayers that share one encoding, and a LayerNorm after the last. Called as an ``Attention``.

    With a cache (``new_cache``), token by token gives what the whole text gives, unless the length of the text decides
    how positions are read (RoPE with a scaling, stretched tables): then give the final ``text_length`` at every step.
    """

    LAYER = DecoderLayer


def gpt2_init_(model: nn.Module) -> None:
    """Draws the weights of a model's linear layers and embeddings as GPT-2 does, and sets its biases to 0.

    All are N(0, .02); the 2 n matrices that add to the residual stream of n layers are N(0, .02 / sqrt(2 n)).
    The parameters of encodings stay.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    layers = [module for module in model.modules() if isinstance(module, _Layer)]
    for layer in layers:
        for name in ("attention.output.weight", "mlp.2.weight"):
            nn.init.normal_(layer.get_parameter(name), std=0.02 / math.sqrt(2 * len(layers)))
