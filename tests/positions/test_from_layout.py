"""Ids from how the tokens lie, against counting in plain Python and against transformers' own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import OPTConfig, RobertaConfig
from transformers.models.opt.modeling_opt import OPTLearnedPositionalEmbedding
from transformers.models.roberta.modeling_roberta import RobertaEmbeddings

from posembed.errors import ArgumentError
from posembed.positions import consecutive, from_cu_seqlens, from_mask, from_segment_ids, from_token_ids
from posembed.tables.layout import PADDING, TableLayout
from together import together

few = settings(max_examples=25, deadline=None, derandomize=True)
masks = st.integers(1, 9).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(0, 1), min_size=length, max_size=length).filter(any), min_size=1, max_size=4
    )
)


def counted(mask: list[int], padding: int) -> list[int]:
    """The ids of one row, counted one by one."""
    ids, seen = [], 0
    for present in mask:
        ids.append(seen if present else padding)
        seen += present
    return ids


def test_exact_values() -> None:
    mask = torch.tensor([0, 0, 1, 1, 1])
    assert from_mask(mask).tolist() == [0, 0, 0, 1, 2]
    assert TableLayout.OPT.rows_of(from_mask(mask, padding=PADDING)).tolist() == [1, 1, 2, 3, 4]

    ids = from_token_ids(torch.tensor([[5, 6, 7, 1, 1]]), pad_id=1, padding=PADDING)
    assert TableLayout.roberta(pad_id=1).rows_of(ids).tolist() == [[2, 3, 4, 1, 1]]
    ids = from_token_ids(torch.tensor([[1, 13, 54, 0, 0]]), pad_id=0, padding=PADDING)
    assert TableLayout.roberta(pad_id=0).rows_of(ids).tolist() == [[1, 2, 3, 0, 0]]

    packed = from_cu_seqlens(torch.tensor([0, 3, 5]), 5)
    assert packed.tolist() == [0, 1, 2, 0, 1]
    assert TableLayout.roberta(pad_id=1).rows_of(packed).tolist() == [2, 3, 4, 2, 3]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, torch.float32, torch.bfloat16])
def test_masks_of_any_dtype(dtype: torch.dtype) -> None:
    mask = torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype)
    ids = from_mask(mask)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [[0, 0, 1], [0, 0, 1]]


@few
@given(mask=masks, padding=st.sampled_from([0, PADDING, 7]))
def test_masks_are_counted(mask: list[list[int]], padding: int) -> None:
    assert from_mask(torch.tensor(mask), padding=padding).tolist() == [counted(row, padding) for row in mask]
    assert from_mask(torch.tensor(mask[0]), padding=padding).tolist() == counted(mask[0], padding)


@few
@given(mask=masks, pad_id=st.integers(0, 5))
def test_rows_of_roberta(mask: list[list[int]], pad_id: int) -> None:
    tokens = torch.where(torch.tensor(mask) == 1, 9, pad_id)
    ids = from_token_ids(tokens, pad_id, padding=PADDING)
    config = RobertaConfig(vocab_size=10, hidden_size=4, max_position_embeddings=16, pad_token_id=pad_id)
    embeddings = RobertaEmbeddings(config)
    read: list[torch.Tensor] = []
    embeddings.position_embeddings.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    embeddings(tokens)
    assert torch.equal(TableLayout.roberta(pad_id).rows_of(ids), read[0])


@few
@given(mask=masks)
def test_rows_of_opt(mask: list[list[int]]) -> None:
    table = OPTLearnedPositionalEmbedding(16, 4)
    attention_mask = torch.tensor(mask)
    rows = TableLayout.OPT.rows_of(from_mask(attention_mask, padding=PADDING))
    assert torch.equal(table.weight[rows], table(attention_mask))


@few
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_packed_sequences_start_at_0(lengths: list[int]) -> None:
    expected = [position for length in lengths for position in range(length)]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    segments = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    for dtype in (torch.int32, torch.int64):
        assert from_cu_seqlens(bounds.to(dtype), sum(lengths)).tolist() == expected
    for dtype in (torch.int8, torch.int64):
        assert from_segment_ids(segments.to(dtype)).tolist() == expected
    both = torch.stack((segments, segments.flip(0)))
    assert from_segment_ids(both)[0].tolist() == expected
    assert from_segment_ids(both)[1].tolist() == [p for length in reversed(lengths) for p in range(length)]


def test_a_segment_that_comes_again_starts_again() -> None:
    assert from_segment_ids(torch.tensor([3, 3, 1, 1, 1, 3])).tolist() == [0, 1, 0, 1, 2, 0]


def test_consecutive() -> None:
    assert consecutive(4).tolist() == [0, 1, 2, 3]
    assert consecutive(3, 5).tolist() == [5, 6, 7]
    assert consecutive(3, torch.tensor(5)).tolist() == [5, 6, 7]
    assert consecutive(2, torch.tensor([0, 250], dtype=torch.uint8)).tolist() == [[0, 1], [250, 251]]
    assert consecutive(10, torch.tensor([250], dtype=torch.uint8))[0, -1] == 259
    assert consecutive(3, device="meta").device.type == "meta"


def test_length_0_is_no_error() -> None:
    assert consecutive(0).shape == (0,)
    assert consecutive(0, torch.tensor([1, 2])).shape == (2, 0)
    assert from_mask(torch.ones(3, 0)).shape == (3, 0)
    assert from_token_ids(torch.ones(3, 0, dtype=torch.int64), 0).shape == (3, 0)
    assert from_segment_ids(torch.ones(3, 0, dtype=torch.int64)).shape == (3, 0)
    assert from_cu_seqlens(torch.tensor([0]), 0).shape == (0,)


def test_roberta_configs_usable_length() -> None:
    for pad_id, usable in ((1, 512), (3, 510)):
        config = RobertaConfig(max_position_embeddings=514, pad_token_id=pad_id)
        assert TableLayout.roberta(pad_id).length(config.max_position_embeddings) == usable
    assert TableLayout.OPT.length(OPTConfig(max_position_embeddings=2048).max_position_embeddings + 2) == 2048


bad = [
    (lambda: consecutive(-1), "length counts tokens and cannot be negative; got -1"),
    (lambda: consecutive(3, -2), "offset counts the tokens that came before: 0, 1, 2, ...; got -2"),
    (lambda: consecutive(3, 1.5), "got 1.5"),
    (lambda: consecutive(3, torch.tensor([1, -2])), "got -2"),
    (lambda: consecutive(3, torch.ones(2, 2, dtype=torch.int64)), r"\(B,\), one per sequence; got shape \(2, 2\)"),
    (lambda: from_mask(torch.tensor([1, 2, 0])), "1 for tokens and 0 for padding; got 2"),
    (lambda: from_mask(torch.tensor([0.0, float("-inf")])), "got -inf. Turn an additive mask .* with mask == 0"),
    (lambda: from_mask(torch.tensor([[1, 1], [0, 0]])), "row 1 of the mask holds only padding"),
    (lambda: from_mask(torch.tensor([0, 0])), "the mask holds only padding"),
    (lambda: from_mask(torch.ones(1, 1, 2, 2)), r"must be \(L,\) or \(B, L\)"),
    (lambda: from_token_ids(torch.tensor([[3, 3]]), 3), "row 0 of the mask holds only padding"),
    (lambda: from_token_ids(torch.tensor([0.5]), 0), "token_ids: expected a tensor of integers .*; got .*long"),
    (lambda: from_segment_ids(torch.tensor([0.5])), "segment_ids: expected a tensor of integers .*; got .*long"),
    (lambda: from_cu_seqlens(torch.tensor([1, 3, 5]), 5), "must rise from 0 to .*, 5; got 1 to 5"),
    (
        lambda: from_cu_seqlens(torch.tensor([0, 3, 4]), 5),
        "must rise from 0 to the length of the packed input, 5; got 0 to 4",
    ),
    (lambda: from_cu_seqlens(torch.tensor([0, 3, 2, 5]), 5), "must rise from 0 .*; got 2 after 3"),
    (lambda: from_cu_seqlens(torch.tensor([0, 3, 3, 5]), 5), r"got 3 after 3\. .*unique_consecutive\(\)"),
    (lambda: from_cu_seqlens(torch.tensor([[0, 5]]), 5), r"\(number of sequences \+ 1,\); got shape \(1, 2\)"),
    (lambda: from_cu_seqlens(torch.tensor([0.0, 5.0]), 5), "cu_seqlens: expected a tensor of integers .*; got .*long"),
]


@together(("call", "message"), bad)
def test_bad_input(call, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()
