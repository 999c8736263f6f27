"""BiPE: positions from separators as the authors count them, and a model that reads them in every layout."""

from __future__ import annotations

import torch

from posembed import Alibi, RotaryEmbedding
from posembed.layers import BilevelEncoding, YarnScaling
from posembed.nn import Decoder
from posembed.positions import from_separators
from together import together
from tolerance import assert_close

ENDS = [869, 13]  # "." and a new line in Llama's vocabulary
KINDS = ["rope", "alibi"]

# get_bilevel_ids of the authors' my_modeling_llama_bipe_rope.py with train_scale=4: the place and the segment.
TOKENS = [[13, 5, 6, 7, 8, 9, 869, 4, 869, 13, 3, 2], [1, 2, 3, 4, 13, 6, 7, 8, 9, 10, 11, 12]]
PLACES = [[0, 0, 1, 2, 3, 3, 3, 0, 1, 0, 0, 1], [0, 1, 2, 3, 3, 0, 1, 2, 3, 3, 3, 3]]
SEGMENTS = [[0, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4, 4], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]]


def encoding(kind: str) -> BilevelEncoding:
    between = RotaryEmbedding(8) if kind == "rope" else Alibi(2)
    return BilevelEncoding(max_len=4, dim=16, between=between, dropout=0.0, std=1.0)


def decoder(kind: str, kv_heads: int = 2) -> Decoder:
    return Decoder(dim=16, heads=2, kv_heads=kv_heads, layers=2, encoding=encoding(kind)).double().eval()


def test_the_authors_positions() -> None:
    expected = 4 * torch.tensor(SEGMENTS) + torch.tensor(PLACES)
    assert torch.equal(from_separators(torch.tensor(TOKENS), ENDS, max_len=4), expected)
    assert torch.equal(from_separators(torch.tensor(TOKENS[0]), ENDS, max_len=4), expected[0])
    assert from_separators(torch.tensor(TOKENS[0]), [], max_len=99).tolist() == list(range(12))


def test_padding_is_not_counted() -> None:
    """Neither at the sides nor between tokens, and a separator under the mask ends nothing."""
    tokens, mask = torch.full((3, 20), 13), torch.zeros(3, 20, dtype=torch.long)
    for row, where in enumerate((range(12), range(8, 20), [0, 1, 4, 5, 6, 7, 10, 11, 12, 15, 18, 19])):
        tokens[row, list(where)], mask[row, list(where)] = torch.tensor(TOKENS[0]), 1
    ids = from_separators(tokens, ENDS, max_len=4, mask=mask)
    alone = from_separators(torch.tensor(TOKENS[0]), ENDS, max_len=4)
    assert not ids[mask == 0].any()
    for row in range(3):
        assert torch.equal(ids[row][mask[row] == 1], alone)


@torch.no_grad()
@together("kind", KINDS)
def test_attention_sees_segments_and_the_input_sees_places(kind: str) -> None:
    layer, ids = encoding(kind), torch.tensor([0, 3, 4, 6, 401])
    segments = torch.tensor([0, 0, 1, 1, 100])
    x, (q, k) = torch.randn(2, 5, 16), torch.randn(2, 1, 2, 5, 8)
    assert_close(layer.at_input(x, ids), x + layer.table()[[0, 3, 0, 2, 1]])
    turned = layer.at_queries_keys(q, k, ids, ids)
    expected = RotaryEmbedding(8)(q, k, segments) if kind == "rope" else (q, k)
    assert all(map(torch.equal, turned, expected))
    scores = layer.at_scores(ids, ids)
    assert (scores is None) == (kind == "rope")
    if scores is not None:
        slopes = torch.tensor([2.0**-4, 2.0**-8])[:, None, None]
        assert_close(scores, -slopes * (segments[:, None] - segments).abs())


def test_a_scaling_counts_segments() -> None:
    rope = RotaryEmbedding(8, scaling=YarnScaling(original_length=2))
    layer, ids = BilevelEncoding(max_len=4, dim=16, between=rope), torch.arange(16)
    q, k = torch.randn(2, 1, 2, 16, 8)
    for text_length in (None, 16):
        turned = layer.at_queries_keys(q, k, ids, ids, text_length=text_length)
        assert all(map(torch.equal, turned, rope(q, k, ids // 4)))
