"""What a model can learn from unlabelled text: which tokens it reads, and which it predicts.

Notation: B sequences, L tokens, V tokens in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

IGNORED = -100
"""The target of a token that is not predicted, such as padding. ``F.cross_entropy`` ignores it."""
CHOSEN, MASKED, RANDOM = 0.15, 0.8, 0.1
"""BERT chooses 15% of the tokens. It masks 80% of these, replaces 10% by random tokens, and keeps 10%."""


@dataclass(frozen=True)
class Objective:
    """A way to learn from text.

    line: what the model learns, in words. causal: whether each token sees only the tokens up to it. examples: maps
    token ids (B, L + 1), V and a generator to inputs (B, L) and targets (B, L). extra_ids: how many ids inputs or
    targets use beyond the vocabulary. draws: how many times to draw examples from each held-out text, if they are
    random.
    """

    line: str
    causal: bool
    examples: Callable[[Tensor, int, Generator], tuple[Tensor, Tensor]]
    extra_ids: int = 0
    draws: int = 1


def next_tokens(ids: Tensor, vocabulary: int, generator: Generator) -> tuple[Tensor, Tensor]:
    return ids[:, :-1], ids[:, 1:]


def earlier_tokens(ids: Tensor, vocabulary: int, generator: Generator) -> tuple[Tensor, Tensor]:
    return next_tokens(ids.flip(1), vocabulary, generator)


def masked_tokens(ids: Tensor, vocabulary: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Hides tokens as in BERT. The mask has the id V."""
    ids = ids[:, :-1]
    chosen, anything = choose(ids, generator), torch.randint(vocabulary, ids.shape, generator=generator)
    how = torch.rand(ids.shape, generator=generator)
    shown = torch.where(how < MASKED, vocabulary, torch.where(how < MASKED + RANDOM, anything, ids))
    return torch.where(chosen, shown, ids), torch.where(chosen, ids, IGNORED)


def replaced_tokens(ids: Tensor, vocabulary: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Replaces tokens at random. The targets are V for the original tokens, and V + 1 for the replaced tokens."""
    ids = ids[:, :-1]
    anything = torch.randint(vocabulary, ids.shape, generator=generator)
    shown = torch.where(choose(ids, generator), anything, ids)
    return shown, vocabulary + (shown != ids).long()


def choose(ids: Tensor, generator: Generator) -> Tensor:
    """Returns a boolean mask (B, L) that chooses 15% of the tokens in each row at random, and at least one."""
    order = torch.rand(ids.shape, generator=generator).argsort(dim=1).argsort(dim=1)
    return order < max(round(CHOSEN * ids.size(1)), 1)


OBJECTIVES = {
    "causal": Objective("predicts each token from the tokens before it", True, next_tokens),
    "backward": Objective("predicts each token from the tokens after it", True, earlier_tokens),
    # Devlin et al. 2019, arXiv:1810.04805, section 3.1
    "masked": Objective("predicts hidden tokens from the tokens on both sides", False, masked_tokens, 1, draws=4),
    # Clark et al. 2020, arXiv:2003.10555, but the replacements are uniformly random
    "replaced": Objective("detects random tokens among those of the text", False, replaced_tokens, 2, draws=4),
}
"""Every objective by name."""
