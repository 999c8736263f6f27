"""PaTH (Yang et al. 2025, arXiv:2505.16381): a product of Householder-like matrices replaces RoPE's rotation.

    score(i, j) = q_i H_i H_(i-1) ... H_(j+1) k_j / sqrt(d), where H_t = I - beta_t w_t w_t^T

Each key head computes w_t and beta_t in (0, 2). With p_t, a low-rank projection of x_t, and the elementwise
c_t = silu(C_0 p_(t-2) + C_1 p_(t-1) + C_2 p_t), w_t = c_t / |c_t|, and beta_t = 2 sigmoid(u x_t + b). As in the
authors' code, |c_t| is sqrt(sum of squares + 1e-6).

The products are computed in chunks, in the paper's UT form. With W the rows w_t of a chunk, D = diag(beta) and
T = (I + tril(D W W^T, -1))^-1, its own queries have the scores Q K^T - tril(Q W^T) T tril(D W K^T, -1) and go to the
chunk before as Q - tril(Q W^T) T D W; queries of later chunks see K - (T tril(D W K^T, -1))^T W and go there as
Q (I - W^T T D W). In a long text this takes about twice as many multiplications as Q K^T. There is one step per chunk,
and memory for (B, H, L, L) numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.arguments import Float
from posembed.errors import ArgumentError
from posembed.layers.base import Content, PositionEncoding, fill_
from posembed.layers.score_bias import in_full_precision, require_divisible, wide
from posembed.settings import Count
from posembed.tables.fill import STD

CHUNK = 64
"""The largest number of keys in a chunk; all but the last have the same."""
MIXED = 3
"""The number of neighbouring tokens whose projections the convolution mixes."""
EPS = 1e-6
"""Added to the square of each norm."""


def path_scores(
    q: Float[Tensor, "B H Lq d"],
    k: Float[Tensor, "B H Lk d"],
    w: Float[Tensor, "B H Lk d"],
    beta: Float[Tensor, "B H Lk"],
    *,
    chunk: int = CHUNK,
) -> Float[Tensor, "B H Lq Lk"]:
    """Returns q_i H_i ... H_(j+1) k_j, not divided by sqrt(d). The queries are the last Lq of the Lk tokens.

    Scores of keys after their query are meaningless.
    """
    queries, keys = q.size(-2), k.size(-2)
    chunks = 1
    while chunks * chunk < keys:  # in a graph for any length, a quotient would be a symbol, and slow
        chunks += 1
    chunk = -(-keys // chunks) or 1
    first, end = (keys - queries) // chunk, chunks * chunk - keys  # the first chunk of a query; rows after the text
    start = keys - queries - first * chunk
    k, w, scaled = (padded(t, 0, end).unflatten(2, (chunks, chunk)) for t in (k, w, w * beta.unsqueeze(-1)))
    q = padded(q, start, end).unflatten(2, (chunks - first, chunk))
    of_both = torch.cat(((scaled @ k.mT).tril(-1), scaled), dim=-1)
    of_both = torch.linalg.solve_triangular(scaled @ w.mT, of_both, upper=False, unitriangular=True)
    of_keys, of_queries = of_both.split((chunk, q.size(-1)), dim=-1)
    along = (q @ w[:, :, first:].mT).tril()
    own = q @ k[:, :, first:].mT - along @ of_keys[:, :, first:]
    q = q - along @ of_queries[:, :, first:]
    few = queries < chunk  # as in decoding, where a product for all queries costs more than one for each
    if not few:
        k, turns = k - of_keys.mT @ w, w.mT @ of_queries
    columns, later = [], q.new_empty(*q.shape[:2], 0, q.size(-1))
    for j in reversed(range(chunks)):
        column = later @ k[:, :, j].mT
        if few:
            along = later @ w[:, :, j].mT
            column, later = column - along @ of_keys[:, :, j], later - along @ of_queries[:, :, j]
        else:
            later = later - later @ turns[:, :, j]
        if j >= first:
            column, later = torch.cat((own[:, :, j - first], column), 2), torch.cat((q[:, :, j - first], later), 2)
        columns.append(F.pad(column, (0, 0, start + queries + end - column.size(2), 0)))
    return torch.cat(columns[::-1], dim=-1)[:, :, start : start + queries, :keys]


def padded(t: Float[Tensor, "B H L d"], before: int, after: int) -> Float[Tensor, "B H M d"]:
    """Returns t between rows of zeros. Unlike F.pad, always contiguous, as code for any length has to assume."""
    above, below = (t.new_zeros(*t.shape[:2], count, t.size(3)) for count in (before, after))
    return torch.cat((above, t, below), dim=2)


class HouseholderPath(PositionEncoding):
    """PaTH (arXiv:2505.16381) for decoders: quadratic in time and memory, with scores in float32 or wider.

    A decoder's cache keeps p_t and beta_t, d + 1 more numbers (d = D / heads) per token, layer and key head; each step
    reads all.

    Args:
        dim: the width D, a multiple of ``heads``.
        heads: the model's number of heads H.
        kv_heads: the number of key heads Hk, each with its own Householder matrices. None means ``heads``.
        rank: the rank of the projection that gives the matrices' directions; 32 in the authors' code.

    The state dict holds ``down_weight`` (rank, D) and ``direction_weight`` (Hk d, rank), whose product gives p_t,
    ``mixing_weight`` (Hk d, 3), the columns C_0 to C_2, ``strength_weight`` (Hk, D) and ``strength_bias`` (Hk,).

    Raises:
        ArgumentError: sizes that do not divide each other.

    Examples:
        >>> import torch
        >>> from posembed.nn import Decoder
        >>> decoder = Decoder(dim=64, heads=4, layers=2, encoding="path")  # each layer has its own matrices
        >>> decoder(torch.randn(2, 10, 64)).shape
        torch.Size([2, 10, 64])
    """

    causal_only = True
    per_layer = True

    def __init__(self, *, dim: Count, heads: Count, kv_heads: Count | None = None, rank: Count = 32) -> None:
        super().__init__()
        require_divisible(dim, heads)
        self.dim, self.heads, self.kv_heads, self.rank = dim, heads, kv_heads or heads, rank
        if heads % self.kv_heads:
            raise ArgumentError(f"kv_heads must divide heads={heads}; got {kv_heads}")
        self.down_weight = nn.Parameter(torch.empty(rank, dim))
        self.direction_weight = nn.Parameter(torch.empty(self.kv_heads * (dim // heads), rank))
        self.mixing_weight = nn.Parameter(torch.empty(self.kv_heads * (dim // heads), MIXED))
        self.strength_weight = nn.Parameter(torch.empty(self.kv_heads, dim))
        self.strength_bias = nn.Parameter(torch.empty(self.kv_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.down_weight, self.direction_weight, self.mixing_weight, self.strength_weight):
            fill_(weight, torch.empty(weight.shape).normal_(std=STD))
        fill_(self.strength_bias, torch.zeros(self.kv_heads))

    def of_tokens(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L S"]:
        """Returns each token's p for each key head, then its beta for each: (B, L, Hk (d + 1))."""
        with in_full_precision(x.device):
            x = wide(x)
            projected = F.linear(F.linear(x, wide(self.down_weight)), wide(self.direction_weight))
            beta = 2 * torch.sigmoid(F.linear(x, wide(self.strength_weight), wide(self.strength_bias)))
            return torch.cat((projected, beta), dim=-1)

    def at_content(self, q: Tensor, k: Tensor, content: Content) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries and keys of width 0, and the complete scores as the bias."""
        assert content.of_tokens is not None
        projected, beta = content.of_tokens[..., : -self.kv_heads], content.of_tokens[..., -self.kv_heads :]
        w, beta = self._directions(projected, content).transpose(1, 2), beta.transpose(1, 2)
        q, k = wide(q) / math.sqrt(q.size(-1)), wide(k)
        of_all = (t.repeat_interleave(q.size(1) // k.size(1), dim=1) for t in (k, w, beta))
        return q[..., :0], k[..., :0], path_scores(q, *of_all)

    def _directions(self, projected: Float[Tensor, "B L E"], content: Content) -> Float[Tensor, "B L Hk d"]:
        """Returns w_t of each key head, given p_t of all heads, E = Hk d."""
        *earlier, own = wide(self.mixing_weight).unbind(-1)
        mixed = projected * own
        for weight in reversed(earlier):
            projected = content.one_before(projected)
            mixed = mixed + projected * weight
        w = F.silu(mixed).unflatten(-1, (self.kv_heads, -1))
        return w * (w.square().sum(-1, keepdim=True) + EPS).rsqrt()
