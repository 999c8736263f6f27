"""What is fetched of a model on the hub: all that its loader would read, and no second copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posembed.errors import CheckpointError
from posembed.modelfiles.folders import WEIGHTS, not_needed, weights_path

MODULES = [Path("2_Dense"), Path("0_Transformer"), Path("[a]")]
FOLDERS = ("", *(f"{folder}/" for folder in MODULES))
NAMES = (*WEIGHTS, "adapter_model.safetensors", "other.safetensors", "config.json", "model.onnx", "tf_model.h5")


def chosen(folder: Path) -> Path | None:
    try:
        return weights_path(folder)
    except CheckpointError:
        return None


@settings(max_examples=60)
@given(listing=st.sets(st.builds(str.__add__, st.sampled_from(FOLDERS), st.sampled_from(NAMES))))
def test_every_folder_keeps_the_weights_that_its_loader_takes(
    listing: set[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("model")
    for name in FOLDERS:
        (root / name).mkdir(exist_ok=True)
    for name in listing:
        (root / name).touch()
    before = [chosen(root / name) for name in FOLDERS]
    for name in not_needed(sorted(listing), MODULES):
        (root / name).unlink()
    assert [chosen(root / name) for name in FOLDERS] == before


@pytest.mark.parametrize(
    ("listing", "ignored"),
    [
        (["model.safetensors", "2_Dense/pytorch_model.bin"], []),
        (["pytorch_model.bin", "adapter_model.safetensors", "adapter_config.json"], []),
        (["pytorch_model.bin", "onnx/model.safetensors"], ["onnx/model.safetensors"]),
        (["pytorch_model.bin", "checkpoint-9/optimizer.pt", "checkpoint-9/config.json"], ["checkpoint-9/optimizer.pt"]),
        (["model.safetensors", "pytorch_model.bin", "optimizer.pt"], ["pytorch_model.bin", "optimizer.pt"]),
        (
            ["model.safetensors.index.json", "model-00001-of-00001.safetensors", "pytorch_model-00001-of-00001.bin"],
            ["pytorch_model-00001-of-00001.bin"],
        ),
        (["model.safetensors", "onnx/model.onnx_data", "openvino/a.bin"], ["onnx/model.onnx_data", "openvino/a.bin"]),
    ],
)
def test_no_second_copies(listing: list[str], ignored: list[str]) -> None:
    assert not_needed(listing, MODULES) == ignored


def test_names_are_ignored_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub reads them as patterns: ``[ab].bin`` would be ``a.bin`` and ``b.bin``."""
    from types import SimpleNamespace

    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    from posembed.modelfiles.checkpoint import download

    listing = ["modules.json", "model.safetensors", "[ab].bin", "2_Dense/a.bin", "3_Not/pytorch_model.bin"]
    (tmp_path / "modules.json").write_text('[{"path": ""}, {"path": "2_Dense"}]')
    fetched: list[str] = []

    def snapshot_download(name: str, ignore_patterns: list[str]) -> str:
        fetched.extend(filter_repo_objects(listing, ignore_patterns=ignore_patterns))
        return str(tmp_path)

    siblings = [SimpleNamespace(rfilename=name) for name in listing]
    info = SimpleNamespace(siblings=siblings)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *args, **arguments: info)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda name, file: str(tmp_path / file))
    download("a/b")
    assert fetched == ["modules.json", "model.safetensors", "2_Dense/a.bin"]
