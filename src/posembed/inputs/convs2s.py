"""The input layer of ConvS2S (Gehring et al. 2017, 1705.03122), the first model with a learned position table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.inputs.embed import TokenEmbedding, checked_token_ids, embed
from posembed.inputs.weights import FAIRSEQ_PAD_ID, open_fairseq
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.tables.layout import TableLayout


class ConvS2SInput(nn.Module):
    """Token rows plus position rows, then dropout; zero at padding.

    A convolution reads past the ends of a sequence, so padding must equal the zeros that the convolution pads
    with. Positions count the tokens other than ``pad_id``, unless ``position_ids`` or a mask is given. Rows start
    from N(0, .1).

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of their rows.
        dropout: applied after the sum, in training.
        pad_id: the padding token. In the position table, row ``pad_id`` belongs to padding and row ``pad_id + 1``
            to position 0.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(
        self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.1, pad_id: int = FAIRSEQ_PAD_ID
    ) -> None:
        super().__init__()
        self.pad_id = pad_id
        self.embed_tokens = TokenEmbedding(vocab_size, dim, std=0.1, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(
            max_len, dim, dropout=dropout, std=0.1, layout=TableLayout.roberta(pad_id)
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
        token_ids = checked_token_ids(token_ids)
        x = embed(
            token_ids,
            self.embed_tokens,
            self.embed_positions,
            position_ids,
            offset=offset,
            mask=mask,
            pad_id=self.pad_id,
        )
        padding = token_ids == self.pad_id if mask is None else mask[:, mask.shape[1] - token_ids.shape[1] :] == 0
        return x.masked_fill(padding[..., None], 0)

    @classmethod
    def from_checkpoint(cls, path: str | Path, *, side: Literal["encoder", "decoder"] = "encoder") -> Self:
        """Loads the layer of one side of fairseq's ``fconv`` from a file written by fairseq."""
        weights = open_fairseq(path)
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
            )
        return weights.fill(layer, tensors)
