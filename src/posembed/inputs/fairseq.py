"""The input layers of fairseq's ConvS2S (Gehring et al. 2017, 1705.03122), the first model with a learned position
table, and of its Transformer (Vaswani et al. 2017, 1706.03762) with learned positions (table 3, row E).
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from posembed.errors import CheckpointError
from posembed.inputs.base import Declaration
from posembed.inputs.text import TextInput, TokenEmbedding
from posembed.inputs.weights import FAIRSEQ_PAD_ID, Weights
from posembed.layers.base import require_at_least_one
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.tables.layout import TableLayout


class ConvS2SInput(TextInput):
    """Token rows plus position rows, then dropout; zero at padding.

    A convolution reads past the ends of a sequence, so padding must equal the zeros that the convolution pads
    with. Positions count the tokens other than ``pad_id``, unless ``position_ids`` or a mask is given. Rows start
    from N(0, .1).

    Args:
        pad_id: the padding token. In the position table, row ``pad_id`` belongs to padding and row ``pad_id + 1``
            to position 0.
    """

    declaration = Declaration(
        families=None,
        prefix="{side}.",
        tokens="embed_tokens",
        positions="embed_positions",
        settings={"dropout": ("dropout",)},
        zero_padding=True,
    )

    def __init__(
        self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.1, pad_id: int = FAIRSEQ_PAD_ID
    ) -> None:
        super().__init__()
        self.embed_tokens = TokenEmbedding(vocab_size, dim, std=0.1, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(
            max_len, dim, dropout=dropout, std=0.1, layout=self.layout(pad_id)
        )


class TransformerInput(TextInput):
    """Token rows times sqrt(D), plus position rows, then dropout.

    Tokens start from N(0, 1/D), so that scaled they have variance 1, and positions from the paper's sinusoids,
    whose variance is 1/2: neither drowns the other. The paper found learned and fixed positions equally good.

    Args:
        dim: the width D, even.
        pad_id: the padding token. If given, positions count the other tokens (unless ``position_ids`` or a mask is
            given), and the position table is fairseq's: row ``pad_id`` belongs to padding and row ``pad_id + 1``
            to position 0.
    """

    declaration = replace(ConvS2SInput.declaration, zero_padding=False)

    def __init__(
        self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.1, pad_id: int | None = None
    ) -> None:
        super().__init__()
        require_at_least_one(dim=dim)
        self.scale = math.sqrt(dim)
        self.embed_tokens = TokenEmbedding(vocab_size, dim, std=dim**-0.5, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(
            max_len, dim, dropout=dropout, init="sinusoidal", std=math.sqrt(0.5), layout=self.layout(pad_id)
        )

    @classmethod
    def layout(cls, pad_id: int | None) -> TableLayout:
        return TableLayout() if pad_id is None else super().layout(pad_id)

    @classmethod
    def _open(cls, source: str | Path) -> Weights:
        weights = super()._open(source)
        for setting in ("no_scale_embedding", "layernorm_embedding"):
            if weights.setting(setting, default=False):
                raise CheckpointError(f"{source}: trained with {setting}; this layer scales, and has no norm")
        return weights

    @classmethod
    def _arguments(cls, weights: Weights, tensors: dict[str, Tensor]) -> dict[str, Any]:
        return {**super()._arguments(weights, tensors), "pad_id": FAIRSEQ_PAD_ID}
