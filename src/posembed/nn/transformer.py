"""Transformer layers and stacks that take any PositionEncoding: attention and a feed-forward network, each with a norm.

Norms are LayerNorms, before each part ("pre", GPT-2) or after its sum with the input ("post", Vaswani et al. 2017).
The feed-forward network has a GELU, or is a SwiGLU (Shazeer 2020, arXiv:2002.05202, equation 6).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from posembed.arguments import Float, checks_arguments
from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding
from posembed.nn.attention import Attention, Linear, Positioned, require_fitting
from posembed.nn.encodings import Sizes, encoding_by_name
from posembed.nn.memory import CrossAttention, Memory, require_acting
from posembed.nn.positions import Positions
from posembed.settings import Count, Probability
from posembed.torch_internals import transforms_are_active

Norm = Literal["pre", "post"]
FeedForward = Literal["gelu", "swiglu"]


class SwiGLU(nn.Module):
    """Multiplies the second half of x by the SiLU of the first: (..., 2 N) -> (..., N)."""

    def forward(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


def feed_forward_network(kind: FeedForward, dim: int, hidden: int | None, dropout: float) -> nn.Sequential:
    """Builds a feed-forward network D -> hidden -> D.

    A ``hidden`` of None means 4 D for "gelu" and 8/3 D for "swiglu", which give about the same number of weights. A
    SwiGLU has no biases, and its default width is rounded up to a multiple of 8.
    """
    if kind == "gelu":
        hidden = 4 * dim if hidden is None else hidden
        return nn.Sequential(Linear(dim, hidden), nn.GELU(), Linear(hidden, dim), nn.Dropout(dropout))
    hidden = 8 * math.ceil(dim / 3) if hidden is None else hidden
    into, out_of = Linear(dim, 2 * hidden, bias=False), Linear(hidden, dim, bias=False)
    return nn.Sequential(into, SwiGLU(), out_of, nn.Dropout(dropout))


class _AttendingToMemory(Positioned):
    """A layer or stack that attends to a memory if it is built with ``cross_attention=True``."""

    cross_encoding: PositionEncoding | None

    def _add_cross_attention(self, wanted: bool, encoding: PositionEncoding | str | None) -> None:
        self.attends_to_memory = wanted
        if encoding is None:
            self.cross_encoding = None
            return
        if not wanted:
            raise ArgumentError("cross_encoding is for cross-attention; pass cross_attention=True too, or leave it out")
        if isinstance(encoding, str):
            sizes = Sizes(dim=self.dim, heads=self.heads, kv_heads=self.kv_heads, causal=False)
            encoding = encoding_by_name(encoding, sizes)
        require_fitting(encoding, self.dim, self.heads, kv_heads=self.kv_heads, causal=False)
        require_acting(encoding)
        self.cross_encoding = encoding

    def memory_of(self, memory: Tensor | None, mask: Tensor | None) -> Memory | None:
        if not self.attends_to_memory:
            return super().memory_of(memory, mask)
        if memory is None and mask is not None:
            raise ArgumentError("memory_mask belongs to a memory; pass memory=(B, S, D) too, or leave the mask out")
        return None if memory is None else Memory(memory, mask=mask, encoding=self.cross_encoding)


class _Layer(_AttendingToMemory):
    SEES_THE_FUTURE: ClassVar[bool]

    def __init__(
        self,
        *,
        dim: Count,
        heads: Count,
        kv_heads: Count | None = None,
        encoding: PositionEncoding | str | None = None,
        max_len: Count | None = None,
        norm: Norm = "pre",
        feed_forward: FeedForward = "gelu",
        hidden: Count | None = None,
        dropout: Probability = 0.0,
        cross_attention: bool = False,
        cross_encoding: PositionEncoding | str | None = None,
    ) -> None:
        causal = not self.SEES_THE_FUTURE
        super().__init__(
            dim=dim, heads=heads, kv_heads=kv_heads, encoding=encoding, max_len=max_len, causal=causal, dropout=dropout
        )
        self._add_cross_attention(cross_attention, cross_encoding)
        self.norm = norm
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim=dim, heads=heads, kv_heads=kv_heads, causal=causal, dropout=dropout)
        if cross_attention:
            self.cross_norm = nn.LayerNorm(dim)
            self.cross_attention = CrossAttention(dim=dim, heads=heads, kv_heads=kv_heads, dropout=dropout)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = feed_forward_network(feed_forward, dim, hidden, dropout)

    def added_to_the_residual(self) -> list[Tensor]:
        """Returns the output matrices of attention, cross-attention and the feed-forward network."""
        parts = ("attention.output", *(["cross_attention.output"] if self.attends_to_memory else ()), "mlp.2")
        return [self.get_parameter(f"{name}.weight") for name in parts]

    def read(self, x: Float[Tensor, "B L D"], positions: Positions) -> Tensor:
        if self.norm == "pre":
            x = x + self.attention(self.attention_norm(x), positions=positions)
            if self.attends_to_memory:
                x = x + self.cross_attention(self.cross_norm(x), positions)
            return x + self.mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self.attention(x, positions=positions))
        if self.attends_to_memory:
            x = self.cross_norm(x + self.cross_attention(x, positions))
        return self.mlp_norm(x + self.mlp(x))


class EncoderLayer(_Layer):
    """Attention in which every token sees all tokens, then a feed-forward network: x (B, L, D) -> (B, L, D).

    Call it like ``Attention``.

    Args:
        dim, heads, kv_heads, encoding, max_len: as in ``Attention``.
        norm: "pre" computes x + part(norm(x)), and "post" computes norm(x + part(x)).
        feed_forward: "gelu" or "swiglu".
        hidden: the width of the feed-forward network. None means 4 D for "gelu" and 8/3 D, rounded up, for "swiglu".
        dropout: the probability of dropout, applied to the output of each part.
        cross_attention: True adds a part before the feed-forward network, in which tokens attend to the outputs of an
            encoder. Pass ``memory`` (B, S, D) and ``memory_mask`` in each call.
        cross_encoding: the encoding of cross-attention, or its name, such as "rope". Encodings that only add rows to
            the input are refused. Queries have the tokens' positions; keys have the positions of the memory's tokens,
            counted from 0. None means that cross-attention has no position, as in T5, BART and Marian.

    Raises:
        ArgumentError: sizes or names that do not fit.

    Examples:
        >>> import torch
        >>> from posembed.nn import EncoderLayer
        >>> layer = EncoderLayer(dim=64, heads=4, encoding="learned", max_len=128)
        >>> layer(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    SEES_THE_FUTURE = True


class DecoderLayer(_Layer):
    """An ``EncoderLayer`` with causal attention: token i sees only the tokens up to i.

    Raises:
        ArgumentError: sizes or names that do not fit.

    Examples:
        >>> import torch
        >>> from posembed.nn import DecoderLayer
        >>> layer = DecoderLayer(dim=64, heads=4, encoding="rope", feed_forward="swiglu")
        >>> layer(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> layer = DecoderLayer(dim=64, heads=4, encoding="rope", cross_attention=True)
        >>> layer(torch.randn(2, 10, 64), memory=torch.randn(2, 7, 64)).shape
        torch.Size([2, 10, 64])
    """

    SEES_THE_FUTURE = False


class _Stack(_AttendingToMemory):
    LAYER: ClassVar[type[_Layer]]

    def __init__(
        self,
        *,
        dim: Count,
        heads: Count,
        layers: Count,
        kv_heads: Count | None = None,
        encoding: PositionEncoding | str | Sequence[PositionEncoding | str] | None = None,
        max_len: Count | None = None,
        norm: Norm = "pre",
        feed_forward: FeedForward = "gelu",
        hidden: Count | None = None,
        dropout: Probability = 0.0,
        cross_attention: bool = False,
        cross_encoding: PositionEncoding | str | None = None,
        checkpoint_activations: bool = False,
    ) -> None:
        causal = not self.LAYER.SEES_THE_FUTURE
        super().__init__(
            dim=dim, heads=heads, kv_heads=kv_heads, encoding=encoding, max_len=max_len, causal=causal, dropout=dropout,
            layers=layers,
        )  # fmt: skip
        self._add_cross_attention(cross_attention, cross_encoding)
        self.checkpoint_activations = checkpoint_activations
        self.layers = nn.ModuleList(
            self.LAYER(
                dim=dim,
                heads=heads,
                kv_heads=kv_heads,
                norm=norm,
                feed_forward=feed_forward,
                hidden=hidden,
                dropout=dropout,
                cross_attention=cross_attention,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim) if norm == "pre" else nn.Identity()

    def read(self, x: Float[Tensor, "B L D"], positions: Positions) -> Tensor:
        positions.share_bias(self.dim // self.heads)
        # A cache is written once, and torch.func does not support the hooks that recompute activations.
        recompute = self.checkpoint_activations and torch.is_grad_enabled()
        recompute = recompute and positions.cache is None and not transforms_are_active()
        for i, layer in enumerate(self.layers):
            here = positions.of_layer(i)
            x = checkpoint(layer, x, positions=here, use_reentrant=False) if recompute else layer(x, positions=here)
        return self.norm(x)


class Encoder(_Stack):
    """A stack of EncoderLayers. With pre-norm, a LayerNorm follows the last layer.

    Call it like ``Attention``, on embedded tokens or patches. Your model adds the embeddings and the output heads.

    Args:
        layers: the number of layers.
        encoding: an encoding that all layers share, or its name, or a list with one per layer, which starts again after
            its end: ``["rope", "rope", "none"]`` is the same as ``"rope/rope/none"``. Layers with the same name share
            one encoding, such as a learned table, unless each layer needs its own parameters, as with ``"fox"``.
        checkpoint_activations: True recomputes each layer's activations in the backward pass instead of keeping them.
            This takes about a third more time and gives the same results.
        dim, heads, kv_heads, max_len, norm, feed_forward, hidden, dropout, cross_attention, cross_encoding:
            as in ``EncoderLayer``.

    Raises:
        ArgumentError: sizes or names that do not fit.

    Examples:
        >>> import torch
        >>> from posembed.nn import Encoder
        >>> encoder = Encoder(dim=64, heads=4, layers=2, encoding="learned", max_len=128)
        >>> mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])  # padding on the left
        >>> encoder(torch.randn(2, 5, 64), mask=mask).shape
        torch.Size([2, 5, 64])
    """

    LAYER = EncoderLayer


class Decoder(_Stack):
    """A stack of DecoderLayers. Its arguments are the same as in ``Encoder``.

    With a cache (``new_cache``), reading token by token gives the same results as reading the whole text. If positions
    depend on the length of the text (RoPE with a scaling, stretched tables), pass the final ``text_length`` each time.

    With ``cross_attention=True`` it is the decoder of an encoder-decoder. Build encoder and decoder with the same
    encoding object to share its parameters, such as one learned table.

    Raises:
        ArgumentError: sizes or names that do not fit.

    Examples:
        >>> import torch
        >>> from posembed.nn import Decoder
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding="rope")
        >>> decoder(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
        >>> from posembed import LearnedPositionalEmbedding
        >>> from posembed.nn import Encoder
        >>> table = LearnedPositionalEmbedding(max_len=128, dim=64)
        >>> encoder = Encoder(dim=64, heads=4, layers=2, encoding=table)
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding=table, cross_attention=True)
        >>> mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
        >>> memory = encoder(torch.randn(2, 5, 64), mask=mask)
        >>> decoder(torch.randn(2, 10, 64), memory=memory, memory_mask=mask).shape
        torch.Size([2, 10, 64])
    """

    LAYER = DecoderLayer


def _layers(model: nn.Module) -> list[_Layer]:
    return [module for module in model.modules() if isinstance(module, _Layer)]


@checks_arguments
def gpt2_init_(model: nn.Module) -> None:
    """Draws the weights of a model's linear layers and embeddings as GPT-2 does, and sets linear biases to 0.

    The standard deviation is .02. For the m matrices that add to the residual stream of a stack (two in each layer,
    three with cross-attention), it is .02 / sqrt(m). Layers outside a stack count as one stack. The parameters of
    encodings stay unchanged.

    Examples:
        >>> from posembed.nn import Decoder, gpt2_init_
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding="rope")
        >>> gpt2_init_(decoder)
    """
    of_encodings = {part for each in model.modules() if isinstance(each, PositionEncoding) for part in each.modules()}
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and module not in of_encodings:
            nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
    stacks = [_layers(stack) for stack in model.modules() if isinstance(stack, _Stack)]
    in_stacks = {layer for stack in stacks for layer in stack}
    for layers in (*stacks, [layer for layer in _layers(model) if layer not in in_stacks]):
        matrices = [matrix for layer in layers for matrix in layer.added_to_the_residual()]
        for matrix in matrices:
            nn.init.normal_(matrix, std=0.02 / math.sqrt(len(matrices)))
