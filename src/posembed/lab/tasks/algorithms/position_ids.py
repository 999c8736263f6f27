"""Position ids that follow from the tokens: digits of question and answer that belong together share one.

Abacus (McLeish et al. 2024, arXiv:2405.17399) counts a digit's place within its number from the first;
coupled (Cho et al. 2024, arXiv:2405.20671) counts the digits of the question from the last. Both are rows of a
learned table, and those past the longest training problem are trained because training starts anywhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.lab.tasks.algorithms.problems import ALPHABET, DIGITS, EQUALS
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.positions.samplers import abacus, coupled

IDS = {
    "abacus": "a learned row for a digit's place within its number, from a random start in training",
    "coupled": "a learned row for all digits of one significance, from a random start in training",
}
DIGIT_TOKENS = torch.tensor([ALPHABET.index(digit) for digit in DIGITS])
EQUALS_TOKEN = ALPHABET.index(EQUALS)


def ids_of(name: str, tokens: Tensor, *, latest: int = 0, generator: torch.Generator | None = None) -> Tensor:
    """tokens (B, L) -> position ids (B, L), moved by U{0 .. latest}: all alike (abacus), or each (coupled)."""
    if name == "abacus":
        return abacus(tokens, DIGIT_TOKENS, max_shift=latest, generator=generator)
    return coupled(tokens, DIGIT_TOKENS, EQUALS_TOKEN, max_start=1 + latest, generator=generator)


def table_for(longest_trained: int, longest_tested: int, width: int, dropout: float) -> LearnedPositionalEmbedding:
    """Rows for problems as long as the longest trained on, moved by as much as ``latest_start``.

    The highest id is that of the answer's last digit, size + 2 (coupled, from the start 1); row 0 is for all that
    is no digit.
    """
    rows = latest_start(longest_tested) + longest_trained + 3
    return LearnedPositionalEmbedding(rows, width, dropout=dropout)


def latest_start(longest_tested: int) -> int:
    """By how much ids are moved in training, at the most: the last rows that are tested still train often."""
    return longest_tested
