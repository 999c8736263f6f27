"""The input layer of RoBERTa (Liu et al. 2019, 1907.11692) and of the models that count positions as it does."""

from __future__ import annotations

from typing import ClassVar

from posembed.errors import ArgumentError
from posembed.inputs.bert import BertInput
from posembed.inputs.weights import Weights
from posembed.tables.layout import TableLayout


class RobertaInput(BertInput):
    """BERT's layer with fairseq's positions: RoBERTa, XLM-RoBERTa, CamemBERT, Longformer; MPNet has no types.

    Position 0 is in row ``pad_id + 1``, and positions count the tokens other than ``pad_id``, unless
    ``position_ids`` or a mask is given. ``position_ids`` count from 0, as everywhere in posembed; those of
    transformers for these models are rows and start at ``pad_id + 1``.

    Args:
        max_len: the number of positions; the 514 rows of RoBERTa's table hold 512.
        pad_id: the padding token, any id. Its row and the row of its position are zero and not trained.
        vocab_size, dim, token_types, dropout, eps: as in BertInput.

    Raises:
        ArgumentError: an argument that cannot be used.
    """

    families: ClassVar[tuple[str, ...]] = ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet")
    usual_pad_id: ClassVar[int] = 1

    def __init__(
        self,
        vocab_size: int,
        max_len: int,
        dim: int,
        *,
        token_types: int = 1,
        dropout: float = 0.1,
        eps: float = 1e-5,
        pad_id: int = 1,
    ) -> None:
        super().__init__(vocab_size, max_len, dim, token_types=token_types, dropout=dropout, eps=eps, pad_id=pad_id)
        self.uncounted_id = pad_id

    @classmethod
    def pad_id_of(cls, weights: Weights) -> int | None:
        """Returns the token that a model takes for padding: always 1 in MPNet, whatever its config says."""
        return 1 if weights.config.get("model_type") == "mpnet" else super().pad_id_of(weights)

    @staticmethod
    def layout(pad_id: int | None) -> TableLayout:
        """Returns the layout of the position table."""
        if pad_id is None:
            raise ArgumentError(
                "RoBERTa's rows are counted from the pad token: give pad_id (pad_token_id), 1 in RoBERTa"
            )
        return TableLayout.roberta(pad_id)
