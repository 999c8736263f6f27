"""Swap the position encoding in one word, and see what happens past the training length.

A small language model is trained on 64 letters at a time, under three encodings, and then reads up to 256. Its
perplexity is always that of the same last 32 letters, with more and more text before them:

    python examples/swap_encoding.py
"""

import os
from pathlib import Path
from textwrap import fill

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from posembed.errors import PositionError
from posembed.nn import Decoder, gpt2_init_

TRAINED, LENGTHS = 64, (64, 128, 256)
sources = [path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("*.py"))]
letters = torch.tensor(list(b"".join(sources)))
training, held_out = letters[:-200_000], letters[-200_000:]


class LanguageModel(nn.Module):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, 64)
        self.decoder = Decoder(dim=64, heads=4, layers=2, encoding=encoding, max_len=TRAINED)  # the one word
        gpt2_init_(self)

    def loss(self, texts: Tensor, *, last: int) -> Tensor:
        """Mean loss of the last letters of texts (B, L + 1), each predicted from all letters before it."""
        predicted = self.decoder(self.letters(texts[:, :-1])) @ self.letters.weight.T
        return cross_entropy(predicted[:, -last:].flatten(0, 1), texts[:, -last:].flatten())


def trained(encoding: str) -> LanguageModel:
    torch.manual_seed(0)
    model = LanguageModel(encoding)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        starts = torch.randint(len(training) - TRAINED, (32, 1))
        loss = model.loss(training[starts + torch.arange(TRAINED + 1)], last=TRAINED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def perplexity(model: LanguageModel, length: int) -> float:
    ends = torch.arange(1000, len(held_out), 1000)[:, None]
    return model.loss(held_out[ends - torch.arange(length, -1, -1)], last=32).exp().item()


for encoding in ("learned", "rope", "alibi"):
    model = trained(encoding)
    for length in LENGTHS:
        try:
            print(f"{encoding:8} perplexity with {length:3} letters: {perplexity(model, length):.2f}")
        except PositionError as error:
            print(fill(f"{encoding:8} with {length} letters: {error}", 100))
            break
