"""What TableMonitor says of a table: against definitions, and against steps that a test makes itself."""

from __future__ import annotations

import copy
import gc
import math
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from posembed import LearnedGridEmbedding, LearnedPositionalEmbedding, RotaryEmbedding
from posembed.errors import ArgumentError
from posembed.nn import Decoder
from posembed.tables import TableMonitor
from together import together
from tolerance import assert_close


def test_its_numbers_are_those_of_the_definitions() -> None:
    rows = torch.randn(40, 12, dtype=torch.float64)
    state = TableMonitor(nn.Parameter(rows)).state()
    share = torch.linalg.svdvals(rows - rows.mean(0)) ** 2
    share = share / share.sum()
    assert_close(state["effective_rank"], math.exp(-(share * share.log()).sum()))
    assert_close(state["norm_mean"], rows.norm(dim=1).mean().item())
    assert_close((state["norm_min"], state["norm_max"]), (rows.norm(dim=1).min().item(), rows.norm(dim=1).max().item()))
    cosine = torch.cosine_similarity(rows[:-1], rows[1:]).mean().item()
    assert_close(state["neighbour_cosine"], cosine)
    assert (state["rows"], state["rows_unchanged"]) == (40, 40)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_dtype_changes_no_row(dtype: torch.dtype) -> None:
    layer = LearnedPositionalEmbedding(max_len=16, dim=8)
    monitor = TableMonitor(layer)
    layer.to(dtype)
    assert monitor.unchanged().all()
    layer.weight.data[3] += 1
    assert monitor.unchanged().nonzero().flatten().tolist() == [row for row in range(16) if row != 3]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_weight_decay_alone_changes_no_row(optimizer: type[torch.optim.Optimizer]) -> None:
    layer = LearnedPositionalEmbedding(max_len=64, dim=16, dropout=0)
    monitor = TableMonitor(layer)
    steps = optimizer(layer.parameters(), lr=1e-3, weight_decay=0.1)
    for _ in range(50):
        steps.zero_grad()
        layer(torch.randn(2, 10, 16)).square().sum().backward()
        steps.step()
    assert monitor.unchanged().tolist() == [False] * 10 + [True] * 54
    assert monitor.state()["rows_unchanged"] == 54
    assert not torch.equal(monitor.rows()[20:], monitor.initial[20:])


@together("dtype", [torch.float32, torch.bfloat16, torch.float16])
@together("rate", [1e-7, 5e-7, 1e-6, 1e-4, 3e-3])
def test_the_rounding_of_many_decays_changes_no_row(dtype: torch.dtype, rate: float) -> None:
    table = nn.Parameter(torch.randn(40, 96).mul(0.02).to(dtype))
    monitor = TableMonitor(table)
    with torch.no_grad():
        table[:8] += 1e-3 * torch.randn(8, 96).sign()
        for _ in range(4000 if rate < 1e-4 else 100):
            table.mul_(1 - rate)
    assert monitor.unchanged().tolist() == [False] * 8 + [True] * 32


def test_what_it_takes() -> None:
    for layer in (nn.Embedding(5, 3), LearnedGridEmbedding(grid=(2, 3), dim=4, factorized=True), torch.zeros(1, 4, 3)):
        assert TableMonitor(layer).state()["rows"] > 3
    with pytest.raises(ArgumentError, match="no table"):
        TableMonitor(RotaryEmbedding(8))
    layers = (LearnedPositionalEmbedding(max_len=5, dim=4), LearnedGridEmbedding(grid=(2, 3), dim=4, factorized=True))
    for layer in (*layers, nn.Embedding(5, 3), nn.Parameter(torch.zeros(1, 4, 3))):
        with pytest.raises(ArgumentError, match=r"got one on the meta device \(.*\): load its weights first"):
            TableMonitor(layer.to("meta"))


