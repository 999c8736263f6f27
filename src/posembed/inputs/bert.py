"""The input layer of BERT (Devlin et al. 2019, 1810.04805) and of the models that share it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from posembed.inputs.embed import TokenEmbedding, embed
from posembed.inputs.weights import Weights, open_model
from posembed.layers.learned import LearnedPositionalEmbedding, require_probability
from posembed.tables.layout import TableLayout


class BertInput(nn.Module):
    """Token, type and position rows, layer norm, dropout: BERT, ELECTRA and ALBERT; DistilBERT has no types.

    If the embeddings are narrower than the model (ELECTRA, ALBERT), D is the width of the embeddings, and the
    projection that follows belongs to the model.

    Args:
        vocab_size, max_len, dim: the numbers of tokens and positions, and the width D of their rows.
        token_types: the number of types; 0 for none.
        dropout: applied after the norm, in training.
        eps: of the norm.
        pad_id: the token whose row is zero and not trained, or None.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    families: ClassVar[tuple[str, ...]] = ("bert", "electra", "albert", "distilbert")
    usual_pad_id: ClassVar[int] = 0
    uncounted_id: int | None = None
    """The token that positions skip. None, because without a mask BERT numbers padding like any token."""

    def __init__(
        self,
        vocab_size: int,
        max_len: int,
        dim: int,
        *,
        token_types: int = 2,
        dropout: float = 0.1,
        eps: float = 1e-12,
        pad_id: int | None = 0,
    ) -> None:
        super().__init__()
        require_probability(dropout)
        self.word_embeddings = TokenEmbedding(vocab_size, dim, pad_id=pad_id)
        self.position_embeddings = LearnedPositionalEmbedding(
            max_len, dim, dropout=0.0, init="truncated_normal", layout=self.layout(pad_id)
        )
        self.token_type_embeddings = TokenEmbedding(token_types, dim) if token_types else None
        self.LayerNorm = nn.LayerNorm(dim, eps=eps)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def layout(pad_id: int | None) -> TableLayout:
        """Returns the layout of the position table."""
        return TableLayout.BERT

    def forward(
        self,
        token_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        offset: int | Tensor = 0,
        mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Embeds token_ids and token_type_ids (B, L): (B, L, D). By default every token is of type 0."""
        return embed(
            token_ids,
            self.word_embeddings,
            self.position_embeddings,
            position_ids,
            offset=offset,
            mask=mask,
            pad_id=self.uncounted_id,
            token_types=self.token_type_embeddings,
            token_type_ids=token_type_ids,
            norm=self.LayerNorm,
            dropout=self.dropout,
        )

    @classmethod
    def pad_id_of(cls, weights: Weights) -> int | None:
        """Returns the token that a model takes for padding."""
        pad_id: int | None = weights.setting("pad_token_id", default=cls.usual_pad_id)
        return pad_id

    @classmethod
    def from_checkpoint(cls, source: str | Path) -> Self:
        """Loads the layer of a model of one of ``families`` from a folder or the hub."""
        weights = open_model(source, families=cls.families)
        tensors = weights.read(
            {
                "word_embeddings.weight": ("embeddings.word_embeddings.weight",),
                "position_embeddings.weight": ("embeddings.position_embeddings.weight",),
                "token_type_embeddings.weight": ("embeddings.token_type_embeddings.weight",),
                # Weights converted from TensorFlow keep its names.
                "LayerNorm.weight": ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"),
                "LayerNorm.bias": ("embeddings.LayerNorm.bias", "embeddings.LayerNorm.beta"),
            },
            optional=("token_type_embeddings.weight",),
        )
        vocab_size, dim = tensors["word_embeddings.weight"].shape
        types = tensors.get("token_type_embeddings.weight")
        pad_id = cls.pad_id_of(weights)
        with torch.device("meta"):
            layer = cls(
                vocab_size,
                cls.layout(pad_id).length(tensors["position_embeddings.weight"].shape[0]),
                dim,
                token_types=0 if types is None else types.shape[0],
                dropout=weights.setting("hidden_dropout_prob", "dropout", default=0.1),
                eps=weights.setting("layer_norm_eps", default=1e-12),
                pad_id=pad_id,
            )
        return weights.fill(layer, tensors)
