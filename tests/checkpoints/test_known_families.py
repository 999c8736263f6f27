"""families.json says what runs of small models show, and a resize that it knows is the one that runs would allow."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

import posembed
from posembed.checkpoints import families, plan
from posembed.errors import CheckpointError
from tiny_models import GPT, IMAGE, TEXT, saved, tiny_model
from together import together

sys.path.append(str(Path(__file__).parents[2] / "tools"))
ROWS: list[dict[str, Any]] = json.loads(files("posembed.checkpoints").joinpath("families.json").read_text())
SAMPLE = ("gpt2", "vit")


def shown_by_runs(name: str, folder: Path) -> dict[str, list[str]]:
    """Returns the changes of size that runs show to be right, by the identity of each table's row."""
    from census_checks import examine
    from census_families import identity
    from census_models import transformers_models

    rows: list[dict[str, Any]] = []
    try:
        for number, model in enumerate(transformers_models(name)):
            rows += examine(model, folder / str(number)).get("rows", [])
    except ImportError as error:  # transformers reads DETR's backbone with timm, and that only beside torchvision
        pytest.skip(str(error).strip().partition("\n")[0])
    return {identity(row): row["shown"] for row in rows if "shown" in row}


def agrees(name: str, folder: Path) -> None:
    from census_families import identity

    held = {identity(row): row["shown"] for row in ROWS if "shown" in row}
    shown = shown_by_runs(name, folder)
    assert shown or name not in SAMPLE
    for row, changes in shown.items():
        assert set(changes) <= set(held[row]), row


@together("name", SAMPLE)
def test_the_file_says_what_runs_show(name: str, tmp_path: Path) -> None:
    agrees(name, tmp_path)


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted({row["type"] for row in ROWS} & set(transformers.CONFIG_MAPPING) - set(SAMPLE)))
def test_the_file_says_what_runs_show_of_every_type(name: str, tmp_path: Path) -> None:
    agrees(name, tmp_path)


SIZES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bert": (TEXT, {"length": 50}),
    "gpt2": (GPT, {"length": 20}),
    "vit": (IMAGE, {"grid": (6, 3)}),
}


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "proved", lambda *_: pytest.fail("it ran small copies"))


@together("family", SIZES)
def test_a_known_resize_runs_nothing_and_gives_what_a_proof_gives(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, size = SIZES[family]
    source = saved(tiny_model(family, settings), tmp_path / "source")
    with_proof = posembed.resize_checkpoint(source, tmp_path / "proved", **size, prove=True).edit
    monkeypatch.setattr(plan, "proved", lambda *_: pytest.fail("it ran small copies"))
    without = posembed.resize_checkpoint(source, tmp_path / "known", **size).edit
    assert with_proof.tensors.keys() == without.tensors.keys()
    assert all(torch.equal(each, with_proof.tensors[key]) for key, each in without.tensors.items() if each is not None)
    assert with_proof.config == without.config
    assert any("--method bicubic " in check for check in without.checks) == (family == "vit")
    with pytest.raises(pytest.fail.Exception, match="ran small copies"):
        posembed.resize_checkpoint(source, tmp_path / "again", **size, prove=True)


@pytest.mark.usefixtures("no_runs")
@together(
    "change",
    [
        {"settings": {"is_decoder": True}},
        {"row": {"seen": ["4.0"]}},
        {"row": {"shown": ["smaller"]}},
        {"row": {"rows": "1 before, 0 after"}},
        {"row": {"axes": "height, width"}},
        {"row": {"sizes": ["n_positions"]}},
        {"row": {"model": "AlbertModel"}},
    ],
)
def test_a_row_that_does_not_agree_is_not_used(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = saved(tiny_model("bert", TEXT), tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | change.get("settings", {"hidden_act": "mish"})))
    rows = {"bert": [{**row, **change.get("row", {})} for row in families.rows_by_type()["bert"]]}
    monkeypatch.setattr(families, "rows_by_type", lambda: rows)
    with pytest.raises(pytest.fail.Exception, match="ran small copies"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=50)


def test_a_refusal_holds_for_all_settings(tmp_path: Path) -> None:
    settings = {**TEXT, "initial_prior_first_n_blocks": 1, "approx_mode": "sparse"}
    source = saved(tiny_model("mra", settings), tmp_path / "source")
    with pytest.raises(CheckpointError, match="needs a CUDA kernel"):
        posembed.resize_checkpoint(source, tmp_path / "out", length=50)


def test_a_proof_needs_a_model(tmp_path: Path) -> None:
    save_file({"position_embeddings.weight": torch.ones(8, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="which no installed library builds"):
        posembed.resize_checkpoint(tmp_path / "model.safetensors", tmp_path / "out.safetensors", length=9, prove=True)