@together(
    ("kind", "settings"),
    [
        ("LoraConfig", {"target_modules": ["wpe"]}),
        ("LoraConfig", {"target_modules": ["wpe"], "use_dora": True}),
        ("LoraConfig", {"target_modules": ["other"], "modules_to_save": ["wpe"]}),
        ("TrainableTokensConfig", {"target_modules": ["wpe"], "token_indices": [0, 1, 2, 3]}),
    ],
)
def test_the_rows_with_adapters_of_peft_are_those_that_the_model_reads(kind: str, settings: dict[str, Any]) -> None:
    peft = pytest.importorskip("peft")
    plain = nn.ModuleDict({"wpe": nn.Embedding(8, 32), "other": nn.Linear(32, 4)})
    model = peft.get_peft_model(plain, getattr(peft, kind)(**settings))
    layer = model.base_model.model["wpe"]
    monitor = TableMonitor(layer)
    (layer(torch.arange(3)) * torch.randn(3, 32)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not monitor.unchanged()[:3].any()
    assert torch.equal(monitor.rows(), layer(torch.arange(8)).double())


def test_tables_that_are_zero_broken_or_of_another_length() -> None:
    layer = nn.Embedding(4, 3)
    nn.init.zeros_(layer.weight)
    monitor = TableMonitor(layer)
    state = monitor.state()
    assert (state["effective_rank"], state["norm_max"], state["rows_unchanged"]) == (0, 0, 4)
    layer.weight.data[1] = float("nan")
    state = monitor.state()
    assert math.isnan(state["effective_rank"])
    assert state["rows_unchanged"] == 3
    layer.weight.data = torch.zeros(5, 3)
    with pytest.raises(ArgumentError, match="create a new TableMonitor"):
        monitor.state()
    assert TableMonitor(nn.Embedding(1, 3)).state()["neighbour_cosine"] == 0


def test_it_counts_the_passes_in_which_a_row_has_a_gradient() -> None:
    for layer in (LearnedPositionalEmbedding(max_len=20, dim=4), nn.Embedding(20, 4), nn.Embedding(20, 4, sparse=True)):
        monitor = TableMonitor(layer)
        lengths = [20] + 11 * [10] + [15, 5]
        for length in lengths:
            rows = layer(torch.arange(length)) if isinstance(layer, nn.Embedding) else layer(torch.randn(2, length, 4))
            rows.sum().backward()
        expected = [sum(length > row for length in lengths) for row in range(20)]
        assert monitor.trained is not None
        assert monitor.trained.tolist() == expected
        assert monitor.rare().tolist() == [0 < count < 0.1 * 14 for count in expected]
        assert monitor.state()["rows_rare"] == 5
        [finding] = monitor.findings()
        assert (finding.what, finding.rows) == ("rarely trained", tuple(range(15, 20)))
        assert finding.figure == "trained in 1 backward passes, others in up to 14"


def test_sequences_are_counted_exactly_if_their_rows_are_given() -> None:
    monitor = TableMonitor(nn.Embedding(6, 3))
    monitor.count(torch.tensor([[0, 1, 2, 2], [0, 1, 5, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool())
    for _ in range(20):
        monitor.count(torch.arange(3))
    assert monitor.trained is not None
    assert monitor.trained.tolist() == [22, 22, 21, 0, 0, 0]
    monitor.count(torch.arange(5))
    assert monitor.rare().tolist() == [False] * 3 + [True] * 2 + [False]
    assert "trained in 1 sequences, others in up to 23" in str(monitor.findings()[0])


@together(
    ("rows", "mask", "message"),
    [
        (torch.zeros(2, 3, 1, dtype=torch.int64), None, r"integers \(B, L\) or \(L,\); got \(2, 3, 1\)"),
        (torch.zeros(3), None, "got .* of torch.float32"),
        (torch.arange(3), torch.ones(2).bool(), r"the shape of the rows, \(3,\); got \(2,\)"),
        (torch.tensor([0, 6]), None, "the table has rows 0 to 5; got 0 to 6"),
        (torch.tensor([-1, 2]), None, "the table has rows 0 to 5; got -1 to 2"),
        ([[0, 1]], None, "a tensor of integers .* got list"),
        (torch.ones(2, 3, dtype=torch.bool), None, "got .* of torch.bool"),
        (torch.ones(2, 3, dtype=torch.complex64), None, "got .* of torch.complex64"),
        (torch.arange(3), torch.tensor([0, -1e9, -1e9]), "a mask holds True or 1"),
        (torch.arange(3), torch.tensor([5, 2, -100]), "a mask holds True or 1"),
    ],
)
def test_rows_that_cannot_be_counted(rows: Any, mask: torch.Tensor | None, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TableMonitor(nn.Embedding(6, 3)).count(rows, mask)


def test_no_tokens_count_nothing_and_a_mask_may_be_of_any_dtype() -> None:
    for shape in ((0,), (0, 4), (2, 0)):
        monitor = TableMonitor(nn.Embedding(6, 3))
        monitor.count(torch.zeros(shape, dtype=torch.int64))
        assert monitor.trained is not None
        assert monitor.trained.tolist() == [0] * 6
    for dtype in (torch.bool, torch.int64, torch.float32):
        monitor.count(torch.arange(3), torch.tensor([1, 1, 0], dtype=dtype))
    assert monitor.trained is not None
    assert monitor.trained.tolist() == [3, 3, 0, 0, 0, 0]


def test_the_table_of_one_layer_in_two_is_counted_like_the_table_of_both() -> None:
    counted = []
    for name in ("learned", "learned/none"):
        torch.manual_seed(0)
        model = Decoder(dim=8, heads=2, layers=2, encoding=name, max_len=20)
        monitor = TableMonitor(model.encoding)
        for length in (6, 6, 18):
            (model(torch.randn(2, length, 8)) * torch.randn(8)).sum().backward()  # normed outputs alone add up to 0
        counted.append(monitor.trained)
    assert torch.equal(*counted)
    assert counted[0].tolist()[17:] == [1, 0, 0]


def test_a_parameter_that_was_replaced_is_not_counted_as_untrained() -> None:
    layer = nn.Embedding(4, 3)
    monitor = TableMonitor(layer)
    layer(torch.arange(2)).sum().backward()
    layer.load_state_dict({"weight": torch.randn(4, 3)}, assign=True)
    layer(torch.arange(4)).sum().backward()
    assert monitor.trained is None
    assert "rows_rare" not in monitor.state()
    monitor.count(torch.arange(2))
    assert monitor.trained is not None
    assert len(pickle.dumps(monitor)) > 0


def test_what_is_computed_or_frozen_is_not_counted_and_a_monitor_leaves_nothing_behind() -> None:
    frozen = nn.Embedding(4, 3).requires_grad_(False)
    for layer in (frozen, LearnedGridEmbedding(grid=(2, 3), dim=4, factorized=True)):
        monitor = TableMonitor(layer)
        assert monitor.trained is None
        assert "rows_rare" not in monitor.state()
        assert monitor.findings() == ()
        assert not monitor.rare().any()
    layer = nn.Embedding(4, 3)
    monitor = TableMonitor(layer)
    copied = copy.deepcopy(layer)
    copied(torch.arange(2)).sum().backward()  # a copy is not watched
    assert monitor.trained is not None
    assert not monitor.trained.any()
    assert len(pickle.dumps(layer)) > 0
    del monitor
    gc.collect()
    assert not layer.weight._backward_hooks
