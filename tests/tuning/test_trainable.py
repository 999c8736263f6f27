"""What is trained, and what keeps its bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posembed
from evaluated_models import save_causal, save_encoder, save_masked
from posembed.checkpoints.choose import NewSize
from posembed.checkpoints.resize import plan_resize
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.safetensors import values_of
from posembed.tuning.settings import TuneSettings
from posembed.tuning.trainable import NewRows, Trainable, keys_of, rows_moved, trainable
from together import together
from tolerance import assert_close

KEY = "embeddings.position_embeddings.weight"


def test_a_matrix_that_is_not_in_the_files_is_named(folder: Path) -> None:
    """Otherwise, its low-rank change would be trained and then lost."""
    from transformers import AutoModel

    checkpoint = open_checkpoint(folder / "short")
    model = AutoModel.from_pretrained(checkpoint.root)
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight.add_(1)
    edit = plan_resize(checkpoint, "short", NewSize(length=128)).edit
    with pytest.raises(CheckpointError, match=r"attention\.self\.query\.weight is not in its files under the name"):
        trainable(model, checkpoint, TuneSettings(length=128, train="lora"), edit, resized=False, seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_encoder(folder / "short")
    posembed.resize_checkpoint(folder / "short", folder / "long", length=128)
    return folder


def trained(folder: Path, train: str, *, resized: bool = True, steps: int = 3) -> tuple[Trainable, dict[str, Tensor]]:
    """Trains with large steps towards other outputs. Returns what was trained, and the changed weights."""
    from transformers import AutoModel

    edit = plan_resize(open_checkpoint(folder / "short"), "short", NewSize(length=128)).edit
    checkpoint = open_checkpoint(folder / ("long" if resized else "short"))
    model = AutoModel.from_pretrained(checkpoint.root)
    rates = {"rows_learning_rate": 0.1} | ({"learning_rate": 0.1} if train in ("all", "table") else {})
    settings = TuneSettings.of({"length": 128, "train": train, **rates}, kind="sentences")
    found = trainable(model, checkpoint, settings, edit, resized=resized, seed=0)
    assert not found.changed(checkpoint)
    model.train()
    ids = torch.arange(128 if resized else 64)[None] % 90
    optimizer = torch.optim.AdamW(found.groups, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(input_ids=ids).last_hidden_state - torch.linspace(-1, 1, 32)).square().mean().backward()
        optimizer.step()
    return found, found.changed(checkpoint)


def states(model: nn.Module, length: int) -> Tensor:
    with torch.inference_mode():
        return model.eval()(input_ids=torch.arange(length)[None] % 90).last_hidden_state


def test_rows_keep_every_other_byte_and_every_output_within_the_old_length(folder: Path) -> None:
    from transformers import AutoModel

    before = AutoModel.from_pretrained(folder / "long")
    found, changed = trained(folder, "rows")
    table = values_of(open_checkpoint(folder / "long").tensors[KEY])
    assert list(changed) == [KEY]
    assert torch.equal(changed[KEY][:64], table[:64])
    assert bool((changed[KEY][64:] != table[64:]).all())
    for length in (1, 63, 64):
        assert torch.equal(states(found.model, length), states(before, length))
    assert not torch.equal(states(found.model, 65), states(before, 65))


def test_what_each_choice_changes(folder: Path) -> None:
    keys = {key for key in open_checkpoint(folder / "long").tensors if "pooler" not in key}
    assert set(trained(folder, "all")[1]) == keys
    assert list(trained(folder, "table")[1]) == [KEY]
    of_attention = {key for key in keys if "attention" in key and key.endswith("dense.weight")}
    of_attention |= {key for key in keys if ".self." in key and key.endswith("weight")}
    assert set(trained(folder, "lora")[1]) == {KEY, *of_attention}


def test_a_tied_weight_is_trained_under_either_name(tmp_path: Path) -> None:
    """The first name of XLM-R's token table is that of its head, and its files have the other."""
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = XLMRobertaForMaskedLM(XLMRobertaConfig(vocab_size=50, max_position_embeddings=66, **sizes))
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    edit = plan_resize(checkpoint, str(tmp_path), NewSize(length=100)).edit
    found = trainable(model, checkpoint, TuneSettings(length=100), edit, resized=False, seed=0)
    with torch.no_grad():
        for each in found.parameters.values():
            each.add_(1)
    assert found.changed(checkpoint).keys() == {key for key in checkpoint.tensors if "pooler" not in key}


def test_a_model_without_attention_has_nothing_for_lora(tmp_path: Path) -> None:
    from transformers import FNetConfig, FNetModel

    model = FNetModel(FNetConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, intermediate_size=16))
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    edit = plan_resize(checkpoint, str(tmp_path), NewSize(length=1024)).edit
    with pytest.raises(CheckpointError, match="no attention matrix is known"):
        trainable(model, checkpoint, TuneSettings(length=1024, train="lora"), edit, resized=False, seed=0)


def test_at_the_old_length_there_are_no_new_rows(folder: Path) -> None:
    keys = {key for key in open_checkpoint(folder / "short").tensors if "pooler" not in key}
    assert set(trained(folder, "all", resized=False)[1]) == keys
    assert list(trained(folder, "table", resized=False)[1]) == [KEY]
    assert KEY not in trained(folder, "lora", resized=False)[1]


