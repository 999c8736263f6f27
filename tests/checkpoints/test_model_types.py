"""Folders whose config.json does not say the type of the model: models that nobody here wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
    XLMRobertaModel,
)

import posembed
from evaluated_models import save_encoder, write_texts
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.safetensors import values_of
from rxn import models_of

TABLE = "albert.embeddings.position_embeddings.weight"


def without(source: Path, out: Path, *names: str) -> Path:
    """A copy of a folder whose config.json lacks these fields."""
    shutil.copytree(source, out)
    config = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({name: value for name, value in config.items() if name not in names}))
    return out


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


@pytest.fixture
def albert() -> Path:
    (folder,) = models_of("rxnmapper").values()
    return folder


def same_outputs(old: Any, new: Any, *, rows: int) -> None:
    ids = torch.randint(12, 500, (2, rows), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(old.eval()(ids)[0], new.eval()(ids)[0])
        assert new(torch.cat([ids, ids], 1))[0].isfinite().all()


def test_a_trained_albert_reads_twice_as_far(albert: Path, tmp_path: Path) -> None:
    posembed.resize_checkpoint(albert, tmp_path / "out", length=1024)
    old, new = (AutoModelForMaskedLM.from_pretrained(folder) for folder in (albert, tmp_path / "out"))
    same_outputs(old, new, rows=512)


def test_the_class_or_the_keys_say_the_type(albert: Path, tmp_path: Path) -> None:
    """The result is that of a config with the type, and its config says it: AutoModel needs it."""
    posembed.resize_checkpoint(albert, tmp_path / "stated", length=1024)
    stated = open_checkpoint(tmp_path / "stated").tensors
    for name, missing in {"named": ("model_type",), "keys": ("model_type", "architectures")}.items():
        source = without(albert, tmp_path / name, *missing)
        assert posembed.inspect_checkpoint(source).model_type == "albert"
        resized = posembed.resize_checkpoint(source, tmp_path / f"{name}-1024", length=1024)
        assert "config.json: model_type: none -> albert" in repr(resized).splitlines()
        (setting,) = (each for each in resized.record["settings"] if each["field"] == "model_type")
        assert setting["value"] == [None, "albert"]
        before, after = config_of(source), config_of(tmp_path / f"{name}-1024")
        assert after == {**before, "max_position_embeddings": 1024, "model_type": "albert"}
        assert list(after) == [*before, "model_type"]
        tensors = open_checkpoint(tmp_path / f"{name}-1024").tensors
        assert tensors.keys() == stated.keys()
        assert all(torch.equal(values_of(tensors[key]), values_of(stated[key])) for key in stated)
        assert AutoModel.from_pretrained(tmp_path / f"{name}-1024").config.max_position_embeddings == 1024


def test_the_user_says_the_type(tmp_path: Path) -> None:
    """A base model's keys begin with no type: BERT's and RoBERTa's are the same."""
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(**sizes, intermediate_size=16, max_position_embeddings=64)).save_pretrained(tmp_path / "bert")
    source = without(tmp_path / "bert", tmp_path / "old", "model_type", "architectures")
    (report,) = posembed.inspect_checkpoint(source).tables
    assert "pass --model-type" in report.table.doubt
    with pytest.raises(CheckpointError, match="pass --model-type"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=128)
    (report,) = posembed.inspect_checkpoint(source, model_type="bert").tables
    assert (report.table.doubt, report.table.length) == ("", 64)
    (report,) = posembed.inspect_checkpoint(source, model_type="roberta").tables
    assert report.table.length == 63  # its config has BERT's padding token, 0
    posembed.resize_checkpoint(source, tmp_path / "out", length=128, model_type="bert")
    old, new = BertModel.from_pretrained(tmp_path / "bert"), AutoModel.from_pretrained(tmp_path / "out")
    ids = torch.arange(12, 60)[None]
    with torch.no_grad():
        assert torch.equal(old.eval()(ids)[0], new.eval()(ids)[0])


