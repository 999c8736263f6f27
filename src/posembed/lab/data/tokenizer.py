"""Tokenizers: bytes, byte pairs trained on the data, and saved tokenizers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from posembed.errors import ArgumentError, DataError
from posembed.files import reason

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

PAIRS = "bpe:"
MOST_TOKENS = 1_000_000  # the tokenizers library reserves memory for all of them, and aborts the process without it
TEXTS_AT_ONCE = 1000  # the tokenizers library keeps a few hundred bytes per token until a batch of texts is done


class Bytes:
    """A tokenizer whose tokens are UTF-8 bytes. A zero byte, which text never contains, ends a document."""

    vocabulary = 256
    end = 0
    dtype = np.uint8
    sha256 = hashlib.sha256(b"bytes").hexdigest()

    def ids(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yields the ids of each text."""
        return (np.frombuffer(text.encode(), dtype=self.dtype) for text in texts)

    def offsets(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yields the character ranges (n, 2) of each text's n tokens: the first character, and one after the last."""
        for text in texts:
            at = np.repeat(np.arange(len(text)), [len(character.encode()) for character in text])
            yield np.stack((at, at + 1), axis=1)

    def bytes_of(self, text: str) -> np.ndarray | None:
        """Returns the number of bytes per token, as in ``Loaded.bytes_of``: 1 for each token and 1 for the end."""
        return np.ones(len(text.encode()) + 1, dtype=np.uint8)


class Loaded:
    """A tokenizer of the tokenizers library. A document ends with an id that no token has.

    Truncation, padding, random merges and special tokens are turned off, because they change the number of tokens.
    """

    dtype = np.int32

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        for random in ("dropout", "alpha"):
            if getattr(tokenizer.model, random, None) is not None:
                setattr(tokenizer.model, random, None)
        self.tokenizer = tokenizer
        self.end = 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)  # ids may have gaps
        self.vocabulary = self.end + 1
        self.sha256 = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()

    def ids(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yields the ids of each text."""
        return (np.asarray(encoding.ids, dtype=self.dtype) for encoding in self._encodings(texts))

    def offsets(self, texts: Iterable[str]) -> Iterator[np.ndarray]:
        """Yields the character ranges (n, 2) of each text's n tokens: the first character, and one after the last."""
        return (np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) for encoding in self._encodings(texts))

    def _encodings(self, texts: Iterable[str]) -> Iterator[Encoding]:
        texts = iter(texts)
        while some := list(islice(texts, TEXTS_AT_ONCE)):
            yield from self._encoded(some)

    def _encoded(self, texts: list[str]) -> list[Encoding]:
        try:
            return self.tokenizer.encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # a bare Exception, for a character without a token
            raise DataError(f"the tokenizer cannot encode the text: {error}; use another") from error

    def bytes_of(self, text: str) -> np.ndarray | None:
        """Returns the number of bytes of the text per token, with one more entry for the end of the document.

        Each byte counts at the first token whose characters reach it. The last entry counts the bytes after all tokens,
        plus 1 for the separator. Returns None if the tokens do not decode to the text, because predicting the tokens
        then does not predict its bytes.
        """
        encoding = self._encoded([text])[0]
        decoded = self.tokenizer.decode(encoding.ids, skip_special_tokens=False)
        if decoded.lstrip() != text.lstrip():  # many tokenizers put a space before the first word
            return None
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        widths = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
        byte_at = np.cumsum(np.append(0, widths))  # before each character, and after the last
        ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
        reached = np.maximum.accumulate(byte_at[ends])
        return np.diff(reached, prepend=0, append=byte_at[-1] + 1).astype(np.int32)


def read_tokenizer(name: str, train: Iterable[str]) -> Bytes | Loaded:
    """Loads or trains a tokenizer.

    name: "bytes", the path of a tokenizer.json, or a name on the Hugging Face hub. "bpe:N" trains byte pairs with
    N > 256 tokens (Sennrich et al. 2016) on the training texts.

    Raises ArgumentError for an invalid N, and DataError for a tokenizer that cannot be loaded.
    """
    import tokenizers

    if name == "bytes":
        return Bytes()
    if name.startswith(PAIRS):
        return _train_pairs(name, train)
    try:
        if Path(name).expanduser().exists():
            return Loaded(tokenizers.Tokenizer.from_file(str(Path(name).expanduser())))
        return Loaded(tokenizers.Tokenizer.from_pretrained(name))
    except Exception as error:  # the library raises a bare Exception
        raise DataError(
            f'the tokenizer {name} cannot be loaded: {reason(error)}; expected "bytes", "{PAIRS}N", the path of a '
            "tokenizer.json, or a name on the Hugging Face hub"
        ) from error


