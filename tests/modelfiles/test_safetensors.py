"""The safetensors reader and writer, held against safetensors' own, and against files that lie."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from posembed.errors import CheckpointError
from posembed.modelfiles.raw_files import copy_bytes
from posembed.modelfiles.safetensors import read_header, write_tensors
from together import together

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def sample_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {f"t{i}": (torch.randn(3 + i, 5) * 9).to(dtype) for i, dtype in enumerate(DTYPES)}
    return {
        **tensors,
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "f8": torch.ones(3).to(torch.float8_e4m3fn),
    }


def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    tensors = sample_tensors()
    save_file(tensors, tmp_path / "a.safetensors", metadata={"format": "pt"})
    stored, metadata = read_header(tmp_path / "a.safetensors")
    assert metadata == {"format": "pt"}
    assert stored.keys() == tensors.keys()
    for key, tensor in tensors.items():
        read = stored[key].read()
        assert read.dtype == tensor.dtype
        assert torch.equal(read.to(torch.float64), tensor.to(torch.float64))


@settings(max_examples=30)
@given(shapes=st.lists(st.lists(st.integers(0, 5), max_size=3), min_size=1, max_size=6), data=st.data())
def test_what_is_written_safetensors_reads(
    shapes: list[list[int]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tensors = {str(i): torch.ones(shape).to(data.draw(st.sampled_from(DTYPES))) for i, shape in enumerate(shapes)}
    path = tmp_path_factory.mktemp("written") / "a.safetensors"
    write_tensors(path, tensors, {"format": "pt"})
    read = load_file(path)
    assert read.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert read[key].dtype == tensor.dtype
        assert torch.equal(read[key], tensor)


def test_a_copy_is_the_same_bytes_and_every_tensor_stays_aligned(tmp_path: Path) -> None:
    save_file(sample_tensors(), tmp_path / "a.safetensors")
    stored, _ = read_header(tmp_path / "a.safetensors")
    changed = {**stored, "t2": torch.ones(3, dtype=torch.float16)}  # an odd number of bytes before what follows
    write_tensors(tmp_path / "b.safetensors", changed, {})
    again, _ = read_header(tmp_path / "b.safetensors")
    for key, tensor in again.items():
        width = max(1, (tensor.stop - tensor.start) // max(1, torch.Size(tensor.shape).numel()))
        assert tensor.start % width == 0
        if key != "t2":
            assert raw(tensor) == raw(stored[key])


def raw(tensor: Any) -> bytes:
    return tensor.path.read_bytes()[tensor.start : tensor.stop]


def test_without_the_kernels_help_the_copy_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.copy_file_range", raising=False)
    monkeypatch.setattr("posembed.modelfiles.raw_files.COPY_CHUNK", 7)
    (tmp_path / "a").write_bytes(bytes(range(100)))
    with (tmp_path / "b").open("xb", buffering=0) as file:
        copy_bytes(tmp_path / "a", 10, 95, file)
    assert (tmp_path / "b").read_bytes() == bytes(range(10, 95))
    with (tmp_path / "c").open("xb", buffering=0) as file, pytest.raises(CheckpointError, match="cut short"):
        copy_bytes(tmp_path / "a", 10, 101, file)


def lying(path: Path, header: Any, data: bytes = b"\0" * 16) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(start: int, stop: int, shape: list[Any] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(stop - start) // 4] if shape is None else shape, "data_offsets": [start, stop]}


@together(
    "header",
    [
        {"a": entry(0, 32)},
        {"a": entry(0, 12), "b": entry(8, 16)},
        {"a": entry(0, 4), "b": entry(8, 16)},
        {"a": entry(0, 12)},
        {"a": entry(0, 16, shape=[5])},
        {"a": entry(0, 16, shape=[2**62, 2**62])},
        {"a": entry(0, 16, shape=[-4])},
        {"a": entry(0, 16, shape=[4.0])},
        {"a": entry(0, 16, shape=[True])},
        {"a": entry(16, 0, shape=[0])},
        {"a": entry(0, 16, dtype="F31")},
        {"a": {"dtype": "F32"}},
        {"a": 3},
        {"__metadata__": {"a": 1}, "a": entry(0, 16)},
        [],
        b'{"a": 1, "a": 2}',
        b"{" * 100_000,
        b'{"a": ' + b"1" * 5000 + b"}",
        b"\xff\xfe",
    ],
)
def test_a_header_that_lies_is_refused(header: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"a\.safetensors: not a whole safetensors file"):
        read_header(lying(tmp_path / "a.safetensors", header))


@pytest.mark.parametrize("content", [b"", b"\1", b"\xff" * 8, b"\xff" * 64, struct.pack("<Q", 40) + b"{}"])
def test_a_file_that_is_cut_short_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.safetensors"):
        read_header(tmp_path / "a.safetensors")


def test_a_header_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:  # a sparse file: 5 GB that take no room
        file.write(struct.pack("<Q", 4 * 10**9))
        file.truncate(5 * 10**9)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="above the limit"):
        read_header(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10**6


def test_two_thousand_mutated_files_raise_our_error_or_are_read(tmp_path: Path) -> None:
    save_file(sample_tensors(), tmp_path / "good.safetensors", metadata={"format": "pt"})
    good = (tmp_path / "good.safetensors").read_bytes()
    header = 8 + struct.unpack("<Q", good[:8])[0]
    dice = random.Random(0)
    refused = 0
    for _ in range(2000):
        path = tmp_path / "bad.safetensors"
        path.write_bytes(mutated(good, header, dice))
        try:
            tensors, _ = read_header(path)
            for tensor in tensors.values():
                assert tensor.stop <= path.stat().st_size
                tensor.read()
        except CheckpointError:
            refused += 1
    assert refused > 1000


def mutated(good: bytes, header: int, dice: random.Random) -> bytes:
    """One to four changes, most of them in the header: flips, cuts, repeats, and numbers made larger."""
    data = bytearray(good)
    for _ in range(dice.randint(1, 4)):
        place = dice.randrange(min(header, len(data))) if data and dice.random() < 0.9 else 0
        match dice.randrange(5):
            case 0 if data:
                data[place] ^= 1 << dice.randrange(8)
            case 1:
                del data[place : place + dice.randint(1, 40)]
            case 2:
                data[place:place] = data[place : place + dice.randint(1, 60)]
            case 3:
                data[place:place] = b"9" * dice.randint(1, 20)
            case _:
                del data[dice.randrange(len(data) + 1) :]
    return bytes(data)
