"""Files of other projects: each is resized, and what their own code loads of it is what was asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posembed import resize_checkpoint
from posembed.errors import CheckpointError
from posembed.modelfiles.checkpoint import open_checkpoint
from posembed.modelfiles.safetensors import values_of
from projects.models import CLIP, FILES, PROJECTS, Project, drawn, load_open_clip, table, timm_tower, write_open_clip
from timm_peer import imported
from tolerance import assert_close

MOST, MOST_TOGETHER = 200_000, 2_000_000
NAMES = [project.file for project in PROJECTS]
ALLOWED = (
    "ignore:.*(pkg_resources|LeafSpec|GradScaler|num_workers|is deprecated|weights_only|Regression weights|nested)"
)
pytestmark = [pytest.mark.filterwarnings(ALLOWED), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def resized(project: Project, folder: Path) -> Path:
    source = FILES / project.file
    for turn, size in enumerate(project.sizes):
        out = folder / str(turn) / project.file
        out.parent.mkdir()
        resize_checkpoint(source, out, **size)
        source = out
    return source


def tensors(path: Path) -> dict[str, Tensor]:
    return {key: values_of(tensor) for key, tensor in open_checkpoint(path).tensors.items()}


@pytest.mark.parametrize("project", PROJECTS, ids=NAMES)
def test_only_positions_change(project: Project, tmp_path: Path) -> None:
    """And what is counted by them; the size is found without naming a table."""
    old = open_checkpoint(FILES / project.file).tensors
    new = open_checkpoint(resized(project, tmp_path)).tensors
    assert set(new) == set(old)
    changed = {key for key in old if tuple(old[key].shape) != tuple(new[key].shape)}
    assert changed == set(project.tables)
    assert not any("table" in size for size in project.sizes)


@pytest.mark.parametrize("project", PROJECTS, ids=NAMES)
def test_the_projects_own_code_loads_and_runs_it(project: Project, tmp_path: Path) -> None:
    imported(project.package)
    model, answer = project.load(resized(project, tmp_path))
    assert answer.isfinite().all()
    before = project.load(FILES / project.file)[0].state_dict()
    shapes = {key for key, value in model.state_dict().items() if value.shape != before[key].shape}
    ends = tuple(key.rpartition("encoder.")[2].removeprefix("_orig_mod.") for key in project.tables)
    assert all(key.endswith(ends) for key in shapes)
    assert len(shapes) == len(project.tables)


@pytest.mark.parametrize(("size", "method"), [({"length": 24}, "linear"), ({"image_size": 48}, None)])
def test_open_clips_own_interpolation_has_the_same_values(
    size: dict[str, Any], method: str | None, tmp_path: Path
) -> None:
    own: Any = imported("open_clip", "open_clip.model")
    resize_checkpoint(FILES / "open_clip", tmp_path / "new", **size, method=method)
    resize_checkpoint(FILES / "open_clip", tmp_path / "default", **size)
    model, state = load_open_clip(tmp_path / "default")[0], tensors(FILES / "open_clip")
    own.resize_pos_embed(state, model)
    own.resize_text_pos_embed(state, model)
    for key, value in tensors(tmp_path / "new").items():
        assert_close(value, state[key])


def test_segment_anything_reads_its_old_differences_as_the_resized_ones(tmp_path: Path) -> None:
    own: Any = imported("segment_anything", "segment_anything.modeling.image_encoder")
    resize_checkpoint(FILES / "sam.pth", tmp_path / "new.pth", image_size=96)
    old, new = tensors(FILES / "sam.pth"), tensors(tmp_path / "new.pth")
    for side in "hw":
        key = f"image_encoder.blocks.1.attn.rel_pos_{side}"
        assert_close(own.get_rel_pos(6, 6, new[key]), own.get_rel_pos(6, 6, old[key]))


def test_timm_resamples_the_old_table_to_the_resized_one(tmp_path: Path) -> None:
    own: Any = imported("timm", "timm.layers")
    resize_checkpoint(FILES / "timm.pth.tar", tmp_path / "new.pth.tar", image_size=96)
    old, new = tensors(FILES / "timm.pth.tar"), tensors(tmp_path / "new.pth.tar")
    assert_close(new["pos_embed"], own.resample_abs_pos_embed(old["pos_embed"], (12, 12)))


def test_a_tower_of_timm_has_the_name_of_its_new_size(tmp_path: Path) -> None:
    """open_clip has timm build it at the size of its name. If there is no such name, the file is better left alone."""
    imported("open_clip")
    write_open_clip(timm_tower("vit_tiny_patch16_224", 224))(tmp_path / "old")
    resize_checkpoint(tmp_path / "old", tmp_path / "new", image_size=384)
    model, answer = load_open_clip(tmp_path / "new")
    assert answer.isfinite().all()
    old: Any = imported("open_clip").create_model(f"local-dir:{tmp_path / 'old'}", force_image_size=384)
    assert_close(model.state_dict()["visual.trunk.pos_embed"], old.state_dict()["visual.trunk.pos_embed"])
    with pytest.raises(CheckpointError, match=r"timm has no such model for 256.*force_image_size=256"):
        resize_checkpoint(tmp_path / "old", tmp_path / "no", image_size=256)


def test_a_tower_of_transformers_is_read_by_its_own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RoBERTa's has two reserved rows, which nothing in open_clip's files says."""
    imported("open_clip")
    transformers: Any = imported("transformers")
    few = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    roberta = transformers.RobertaConfig(vocab_size=50, max_position_embeddings=18, **few)
    monkeypatch.chdir(tmp_path)
    roberta.save_pretrained("tower")
    text = {"context_length": 16, "hf_model_name": "tower", "hf_proj_type": "mlp", "hf_pooler_type": "mean_pooler"}
    write_open_clip(CLIP | {"text_cfg": text})(tmp_path / "old")
    said = resize_checkpoint(tmp_path / "old", tmp_path / "new", length=32).edit.checks
    assert "save that config with max_position_embeddings=34 in a folder" in said[0]
    key = "text.transformer.embeddings.position_embeddings.weight"
    old, new = tensors(tmp_path / "old")[key], tensors(tmp_path / "new")[key]
    assert torch.equal(new, torch.cat((old, old[2:])))
    roberta.max_position_embeddings = 34
    roberta.save_pretrained("larger")
    path = tmp_path / "new" / "open_clip_config.json"
    config = json.loads(path.read_text())
    assert config["model_cfg"]["text_cfg"]["context_length"] == 32
    config["model_cfg"]["text_cfg"]["hf_model_name"] = "larger"
    path.write_text(json.dumps(config))
    assert load_open_clip(tmp_path / "new")[1].isfinite().all()


def test_the_page_shows_every_project() -> None:
    page = Path(__file__).parents[2] / "docs" / "native-files.md"
    assert table() in page.read_text(), f"docs/native-files.md needs this table:\n{table()}"


def test_the_files_are_small() -> None:
    sizes = [path.stat().st_size for path in FILES.rglob("*") if path.is_file()]
    assert max(sizes) <= MOST
    assert sum(sizes) <= MOST_TOGETHER
    assert {path.name for path in FILES.iterdir()} == set(NAMES)


def test_small_values_differ() -> None:
    assert len(set(drawn(nn.Linear(3, 3)).weight.flatten().tolist())) == 9  # type: ignore[union-attr, operator]
