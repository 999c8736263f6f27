"""Multi-head attention (Vaswani et al. 2017, arXiv:1706.03762) that takes any PositionEncoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.arguments import ChecksCalls, Float
from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding, RotationEncoding
from posembed.nn.cache import KeyValueCache
from posembed.nn.encodings import Sizes, encoding_of_layers
from posembed.nn.per_layer import PerLayer, each_of
from posembed.nn.positions import Positions, add_rows, require_encoding
from posembed.settings import Count, Probability
from posembed.torch_internals import linear_of_one_row, runs_forward_alone

if TYPE_CHECKING:
    from posembed.nn.memory import Memory


class Positioned(ChecksCalls, nn.Module):
    """The base of modules that read tokens at positions. Takes Attention's arguments; subclasses define ``read``."""

    def __init__(
        self,
        *,
        dim: Count,
        heads: Count,
        kv_heads: Count | None,
        encoding: PositionEncoding | str | Sequence[PositionEncoding | str] | None,
        max_len: Count | None,
        causal: bool,
        dropout: Probability,
        layers: Count = 1,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if dim % heads:
            raise ArgumentError(
                f"width {dim} is not divisible by {heads} heads; try a width of {heads * max(dim // heads, 1)}"
            )
        if heads % kv_heads:
            raise ArgumentError(
                f"kv_heads must divide heads={heads}, so that each serves equally many query heads; got {kv_heads}"
            )
        self.dim, self.heads, self.kv_heads, self.causal = dim, heads, kv_heads, causal
        entries = [encoding] if isinstance(encoding, str) else encoding if isinstance(encoding, list | tuple) else ()
        if max_len is not None and not any(isinstance(each, str) for each in entries):
            raise ArgumentError(f"max_len={max_len} is for encodings by name; this encoding is already built, or None")
        built: Any = encoding
        if entries:
            sizes = Sizes(
                dim=dim, heads=heads, kv_heads=kv_heads, max_len=max_len, causal=causal, dropout=dropout, layers=layers
            )
            built = encoding_of_layers(entries, sizes)
        self._count = layers
        if built is not None:
            require_fitting(built, dim, heads, kv_heads=kv_heads, causal=causal, layers=layers)
        self.encoding: PositionEncoding | None = built

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        text_length: int | Tensor | None = None,
        cache: KeyValueCache | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        positions: Positions | None = None,
    ) -> Tensor:
        """Reads the tokens x (B, L, D) at their positions. Returns (B, L, D).

        Args:
            position_ids: (L,), (1, L) or (B, L), any integer dtype. None means consecutive ids, which continue
                after the cache's tokens, skip padding, and start from 0 in each packed sequence.
            offset: the number of earlier tokens, if positions are consecutive: a number, or (B,).
            mask: (B, L), 1 for a token and 0 for padding, on the left, on the right or between; or (B, K), including
                the unchanged mask of the cache's tokens. Outputs at padding are finite but meaningless.
            segment_ids: (L,) or (B, L), any integer dtype, for sequences packed into one row: adjacent tokens with
                the same number form a sequence. They see only each other and count from position 0.
            cu_seqlens: instead of segment_ids, (S + 1,), the start of each sequence and the end of the last; x is
                then (1, N, D) or (N, D), and the result has the same shape.
            text_length: the number of tokens in each token's text, for encodings that depend on it: a number,
                (B,), or (B, L). None means the largest position of each sequence plus one.
            cache: the cache of the earlier tokens, from ``new_cache``. The call adds x to the cache. The outputs are
                the same as without a cache.
            memory: (B, S, D), the outputs of an encoder, for decoders with cross-attention. With a cache, later calls
                may omit it.
            memory_mask: (B, S), 1 for a token of the memory and 0 for padding.
            positions: the caller's Positions, instead of the arguments above. The caller must also apply ``at_input``.

        Raises:
            PositionError: a position without a row.
            ArgumentError: arguments that do not fit, or neither an encoding nor positions.
        """
        flat = cu_seqlens is not None and isinstance(x, Tensor) and x.dim() == 2
        x = x.unsqueeze(0) if flat else x
        if not isinstance(x, Tensor) or x.dim() != 3 or x.size(-1) != self.dim:
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(f"x must be (B, L, D={self.dim}); got {given}")
        if positions is not None:
            if not isinstance(positions, Positions):
                raise ArgumentError(
                    "positions must be posembed.nn.Positions(encoding, x), which the layers of a model share; got a "
                    f"{type(positions).__name__}. Pass numbers as position_ids"
                )
            layout = (position_ids, mask, segment_ids, cu_seqlens, text_length, cache, memory, memory_mask)
            if any(given is not None for given in layout) or isinstance(offset, Tensor) or offset != 0:
                raise ArgumentError(
                    "positions hold the position_ids, offset, mask, segments, text_length, cache and memory; pass "
                    "these to Positions"
                )
            if positions.causal != self.causal:
                raise ArgumentError(
                    f"this {type(self).__name__} has causal={self.causal} and the positions causal={positions.causal}; "
                    "build one of them with the other's"
                )
            self._require_fitting(positions, x)
            return self.read(x, positions)
        if self.encoding is None:
            raise ArgumentError(
                f'this {type(self).__name__} has no encoding: build it with encoding=..., such as "rope" or "none", '
                "or pass positions=posembed.nn.Positions(encoding, x)"
            )
        positions = Positions(
            self.encoding, x, position_ids, offset=offset, causal=self.causal, mask=mask, segment_ids=segment_ids,
            cu_seqlens=cu_seqlens, text_length=text_length, cache=cache,
            memory=self.memory_of(memory, memory_mask),
        )  # fmt: skip
        self._require_fitting(positions, x)
        y = self.read(positions.at_input(x), positions)
        positions.commit()
        return y.squeeze(0) if flat else y

    def _require_fitting(self, positions: Positions, x: Tensor) -> None:
        """Raises ArgumentError for Positions of other tokens or of an encoding that does not fit."""
        if positions.shape != x.shape[:2]:
            raise ArgumentError(
                f"these Positions are for x (B, L)={tuple(positions.shape)}; got {tuple(x.shape[:2])}. Make new ones "
                "in each forward pass"
            )
        sizes = (self.dim, self.heads, self.kv_heads)
        if positions.fit != sizes:  # the encoding may have been exchanged since the module was built
            require_fitting(positions.encoding, *sizes[:2], kv_heads=sizes[2], causal=self.causal, layers=self._count)
            positions.fit = sizes

    def memory_of(self, memory: Tensor | None, mask: Tensor | None) -> Memory | None:
        """Returns a call's memory as a Memory, or None. Raises ArgumentError if this module cannot attend to it."""
        if memory is not None or mask is not None:
            raise ArgumentError(
                f"this {type(self).__name__} does not attend to a memory; build a Decoder or DecoderLayer with "
                "cross_attention=True, or leave memory and memory_mask out"
            )
        return None

    def read(self, x: Float[Tensor, "B L D"], positions: Positions) -> Tensor:
        """Reads x (B, L, D), to which the encoding's ``at_input`` has been applied. Returns (B, L, D)."""
        raise NotImplementedError

    def new_cache(
        self, batch: Count, max_len: Count, *, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> KeyValueCache:
        """Returns an empty cache for ``batch`` sequences of up to ``max_len`` tokens, padding included.

        By default, dtype and device are taken from the weights. Raises ArgumentError if the module is not causal.
        """
        if not self.causal:
            raise ArgumentError(
                f"a cache needs causal attention, but this {type(self).__name__} attends in both directions; call it "
                "on the whole text"
            )
        layers = [m for _, m in self.named_modules(remove_duplicate=False) if isinstance(m, Attention)]
        weight = next(layers[0].queries_keys_values.parameters())  # its dtype is the keys'
        shape = (len(layers), batch, self.kv_heads, max_len, self.dim // self.heads)
        with torch.inference_mode(False):  # as later tokens may be read outside of it
            return KeyValueCache(torch.empty(shape, dtype=dtype or weight.dtype, device=device or weight.device))


class Linear(nn.Linear):
    """nn.Linear that is faster on a CPU for the single row of a decoding step."""

    def forward(self, x: Tensor) -> Tensor:
        y = linear_of_one_row(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias) if y is None else y


class Attention(Positioned):
    """Attention that applies all parts of an encoding: rows, rotation, bias, window and log-length factor on queries.

    Projections have no biases. Dropout applies to the output.

    Args:
        dim: the width D, a multiple of heads.
        heads: the number of heads H.
        kv_heads: the number of heads of the keys and values, each shared by heads / kv_heads query heads (Ainslie et
            al. 2023, arXiv:2305.13245). None means heads.
        encoding: the encoding, or its name in ``posembed.nn.ENCODINGS`` (``"rope"``). None if the caller passes
            ``positions`` in each call, so that layers share one encoding and its bias is computed once.
        max_len: the training length in tokens, for names that need it (``"learned"``). Names that need more, such
            as a window or a grid, are built by ``encoding_by_name``.
        causal: True lets token i see only the tokens up to i; False lets every token see all tokens.
        dropout: the probability of dropout.

    Raises:
        ArgumentError: heads that do not divide the width, or an encoding that is unknown or does not fit.

    Examples:
        >>> import torch
        >>> from posembed.nn import Attention
        >>> Attention(dim=64, heads=4, encoding="rope")(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        *,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        encoding: PositionEncoding | str | None = None,
        max_len: int | None = None,
        causal: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(
            dim=dim, heads=heads, kv_heads=kv_heads, encoding=encoding, max_len=max_len, causal=causal, dropout=dropout
        )
        self.widths = (dim, self.kv_heads * (dim // heads), self.kv_heads * (dim // heads))
        """The widths of queries, keys and values."""
        self.queries_keys_values = Linear(dim, sum(self.widths), bias=False)
        self.output = Linear(dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def read(self, x: Float[Tensor, "B L D"], positions: Positions) -> Tensor:
        of_tokens = positions.of_tokens(x)
        q, k, v = self.queries_keys_and_values(x, positions)
        y = positions.attend(q, k, v, self.project, of_tokens)
        return self.dropout(self.output(y.transpose(1, 2).flatten(2)))

    def project(self, rows: Float[Tensor, "N D"]) -> Tensor:
        """Multiplies rows (N, D) by W_q and W_k, side by side: (N, 2 D). Repeats key heads that query heads share."""
        linear, wanted = self.queries_keys_values, sum(self.widths[:2])
        if type(linear) is Linear and runs_forward_alone(linear):
            both = F.linear(rows, linear.weight[:wanted])
        else:  # its call includes adapters, hooks and offloading
            both = linear(rows)[..., :wanted]
        if self.kv_heads == self.heads:
            return both
        q, k = both.split(self.widths[:2], dim=-1)
        k = k.unflatten(-1, (self.kv_heads, -1)).repeat_interleave(self.heads // self.kv_heads, dim=-2)
        return torch.cat((q, k.flatten(-2)), dim=-1)

    def queries_keys_and_values(self, x: Float[Tensor, "B L D"], positions: Positions) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries (B, H, L, d'), keys (B, Hk, Lk, d') and values (B, Hk, Lk, D/H), with positions applied."""
        B, L, _ = x.shape
        q, k, v = self.queries_keys_values(x).split(self.widths, dim=-1)
        rows = positions.rows(self.project)
        if rows is not None and self.kv_heads != self.heads:
            q_rows, k_rows = rows.split(self.dim, dim=-1)
            k_rows = k_rows.unflatten(-1, (self.kv_heads, -1, self.dim // self.heads))[..., 0, :]
            rows = torch.cat((q_rows, k_rows.flatten(-2)), dim=-1)
        q, k = add_rows(q, k, rows)
        counts, head_dim = (self.heads, self.kv_heads, self.kv_heads), self.dim // self.heads
        q, k, v = (t.view(B, L, n, head_dim).transpose(1, 2) for t, n in zip((q, k, v), counts, strict=True))
        q, k, v = positions.turn_and_extend(q, k, v)
        return positions.scale(q), k, v

    def weights(self, x: Float[Tensor, "B L D"], *, positions: Positions) -> Tensor:
        """Returns the attention weights of ``read``, (B, H, Lq, Lk): row i holds token i's weights for all tokens."""
        of_tokens = positions.of_tokens(x)
        q, k, v = self.queries_keys_and_values(x, positions)
        # Attention to the rows of the identity gives the weights, by the same code and under the same masks.
        identity = torch.eye(v.size(-2), dtype=q.dtype, device=q.device).expand(*k.shape[:2], -1, -1)
        return positions.attend(q, k, identity, self.project, of_tokens, dense=True)


def require_fitting(
    encoding: PositionEncoding,
    dim: int,
    heads: int,
    *,
    causal: bool,
    kv_heads: int | None = None,
    layers: int | None = None,
    head_dim: int | None = None,
) -> None:
    """Raises ArgumentError if the encoding has other sizes, or needs a causal model and ``causal`` is False. head_dim:
    the width of a head; None means dim / heads."""
    require_encoding(encoding)
    if isinstance(encoding, PerLayer):
        if layers is not None and len(encoding.order) > layers:
            raise ArgumentError(
                f"expected at most one encoding for each of the {layers=}; got {encoding}. Layers of your own take "
                "positions.of_layer(i)"
            )
        for each in each_of(encoding):
            require_fitting(each, dim, heads, causal=causal, kv_heads=kv_heads)
        return
    kind = type(encoding).__name__
    kv_heads = heads if kv_heads is None else kv_heads
    turned = isinstance(encoding, RotationEncoding)  # its ``heads`` counts key heads
    for name, size in (("dim", dim), ("heads", kv_heads if turned else heads), ("kv_heads", kv_heads),
                       ("head_dim", head_dim or dim // heads)):  # fmt: skip
        if getattr(encoding, name, size) != size:
            raise ArgumentError(
                f"{kind} is built for {name}={getattr(encoding, name)}, and this attention has "
                f"{'kv_' if turned and name == 'heads' and kv_heads != heads else ''}{name}={size}; "
                "build one of them with the other's size"
            )
    if not causal and encoding.window is not None:
        raise ArgumentError(
            f"{kind} needs a causal window of {encoding.window} tokens, but an encoder attends in both directions; "
            "choose an encoding without a window"
        )
    if not causal and encoding.causal_only:
        raise ArgumentError(
            f"{encoding} is for causal models, but an encoder attends in both directions; choose another encoding or "
            "use a decoder"
        )
