"""Attention from the tokens of a decoder to the outputs of an encoder (Vaswani et al. 2017, arXiv:1706.03762, 3.2.3).

As in T5, BART, Marian and x-transformers, the scores have no position unless an encoding is given for them: the outputs
of the encoder already hold their positions, and a token of the target has no position in the source.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from posembed.arguments import ChecksCalls, Float
from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, overrides
from posembed.layers.none import NoPosition
from posembed.nn.attention import Linear, require_fitting
from posembed.nn.cache import checked_rows, ids_of
from posembed.nn.per_layer import PerLayer
from posembed.nn.positions import Positions, add_rows
from posembed.positions.from_layout import text_lengths
from posembed.settings import Count, Probability


class Memory(ChecksCalls, in_a_pass=True):
    """The outputs of an encoder, to which all layers of a decoder attend, with their mask and positions.

    A decoder makes a Memory from its arguments ``memory`` and ``memory_mask``. Your own layers get it in ``Positions``.

    Args:
        x: the outputs (B, S, D).
        mask: (B, S), 1 for a token and 0 for padding, as in the call of the encoder.
        encoding: the encoding of cross-attention, with the queries at the decoder's positions and the keys at
            ``position_ids``. None means no position.
        position_ids: (S,), (1, S) or (B, S). None means ids that count from 0 and skip padding.

    Raises:
        ArgumentError: an ``x`` of another shape, or a mask or ids that do not fit it.

    Examples:
        >>> import torch
        >>> from posembed.nn import Decoder, Memory, Positions
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding="rope", cross_attention=True)
        >>> memory, x = Memory(torch.randn(2, 7, 64)), torch.randn(2, 10, 64)
        >>> decoder(x, positions=Positions(decoder.encoding, x, memory=memory)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        encoding: PositionEncoding | None = None,
        position_ids: Tensor | None = None,
    ) -> None:
        if not isinstance(x, Tensor) or x.dim() != 3 or not x.size(1):
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(f"a memory is the output (B, S, D) of an encoder, with S at least 1; got {given}")
        self.x, self.mask, self.encoding, self.position_ids = x, mask, encoding, position_ids
        self.keys = Positions(encoding or NoPosition(), x, position_ids, causal=False, mask=mask)
        """The Positions of the memory's tokens."""
        self.kept: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        """The keys and values of each layer. Only the memory of a cache keeps them."""

    def for_cache(self) -> Memory:
        """Returns a copy with its own keys and values, so that no other cache or training step reads them."""
        own = copy.copy(self)
        own.kept = dict(self.kept)
        return own

    def reordered(self, index: Tensor) -> Memory:
        """Returns the memory of the rows that an index (B',) names, with the keys and values kept of them."""
        index = checked_rows(index, self.x.size(0))
        mask, ids = None if self.mask is None else self.mask[index], ids_of(self.position_ids, index)
        own = Memory(self.x[index], mask=mask, encoding=self.encoding, position_ids=ids)
        own.kept = {layer: (k[index], v[index]) for layer, (k, v) in self.kept.items()}
        return own

    def __deepcopy__(self, memo: dict[int, object]) -> Memory:
        """Shares the tensors, which nothing writes to, and the layers: a copied cache belongs to the same model."""
        return self.for_cache()

    def seen_from(self, positions: Positions) -> Positions:
        """Returns the Positions of cross-attention: the decoder's tokens as queries, and this memory's as keys.

        The text length is that of the longer text, because queries and keys must have the same text length.
        """
        across = copy.copy(self.keys)
        across.q_positions = positions.q_positions
        if positions.text_length is not None or self.keys.text_length is not None:
            target, source = (text_lengths(each.q_positions, each.text_length) for each in (positions, self.keys))
            if target.dim() == 2 and target.size(-1):
                target = target.amax(dim=-1, keepdim=True)
            across.text_length = torch.maximum(target, source)
        return across

    def is_same(self, other: Memory) -> bool:
        """Whether the other memory has the same outputs, mask, positions and encoding. NaN equals NaN: the
        copied outputs of a broken encoder are the same."""
        if self.encoding is not other.encoding or self.x.shape != other.x.shape:
            return False
        ids = (each.keys.q_positions.expand(each.x.shape[:2]) for each in (self, other))
        pairs = (self.x, other.x), (self.mask, other.mask), tuple(ids)
        return all(a is b or (a is not None and b is not None and a.shape == b.shape and equal(a, b)) for a, b in pairs)


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape have the same entries; NaN equals NaN."""
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


class CrossAttention(ChecksCalls, nn.Module):
    """Multi-head attention from the tokens x (B, L, D) of a decoder to the outputs (B, S, D) of an encoder.

    Projections have no biases. Dropout applies to the output. ``Decoder(cross_attention=True)`` holds one in each
    layer.

    Args:
        dim: the width D of decoder and encoder, a multiple of heads.
        heads: the number of heads H.
        kv_heads: the number of heads of the keys and values, as in ``Attention``.
        dropout: the probability of dropout.

    Raises:
        ArgumentError: heads that do not divide the width.

    Examples:
        >>> import torch
        >>> from posembed.layers import NoPosition
        >>> from posembed.nn import CrossAttention, Memory, Positions
        >>> x, memory = torch.randn(2, 10, 64), Memory(torch.randn(2, 7, 64))
        >>> CrossAttention(dim=64, heads=4)(x, Positions(NoPosition(), x, memory=memory)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(self, *, dim: Count, heads: Count, kv_heads: Count | None = None, dropout: Probability = 0.0) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if dim % heads or heads % kv_heads:
            raise ArgumentError(
                f"heads must divide the width, and kv_heads the heads; got dim={dim}, heads={heads}, "
                f"kv_heads={kv_heads}"
            )
        self.dim, self.heads, self.kv_heads = dim, heads, kv_heads
        self.queries = Linear(dim, dim, bias=False)
        self.keys_values = Linear(dim, 2 * kv_heads * (dim // heads), bias=False)
        self.output = Linear(dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, positions: Positions) -> Tensor:
        """Attends from x (B, L, D) to the memory of ``positions``. Returns (B, L, D).

        Raises:
            ArgumentError: positions without a memory, or a memory of another width.
        """
        memory, across = positions.memory, positions.across
        if memory is None or across is None:
            raise ArgumentError(
                "cross-attention needs the outputs of an encoder: pass memory=(B, S, D) to the decoder, or "
                "memory=Memory(x) to Positions"
            )
        if memory.x.size(-1) != self.dim:
            raise ArgumentError(
                f"the memory has the width {memory.x.size(-1)}, and this decoder {self.dim}; build the encoder with "
                "the decoder's width, or project its outputs"
            )
        sizes = (self.dim, self.heads, self.kv_heads)
        if memory.keys.fit != sizes:
            require_fitting(across.encoding, self.dim, self.heads, kv_heads=self.kv_heads, causal=False)
            memory.keys.fit = sizes
        if positions.cache is None:
            keys_values = self.keys_and_values(memory)
        else:
            keys_values = memory.kept.get(self) or self.keys_and_values(memory)
            memory.kept[self] = keys_values
        q, (k, v) = self.queries(x), keys_values
        rows = across.rows(self.project)
        if rows is not None:
            q, _ = add_rows(q, q[..., :0], rows[..., : self.dim])
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k = across.turn(q, k)
        y = across.attend(across.scale(q), k, v, self.project)
        return self.dropout(self.output(y.transpose(1, 2).flatten(2)))

    def keys_and_values(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Returns the keys before their rotation, and the values: (B, Hk, S, D/H) each."""
        k, v = self.keys_values(memory.x).chunk(2, dim=-1)
        rows = memory.keys.rows(self.project)
        k, v = (t.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for t in (k, v))
        if rows is not None:
            k_rows = rows[..., self.dim :].unflatten(-1, (self.kv_heads, -1, self.dim // self.heads))[..., 0, :]
            k = k + k_rows.transpose(-3, -2)
        return k, v

    def project(self, rows: Float[Tensor, "N D"]) -> Tensor:
        """Multiplies rows (N, D) by W_q and W_k, side by side: (N, 2 D). Repeats key heads that query heads share."""
        k = self.keys_values(rows).chunk(2, dim=-1)[0].unflatten(-1, (self.kv_heads, -1))
        return torch.cat((self.queries(rows), k.repeat_interleave(self.heads // self.kv_heads, dim=-2).flatten(-2)), -1)


def require_acting(encoding: PositionEncoding) -> None:
    """Raises ArgumentError for an encoding of cross-attention that does nothing in attention."""
    if isinstance(encoding, PerLayer):
        raise ArgumentError(f"cross_encoding must be one encoding, which all layers share; got {encoding}")
    acts = overrides(encoding, "before_queries_keys", "at_queries_keys", "in_layer", "at_scores")
    if not acts and type(encoding) is not NoPosition:
        raise ArgumentError(
            f"{type(encoding).__name__} adds its rows to the input and does nothing in cross-attention; give it to the "
            "encoder and the decoder as encoding=, and leave cross_encoding out, or choose one such as rope"
        )