def test_a_type_that_cannot_be(albert: Path, tmp_path: Path) -> None:
    untyped = without(albert, tmp_path / "untyped", "model_type", "architectures")
    for source, model_type, reason in (
        (albert, "bert", "config.json says that the model is albert; leave out --model-type"),
        (untyped, "albrt", r"unknown model type 'albrt' \(did you mean albert"),
        (albert / "pytorch_model.bin", "albert", "is for a folder with config.json"),
        (untyped, "bert", "its weights begin with 'bert', and those of .* with 'albert'; pass the type that wrote"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            posembed.inspect_checkpoint(source, model_type=model_type)
    assert posembed.inspect_checkpoint(albert, model_type="albert").model_type == "albert"  # as the config says


def test_the_prefix_of_another_type_may_be_its_own(tmp_path: Path) -> None:
    """XLM-RoBERTa's keys begin with "roberta."."""
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = XLMRobertaConfig(**sizes, intermediate_size=16, max_position_embeddings=66)
    XLMRobertaForMaskedLM(config).save_pretrained(tmp_path / "xlm")
    source = without(tmp_path / "xlm", tmp_path / "old", "model_type", "architectures")
    posembed.resize_checkpoint(source, tmp_path / "out", length=128, model_type="xlm-roberta")
    assert config_of(tmp_path / "out")["max_position_embeddings"] == 130
    with pytest.raises(ArgumentError, match=r"begin with 'bert', and those of .* with 'roberta'"):
        posembed.resize_checkpoint(source, tmp_path / "bert", length=128, model_type="bert")


def test_a_type_of_null_is_none(albert: Path, tmp_path: Path) -> None:
    source = without(albert, tmp_path / "null", "model_type")
    (source / "config.json").write_text(json.dumps({**config_of(source), "model_type": None}))
    posembed.resize_checkpoint(source, tmp_path / "out", length=1024)
    assert config_of(tmp_path / "out")["model_type"] == "albert"
    assert posembed.inspect_checkpoint(source, model_type="albert").tables[0].table.doubt == ""


def test_without_transformers_no_type_can_be_given(
    albert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = without(albert, tmp_path / "untyped", "model_type")
    monkeypatch.setattr("posembed.checkpoints.sources.model_types.find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match="names a model of transformers, which is not installed"):
        posembed.inspect_checkpoint(source, model_type="albert")


def test_an_untyped_folder_is_evaluated_and_fine_tuned(tmp_path: Path) -> None:
    """A sentence encoder, whose keys do not show the type."""
    save_encoder(tmp_path / "typed", positions=24)
    source = without(tmp_path / "typed", tmp_path / "untyped", "model_type", "architectures")
    text = write_texts(tmp_path / "text", number=20, words=60)
    how: dict[str, Any] = {"lengths": [16, 24], "texts": 10, "device": "cpu"}
    with pytest.raises(CheckpointError, match="--model-type"):
        posembed.evaluate_checkpoints([source], text, **how)
    typed = posembed.evaluate_checkpoints([tmp_path / "typed"], text, **how).rows[0]
    untyped = posembed.evaluate_checkpoints([source], text, model_type="bert", **how).rows[0]
    pairs = [(typed.estimate("recall at 1", length), untyped.estimate("recall at 1", length)) for length in (16, 24)]
    assert all(one is not None and other is not None and one.values == other.values for one, other in pairs)
    settings: dict[str, Any] = {"length": 40, "steps": 1, "passage": 6, "query": 6, "device": "cpu"}
    tuned = posembed.tune_checkpoint(source, tmp_path / "out", text, model_type="bert", **settings)
    assert config_of(tuned.out)["model_type"] == "bert"


@pytest.mark.whole
def test_three_trained_berts(tmp_path: Path) -> None:
    """Two of them have no type, and one of these no prefix in its keys."""
    models = models_of("rxnfp")
    assert [name for name, path in models.items() if "model_type" not in config_of(path)] == [
        "bert_ft",
        "bert_pretrained",
    ]
    for name, source in models.items():
        out = tmp_path / name
        said = {"model_type": "bert"} if name == "bert_ft" else {}
        posembed.resize_checkpoint(source, out, length=1024, **said)
        kind: Any = {"bert_ft": BertModel, "bert_pretrained": AutoModelForMaskedLM}.get(
            name, AutoModelForSequenceClassification
        )
        config = BertConfig.from_pretrained(source)
        old = kind.from_pretrained(source, config=config)
        new, loading = kind.from_pretrained(out, output_loading_info=True)
        assert not loading["mismatched_keys"]
        assert isinstance(new, nn.Module)
        same_outputs(old, new, rows=512)


def test_a_type_that_the_class_contradicts_is_refused(tmp_path: Path) -> None:
    """RoBERTa's table would be read by BERT, from its reserved rows on. A class of no type says nothing."""
    few = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "vocab_size": 20}
    model = XLMRobertaModel(XLMRobertaConfig(max_position_embeddings=18, **few))
    model.save_pretrained(tmp_path / "typed")
    source = without(tmp_path / "typed", tmp_path / "old", "model_type")
    with pytest.raises(ArgumentError, match=r"--model-type bert: .* names XLMRobertaModel, of the type xlm-roberta"):
        posembed.resize_checkpoint(source, tmp_path / "new", length=32, model_type="bert")
    posembed.resize_checkpoint(source, tmp_path / "new", length=32, model_type="xlm-roberta")
    (source / "config.json").write_text(json.dumps({**config_of(source), "architectures": ["PreTrainedModel"]}))
    with pytest.raises(CheckpointError, match="pass --model-type"):
        posembed.resize_checkpoint(source, tmp_path / "no", length=32)
    posembed.resize_checkpoint(source, tmp_path / "given", length=32, model_type="xlm-roberta")
    assert config_of(tmp_path / "given")["max_position_embeddings"] == 34
