"""Ideas for a learned table under full attention that we did not keep, each a PositionEncoding for the lab's model.

docs/research/lengths-learned.md reports the result of each idea; learned_full_attention.py trains them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from other_encodings import NearFarPositionalEmbedding
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.layers.base import PositionEncoding
from posembed.layers.rolling import ring_sinusoids
from posembed.positions import check_positions, skipped

Project = Callable[[Tensor], Tensor]


def add_bias(q: Tensor, k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Widens q and k (B, H, L, d) so that their scaled products include a bias (B, H, L, L): divided by the root of the
    new width, the new products equal the old ones, divided by the root of d, plus the bias. This allows a bias per
    layer."""
    batch, heads, length, width = q.shape
    wider = width + length
    columns = torch.eye(length).expand(batch, heads, -1, -1)
    q = torch.cat([q * math.sqrt(wider / width), bias.expand(batch, -1, -1, -1) * math.sqrt(wider)], dim=-1)
    return q, torch.cat([k, columns], dim=-1)


def distances(length: int) -> Tensor:
    """Returns (L, L): how far key j lies before query i; 0 for later keys, which the causal mask hides."""
    return (torch.arange(length).unsqueeze(1) - torch.arange(length)).clamp(min=0)


def with_tail(by_distance: Tensor, length: int) -> Tensor:
    """Extends values by distance from (H, N) to (H, length). Past N, they follow a line in log(1 + distance), fitted to
    all but the first four values with each distance weighted by its frequency in N tokens. The line never rises."""
    known = by_distance.size(-1)
    if length <= known:
        return by_distance[:, :length]
    x = torch.arange(length).log1p()
    near, weights = x[4:known], torch.arange(known - 4, 0, -1) / torch.arange(known - 4, 0, -1).sum()
    middle, level = (weights * near).sum(), (weights * by_distance[:, 4:]).sum(-1, keepdim=True)
    slope = (weights * (near - middle) * (by_distance[:, 4:] - level)).sum(-1, keepdim=True)
    slope = (slope / (weights * (near - middle) ** 2).sum()).clamp(max=0)
    return torch.cat([by_distance, level + slope * (x[known:] - middle)], dim=-1)


