"""One short Transformer decoder that takes any PositionEncoding: pre-norm, GELU, tied head. Its blocks also serve
the encoder (encoder.py)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.lab.model.attention import (
    Bias,
    FlexBias,
    attend,
    attend_both_ways,
    bias_of,
    dense_bias_of,
    scale_by_log_length,
)
from posembed.layers.base import PositionEncoding


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float, *, causal: bool = True) -> None:
        super().__init__()
        if dim % heads:
            raise ArgumentError(
                f"width {dim} is not divisible by {heads} heads; try a width of {heads * max(dim // heads, 1)}"
            )
        self.heads = heads
        self.causal = causal
        self.queries_keys_values = nn.Linear(dim, 3 * dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def project_queries_keys(self, rows: Tensor) -> Tensor:
        """(N, D) -> (N, 2 D): W_q and W_k side by side."""
        return F.linear(rows, self.queries_keys_values.weight[: 2 * rows.size(-1)])

    def heads_of(
        self, x: Tensor, encoding: PositionEncoding, position_ids: Tensor, text_length: int | Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, L, D) -> queries and keys as the encoding makes them, and values, each (B, H, L, D/H)."""
        B, L, D = x.shape
        q, k, v = self.queries_keys_values(x).split(D, dim=-1)
        added = encoding.before_queries_keys(self.project_queries_keys, position_ids)
        if added is not None:
            q, k = q + added[..., :D], k + added[..., D:]
        q, k, v = (t.view(B, L, self.heads, D // self.heads).transpose(1, 2) for t in (q, k, v))
        q, k = encoding.at_queries_keys(q, k, position_ids, position_ids, text_length=text_length)
        if encoding.log_length is not None:
            q = scale_by_log_length(q, encoding.log_length, encoding.window)
        return q, k, v

    def forward(
        self,
        x: Tensor,
        encoding: PositionEncoding,
        position_ids: Tensor,
        bias: Bias | None,
        text_length: int | Tensor | None = None,
    ) -> Tensor:
        q, k, v = self.heads_of(x, encoding, position_ids, text_length)
        bias = self.bias_here(encoding, position_ids, bias)
        return self.dropout(self.output(self.attend(q, k, v, bias, encoding.window).transpose(1, 2).flatten(2)))

    def bias_here(self, encoding: PositionEncoding, position_ids: Tensor, of_all: Bias | None) -> Bias | None:
        """The bias of all layers, or what the encoding makes of this layer's own weights."""
        here = encoding.in_layer(self.project_queries_keys)
        if here is encoding:
            return of_all
        width = self.queries_keys_values.in_features // self.heads
        return bias_of(here, position_ids, head_dim=width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Bias | None, window: int | None) -> Tensor:
        if self.causal:
            return attend(q, k, v, bias=bias, window=window)
        assert not isinstance(bias, FlexBias)
        return attend_both_ways(q, k, v, bias=bias)

    def weights(
        self,
        x: Tensor,
        encoding: PositionEncoding,
        position_ids: Tensor,
        bias: Bias | None,
        text_length: int | Tensor | None = None,
    ) -> Tensor:
        """What ``forward`` weighs the values by, (B, H, L, L): row i is token i's, over all tokens."""
        q, k, _ = self.heads_of(x, encoding, position_ids, text_length)
        bias = self.bias_here(encoding, position_ids, bias)
        if isinstance(bias, FlexBias):  # whose kernels take no values as wide as the text is long
            bias = dense_bias_of(encoding.in_layer(self.project_queries_keys), position_ids)
        # Attention to values that are the columns of the identity is the weights: the same code, all it applies.
        identity = torch.eye(x.size(1), dtype=q.dtype, device=q.device).expand(*q.shape[:2], -1, -1)
        return self.attend(q, k, identity, bias, encoding.window)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float, *, causal: bool = True) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, dropout, causal=causal)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(
        self,
        x: Tensor,
        encoding: PositionEncoding,
        position_ids: Tensor,
        bias: Bias | None,
        text_length: int | Tensor | None = None,
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), encoding, position_ids, bias, text_length)
        return x + self.mlp(self.mlp_norm(x))


class PositionedModel(nn.Module):
    """A model whose positions are an encoding's."""

    encoding: PositionEncoding


class Decoder(PositionedModel):
    """Token ids (B, L) -> logits (B, L, V). The encoding is called at its three places, its window applied.

    Args:
        vocabulary: V.
        dim: width D, a multiple of heads.
        layers, heads: how many.
        encoding: one for the whole model, shared by its layers.
        dropout: after each sublayer.
    """

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        *,
        layers: int,
        heads: int,
        encoding: PositionEncoding,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.head_dim = dim // heads
        self.tokens = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        initialise(self, layers)
        self.encoding = encoding  # after the others are drawn: it brings its own initial values

    def forward(self, ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """position_ids (L,) or (B, L); None: 0 .. L - 1."""
        if position_ids is None:
            position_ids = torch.arange(ids.size(1), device=ids.device)
        x = self.encoding.at_input(self.tokens(ids), position_ids)
        bias = bias_of(self.encoding, position_ids, head_dim=self.head_dim)
        for block in self.blocks:  # each row is a whole text
            x = block(x, self.encoding, position_ids, bias, ids.size(1))
        return F.linear(self.norm(x), self.tokens.weight)


def initialise(model: nn.Module, layers: int) -> None:
    """GPT-2's start: N(0, .02), and less for what the 2 n sublayers add to the residual stream."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    for name, weight in model.named_parameters():
        if name.endswith(("output.weight", "mlp.2.weight")):
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers))
