"""The input layer of Whisper's decoder (Radford et al. 2022, 2212.04356): 448 positions."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.inputs.embed import TokenEmbedding, embed
from posembed.inputs.weights import open_model
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.tables.layout import TableLayout


class WhisperDecoderInput(nn.Module):
    """Token rows plus position rows, then dropout. (The encoder's positions are fixed sinusoids.)

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of their rows.
        dropout: applied after the sum, in training.
        pad_id: the token whose row is zero and not trained, or None.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(
        self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.0, pad_id: int | None = None
    ) -> None:
        super().__init__()
        self.embed_tokens = TokenEmbedding(vocab_size, dim, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(max_len, dim, dropout=dropout, layout=TableLayout.WHISPER)

    def forward(
        self,
        token_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        offset: int | Tensor = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Embeds token_ids (B, L): (B, L, D)."""
        return embed(token_ids, self.embed_tokens, self.embed_positions, position_ids, offset=offset, mask=mask)

    @classmethod
    def from_checkpoint(cls, source: str | Path) -> Self:
        """Loads the layer of a whisper model from a folder or the hub."""
        weights = open_model(source, families=("whisper",))
        tensors = weights.read(
            {
                "embed_tokens.weight": ("decoder.embed_tokens.weight",),
                "embed_positions.weight": ("decoder.embed_positions.weight",),
            }
        )
        max_len, dim = tensors["embed_positions.weight"].shape
        with torch.device("meta"):
            layer = cls(
                tensors["embed_tokens.weight"].shape[0],
                max_len,
                dim,
                dropout=weights.setting("dropout", default=0.0),
                pad_id=weights.setting("pad_token_id", default=None),
            )
        return weights.fill(layer, tensors)
