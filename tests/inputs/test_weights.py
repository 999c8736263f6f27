"""How input layers find their weights: folders, shards, pickles, hub names; and what is refused."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, HFValidationError
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save_file
from torch import Tensor

from posembed.errors import CheckpointError
from posembed.inputs import BartInput, BertInput, ConvS2SInput, GPT2Input, RobertaInput, TransformerInput
from posembed.modelfiles import checkpoint as model_files
from together import together

Write = Callable[[Path, dict[str, Tensor]], None]


def gpt2_tensors(prefix: str = "transformer.") -> dict[str, Tensor]:
    """Two tables and one tensor that no input layer needs."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"wte.weight": (10, 4), "wpe.weight": (6, 4), "h.0.mlp.weight": (4, 4)}
    return {prefix + key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}


def write_config(folder: Path, **settings: object) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", **settings}))


def one_safetensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors")


def one_pickle(folder: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, folder / "pytorch_model.bin")


def one_old_pickle(folder: Path, tensors: dict[str, Tensor]) -> None:
    torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def safetensors_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    weight_map = {}
    for number, (key, tensor) in enumerate(tensors.items()):
        weight_map[key] = f"model-{number}.safetensors"
        save_file({key: tensor}, folder / weight_map[key])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def pickle_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    weight_map = {}
    for number, (key, tensor) in enumerate(tensors.items()):
        weight_map[key] = f"pytorch_model-{number}.bin"
        torch.save({key: tensor}, folder / weight_map[key])
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))


@together("write", [one_safetensors, safetensors_shards, one_pickle, one_old_pickle, pickle_shards])
@together("prefix", ["", "transformer."])
def test_every_way_to_store_a_model(write: Write, prefix: str, tmp_path: Path) -> None:
    tensors = gpt2_tensors(prefix)
    write_config(tmp_path, embd_pdrop=0.3)
    write(tmp_path, tensors)
    layer = GPT2Input.from_checkpoint(str(tmp_path))
    assert torch.equal(layer.wte.weight, tensors[prefix + "wte.weight"])
    assert torch.equal(layer.wpe.weight, tensors[prefix + "wpe.weight"])
    assert (layer.wpe.max_len, layer.wpe.dropout, layer.training) == (6, 0.3, False)
    assert all(parameter.requires_grad for parameter in layer.parameters())


def test_only_the_tensors_that_are_needed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(tmp_path)
    safetensors_shards(tmp_path, gpt2_tensors())
    read: list[str] = []
    read_header = model_files.read_header
    monkeypatch.setattr(model_files, "read_header", lambda path: read.append(path.name) or read_header(path))
    GPT2Input.from_checkpoint(tmp_path)
    assert sorted(read) == ["model-0.safetensors", "model-1.safetensors"]  # and not the third


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_stored_dtype_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    write_config(tmp_path)
    one_safetensors(tmp_path, {key: tensor.to(dtype) for key, tensor in gpt2_tensors().items()})
    assert GPT2Input.from_checkpoint(tmp_path)(torch.tensor([[1, 2]])).dtype == dtype


