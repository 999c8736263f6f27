"""The input layer of the Transformer (Vaswani et al. 2017, 1706.03762) with learned positions (table 3, row E)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.errors import CheckpointError
from posembed.inputs.embed import TokenEmbedding, embed
from posembed.inputs.weights import FAIRSEQ_PAD_ID, open_fairseq
from posembed.layers.learned import LearnedPositionalEmbedding, require_at_least_one
from posembed.tables.layout import TableLayout


class TransformerInput(nn.Module):
    """Token rows times sqrt(D), plus position rows, then dropout.

    Tokens start from N(0, 1/D), so that scaled they have variance 1, and positions from the paper's sinusoids,
    whose variance is 1/2: neither drowns the other. The paper found learned and fixed positions equally good.

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of their rows, even.
        dropout: applied after the sum, in training.
        pad_id: the padding token. If given, positions count the other tokens (unless ``position_ids`` or a mask is
            given), and the position table is fairseq's: row ``pad_id`` belongs to padding and row ``pad_id + 1``
            to position 0.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(
        self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.1, pad_id: int | None = None
    ) -> None:
        super().__init__()
        require_at_least_one(dim=dim)
        self.pad_id = pad_id
        self.scale = math.sqrt(dim)
        self.embed_tokens = TokenEmbedding(vocab_size, dim, std=dim**-0.5, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(
            max_len,
            dim,
            dropout=dropout,
            init="sinusoidal",
            std=math.sqrt(0.5),
            layout=TableLayout() if pad_id is None else TableLayout.roberta(pad_id),
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
        return embed(
            token_ids,
            self.embed_tokens,
            self.embed_positions,
            position_ids,
            offset=offset,
            mask=mask,
            pad_id=self.pad_id,
            scale=self.scale,
        )

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, side: Literal["encoder", "decoder"] = "encoder") -> Self:
        """Loads the layer of one side of a fairseq Transformer with learned positions from fairseq's own file."""
        weights = open_fairseq(path)
        for setting in ("no_scale_embedding", "layernorm_embedding"):
            if weights.setting(setting, default=False):
                raise CheckpointError(f"{path}: trained with {setting}; this layer scales, and has no norm")
        tensors = weights.read(
            {
                "embed_tokens.weight": (f"{side}.embed_tokens.weight",),
                "embed_positions.weight": (f"{side}.embed_positions.weight",),
            }
        )
        rows, dim = tensors["embed_positions.weight"].shape
        with torch.device("meta"):
            layer = cls(
                tensors["embed_tokens.weight"].shape[0],
                TableLayout.roberta(FAIRSEQ_PAD_ID).length(rows),
                dim,
                dropout=weights.setting("dropout", default=0.1),
                pad_id=FAIRSEQ_PAD_ID,
            )
        return weights.fill(layer, tensors)
