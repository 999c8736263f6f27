"""SeqPE with the two auxiliary losses of its paper (Li et al. 2025, arXiv:2506.13277), which the library leaves out.

They make far positions usable that no text has. With rows E, e_i = E[i]:

    near rows are similar      -ln softmax_j(e_i . e_j) at the j nearest to i, over random positions j
    far rows behave as near    KL(P, Q) + KL(Q, P) for P = softmax(E_near E_near^T) and Q = softmax(E_far E_far^T)

Differences from the authors' code: none of the random positions j is made from the digits of i, and scores are those of
whole rows, not of heads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from posembed.layers import SequentialPositionalEmbedding
from posembed.positions.checks import check_positions

GROUPS = 8  # the number of positions i, and of far sequences, in each step; the authors use 8, 16 or 32
OTHERS, TOKENS = 64, 32  # the number of positions j, and of positions of a sequence that are compared
WEIGHT = 0.1  # the factor of both losses, as in the authors' code


class SeqPeWithLosses(SequentialPositionalEmbedding):
    """SeqPE whose training adds ``auxiliary_loss`` to the model's loss."""

    def auxiliary_loss(self, length: int, generator: torch.Generator) -> Tensor | None:
        """Returns ``WEIGHT`` times the sum of both losses, for texts of ``length`` tokens.

        None for a single position. The second loss is for texts that start between ``length`` and
        ``longest - length``; without room for any, there is none.

        Raises:
            PositionError: sequences longer than ``longest``.
        """
        check_positions(torch.tensor(length - 1, device="cpu"), self.longest)
        if self.longest == 1:
            return None
        loss = self._contrast(generator)
        if self.longest > 2 * length:
            loss = loss + self._transfer(length, generator)
        return WEIGHT * loss

    def _contrast(self, generator: torch.Generator) -> Tensor:
        """Each position i must recognise the nearest of others. Half of the i choose among others near each other."""
        others = min(OTHERS, self.longest - 1)
        one = torch.randint(self.longest, (GROUPS, 1), generator=generator, device="cpu")
        span = torch.full((GROUPS, 1), self.longest - 1, device="cpu")
        span[::2] = min(5 * others, self.longest - 1)
        start = _below(self.longest - span, 1, generator)
        many = start + _distinct(span, others, generator)
        many = many + (many >= one)  # any position but i
        nearest = (many - one).abs().argmin(-1)
        rows = self._wide_rows(torch.cat((one, many), 1))
        scores = (rows[:, 1:] @ rows[:, :1].transpose(1, 2)).squeeze(-1)
        return F.cross_entropy(scores, nearest.to(scores.device))

    def _transfer(self, length: int, generator: torch.Generator) -> Tensor:
        """Tokens of a text that starts far away must be as similar as the same tokens of a text that starts at 0."""
        tokens = min(TOKENS, length)
        near = _distinct(torch.full((GROUPS, 1), length, device="cpu"), tokens, generator)
        far = near + torch.randint(length, self.longest - length, (GROUPS, 1), generator=generator, device="cpu")
        p, q = ((rows @ rows.transpose(1, 2)).log_softmax(-1) for rows in map(self._wide_rows, (near, far)))
        p = p.detach()
        return ((p.exp() - q.exp()) * (p - q)).mean()  # KL(P, Q) + KL(Q, P), as a mean over all pairs of tokens

    def _wide_rows(self, ids: Tensor) -> Tensor:
        rows = self.rows(ids.to(self.last_weight.device))
        return rows.to(torch.promote_types(rows.dtype, torch.float32))


def _below(limit: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draws (B, count) integers from 0 to limit - 1, where limit is (B, 1)."""
    return (torch.rand(len(limit), count, generator=generator, device="cpu", dtype=torch.float64) * limit).long()


def _distinct(limit: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draws (B, count) increasing integers from 0 to limit - 1."""
    return _below(limit - count + 1, count, generator).sort(-1).values + torch.arange(count, device="cpu")
