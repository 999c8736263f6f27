"""A learned table trained at random positions, so that rows past the length of the training sequences are trained too.

shifted       one offset per sequence           (SHAPE, Kiyono et al. 2021, arXiv:2109.05644)
randomized    any of the table's positions, in order   (Ruoss et al. 2023, arXiv:2305.16843)
skipped       two runs with a gap between       (PoSE, Zhu et al. 2023, arXiv:2309.10400)
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.calls import unknown
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.positions.checks import no_row
from posembed.positions.samplers import randomized, shifted, skipped
from posembed.settings import Amount, Count, NotNegative, Probability

SAMPLERS = ("shifted", "randomized", "skipped")


class SampledPositionalEmbedding(LearnedPositionalEmbedding):
    """A learned table with a row for each position of the longest text, trained on shorter texts at random positions.

    ``training_positions`` draws the random positions; at test time positions are 0, 1, 2, ... Everything else is as in
    ``LearnedPositionalEmbedding``.

    Args:
        sampler: "shifted" (one offset per sequence), "randomized" (any positions of the table, in order) or "skipped"
            (two consecutive runs with a gap between them).
        max_len, dim, dropout, init, std: as in ``LearnedPositionalEmbedding``.

    Raises:
        ArgumentError: an unknown sampler, or an argument that cannot be used.
        PositionError: training sequences longer than the table.

    Examples:
        >>> import torch
        >>> from posembed.layers import SampledPositionalEmbedding
        >>> positions = SampledPositionalEmbedding(max_len=512, dim=64, sampler="skipped")
        >>> ids = positions.training_positions(2, 10, torch.Generator().manual_seed(0))  # (B, L)
        >>> positions(torch.randn(2, 10, 64), ids).shape
        torch.Size([2, 10, 64])
    """

    def __init__(
        self,
        *,
        max_len: Count,
        dim: Count,
        sampler: str,
        dropout: Probability = 0.1,
        init: str | Tensor = "normal",
        std: NotNegative | None = None,
    ) -> None:
        super().__init__(max_len=max_len, dim=dim, dropout=dropout, init=init, std=std)
        if sampler not in SAMPLERS:
            raise unknown("sampler", sampler, SAMPLERS)
        self.sampler = sampler

    def training_positions(self, batch: Amount, length: Amount, generator: torch.Generator) -> Tensor:
        """Draws ids (B, L), int64, that increase along each sequence and stay within the table.

        Raises:
            PositionError: sequences longer than the table.
        """
        if length > self.max_len:
            raise no_row(length - 1, self.max_len, length=length)
        if self.sampler == "shifted":
            return shifted(batch, length, max_shift=self.max_len - length, generator=generator)
        if self.sampler == "randomized":
            return randomized(batch, length, max_len=self.max_len, generator=generator)
        return skipped(batch, length, max_len=self.max_len, chunks=min(2, length), generator=generator)
