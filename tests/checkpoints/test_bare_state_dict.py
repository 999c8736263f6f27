"""A state dict without a config: its ids and masks change with the table, so that it loads; NaN stays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import posembed
from posembed.errors import CheckpointError
from together import together

TABLE = "position_embeddings.weight"
WIDTH = 16


class OwnModel(nn.Module):
    """As people write it: a table, and buffers of its length. Some layers are as wide as the table is long."""

    def __init__(self, length: int, name: str, buffer: Tensor) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(length, WIDTH)
        self.norm = nn.LayerNorm(40)
        self.mix = nn.Linear(40, 40)
        self.register_buffer(name, buffer)


BUFFERS: dict[str, Any] = {
    "positions": lambda length: torch.arange(length),
    "position_ids": lambda length: torch.arange(length)[None],
    "pos": lambda length: torch.arange(length, dtype=torch.int32) + 2,
    "float_position_ids": lambda length: torch.arange(length, dtype=torch.float16)[None],  # as merged files have them
    "token_type_ids": lambda length: torch.zeros(1, length, dtype=torch.long),
    "steps": lambda length: torch.arange(length),
    "column_ids": lambda length: torch.arange(length)[:, None],
    "float_positions": lambda length: torch.arange(length, dtype=torch.float32),
    "causal_mask": lambda length: torch.ones(length, length, dtype=torch.bool).tril(),
    "tril": lambda length: torch.ones(1, 1, length, length).tril(),
    "mask": lambda length: torch.full((length, length), float("-inf")).triu(1),
}


@together("suffix", [".pt", ".safetensors"])
@together("length", [64, 20])
@together("name", BUFFERS)
def test_its_ids_and_masks_follow(name: str, length: int, suffix: str, tmp_path: Path) -> None:
    model = OwnModel(40, name, BUFFERS[name](40))
    source, out = tmp_path / f"x{suffix}", tmp_path / "out.safetensors"
    (torch.save if suffix == ".pt" else save_file)(model.state_dict(), source)
    resized = posembed.resize_checkpoint(source, out, length=length, table=TABLE)
    assert [change.key for change in resized.edit.others] == [name]
    longer = OwnModel(length, name, BUFFERS[name](length))
    expected = longer.state_dict()[name].clone()
    longer.load_state_dict(load_file(out))
    assert torch.equal(longer.state_dict()[name], expected)


@pytest.mark.parametrize(
    "buffer",
    [torch.randperm(40), torch.randint(0, 9, (40, 40)), (torch.arange(40) * 0.995).half()],
    ids=["order", "square", "rounded floats"],
)
def test_ids_of_no_known_pattern_are_refused(buffer: Tensor, tmp_path: Path) -> None:
    save_file(OwnModel(40, "position_ids", buffer).state_dict(), tmp_path / "x.safetensors")
    out = tmp_path / "out.safetensors"
    with pytest.raises(CheckpointError, match="position_ids: not resized: it has the table's length"):
        posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=64, table=TABLE)
    assert not out.exists()


@pytest.mark.parametrize(
    "other",
    [torch.zeros(40, 8, dtype=torch.int32), torch.full((8, 40), 7), torch.randint(0, 99, (5, 40)), torch.eye(40)],
    ids=["rows", "zero points", "packed weights", "weights"],
)
def test_what_has_that_length_by_chance_stays(other: Tensor, tmp_path: Path) -> None:
    save_file(OwnModel(40, "quantized", other).state_dict(), tmp_path / "x.safetensors")
    out = tmp_path / "out.safetensors"
    resized = posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=64, table=TABLE)
    assert resized.edit.others == ()
    assert torch.equal(load_file(out)["quantized"], other)


def test_whole_numbers_of_that_length_are_named_if_they_stay(tmp_path: Path) -> None:
    apart = torch.arange(40)[None] - torch.arange(40)[:, None]
    for buffer in (apart + 39, apart.abs(), torch.randperm(40), torch.randperm(40)[:, None], apart.abs() < 3):
        save_file(OwnModel(40, "distances", buffer).state_dict(), tmp_path / "x.safetensors")
        out = tmp_path / "out.safetensors"
        said = posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=64, table=TABLE, overwrite=True)
        assert "distances: looks like a mask or ids, and stays as it is" in said.edit.remarks
        assert torch.equal(load_file(out)["distances"], buffer)
    ones = {"norm.weight": torch.ones(40), "norm.bias": torch.zeros(40), "q.weight": torch.eye(40, dtype=torch.int8)}
    save_file({TABLE: torch.randn(40, WIDTH), **ones}, tmp_path / "x.safetensors")
    said = posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=64, table=TABLE, overwrite=True)
    assert not said.edit.others
    assert "looks like" not in repr(said)


# --- rows that are not finite

METHODS = ["tile", "hierarchical", "linear", "cubic", "stretch", "random", "mean", "truncate"]


@together("method", METHODS)
@together("value", [float("nan"), float("inf")])
@together("row", [0, 13, 39])
def test_what_is_not_finite_does_not_spread(row: int, value: float, method: str, tmp_path: Path) -> None:
    table = torch.randn(40, WIDTH)
    table[row, 3] = value
    save_file({TABLE: table}, tmp_path / "x.safetensors")
    length, out = 20 if method == "truncate" else 64, tmp_path / "out.safetensors"
    refusal = ""
    try:
        posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=length, table=TABLE, method=method)
    except CheckpointError as error:
        refusal = str(error)
    assert not refusal or method != "truncate"
    assert refusal or method not in ("tile", "linear", "cubic", "mean") or row == 39
    if refusal:
        assert re.search("1 of its rows hold NaN or infinity, and .* would", refusal)
        assert not out.exists()
    else:
        assert int((~load_file(out)[TABLE].isfinite()).any(1).sum()) <= 1


# --- what a bare file does not say


@pytest.mark.parametrize("key", [TABLE, "roberta.embeddings.position_embeddings.weight"])
@pytest.mark.parametrize("length", [20, 64])
def test_rows_that_may_be_reserved_are_told(key: str, length: int, tmp_path: Path) -> None:
    save_file({key: torch.randn(42, WIDTH)}, tmp_path / "x.safetensors")
    resized = posembed.resize_checkpoint(
        tmp_path / "x.safetensors", tmp_path / "out.safetensors", length=length, table=key
    )
    assert f"{key}: the layout of its rows is unknown; it is assumed that no row is" in resized.edit.target.note
    assert resized.edit.tables[0].after is not None
    assert len(resized.edit.tables[0].after) == length


@pytest.mark.parametrize("prefix", ["", "bert.", "text."])
def test_a_table_beside_relative_positions_is_refused(prefix: str, tmp_path: Path) -> None:
    key = f"{prefix}embeddings.{TABLE}"
    tensors = {key: torch.randn(40, WIDTH)}
    tensors[f"{prefix}encoder.layer.0.attention.self.distance_embedding.weight"] = torch.randn(79, 8)
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="relative positions of its length"):
        posembed.resize_checkpoint(tmp_path / "x.safetensors", tmp_path / "out.safetensors", length=64, table=key)
    assert not (tmp_path / "out.safetensors").exists()
