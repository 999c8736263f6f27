"""Position ids computed from the tokens: matching digits of the question and the answer share an id.

Abacus (McLeish et al. 2024, arXiv:2405.17399) numbers the digits of each number from its first; coupled (Cho et al.
2024, arXiv:2405.20671) numbers the digits of the question from the last. Both are rows of a learned table. Training
starts at a random row, so that rows past the longest training problem are trained too.

That alone is not enough at our size: rows farther apart than the training problems are long never occur in one text,
and nothing stops a digit from attending to them. So the higher digits are shifted farther than the lower ones, as PoSE
(arXiv:2309.10400) shifts the chunks of a text, and the token at the gap has weight 0 in the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posembed.lab.tasks.problem_texts import ALPHABET, DIGITS, EQUALS
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.positions.samplers import abacus, coupled

IDS = {
    "abacus": "a learned row per digit of a number, counted from its first; training starts at a random row",
    "coupled": "a learned row per significance of a digit; training starts at a random row",
}
DIGIT_TOKENS = torch.tensor([ALPHABET.index(digit) for digit in DIGITS])
EQUALS_TOKEN = ALPHABET.index(EQUALS)


def ids_of(name: str, tokens: Tensor) -> Tensor:
    """Returns position ids (B, L) for tokens (B, L), without a shift: those of the tests."""
    if name == "abacus":
        return abacus(tokens, DIGIT_TOKENS)
    ids = coupled(tokens, DIGIT_TOKENS, EQUALS_TOKEN)
    # Our addition: the token before the first digit counts as one more digit. So the end of the answer is found the
    # way a digit is; in the paper, the model must infer it from finding nothing.
    question = (tokens == EQUALS_TOKEN).cumsum(-1) == 0
    return torch.cat(((ids * question).amax(dim=1, keepdim=True) + 1, ids[:, 1:]), dim=1)


def moved(ids: Tensor, latest: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Returns ids (B, L) to train on, and whether a token is the last before a gap, (B, L - 1).

    Half of the sequences are shifted as a whole, by U{0 .. latest}. In the others, the ids up to a random split are
    shifted by the smaller of two such draws, and those after it by the larger.
    """
    rows = len(ids)
    shifts = torch.randint(latest + 1, (rows, 2), generator=generator)
    whole = torch.rand(rows, 1, generator=generator) < 0.5
    shifts = torch.where(whole, shifts[:, :1], shifts.sort(dim=1).values)
    # The start of the text, one above the highest digit, is shifted with it.
    part = (torch.rand(rows, 1, generator=generator) * (ids[:, 1:].amax(dim=1, keepdim=True) - 1)).long() + 1
    higher = ids > part
    shift = torch.where(higher, shifts[:, 1:], shifts[:, :1])
    before_gap = ~higher[:, :-1] & higher[:, 1:] & (ids[:, :-1] > 0) & (shifts[:, :1] < shifts[:, 1:])
    return torch.where(ids > 0, ids + shift, 0), before_gap


def table_for(longest_trained: int, longest_tested: int, width: int, dropout: float) -> LearnedPositionalEmbedding:
    """Returns a table with rows for the longest training problem shifted by ``latest_start``.

    The highest id belongs to the start of the text: size + 3 for addition with coupled ids. Row 0 is for tokens that
    are not digits.
    """
    rows = latest_start(longest_tested) + longest_trained + 4
    return LearnedPositionalEmbedding(max_len=rows, dim=width, dropout=dropout)


def latest_start(longest_tested: int) -> int:
    """Returns the largest shift in training: large enough for the last tested rows to be trained often."""
    return longest_tested