def test_the_layer_outlives_its_file(tmp_path: Path) -> None:
    write_config(tmp_path)
    one_safetensors(tmp_path, gpt2_tensors())
    layer = GPT2Input.from_checkpoint(tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(0)
        file.write(bytes(size))
    assert torch.equal(layer.wpe.weight, gpt2_tensors()["transformer.wpe.weight"])


def test_names_from_tensorflow(tmp_path: Path) -> None:
    write_config(tmp_path, model_type="bert")
    shapes = {
        "word_embeddings.weight": (10, 4),
        "position_embeddings.weight": (6, 4),
        "token_type_embeddings.weight": (2, 4),
    }
    norm = {"LayerNorm.gamma": (4,), "LayerNorm.beta": (4,)}
    tensors = {f"bert.embeddings.{key}": torch.randn(shape) for key, shape in (shapes | norm).items()}
    one_safetensors(tmp_path, tensors)
    layer = BertInput.from_checkpoint(tmp_path)
    assert torch.equal(layer.LayerNorm.weight, tensors["bert.embeddings.LayerNorm.gamma"])
    assert torch.equal(layer.LayerNorm.bias, tensors["bert.embeddings.LayerNorm.beta"])


# Hub names


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    """A folder that stands for the hub's model owner/model, and the names of what is fetched from it."""
    fetched: list[str] = []

    def known(model: str) -> None:
        if model != "owner/model":
            raise HFValidationError(model)

    def model_info(api: Any, model: str, timeout: float) -> SimpleNamespace:
        known(model)
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=path.name) for path in tmp_path.iterdir()])

    def hf_hub_download(model: str, name: str) -> str:
        known(model)
        if not (tmp_path / name).exists():
            raise EntryNotFoundError(name)
        fetched.append(name)
        return str(tmp_path / name)

    def snapshot_download(model: str, ignore_patterns: list[str]) -> str:
        fetched.extend(filter_repo_objects([path.name for path in tmp_path.iterdir()], ignore_patterns=ignore_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hf_hub_download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return tmp_path, fetched


def test_only_the_files_that_are_needed_are_fetched(hub: tuple[Path, list[str]]) -> None:
    folder, fetched = hub
    write_config(folder)
    safetensors_shards(folder, gpt2_tensors())
    layer = GPT2Input.from_checkpoint("owner/model")
    assert torch.equal(layer.wpe.weight, gpt2_tensors()["transformer.wpe.weight"])
    assert sorted(set(fetched)) == [
        "config.json",
        "model-0.safetensors",
        "model-1.safetensors",
        "model.safetensors.index.json",
    ]


def test_a_name_that_the_hub_does_not_know(hub: tuple[Path, list[str]]) -> None:
    with pytest.raises(CheckpointError, match="owner/other: not a file or folder here, nor a model that you can see"):
        GPT2Input.from_checkpoint("owner/other")


def test_a_hub_model_without_files(hub: tuple[Path, list[str]]) -> None:
    with pytest.raises(CheckpointError, match=r"owner/model: expected a config\.json; found none"):
        GPT2Input.from_checkpoint("owner/model")


# fairseq


@pytest.mark.parametrize("layer_class", [TransformerInput, ConvS2SInput])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_fairseq_file(layer_class: type[TransformerInput | ConvS2SInput], side: str, tmp_path: Path) -> None:
    tables = {"embed_tokens.weight": (10, 4), "embed_positions.weight": (6 + 2, 4)}
    model = {f"{s}.{key}": torch.randn(shape) for s in ("encoder", "decoder") for key, shape in tables.items()}
    torch.save({"args": Namespace(dropout=0.2), "model": model, "extra_state": {}}, tmp_path / "best.pt")
    layer = layer_class.from_checkpoint(tmp_path / "best.pt", side=side)
    assert torch.equal(layer.embed_tokens.weight, model[f"{side}.embed_tokens.weight"])
    assert torch.equal(layer.embed_positions.weight, model[f"{side}.embed_positions.weight"])
    assert (layer.embed_positions.max_len, layer.embed_positions.dropout, layer.uncounted_id) == (6, 0.2, 1)


# What is refused


def without_positions() -> dict[str, Tensor]:
    return {key: tensor for key, tensor in gpt2_tensors().items() if "wpe" not in key}


BART = {"shared.weight": torch.zeros(10, 4), "encoder.embed_positions.weight": torch.zeros(2, 4)}
RELATIVE = {"model_type": "bert", "position_embedding_type": "relative_key"}
REFUSED: list[tuple[Any, dict[str, Any], dict[str, Tensor], str]] = [  # RoBERTa's row 0 is not position 0
    (BertInput, {"model_type": "roberta"}, {}, "expected a model of type bert or .*; this is 'roberta'"),
    (RobertaInput, {"model_type": "bert"}, {}, "expected a model of type roberta or .*; this is 'bert'"),
    (BertInput, RELATIVE, {}, r"positions enter in attention .*'relative_key'.*, not at the input"),
    (GPT2Input, {}, without_positions(), r"expected the tensors wte\.weight, wpe\.weight, .*; found 2 tensors"),
    (
        GPT2Input,
        {},
        gpt2_tensors("first.") | gpt2_tensors("second."),
        r"one model; .* behind each of 'first\.', 'second\.'",
    ),
    (GPT2Input, {}, gpt2_tensors() | {"transformer.wte.weight": torch.zeros(10, 5)}, "its tensors do not fit together"),
    (BartInput, {"model_type": "bart"}, BART, "no row left for a position"),
]


@together(("kind", "settings", "tensors", "message"), REFUSED)
def test_what_does_not_fit(
    kind: Any, settings: dict[str, Any], tensors: dict[str, Tensor], message: str, tmp_path: Path
) -> None:
    write_config(tmp_path, **settings)
    one_safetensors(tmp_path, tensors or {"x": torch.zeros(1)})
    with pytest.raises(ValueError, match=message):
        kind.from_checkpoint(tmp_path)


@together(
    ("kind", "saved", "message"),
    [
        (GPT2Input, gpt2_tensors(), r"got a file\. Give "),
        (ConvS2SInput, None, r"expected a file that fairseq or torch\.save wrote; found none"),
        *(
            (
                TransformerInput,
                {"args": Namespace(**{setting: True}), "model": gpt2_tensors()},
                f"trained with {setting}",
            )
            for setting in ("no_scale_embedding", "layernorm_embedding")
        ),
    ],
)
def test_a_file_that_does_not_fit(kind: Any, saved: Any, message: str, tmp_path: Path) -> None:
    if saved is not None:
        torch.save(saved, tmp_path / "best.pt")
    with pytest.raises(CheckpointError, match=message):
        kind.from_checkpoint(tmp_path / "best.pt")
