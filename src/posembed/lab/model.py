"""The lab's models, which take any PositionEncoding: language models, classifiers, and an encoder-decoder."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed import nn as positioned
from posembed.errors import ArgumentError
from posembed.layers.base import PositionEncoding
from posembed.nn.attention import require_fitting

POOLINGS = ("cls", "mean")
EVERY_TOKEN = "none"
"""The pooling of a model that classifies each token."""
SEGMENTS = 2


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the losses (B, L) in nats of logits (B, L, V) for targets (B, L); 0 for targets of -100, which are not
    predicted."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none").view(targets.shape)


class PositionedModel(nn.Module):
    """A model that owns one encoding, which all its layers share.

    Subclasses register the encoding last, because the order of registration affects random initial values and the
    rounding of gradient norms.
    """

    encoding: PositionEncoding

    def sizes(self) -> tuple[int, int]:
        """Returns the number of parameters in the model and in its encoding."""
        return sum(p.numel() for p in self.parameters()), sum(p.numel() for p in self.encoding.parameters())


class LanguageModel(PositionedModel):
    """A model that maps token ids (B, L) to logits (B, L, V): ``posembed.nn``'s layers between a token table and a head
    tied to it, with GPT-2's initialization.

    vocabulary: the number of tokens V. dim: the width D.
    """

    causal: ClassVar[bool]
    """Whether each token sees only the tokens up to it, as in ``posembed.nn``'s decoder, or all, as in its encoder."""

    def __init__(
        self, vocabulary: int, dim: int, *, layers: int, heads: int, encoding: PositionEncoding, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        body = positioned.Decoder if self.causal else positioned.Encoder
        self.body = body(dim=dim, heads=heads, layers=layers, dropout=dropout)
        positioned.gpt2_init_(self)
        self.encoding = encoding

    def forward(self, ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Returns logits for token ids (B, L). ``position_ids`` is (L,) or (B, L); None means 0 .. L - 1."""
        x = self.tokens(ids)
        positions = positioned.Positions(self.encoding, x, position_ids, causal=self.causal)
        return F.linear(self.body(positions.at_input(x), positions=positions), self.tokens.weight)


class Decoder(LanguageModel):
    causal = True


class Encoder(LanguageModel):
    causal = False


class Classifier(PositionedModel):
    """A classifier of texts, tokens or images: an embedding, ``posembed.nn``'s encoder and a linear head.

    With patches as its input, it is a ViT (Dosovitskiy et al. 2021, arXiv:2010.11929). With two classes for each token,
    the start and the end of an answer, it is BERT's model for question answering.

    embedding: an nn.Embedding for token ids, or an nn.Linear for the pixels of a patch. dim: the width D. classes: the
    number of classes C. pooling: "cls" (the head reads a learned token at position 0), "mean" (it reads the mean of
    all tokens except padding) or "none" (it reads every token). segments: whether each token also adds an embedding of
    its segment, 0 or 1, as in BERT.

    Raises ArgumentError if the heads do not divide the width, the pooling is unknown, or the encoding does not fit.
    """

    def __init__(
        self,
        embedding: nn.Module,
        dim: int,
        classes: int,
        *,
        layers: int,
        heads: int,
        encoding: PositionEncoding,
        pooling: str = "cls",
        dropout: float = 0.0,
        segments: bool = False,
    ) -> None:
        super().__init__()
        if pooling not in (*POOLINGS, EVERY_TOKEN):
            raise ArgumentError(f"pooling must be one of {', '.join(POOLINGS)}; got {pooling!r}")
        self.embedding, self.pooling = embedding, pooling
        self.segments = nn.Embedding(SEGMENTS, dim) if segments else None
        self.first = nn.Parameter(torch.zeros(1, 1, dim)) if pooling == "cls" else None
        self.body = positioned.Encoder(dim=dim, heads=heads, layers=layers, dropout=dropout)
        require_fitting(encoding, dim, heads, causal=False)
        self.head = nn.Linear(dim, classes)
        positioned.gpt2_init_(self)
        if self.first is not None:
            nn.init.normal_(self.first, std=0.02)
        self.encoding = encoding

    def forward(self, inputs: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Returns logits (B, C) for token ids (B, L) or patches (B, N, p * p); without pooling, logits (B, L, C).

        ``lengths`` (B,) gives the number of tokens in each row, at least 1; the rest of a row is padding. None means no
        padding. ``segments`` (B, L) is for models with segments.
        """
        present = None if lengths is None else torch.arange(inputs.size(1), device=inputs.device) < lengths.unsqueeze(1)
        x = self.embedding(inputs)
        if self.segments is not None:
            x = x + self.segments(segments)
        return self.classify(x, present)

    def encoding_of(self, x: Tensor) -> PositionEncoding:
        """Returns the encoding for tokens x (B, L, D)."""
        return self.encoding

    def classify(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Returns logits (B, C), or (B, L, C) without pooling, for embeddings x (B, L, D). ``present`` (B, L) is False
        for padding; None means that there is no padding.

        Positions count from 0. With "cls" pooling, the class token is at position 0.
        """
        if self.first is not None:
            x = torch.cat((self.first.to(x.dtype).expand(len(x), -1, -1), x), dim=1)
            present = None if present is None else F.pad(present, (1, 0), value=True)
        position_ids = torch.arange(x.size(1), device=x.device)
        positions = positioned.Positions(self.encoding_of(x), x, position_ids, causal=False, mask=present)
        x = self.body(positions.at_input(x), positions=positions)
        if self.first is not None:
            return self.head(x[:, 0])
        if self.pooling == EVERY_TOKEN:
            return self.head(x)
        if present is None:
            return self.head(x.mean(dim=1))
        weights = present.to(x.dtype).unsqueeze(-1)
        return self.head((x * weights).sum(dim=1) / weights.sum(dim=1))


class ImageClassifier(Classifier):
    """A Classifier of square images. It computes the sides of the patch grid from the number of tokens."""

    def encoding_of(self, x: Tensor) -> PositionEncoding:
        side = math.isqrt(x.size(1) - (self.first is not None))
        return self.encoding.on_grid((side, side), shared=True)


class TwoSides(PositionEncoding):
    """The encodings of an encoder and of a decoder, which may be the same object."""

    def __init__(self, encoder: PositionEncoding, decoder: PositionEncoding) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def table(self) -> Tensor | None:
        """Returns the learned rows (N, D): those of the encoder, then those of the decoder if it has its own."""
        sides = dict.fromkeys((self.encoder, self.decoder))
        tables = [table for side in sides if (table := side.table()) is not None]
        return torch.cat(tables) if tables else None


class EncoderDecoder(PositionedModel):
    """A model that writes a target for a source: ``posembed.nn``'s encoder, and its decoder with cross-attention.

    Both sides and the head share one token table (Vaswani et al. 2017, 3.4). The weights are initialized like GPT-2's.

    vocabulary: the number of tokens V. dim: the width D. layers: the number of layers of each side.
    """

    encoding: TwoSides

    def __init__(
        self, vocabulary: int, dim: int, *, layers: int, heads: int, encoding: TwoSides, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.encoder = positioned.Encoder(dim=dim, heads=heads, layers=layers, dropout=dropout)
        self.decoder = positioned.Decoder(dim=dim, heads=heads, layers=layers, dropout=dropout, cross_attention=True)
        require_fitting(encoding.encoder, dim, heads, causal=False)
        positioned.gpt2_init_(self)
        self.encoding = encoding

    def forward(self, source: Tensor, target: Tensor, present: Tensor | None = None) -> Tensor:
        """Returns logits (B, T, V) for sources (B, S) and the target tokens before each prediction (B, T).

        ``present`` (B, S) is False for padding of the source. Positions of both count from 0.
        """
        x, y = self.tokens(source), self.tokens(target)
        positions = positioned.Positions(self.encoding.encoder, x, causal=False, mask=present)
        memory = positioned.Memory(self.encoder(positions.at_input(x), positions=positions), mask=present)
        positions = positioned.Positions(self.encoding.decoder, y, memory=memory)
        return F.linear(self.decoder(positions.at_input(y), positions=positions), self.tokens.weight)
