"""Language modelling inside a given decoder of transformers: its weights, its positions, its runs."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

pytest.importorskip("transformers")

import replaced_models as made
from asked import runs_of
from encoding_names import CONTENT, is_usual
from posembed.errors import ArgumentError
from posembed.integrations.decoder import open_decoder
from posembed.lab.data.text import Corpus
from posembed.lab.runs.results import RunFolder
from posembed.lab.runs.sweep import sweep
from posembed.lab.tasks.inside import InsideGivenModel
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.nn.encodings import names_for
from together import asked, together
from tolerance import assert_close


def saved(name: str, folder: Path, **changes: Any) -> Path:
    made.tiny(name, **{"vocab_size": 256, **changes}).save_pretrained(folder)
    return folder


def inside(path: Path, corpus: Corpus) -> InsideGivenModel:
    return InsideGivenModel(open_decoder(path), corpus)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def from_config(tmp_path_factory: pytest.TempPathFactory, corpus: Corpus) -> InsideGivenModel:
    return inside(saved("gpt2", tmp_path_factory.mktemp("gpt2")) / "config.json", corpus)


@together("name", made.DECODERS, usual=lambda name: name in ("gpt2", "opt"))
def test_a_checkpoint_with_its_own_table_starts_as_it_was(
    name: str, corpus: Corpus, spec: LengthSpec, tmp_path: Path
) -> None:
    task = inside(saved(name, tmp_path), corpus)
    ids = torch.randint(5, 256, (2, made.LENGTH))
    expected = made.tiny(name, vocab_size=256)(ids).logits
    for train_length in (16, 2 * made.LENGTH):  # a table is never shorter than the checkpoint's
        for encoding in ("learned", "learned-tiled"):
            own = dataclasses.replace(spec, encoding=encoding, train_length=train_length)
            model = task.build(own).eval()
            assert_close(model(ids), expected, depth=2)
            assert len(model.encoding.table()) == max(train_length, made.LENGTH)


@together("name", made.DECODERS, usual=lambda name: name in ("gpt2", "opt"))
def test_gaps_between_positions_do_not_part_a_text(name: str, corpus: Corpus, spec: LengthSpec, tmp_path: Path) -> None:
    task = inside(saved(name, tmp_path), corpus)
    model = task.build(dataclasses.replace(spec, encoding="learned")).eval()
    ids, positions = torch.randint(5, 256, (2, 5)), torch.tensor([0, 1, 9, 10, 30])
    original = made.tiny(name, vocab_size=256)
    (table,) = (p for key, p in original.named_parameters() if "wpe" in key or "embed_positions" in key)
    with torch.no_grad():
        front = len(table) - made.LENGTH
        table[front : front + 5] = table[front + positions]
    for given in (positions, positions.expand(2, -1)):
        assert_close(model(ids, given), original(ids).logits, depth=2)


def test_encodings_train_and_change_nothing_else(from_config: InsideGivenModel, spec: LengthSpec) -> None:
    spec = dataclasses.replace(spec, batch=2, rope_factors=(1.0, 1.5, 2.0, 4.0))  # which rope-longrope needs
    none = from_config.build(dataclasses.replace(spec, encoding="none"))
    for encoding in names_for("decoder") if asked["whole"] else filter(is_usual, names_for("decoder")):
        own = dataclasses.replace(spec, encoding=encoding)
        refused = {"learned-concat": "can only add rows"} | dict.fromkeys(CONTENT, "what the layer reads")
        if encoding in refused:
            with pytest.raises(ArgumentError, match=refused[encoding]):
                from_config.build(own)
            continue
        model = from_config.build(own)
        weights = dict(model.named_parameters())
        for key, weight in none.named_parameters():
            assert torch.equal(weight, weights[key]), key
        from_config.loss(model.train(), *from_config.draw(own, model, 0)).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters()), encoding
        total, of_positions = model.sizes()
        assert total - of_positions == none.sizes()[0]
    another = from_config.build(dataclasses.replace(spec, encoding="none", seed=1))
    assert not torch.equal(*(m.get_parameter("body.transformer.wte.weight") for m in (none, another)))


def stop(name: str, done: int, total: int) -> None:
    if done == 4:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("name", "encoding"), [pytest.param("gpt_neo", "learned", marks=pytest.mark.whole), ("opt", "learned-shifted")]
)
def test_a_run_that_was_stopped_ends_the_same(
    name: str, encoding: str, corpus: Corpus, spec: LengthSpec, accelerator: Accelerator, tmp_path: Path
) -> None:
    spec = dataclasses.replace(spec, test_lengths=(8, 16), test_tokens=100, steps=8)
    task = inside(saved(name, tmp_path / "model", dropout=0.1, resid_dropout=0.1), corpus)
    specs = runs_of(spec, [encoding], 1)
    (whole,) = sweep(specs, task, RunFolder(tmp_path / "whole", LengthSpec), accelerator)
    folder = RunFolder(tmp_path / "cut", LengthSpec)
    with pytest.raises(KeyboardInterrupt):
        sweep(specs, task, folder, accelerator, stop)
    copied = pickle.loads(pickle.dumps(task))  # as another machine gets it
    (continued,) = sweep(specs, copied, folder, accelerator)
    assert whole.measurements is not None
    assert (continued.losses, continued.measurements) == (whole.losses, whole.measurements)


def test_the_hash_follows_the_content_and_not_the_path(tmp_path: Path) -> None:
    folder = saved("gpt2", tmp_path / "one")
    hashes = [open_decoder(path).sha256 for path in (folder, folder / "config.json")]
    folder.rename(tmp_path / "two")
    folder = tmp_path / "two"
    assert [open_decoder(path).sha256 for path in (folder, folder / "config.json")] == hashes
    model = made.tiny("gpt2", vocab_size=256)
    with torch.no_grad():
        model.transformer.h[1].ln_1.bias[3] += 1
    model.save_pretrained(folder)
    hashes.append(open_decoder(folder).sha256)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"activation_function": "relu"}))
    hashes.append(open_decoder(folder).sha256)
    assert len(set(hashes)) == 4
