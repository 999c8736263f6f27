"""Values that are not finite: in the checkpoint, in the settings, and after the last step. Nothing is written then."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluated_models import save_causal, save_encoder, save_masked, write_texts
from posembed.errors import ArgumentError, CheckpointError
from posembed.measure.summary import plain
from posembed.tuning.plan import plan_tuning, tune_checkpoint
from posembed.tuning.settings import LARGEST, TuneSettings
from together import asked, pairwise

SAVE: dict[str, Any] = {"causal": save_causal, "masked": save_masked, "sentences": save_encoder}
SETTINGS: dict[str, dict[str, Any]] = {kind: {"length": 48, "batch": 2} for kind in SAVE}
SETTINGS["sentences"] |= {"passage": 6, "query": 6}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_texts(Path("texts"), number=24, words=60)
    return tmp_path


def tune(kind: str = "causal", **others: Any) -> Any:
    return tune_checkpoint("model", "out", "texts", device="cpu", **{**SETTINGS[kind], **others})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["causal", "sentences", pytest.param("masked", marks=pytest.mark.whole)])
def test_weights_that_do_not_fit_into_the_dtype_of_the_files(folder: Path, kind: str) -> None:
    SAVE[kind](Path("model"), positions=24)
    path = Path("model/model.safetensors")
    save_file({key: value.half() for key, value in load_file(path).items()}, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"step 1.* not finite|not finite.* step 1"):
        tune(kind, steps=1, warmup=0.0, learning_rate=LARGEST, rows_learning_rate=LARGEST, method="tile")
    assert names(folder) == ["model", "out.tune", "texts"]


@pytest.mark.parametrize(("kind", "value"), pairwise(SAVE, [math.nan, math.inf, -math.inf]))
def test_a_checkpoint_that_is_not_finite_is_refused_in_planning(folder: Path, kind: str, value: float) -> None:
    SAVE[kind](Path("model"), positions=24)
    path = Path("model/model.safetensors")
    tensors = load_file(path)
    for key in list(tensors)[:: 3 if asked["whole"] else 6]:
        broken = {name: each.clone() for name, each in tensors.items()}
        broken[key].view(-1)[3] = value
        save_file(broken, path, metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=f"^model: the checkpoint has values that are not finite in {key};"):
            tune(kind, steps=1)
    save_file({**tensors, "mask": torch.full((4, 4), -math.inf).triu(1)}, path, metadata={"format": "pt"})
    plan_tuning("model", "out", "texts", {**SETTINGS[kind], "steps": 1}, device="cpu")
    assert names(folder) == ["model", "texts"]


@pytest.mark.parametrize("name", ["learning_rate", "rows_learning_rate", "clip", "temperature", "minutes", "anchor"])
def test_numbers_have_a_largest_value(name: str) -> None:
    assert TuneSettings.of({"length": 64, name: LARGEST}, kind="sentences").to_dict()[name] == LARGEST
    for value in (1.1 * LARGEST, 1e38, 1e300):
        with pytest.raises(ArgumentError, match=f"{name}: expected a number .* at most 1,000,000; got"):
            TuneSettings.of({"length": 64, name: value}, kind="sentences")


@pytest.mark.parametrize(
    ("name", "value"),
    pairwise(["learning_rate", "rows_learning_rate", "clip", "temperature", "anchor"], [LARGEST, 1e-300]),
)
def test_no_number_that_is_taken_breaks_a_step(folder: Path, name: str, value: float) -> None:
    """It ends well, or with an error that names the step."""
    save_encoder(Path("model"), positions=24)
    said = ""
    try:
        tune("sentences", steps=1, warmup=0.0, train="table" if name == "learning_rate" else "rows", **{name: value})
    except CheckpointError as error:
        said = str(error)
    assert "step 1" in said or not said
    written = ["model", "out", *["out-at-24"] * (name == "learning_rate"), "out.tune", "texts"]
    assert names(folder) == (["model", "out.tune", "texts"] if said else written)


def test_json_has_no_number_that_is_not_finite() -> None:
    values = {"a": [1.0, math.nan, (math.inf, 2)], 3: {"b": -math.inf}, "c": None, "d": True, "e": "nan"}
    assert plain(values) == {"a": [1.0, None, [None, 2]], "3": {"b": None}, "c": None, "d": True, "e": "nan"}