class Decay(nn.Module):
    """The bias -a log(1 + b distance), length -> (H, L, L), with a and b learned for each head, as in KERPLE."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.raw = nn.Parameter(torch.stack([torch.linspace(0, 2, heads), torch.linspace(-1, 1, heads)]))

    def forward(self, length: int) -> Tensor:
        a, b = F.softplus(self.raw).view(2, -1, 1, 1)
        return -a * torch.log1p(b * distances(length))


class NearFarWithDecay(NearFarPositionalEmbedding):
    """NearFarPositionalEmbedding whose far heads have a learned decay with distance."""

    def __init__(self, window: int, dim: int, heads: int) -> None:
        super().__init__(near_window=window, dim=dim, heads=heads)
        self.decay = Decay(heads)

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        far = torch.arange(self.heads) >= self.near_heads
        decay = self.decay(q_positions.size(-1)) * far.view(-1, 1, 1)
        return super().at_scores(q_positions, k_positions) + decay


class NearFarSharpened(NearFarPositionalEmbedding):
    """NearFarPositionalEmbedding whose far heads multiply their logits by s ln n, in training too; n is the number of
    tokens seen, and s is learned for each head (Scalable-Softmax, Nakanishi 2025, arXiv:2501.19399)."""

    def __init__(self, window: int, dim: int, heads: int, rows: int) -> None:
        super().__init__(near_window=window, dim=dim, heads=heads)
        self.s = nn.Parameter(torch.full((heads,), 1 / math.log(rows)))

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        far = torch.arange(self.heads).unsqueeze(-1) >= self.near_heads
        sharpened = self.s.unsqueeze(-1) * torch.arange(2, q.size(-2) + 2).log()
        return q * torch.where(far, sharpened, 1.0).unsqueeze(-1), k


class RingWithDecay(PositionEncoding):
    """A ring of 16 rows at queries and keys, without a window. Every 16th token has the same row, in training too. A
    learned decay should distinguish near tokens from far ones."""

    def __init__(self, dim: int, heads: int, ring: int = 16) -> None:
        super().__init__()
        self.ring = ring
        self.weight = nn.Parameter(ring_sinusoids(ring, dim))
        self.decay = Decay(heads)

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.ring, (batch, 1), generator=generator) + torch.arange(length)

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> Tensor:
        return F.embedding(position_ids % self.ring, project(self.weight))

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        return self.decay(q_positions.size(-1))


class FineAndCoarse(PositionEncoding):
    """Position p reads row p mod 16 of a fine table plus row p // 16 of a coarse one, at queries and keys.
    Training positions have a gap (PoSE) and start anywhere, so that all coarse rows are trained."""

    def __init__(self, dim: int, longest: int, fine: int = 16) -> None:
        super().__init__()
        self.fine, self.longest = fine, longest
        self.weight = nn.Parameter(ring_sinusoids(fine, dim))
        coarse = -(-longest // fine)
        self.coarse = nn.Parameter(ring_sinusoids(2 * coarse, dim)[:coarse])

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        ids = skipped(batch, length, max_len=self.longest, generator=generator)
        room = self.longest - ids[:, -1:]
        return ids + (torch.rand(batch, 1, generator=generator) * room).long()

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> Tensor:
        fine = F.embedding(position_ids % self.fine, project(self.weight))
        coarse = (position_ids // self.fine).clamp(max=len(self.coarse) - 1)
        return fine + F.embedding(coarse, project(self.coarse))


class TableAtQueriesKeys(PositionEncoding):
    """A plain table at queries and keys, with one row per training position. It ends there."""

    def __init__(self, dim: int, heads: int, rows: int) -> None:
        super().__init__()
        self.heads, self.rows = heads, rows
        self.weight = nn.Parameter(ring_sinusoids(2 * rows, dim)[:rows])

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> Tensor | None:
        return F.embedding(check_positions(position_ids, self.rows), project(self.weight))


class AveragedByDistance(TableAtQueriesKeys):
    """TableAtQueriesKeys, but at test time the products of rows with rows, in each layer and head, are averaged by
    distance into a bias with a fitted tail. Products of rows with tokens cannot be averaged and are dropped. ``always``
    does the same in training, as in AveragedPositionalEmbedding. ``near_heads``: the number of heads with the bias; the
    others have no position."""

    def __init__(self, dim: int, heads: int, rows: int, always: bool = False, near_heads: int | None = None) -> None:
        super().__init__(dim, heads, rows)
        self.always, self.near_heads = always, near_heads or heads

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> Tensor | None:
        if self.training and not self.always:
            return super().before_queries_keys(project, position_ids)
        self.projected = project(self.weight).unflatten(-1, (2, self.heads, -1)).permute(1, 2, 0, 3)
        return None

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        if self.training and not self.always:
            return q, k
        for_q, for_k = self.projected  # (H, rows, d) each
        logits = for_q @ for_k.mT / math.sqrt(q.size(-1))
        averages = torch.stack([logits.diagonal(-d, -2, -1).mean(-1) for d in range(self.rows)], dim=-1)
        near = torch.arange(self.heads) < self.near_heads
        by_distance = with_tail(averages, q.size(-2)) * near.unsqueeze(-1)
        return add_bias(q, k, by_distance[:, distances(q.size(-2))].unsqueeze(0))


class NumberByDistance(PositionEncoding):
    """The averaged bias, learned directly: one number per distance and head, the same in all layers (T5's bias without
    buckets), with the same tail."""

    def __init__(self, heads: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, heads))

    def at_scores(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        length = q_positions.size(-1)
        return with_tail(4 * self.weight.T, length)[:, distances(length)]  # the factor 4 makes the numbers learn faster


class FarBias(PositionEncoding):
    """A ring of rows at queries and keys, but only between tokens less than 16 apart. Farther tokens have no position;
    each head adds one learned number to their logits."""

    def __init__(self, dim: int, heads: int, window: int = 16) -> None:
        super().__init__()
        self.near, self.ring, self.heads = window, 2 * window, heads
        self.weight = nn.Parameter(ring_sinusoids(self.ring, dim))
        self.far = nn.Parameter(torch.zeros(heads))

    def training_positions(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.ring, (batch, 1), generator=generator) + torch.arange(length)

    def before_queries_keys(self, project: Project, position_ids: Tensor) -> None:
        rows = F.embedding(position_ids % self.ring, project(self.weight)).unflatten(-1, (2, self.heads, -1))
        self.for_q, self.for_k = rows.movedim(-3, 0).transpose(-3, -2)

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        near = (q @ self.for_k.mT + self.for_q @ (k + self.for_k).mT) / math.sqrt(q.size(-1))
        bias = torch.where(distances(q.size(-2)) < self.near, near, self.far.view(-1, 1, 1))
        return add_bias(q, k, bias)


IDEAS: Mapping[str, Callable[[Any], PositionEncoding]] = {
    "near-far with a learned decay": lambda s: NearFarWithDecay(s.given("window"), s.dim, s.heads),
    "near-far, far heads sharpened": lambda s: NearFarSharpened(s.given("window"), s.dim, s.heads, s.length),
    "ring with a learned decay": lambda s: RingWithDecay(s.dim, s.heads),
    "fine and coarse, skipped": lambda s: FineAndCoarse(s.dim, s.longest),
    "a plain table at queries and keys": lambda s: TableAtQueriesKeys(s.dim, s.heads, s.length),
    "averaged by distance at test": lambda s: AveragedByDistance(s.dim, s.heads, s.length),
    "averaged by distance always": lambda s: AveragedByDistance(s.dim, s.heads, s.length, always=True),
    "averaged by distance, half": lambda s: AveragedByDistance(
        s.dim, s.heads, s.length, always=True, near_heads=s.heads // 2
    ),
    "a number a distance": lambda s: NumberByDistance(s.heads, s.length),
    "rows near, one number far": lambda s: FarBias(s.dim, s.heads),
}