def _train_pairs(name: str, train: Iterable[str]) -> Loaded:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    number = name.removeprefix(PAIRS)
    if not re.fullmatch("[0-9]{1,18}", number) or not 256 < int(number) <= MOST_TOKENS:
        raise ArgumentError(
            f"expected a number above 256 after {PAIRS}, such as {PAIRS}2000; got {name!r} (at most {MOST_TOKENS:,})"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=int(number), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(train, trainer)
    pairs = Loaded(tokenizer)
    pairs.vocabulary = pairs.end  # every byte has a token, so ``encode`` needs no end
    return pairs


@dataclass(frozen=True)
class Texts:
    """Encoded texts. ids: the ids of all texts, concatenated, uint8 or int32. bounds: (N + 1,), where text i is
    ``ids[bounds[i]:bounds[i + 1]]``."""

    ids: Tensor
    bounds: Tensor

    def lengths(self) -> Tensor:
        return self.bounds.diff()

    def batch(self, rows: Tensor, limit: int, padding: int = 0) -> tuple[Tensor, Tensor]:
        """Returns the texts with the indices ``rows`` (B,), truncated to ``limit`` tokens: int64 ids (B, L), padded
        with ``padding``, and lengths (B,)."""
        lengths = self.lengths()[rows].clamp(max=limit)
        texts = [self.ids[start:][:length] for start, length in zip(self.bounds[rows], lengths, strict=True)]
        return pad_sequence(texts, batch_first=True, padding_value=padding).long(), lengths


@dataclass(frozen=True)
class Pairs:
    """Pairs of encoded texts, which a model reads as one sequence: the first, a separator, the second, a separator, as
    in BERT (Devlin et al. 2019, arXiv:1810.04805). separator: the id of the separator."""

    first: Texts
    second: Texts
    separator: int
    keep_first: bool = False
    """Whether only the second text is truncated, unless the first takes more than half of the tokens. By default,
    tokens are removed from the longer text, as in BERT's code for pairs of sentences."""

    def parts(self, limit: int, rows: Tensor | slice = slice(None), starts: Tensor | int = 0) -> tuple[Tensor, Tensor]:
        """Returns how many tokens (B,) of the first texts and of the second texts fit into ``limit`` with two
        separators. starts: the first token (B,) to read of each second text."""
        first, second = self.first.lengths()[rows], self.second.lengths()[rows] - starts
        room, half = limit - 2, (limit - 2) // 2
        if self.keep_first:
            first = first.clamp(max=half)
            return first, second.clamp(max=room - first)
        kept = first.minimum((room - second).clamp(min=room - half))
        return kept, second.minimum((room - first).clamp(min=half))

    def lengths(self) -> Tensor:
        """Returns the numbers of tokens (N,) of the pairs, with their separators."""
        return self.first.lengths() + self.second.lengths() + 2

    def batch(self, rows: Tensor, limit: int, starts: Tensor | int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Returns int64 ids (B, L), padded with 0, lengths (B,), and segments (B, L): 0 for the first text and its
        separator, 1 for the second text, its separator and padding. starts: as in ``parts``."""
        sizes = self.parts(limit, rows, starts)
        end = torch.tensor([self.separator])
        texts = [
            torch.cat((self.first.ids[start:][:first].long(), end, self.second.ids[at:][:second].long(), end))
            for start, first, at, second in zip(
                self.first.bounds[rows], sizes[0], self.second.bounds[rows] + starts, sizes[1], strict=True
            )
        ]
        ids = pad_sequence(texts, batch_first=True)
        segments = torch.arange(ids.size(1)) > sizes[0].unsqueeze(1)
        return ids, sizes[0] + sizes[1] + 2, segments.long()

    def windows(self, limit: int, stride: int | None) -> Windows:
        """Splits all pairs, in order, into windows of at most ``limit`` tokens, if ``keep_first``. Each window has the
        first text and a part of the second. A part starts ``stride`` tokens after the start of the previous part, as
        with BERT's ``doc_stride``, or at the end of the previous part if that is shorter. The last part ends with the
        text. A stride of None truncates each pair to its first window."""
        first, _ = self.parts(limit)
        room = limit - 2 - first
        step = room if stride is None else room.clamp(max=stride)
        further = -((room - self.second.lengths()).clamp(max=0) // step)
        counts = 1 + (torch.zeros_like(further) if stride is None else further)
        rows = torch.arange(len(counts)).repeat_interleave(counts)
        before = (counts.cumsum(0) - counts)[rows]
        return Windows(rows, (torch.arange(len(rows)) - before) * step[rows], counts[rows] > 1)


@dataclass(frozen=True)
class Windows:
    """Parts of pairs of texts, as tensors (W,). rows: the index of the pair. starts: the part's first token in the
    second text. several: whether the pair has several parts."""

    rows: Tensor
    starts: Tensor
    several: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, some: Tensor) -> Windows:
        return Windows(self.rows[some], self.starts[some], self.several[some])


def encode(tokenizer: Bytes | Loaded, texts: Sequence[str]) -> Texts:
    """Encodes each text. A text without tokens becomes the end id alone."""
    return joined_ids(found if len(found) else np.array([tokenizer.end], found.dtype) for found in tokenizer.ids(texts))


def joined_ids(ids: Iterable[np.ndarray]) -> Texts:
    """Returns the given ids of each text, at least one, as ``Texts``."""
    listed = list(ids)
    bounds = np.cumsum([0, *map(len, listed)])
    return Texts(torch.from_numpy(np.concatenate(listed)), torch.from_numpy(bounds))