def test_new_rows_have_their_own_learning_rate(folder: Path) -> None:
    slow, fast = trained(folder, "all", steps=0)[0].groups
    assert [tuple(each.shape) for each in fast["params"]] == [(64, 32)]
    assert (64, 32) in [tuple(each.shape) for each in slow["params"]]


@pytest.mark.parametrize("shape", [(7, 3), (1, 7, 3)])
@pytest.mark.parametrize("kept", [0, 4, 7])
def test_a_split_table_is_the_table(shape: tuple[int, ...], kept: int) -> None:
    table = torch.randn(shape)
    split = NewRows(kept)
    assert torch.equal(split(*split.right_inverse(table)), table)


@pytest.mark.parametrize("save", [save_causal, save_masked])
def test_the_weights_of_a_language_model_return_to_their_own_keys(save: Any, tmp_path: Path) -> None:
    """Also into a checkpoint without the head, whose keys have no prefix, and with tied weights."""
    model = save(tmp_path / "head")
    getattr(model, model.base_model_prefix).save_pretrained(tmp_path / "base")
    for name in ("head", "base"):
        checkpoint = open_checkpoint(tmp_path / name)
        loaded = type(model).from_pretrained(tmp_path / "head")
        keys = keys_of(loaded, checkpoint)
        assert set(keys.values()) == set(checkpoint.tensors)
        with torch.no_grad():
            for parameter in loaded.parameters():
                parameter += 1
        changed = Trainable(loaded, keys, []).changed(checkpoint)
        assert all(torch.equal(changed[key], values_of(checkpoint.tensors[key]) + 1) for key in checkpoint.tensors)


def test_dropout_is_off_and_half_precision_returns(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel

    half = AutoModel.from_pretrained(folder / "long").half()
    half.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    edit = plan_resize(open_checkpoint(folder / "short"), "short", NewSize(length=128)).edit
    found = trainable(
        AutoModel.from_pretrained(tmp_path, dtype="auto"),
        checkpoint,
        TuneSettings(length=128),
        edit,
        resized=True,
        seed=0,
    )
    assert next(found.model.parameters()).dtype == torch.float32
    found.model.train()
    ids = torch.arange(100)[None] % 90
    with torch.no_grad():
        assert torch.equal(found.model(input_ids=ids)[0], found.model(input_ids=ids)[0])
        found.model.embeddings.LayerNorm.weight += 0.5
    changed = found.changed(checkpoint)
    assert {key: value.dtype for key, value in changed.items()} == {"embeddings.LayerNorm.weight": torch.float16}


def test_how_far_rows_moved(tmp_path: Path) -> None:
    for name, positions in (("one", 70), ("other", 70), ("short", 9)):
        save_encoder(tmp_path / name, positions=positions)
    one, other, short = (open_checkpoint(tmp_path / name) for name in ("one", "other", "short"))
    key = "embeddings.position_embeddings.weight"
    before = values_of(one.tensors[key]).double()
    after = before.clone()
    after[9] *= 1.5
    after[60:] = 0
    from safetensors.torch import load_file, save_file

    path = tmp_path / "other" / "model.safetensors"
    save_file({**load_file(path), key: after.float()}, path, metadata={"format": "pt"})
    other = open_checkpoint(tmp_path / "other")
    each = rows_moved(one, other, [key], most=70)
    assert_close(each, {row: 0.5 if row == 9 else float(row >= 60) for row in range(70)}, dtype=torch.float32, scale=1)
    blocks = rows_moved(one, other, [key], most=7)
    assert_close(blocks, {5: 0.05, 15: 0, 25: 0, 35: 0, 45: 0, 55: 0, 65: 1}, dtype=torch.float32, scale=1)
    assert set(rows_moved(short, short, [key]).values()) == {0.0}
    assert sum(rows_moved(short, short, [key], most=4).values()) == 0
    assert rows_moved(one, other, ["another"]) == {}


@together("old", [1, 7, 35, 64, 69])
@together("most", [2, 7, 70])
def test_old_and_new_rows_are_averaged_apart(tmp_path: Path, old: int, most: int) -> None:
    """Each value stands at a position of its own part, and rows of zeros, whose share is not defined, are left out."""
    from safetensors.torch import load_file, save_file

    checkpoints = []
    for name in ("one", "other"):
        save_encoder(tmp_path / name, positions=70)
        path = tmp_path / name / "model.safetensors"
        table = load_file(path)[KEY]
        table[:3] = name == "other"
        if name == "other":
            table[max(3, old) :] *= 3
        save_file({**load_file(path), KEY: table}, path, metadata={"format": "pt"})
        checkpoints.append(open_checkpoint(tmp_path / name))
    shares = rows_moved(*checkpoints, [KEY], old=old, most=most)
    assert any(position >= old for position in shares)
    assert {share for position, share in shares.items() if position < old} <= {0.0}
    assert all(share == pytest.approx(2) for position, share in shares.items() if position >= old)
    assert len(shares) <= most + 1
