"""The input layers of BART's encoder and decoder (Lewis et al. 2019, 1910.13461) and of OPT (Zhang et al. 2022,
2205.01068), which have two rows before position 0.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.inputs.embed import TokenEmbedding, add_positions, checked_token_ids, embed
from posembed.inputs.weights import open_model
from posembed.layers.learned import LearnedPositionalEmbedding, require_at_least_one, require_probability
from posembed.tables.layout import TableLayout


class BartInput(nn.Module):
    """Token rows (optionally scaled by sqrt(D)) and position rows, optional norm, dropout: BART, mBART, PLBART.

    Encoder and decoder each have a layer and share their tokens:
    ``decoder_input.embed_tokens = encoder_input.embed_tokens``.

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of their rows.
        scale: multiply the token rows by sqrt(D).
        norm: apply a layer norm after the sum.
        dropout: applied last, in training.
        pad_id: the token whose row is zero and not trained, or None.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(
        self,
        vocab_size: int,
        max_len: int,
        dim: int,
        *,
        scale: bool = False,
        norm: bool = True,
        dropout: float = 0.1,
        pad_id: int | None = 1,
    ) -> None:
        super().__init__()
        require_at_least_one(dim=dim)
        require_probability(dropout)
        self.scale = math.sqrt(dim) if scale else 1.0
        # Scaled or not, the tokens start at the scale of the positions that are added to them.
        self.embed_tokens = TokenEmbedding(vocab_size, dim, std=0.02 / self.scale, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(max_len, dim, dropout=0.0, layout=TableLayout.BART)
        self.layernorm_embedding = nn.LayerNorm(dim) if norm else None
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        token_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        offset: int | Tensor = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Embeds token_ids (B, L): (B, L, D)."""
        return embed(
            token_ids,
            self.embed_tokens,
            self.embed_positions,
            position_ids,
            offset=offset,
            mask=mask,
            scale=self.scale,
            norm=self.layernorm_embedding,
            dropout=self.dropout,
        )

    @classmethod
    def from_checkpoint(cls, source: str | Path, *, side: Literal["encoder", "decoder"] = "encoder") -> Self:
        """Loads the layer of one side of a bart, mbart or plbart model from a folder or the hub."""
        weights = open_model(source, families=("bart", "mbart", "plbart"))
        tensors = weights.read(
            {
                "embed_tokens.weight": ("shared.weight", f"{side}.embed_tokens.weight"),
                "embed_positions.weight": (f"{side}.embed_positions.weight",),
                "layernorm_embedding.weight": (f"{side}.layernorm_embedding.weight",),
                "layernorm_embedding.bias": (f"{side}.layernorm_embedding.bias",),
            },
            optional=("layernorm_embedding.weight", "layernorm_embedding.bias"),
        )
        rows, dim = tensors["embed_positions.weight"].shape
        with torch.device("meta"):
            layer = cls(
                tensors["embed_tokens.weight"].shape[0],
                TableLayout.BART.length(rows),
                dim,
                scale=weights.setting("scale_embedding", default=False),
                norm="layernorm_embedding.weight" in tensors,
                dropout=weights.setting("dropout", default=0.1),
                pad_id=weights.setting("pad_token_id", default=1),
            )
        return weights.fill(layer, tensors)


class OPTInput(nn.Module):
    """Token rows, projected to the model's width if they are narrower (OPT-350m), plus position rows.

    OPT counts positions over the attention mask: pass it as ``mask`` if there is padding.

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of the model.
        token_dim: the width of the token rows. None means D.
        pad_id: the token whose row is zero and not trained, or None.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(
        self, vocab_size: int, max_len: int, dim: int, *, token_dim: int | None = None, pad_id: int | None = 1
    ) -> None:
        super().__init__()
        token_dim = dim if token_dim is None else token_dim
        self.embed_tokens = TokenEmbedding(vocab_size, token_dim, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(max_len, dim, dropout=0.0, layout=TableLayout.OPT)
        self.project_in = nn.Linear(token_dim, dim, bias=False) if token_dim != dim else None

    def forward(
        self,
        token_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        offset: int | Tensor = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Embeds token_ids (B, L): (B, L, D)."""
        if self.project_in is None:
            return embed(token_ids, self.embed_tokens, self.embed_positions, position_ids, offset=offset, mask=mask)
        token_ids = checked_token_ids(token_ids)
        x = self.project_in(self.embed_tokens(token_ids))
        return add_positions(x, self.embed_positions, token_ids, position_ids, offset=offset, mask=mask)

    @classmethod
    def from_checkpoint(cls, source: str | Path) -> Self:
        """Loads the layer of an opt model from a folder or the hub."""
        weights = open_model(source, families=("opt",))
        tensors = weights.read(
            {
                "embed_tokens.weight": ("decoder.embed_tokens.weight",),
                "embed_positions.weight": ("decoder.embed_positions.weight",),
                "project_in.weight": ("decoder.project_in.weight",),
            },
            optional=("project_in.weight",),
        )
        vocab_size, token_dim = tensors["embed_tokens.weight"].shape
        rows, dim = tensors["embed_positions.weight"].shape
        with torch.device("meta"):
            layer = cls(
                vocab_size,
                TableLayout.OPT.length(rows),
                dim,
                token_dim=token_dim,
                pad_id=weights.setting("pad_token_id", default=1),
            )
        return weights.fill(layer, tensors)
