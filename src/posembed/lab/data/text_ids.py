"""Texts -> token ids, text by text, by bytes, by a tokenizer that there is, or by pairs learned here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.lab.data.text import read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAIRS = "bpe:"


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


@dataclass(frozen=True)
class TextTokenizer:
    encode: Callable[[Sequence[str]], Texts]
    vocabulary: int
    sha256: str
    """What tells this tokenizer from another."""


def text_tokenizer(name: str, train: Sequence[str]) -> TextTokenizer:
    """By name: "bytes"; "bpe:N", N tokens of byte pairs learned from the texts to train on (Sennrich et al. 2016);
    the path of a tokenizer.json, or a name on the Hugging Face hub.

    Raises:
        DataError: a tokenizer that cannot be loaded.
        ArgumentError: an N that is no number above 256.
    """
    if name == "bytes":
        return TextTokenizer(_bytes, 256, hashlib.sha256(b"bytes").hexdigest())
    tokenizer = _learned_pairs(name, train) if name.startswith(PAIRS) else read_tokenizer(name)

    def encode(texts: Sequence[str]) -> Texts:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return _in_a_row([torch.tensor(e.ids, dtype=torch.int32) for e in tokenizer.encode_batch(list(texts))])

    return TextTokenizer(
        encode, tokenizer.get_vocab_size(), hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    )


def _learned_pairs(name: str, train: Sequence[str]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    number = name.removeprefix(PAIRS)
    if not number.isdecimal() or int(number) <= 256:
        raise ArgumentError(f"expected a number above 256 after {PAIRS}, such as {PAIRS}2000; got {name!r}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=int(number), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(train, trainer)
    return tokenizer


def _bytes(texts: Sequence[str]) -> Texts:
    return _in_a_row([torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) for text in texts])


def _in_a_row(ids: Sequence[Tensor]) -> Texts:
    lengths = torch.tensor([len(one) for one in ids])
    return Texts(torch.cat(list(ids)), torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))))
