"""The input layers of BART (Lewis et al. 2019, 1910.13461) and OPT (Zhang et al. 2022, 2205.01068), which have two
rows before position 0, and of Whisper's decoder (Radford et al. 2022, 2212.04356).
"""

from __future__ import annotations

import math

from torch import nn

from posembed.inputs.base import Declaration
from posembed.inputs.text import TextInput, TokenEmbedding
from posembed.layers.base import require_at_least_one, require_probability
from posembed.layers.learned import LearnedPositionalEmbedding


class BartInput(TextInput):
    """Token rows (optionally scaled by sqrt(D)) and position rows, optional norm, dropout: BART, mBART, PLBART.

    Encoder and decoder each have a layer and share their tokens:
    ``decoder_input.embed_tokens = encoder_input.embed_tokens``.

    Args:
        scale: multiply the token rows by sqrt(D).
        norm: apply a layer norm after the sum.
    """

    declaration = Declaration(
        families=("bart", "mbart", "plbart"),
        prefix="{side}.",
        tokens="embed_tokens",
        positions="embed_positions",
        norm="layernorm_embedding",
        dropout="dropout",
        keys={"embed_tokens.weight": ("shared.weight", "{side}.embed_tokens.weight")},
        optional=("layernorm_embedding",),
        settings={"scale": ("scale_embedding",), "dropout": ("dropout",), "pad_id": ("pad_token_id",)},
    )

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
        self.embed_positions = LearnedPositionalEmbedding(max_len, dim, dropout=0.0, layout=self.layout(pad_id))
        self.layernorm_embedding = nn.LayerNorm(dim) if norm else None
        self.dropout = nn.Dropout(dropout)


class OPTInput(TextInput):
    """Token rows, projected to the model's width if they are narrower (OPT-350m), plus position rows.

    OPT counts positions over the attention mask: pass it as ``mask`` if there is padding.

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of the model.
        token_dim: the width of the token rows. None means D.
    """

    declaration = Declaration(
        families=("opt",),
        prefix="decoder.",
        tokens="embed_tokens",
        positions="embed_positions",
        projection="project_in",
        optional=("project_in",),
        settings={"pad_id": ("pad_token_id",)},
    )

    def __init__(
        self, vocab_size: int, max_len: int, dim: int, *, token_dim: int | None = None, pad_id: int | None = 1
    ) -> None:
        super().__init__()
        token_dim = dim if token_dim is None else token_dim
        self.embed_tokens = TokenEmbedding(vocab_size, token_dim, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(max_len, dim, dropout=0.0, layout=self.layout(pad_id))
        self.project_in = nn.Linear(token_dim, dim, bias=False) if token_dim != dim else None


class WhisperDecoderInput(TextInput):
    """Token rows plus position rows, then dropout: 448 positions. (The encoder's positions are fixed sinusoids.)"""

    declaration = Declaration(
        families=("whisper",),
        prefix="decoder.",
        tokens="embed_tokens",
        positions="embed_positions",
        settings={"dropout": ("dropout",), "pad_id": ("pad_token_id",)},
    )

    def __init__(
        self, vocab_size: int, max_len: int, dim: int, *, dropout: float = 0.0, pad_id: int | None = None
    ) -> None:
        super().__init__()
        self.embed_tokens = TokenEmbedding(vocab_size, dim, pad_id=pad_id)
        self.embed_positions = LearnedPositionalEmbedding(max_len, dim, dropout=dropout, layout=self.layout(pad_id))
