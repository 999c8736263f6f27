"""The lab's language model: token rows, ``posembed.nn``'s decoder and a tied head, with any PositionEncoding."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from posembed import nn as positioned
from posembed.layers.base import PositionEncoding


class PositionedModel(nn.Module):
    """A model with one encoding, which belongs to the model itself and not to its layers."""

    encoding: PositionEncoding

    def sizes(self) -> tuple[int, int]:
        """Returns the number of its parameters, and of those of its encoding."""
        return sum(p.numel() for p in self.parameters()), sum(p.numel() for p in self.encoding.parameters())


class Decoder(PositionedModel):
    """Token ids (B, L) -> logits (B, L, V), from weights that start as GPT-2's do.

    Args:
        vocabulary: V.
        dim: width D, a multiple of heads.
        layers, heads: how many.
        encoding: one for the whole model, shared by its layers.
        dropout: after each sublayer.
    """

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        *,
        layers: int,
        heads: int,
        encoding: PositionEncoding,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.body = positioned.Decoder(dim=dim, heads=heads, layers=layers, dropout=dropout)
        positioned.gpt2_init_(self)
        self.encoding = encoding  # last: runs draw weights and sum gradients in the order of the parameters

    def forward(self, ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Reads ids at positions (L,) or (B, L); None means 0 .. L - 1."""
        x = self.tokens(ids)
        positions = positioned.Positions(self.encoding, x, position_ids)
        return F.linear(self.body(positions.at_input(x), positions=positions), self.tokens.weight)
