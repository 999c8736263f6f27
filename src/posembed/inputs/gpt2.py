"""The input layer of GPT-2 (Radford et al. 2019) and of the models that share it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.inputs.embed import TokenEmbedding, embed
from posembed.inputs.weights import open_model
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.tables.layout import TableLayout


class GPT2Input(nn.Module):
    """Token rows plus position rows, then dropout: GPT-2, GPT-Neo and GPTBigCode (StarCoder).

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of their rows.
        dropout: applied after the sum, in training.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    def __init__(self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.wte = TokenEmbedding(vocab_size, dim, std=0.02)
        self.wpe = LearnedPositionalEmbedding(max_len, dim, dropout=dropout, std=0.01, layout=TableLayout.GPT2)

    def forward(
        self,
        token_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        offset: int | Tensor = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Embeds token_ids (B, L): (B, L, D)."""
        return embed(token_ids, self.wte, self.wpe, position_ids, offset=offset, mask=mask)

    @classmethod
    def from_checkpoint(cls, source: str | Path) -> Self:
        """Loads the layer of a gpt2, gpt_neo or gpt_bigcode model from a folder or the hub."""
        weights = open_model(source, families=("gpt2", "gpt_neo", "gpt_bigcode"))
        tensors = weights.read({"wte.weight": ("wte.weight",), "wpe.weight": ("wpe.weight",)})
        max_len, dim = tensors["wpe.weight"].shape
        with torch.device("meta"):
            layer = cls(
                tensors["wte.weight"].shape[0],
                max_len,
                dim,
                dropout=weights.setting("embd_pdrop", "embed_dropout", default=0.1),
            )
        return weights.fill(layer, tensors)
