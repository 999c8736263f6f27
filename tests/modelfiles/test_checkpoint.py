"""Opening a checkpoint: every form that the field writes, and everything that can be wrong with its files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.folders import VOCABULARIES, has_vocabulary
from posembed.modelfiles.safetensors import values_of
from together import together

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def assert_holds_tensors(source: Path) -> None:
    tensors = open_checkpoint(source).tensors
    assert tensors.keys() == TENSORS.keys()
    for key, expected in TENSORS.items():
        assert torch.equal(values_of(tensors[key]), expected)


def write_shards(folder: Path, weight_map: dict[str, Any] | None = None) -> None:
    for number, (key, tensor) in enumerate(TENSORS.items()):
        save_file({key: tensor}, folder / f"model-{number}.safetensors")
    names = {key: f"model-{number}.safetensors" for number, key in enumerate(TENSORS)}
    index = {"metadata": {"total_size": 32}, "weight_map": names if weight_map is None else weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_one_file_in_a_folder(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert_holds_tensors(tmp_path)


def test_the_only_safetensors_file_under_another_name(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "weights.safetensors")
    assert_holds_tensors(tmp_path)


def test_shards_and_an_index(tmp_path: Path) -> None:
    write_shards(tmp_path)
    assert_holds_tensors(tmp_path)


def test_one_file_beside_an_index_wins(tmp_path: Path) -> None:
    write_shards(tmp_path, weight_map={"nothing": "nowhere.safetensors"})
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert_holds_tensors(tmp_path)


@together("suffix", [".bin", ".pt", ".pth", ".ckpt"])
@together("zipped", [True, False])
def test_pickles(suffix: str, zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=zipped)
    assert_holds_tensors(path)


def test_a_training_checkpoint_gives_its_state_dict_and_names_the_rest(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "model": TENSORS, "optimizer": {"state": {0: TENSORS}}}, tmp_path / "last.pt")
    assert_holds_tensors(tmp_path / "last.pt")
    (file,) = open_checkpoint(tmp_path / "last.pt").weights
    assert file.tree is not None
    assert file.tree.entries == ["epoch", "optimizer"]


def test_a_folder_of_an_old_sentence_encoder(tmp_path: Path) -> None:
    inside = tmp_path / "0_Transformer"
    inside.mkdir()
    save_file(TENSORS, inside / "model.safetensors")
    (inside / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "modules.json").write_text('[{"path": "0_Transformer"}, {"path": "1_Pooling"}]')
    assert_holds_tensors(tmp_path)
    assert open_checkpoint(tmp_path).config == {"model_type": "bert"}


def test_every_cut_of_a_pickle_is_refused(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "good.pt")
    good = (tmp_path / "good.pt").read_bytes()
    for length in range(0, len(good) - 1, 61):
        (tmp_path / "bad.pt").write_bytes(good[:length])
        with pytest.raises(CheckpointError):
            open_checkpoint(tmp_path / "bad.pt")


@together("text", ["", "null", "{", "[]", "3", "\0", '{"a": 1, "a": 2}', "[" * 100_000])
def test_settings_that_are_no_settings_are_refused(text: str, tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        _ = open_checkpoint(tmp_path).config


@pytest.mark.parametrize("zipped", [True, False])
def test_a_thousand_mutated_pickles_raise_our_error_or_are_read(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "bad.pt"
    torch.save({"model": TENSORS, "epoch": 3}, path, _use_new_zipfile_serialization=zipped)
    good = path.read_bytes()
    dice = random.Random(0)
    refused = 0
    for _ in range(1000):
        data = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            place = dice.randrange(len(data))
            data[place : place + dice.randint(0, 9)] = dice.randbytes(dice.randint(0, 9))
        path.write_bytes(bytes(data))
        try:
            for tensor in open_checkpoint(path).tensors.values():
                values_of(tensor).double().sum()
        except CheckpointError:
            refused += 1
    assert refused > 500


def test_only_a_file_that_is_there_is_a_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{}")  # alone, it makes an empty tokenizer
    for name in (*VOCABULARIES, "spiece.model"):
        held = tmp_path / name
        held.symlink_to(tmp_path / "nowhere")
        assert not has_vocabulary(tmp_path), name
        held.unlink()
        held.mkdir()
        assert not has_vocabulary(tmp_path), name
        held.rmdir()
        (tmp_path / "blob").write_text("{}")
        held.symlink_to(tmp_path / "blob")  # as in the cache of the hub
        assert has_vocabulary(tmp_path), name
        held.unlink()
