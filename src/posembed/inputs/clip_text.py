"""The input layer of the text encoders of CLIP (Radford et al. 2021, 2103.00020) and SigLIP."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.inputs.embed import TokenEmbedding, embed
from posembed.inputs.weights import open_model
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.tables.layout import TableLayout


class CLIPTextInput(nn.Module):
    """Token rows plus position rows, without dropout. CLIP's table holds 77 positions, SigLIP's 64.

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of their rows.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(self, vocab_size: int, max_len: int, dim: int) -> None:
        super().__init__()
        self.token_embedding = TokenEmbedding(vocab_size, dim, std=0.02)
        self.position_embedding = LearnedPositionalEmbedding(
            max_len, dim, dropout=0.0, std=0.01, layout=TableLayout.CLIP_TEXT
        )

    def forward(
        self,
        token_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        offset: int | Tensor = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Embeds token_ids (B, L): (B, L, D)."""
        return embed(token_ids, self.token_embedding, self.position_embedding, position_ids, offset=offset, mask=mask)

    @classmethod
    def from_checkpoint(cls, source: str | Path) -> Self:
        """Loads the layer of a CLIP or SigLIP model (text encoder or both encoders) from a folder or the hub."""
        weights = open_model(source, families=("clip", "clip_text_model", "siglip", "siglip_text_model"))
        tensors = weights.read(
            {
                "token_embedding.weight": ("embeddings.token_embedding.weight",),
                "position_embedding.weight": ("embeddings.position_embedding.weight",),
            }
        )
        max_len, dim = tensors["position_embedding.weight"].shape
        with torch.device("meta"):
            layer = cls(tensors["token_embedding.weight"].shape[0], max_len, dim)
        return weights.fill(layer, tensors)
