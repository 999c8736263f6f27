"""The lab's classifiers of texts and of images: ``posembed.nn``'s encoder and a head, with any PositionEncoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed import nn as positioned
from posembed.errors import ArgumentError
from posembed.lab.model.decoder import PositionedModel
from posembed.layers.base import PositionEncoding
from posembed.nn.attention import require_fitting

Pooling = Literal["cls", "mean"]


class Encoder(PositionedModel):
    """Embedded tokens (B, L, D) -> logits (B, C). Subclasses embed.

    Args:
        embedding: what the subclass embeds with; initialised with the rest.
        dim: width D, a multiple of heads.
        classes: C.
        layers, heads: how many.
        encoding: one for the whole model, shared by its layers.
        pooling: what the classes are read from: "cls", a learned token in front, at position 0, or "mean", the
            mean over all tokens that are not padding.
        dropout: after each sublayer.

    Raises:
        ArgumentError: heads that do not divide the width, an unknown pooling, or an encoding that does not fit.
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
    ) -> None:
        super().__init__()
        known: Sequence[str] = get_args(Pooling)
        if pooling not in known:
            raise ArgumentError(f"pooling must be one of {', '.join(known)}; got {pooling!r}")
        self.embedding = embedding
        self.first = nn.Parameter(torch.zeros(1, 1, dim)) if pooling == "cls" else None
        self.body = positioned.Encoder(dim=dim, heads=heads, layers=layers, dropout=dropout)
        require_fitting(encoding, dim, heads, causal=False)
        self.head = nn.Linear(dim, classes)
        positioned.gpt2_init_(self)
        if self.first is not None:
            nn.init.normal_(self.first, std=0.02)
        self.encoding = encoding  # last: runs draw weights and sum gradients in the order of the parameters

    def classify(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Classifies x (B, L, D): (B, C). ``present``, boolean (B, L), is False for padding; None means no padding.

        Positions are consecutive from 0, the position of the token in front if there is one.
        """
        if self.first is not None:
            x = torch.cat((self.first.to(x.dtype).expand(len(x), -1, -1), x), dim=1)
            present = None if present is None else F.pad(present, (1, 0), value=True)
        position_ids = torch.arange(x.size(1), device=x.device)
        positions = positioned.Positions(self.encoding, x, position_ids, causal=False, mask=present)
        x = self.body(positions.at_input(x), positions=positions)
        return self.head(x[:, 0] if self.first is not None else mean_of_present(x, present))


class TextClassifier(Encoder):
    """Token ids (B, L) and lengths (B,) -> logits (B, C). ``embedding`` is an nn.Embedding."""

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Classifies the first tokens of each row, as many as its length, from 1; the others are padding."""
        present = torch.arange(ids.size(1), device=ids.device) < lengths.unsqueeze(1)
        return self.classify(self.embedding(ids), present)


class ImageClassifier(Encoder):
    """The pixels of patches (B, N, p * p) -> logits (B, C): a ViT (Dosovitskiy et al. 2021, arXiv:2010.11929).

    ``embedding`` is an nn.Linear.
    """

    def forward(self, patches: Tensor) -> Tensor:
        return self.classify(self.embedding(patches))


def mean_of_present(x: Tensor, present: Tensor | None) -> Tensor:
    """Averages x (B, L, D) over the tokens that are not padding: (B, D)."""
    if present is None:
        return x.mean(dim=1)
    weights = present.to(x.dtype).unsqueeze(-1)
    return (x * weights).sum(dim=1) / weights.sum(dim=1)
