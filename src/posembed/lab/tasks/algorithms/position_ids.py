"""Position ids that follow from the tokens: digits of question and answer that belong together share one.

Abacus (McLeish et al. 2024, arXiv:2405.17399) counts a digit's place within its number from the first;
coupled (Cho et al. 2024, arXiv:2405.20671) counts the digits of the question from the last. Both are rows of a
learned table, and those past the longest training problem are trained because training starts anywhere.

That alone is not enough at our size: rows farther apart than the training problems are long are never seen in one
text, and nothing keeps a digit from attending to them. So the higher digits are moved farther than the lower ones,
as PoSE (arXiv:2309.10400) does with the chunks of a text, and the one token at the gap does not count.
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


def ids_of(name: str, tokens: Tensor) -> Tensor:
    """tokens (B, L) -> position ids (B, L), from the first row on: what a trained model is tested with."""
    if name == "abacus":
        return abacus(tokens, DIGIT_TOKENS)
    ids = coupled(tokens, DIGIT_TOKENS, EQUALS_TOKEN)
    # Ours: what stands before the first digit counts as the digit before it. So the end of the answer is looked up
    # as a digit is, where the paper leaves it to be told from nothing being found.
    question = (tokens == EQUALS_TOKEN).cumsum(-1) == 0
    return torch.cat(((ids * question).amax(dim=1, keepdim=True) + 1, ids[:, 1:]), dim=1)


def moved(ids: Tensor, latest: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Ids (B, L) to train on. Half the sequences are moved as they are, by U{0 .. latest}; of the others the lower
    ids by the smaller of two such draws, and those from a place drawn at random on by the larger. Beside the ids
    (B, L - 1): is a token the last before the gap?"""
    rows = len(ids)
    shifts = torch.randint(latest + 1, (rows, 2), generator=generator)
    whole = torch.rand(rows, 1, generator=generator) < 0.5
    shifts = torch.where(whole, shifts[:, :1], shifts.sort(dim=1).values)
    # The start of the text, one above the highest digit, is moved with it.
    part = (torch.rand(rows, 1, generator=generator) * (ids[:, 1:].amax(dim=1, keepdim=True) - 1)).long() + 1
    higher = ids > part
    shift = torch.where(higher, shifts[:, 1:], shifts[:, :1])
    before_gap = ~higher[:, :-1] & higher[:, 1:] & (ids[:, :-1] > 0) & (shifts[:, :1] < shifts[:, 1:])
    return torch.where(ids > 0, ids + shift, 0), before_gap


def table_for(longest_trained: int, longest_tested: int, width: int, dropout: float) -> LearnedPositionalEmbedding:
    """Rows for problems as long as the longest trained on, moved by as much as ``latest_start``.

    The highest id is that of the text's start, in addition size + 3 (coupled, from the start 1); row 0 is for all
    that is no digit.
    """
    rows = latest_start(longest_tested) + longest_trained + 4
    return LearnedPositionalEmbedding(rows, width, dropout=dropout)


def latest_start(longest_tested: int) -> int:
    """By how much ids are moved in training, at the most: the last rows that are tested still train often."""
    return longest_tested
