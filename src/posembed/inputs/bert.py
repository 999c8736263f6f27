"""The input layers of BERT (Devlin et al. 2019, 1810.04805) and RoBERTa (Liu et al. 2019, 1907.11692)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from posembed.inputs.base import Declaration
from posembed.inputs.text import TextInput, TokenEmbedding
from posembed.inputs.weights import FAIRSEQ_PAD_ID, Weights
from posembed.layers.base import require_probability
from posembed.layers.learned import LearnedPositionalEmbedding


class BertInput(TextInput):
    """Token, type and position rows, layer norm, dropout: BERT, ELECTRA and ALBERT; DistilBERT has no types.

    If the embeddings are narrower than the model (ELECTRA, ALBERT), D is the width of the embeddings, and the
    projection that follows belongs to the model.

    Args:
        token_types: the number of types; 0 for none.
        dropout: applied after the norm, in training.
        eps: of the norm.
    """

    declaration = Declaration(
        families=("bert", "electra", "albert", "distilbert"),
        prefix="embeddings.",
        tokens="word_embeddings",
        positions="position_embeddings",
        types="token_type_embeddings",
        norm="LayerNorm",
        dropout="dropout",
        keys={  # weights converted from TensorFlow keep its names
            "LayerNorm.weight": ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"),
            "LayerNorm.bias": ("embeddings.LayerNorm.bias", "embeddings.LayerNorm.beta"),
        },
        optional=("token_type_embeddings",),
        settings={
            "dropout": ("hidden_dropout_prob", "dropout"),
            "eps": ("layer_norm_eps",),
            "pad_id": ("pad_token_id",),
        },
    )

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


class RobertaInput(BertInput):
    """BERT's layer with fairseq's positions: RoBERTa, XLM-RoBERTa, CamemBERT, Longformer; MPNet has no types.

    Position 0 is in row ``pad_id + 1``, and positions count the tokens other than ``pad_id``, unless
    ``position_ids`` or a mask is given. ``position_ids`` count from 0, as everywhere in posembed; those of
    transformers for these models are rows and start at ``pad_id + 1``.

    Args:
        max_len: the number of positions; the 514 rows of RoBERTa's table hold 512.
        pad_id: the padding token, any id. Its row and the row of its position are zero and not trained.
        vocab_size, dim, token_types, dropout, eps: as in BertInput.
    """

    declaration = replace(
        BertInput.declaration, families=("roberta", "xlm-roberta", "camembert", "longformer", "mpnet")
    )

    def __init__(
        self,
        vocab_size: int,
        max_len: int,
        dim: int,
        *,
        token_types: int = 1,
        dropout: float = 0.1,
        eps: float = 1e-5,
        pad_id: int = FAIRSEQ_PAD_ID,
    ) -> None:
        super().__init__(vocab_size, max_len, dim, token_types=token_types, dropout=dropout, eps=eps, pad_id=pad_id)

    @classmethod
    def _arguments(cls, weights: Weights, tensors: dict[str, Tensor]) -> dict[str, Any]:
        if weights.config.get("model_type") == "mpnet":  # its padding is token 1, whatever its config says
            weights = replace(weights, config={**weights.config, "pad_token_id": FAIRSEQ_PAD_ID})
        return {"eps": 1e-12, **super()._arguments(weights, tensors)}
