"""A short Transformer encoder that takes any PositionEncoding and ends in classes: of texts, and of images.

Its blocks are the decoder's (model.py), with attention both ways. Padding is seen by nobody and counts nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.lab.model.attention import hide_padding
from posembed.lab.model.decoder import Block, PositionedModel, initialise
from posembed.layers.base import PositionEncoding

Pooling = Literal["cls", "mean"]


class Encoder(PositionedModel):
    """What was embedded (B, L, D) -> logits (B, C). Subclasses embed.

    Args:
        embedding: what the subclass embeds with; initialised with the rest, before the encoding.
        dim: width D, a multiple of heads.
        classes: C.
        layers, heads: how many.
        encoding: one for the whole model, shared by its layers.
        pooling: what the classes are read from: "cls", a learned token in front, which takes position 0, or
            "mean", over all tokens that are there.
        dropout: after each sublayer.

    Raises:
        ArgumentError: heads that do not divide the width, an unknown pooling, or an encoding with a causal window,
            which nothing here applies.
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
        require_pooling(pooling)
        if encoding.window is not None:
            raise ArgumentError(
                f"{type(encoding).__name__} is used under a causal window of {encoding.window} tokens, and an "
                "encoder sees all tokens both ways; choose an encoding without a window"
            )
        self.embedding = embedding
        self.first = nn.Parameter(torch.zeros(1, 1, dim)) if pooling == "cls" else None
        self.blocks = nn.ModuleList(Block(dim, heads, dropout, causal=False) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        initialise(self, layers)
        if self.first is not None:
            nn.init.normal_(self.first, std=0.02)
        self.encoding = encoding  # after the others are drawn: it brings its own initial values

    def classify(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """x (B, L, D) -> logits (B, C). present, boolean (B, L): where there is no padding; None: everywhere.

        Positions are consecutive from 0, which is the token in front's where there is one.
        """
        if self.first is not None:
            x = torch.cat((self.first.to(x.dtype).expand(len(x), -1, -1), x), dim=1)
            present = None if present is None else F.pad(present, (1, 0), value=True)
        position_ids = torch.arange(x.size(1), device=x.device)
        x = self.encoding.at_input(x, position_ids)
        bias = hide_padding(self.encoding.at_scores(position_ids, position_ids), present)
        text_length = x.size(1) if present is None else present.sum(dim=1)
        for block in self.blocks:
            x = block(x, self.encoding, position_ids, bias, text_length)
        x = self.norm(x)
        return self.head(x[:, 0] if self.first is not None else mean_of_present(x, present))


class TextClassifier(Encoder):
    """Token ids (B, L) and how many of each row are there -> logits (B, C). ``embedding`` is an nn.Embedding."""

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """lengths (B,), from 1; what stands after them in ids is padding, of any id."""
        present = torch.arange(ids.size(1), device=ids.device) < lengths.unsqueeze(1)
        return self.classify(self.embedding(ids), present)


class ImageClassifier(Encoder):
    """The pixels of patches (B, N, p * p) -> logits (B, C): a ViT (Dosovitskiy et al. 2021, arXiv:2010.11929).

    ``embedding`` is an nn.Linear.
    """

    def forward(self, patches: Tensor) -> Tensor:
        return self.classify(self.embedding(patches))


def mean_of_present(x: Tensor, present: Tensor | None) -> Tensor:
    """x (B, L, D) -> (B, D)."""
    if present is None:
        return x.mean(dim=1)
    weights = present.to(x.dtype).unsqueeze(-1)
    return (x * weights).sum(dim=1) / weights.sum(dim=1)


def require_pooling(pooling: str) -> None:
    known: Sequence[str] = get_args(Pooling)
    if pooling not in known:
        raise ArgumentError(f"pooling must be one of {', '.join(known)}; got {pooling!r}")
