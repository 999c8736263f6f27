"""The input layer of the first GPT (Radford et al. 2018): 512 positions."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.inputs.embed import TokenEmbedding, embed
from posembed.inputs.weights import open_model
from posembed.layers.learned import LearnedPositionalEmbedding


class GPT1Input(nn.Module):
    """Token rows plus position rows, then dropout.

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of their rows.
        dropout: applied after the sum, in training.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens_embed = TokenEmbedding(vocab_size, dim)
        self.positions_embed = LearnedPositionalEmbedding(max_len, dim, dropout=dropout)

    def forward(
        self,
        token_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        offset: int | Tensor = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Embeds token_ids (B, L): (B, L, D)."""
        return embed(token_ids, self.tokens_embed, self.positions_embed, position_ids, offset=offset, mask=mask)

    @classmethod
    def from_checkpoint(cls, source: str | Path) -> Self:
        """Loads the layer of an openai-gpt model from a folder or the hub."""
        weights = open_model(source, families=("openai-gpt",))
        tensors = weights.read(
            {
                "tokens_embed.weight": ("tokens_embed.weight",),
                "positions_embed.weight": ("positions_embed.weight",),
            }
        )
        max_len, dim = tensors["positions_embed.weight"].shape
        with torch.device("meta"):
            layer = cls(
                tensors["tokens_embed.weight"].shape[0],
                max_len,
                dim,
                dropout=weights.setting("embd_pdrop", default=0.1),
            )
        return weights.fill(layer, tensors)
