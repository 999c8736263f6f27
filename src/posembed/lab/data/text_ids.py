"""Texts -> token ids, text by text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from posembed.lab.data.tokenizer import PAIRS, Bytes, Loaded, learn_pairs, read_tokenizer


@dataclass(frozen=True)
class Texts:
    """Ids of texts in a row, uint8 or int32, and where each ends: (N + 1,), from 0."""

    ids: Tensor
    bounds: Tensor

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def lengths(self) -> Tensor:
        return self.bounds.diff()

    def batch(self, rows: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """The texts (B,) named, each cut at the limit -> (ids (B, L), int64, padded with 0; lengths (B,))."""
        lengths = self.lengths()[rows].clamp(max=limit)
        places = torch.arange(int(lengths.max()))
        inside = places < lengths.unsqueeze(1)
        ids = self.ids[torch.where(inside, self.bounds[rows].unsqueeze(1) + places, 0)]
        return ids.long() * inside, lengths


def text_tokenizer(name: str, train: Sequence[str]) -> Bytes | Loaded:
    """Load a tokenizer as ``read_tokenizer`` does, or learn "bpe:N" from the texts to train on.

    Raises:
        DataError, ArgumentError: a tokenizer that cannot be loaded or learned.
    """
    return learn_pairs(name, train) if name.startswith(PAIRS) else read_tokenizer(name)


def encode(tokenizer: Bytes | Loaded, texts: Sequence[str]) -> Texts:
    """The ids of each text, at least one: the end alone, if the tokenizer finds no token in it."""
    ids = [found if len(found) else np.array([tokenizer.end], found.dtype) for found in tokenizer.ids(texts)]
    bounds = np.cumsum([0, *map(len, ids)])
    return Texts(torch.from_numpy(np.concatenate(ids)), torch.from_numpy(bounds))
