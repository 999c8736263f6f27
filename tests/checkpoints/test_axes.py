"""Models whose tables lie along axes: relative, windowed, video, sound. Small random models with smooth tables."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import posembed
from posembed.checkpoints.position_tables import PositionTable
from posembed.checkpoints.proof.answers import smooth
from posembed.errors import CheckpointError
from posembed.tables import Axis
from tiny_models import IMAGE, TEXT, first_output, reloaded, saved, tiny_model
from together import together
from tolerance import assert_close

SAM = {
    "vision_config": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64, "patch_size": 8,
        "output_channels": 8, "mlp_dim": 16, "window_size": 3, "global_attn_indexes": [1], "num_pos_feats": 4,
    },
    "prompt_encoder_config": {"hidden_size": 8, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
    "mask_decoder_config": {
        "hidden_size": 8, "mlp_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "iou_head_hidden_dim": 8,
    },
}  # fmt: skip
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
SOUND = {
    **{name: size for name, size in IMAGE.items() if name != "image_size"},
    "patch_size": 4, "frequency_stride": 3, "time_stride": 3, "max_length": 20, "num_mel_bins": 10,
}  # fmt: skip
MAE = {
    **IMAGE, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 8, "mask_ratio": 0.0,
}  # fmt: skip
NAFLEX = {**IMAGE, "num_patches": 16}
MERGING = {**IMAGE, "num_heads": 2, "depth": 1, "out_hidden_size": 32, "num_position_embeddings": 64}
PAPER = {
    **TEXT, "coordinate_size": 6, "shape_size": 4, "max_2d_position_embeddings": 64, "input_size": 32, "patch_size": 8,
    "num_channels": 3,
}  # fmt: skip


def picture(height: int, width: int, *, channels: int = 3) -> Tensor:
    """The same smooth picture (1, C, height, width) at any size."""
    y, x = ((torch.arange(size) + 0.5) / size for size in (height, width))
    waves = [torch.sin(3 * y[:, None] + (2 + shift) * x[None] + shift) for shift in range(channels)]
    return torch.stack(waves)[None]


def image(size: int) -> dict[str, Tensor]:
    return {"pixel_values": picture(size, size)}


def unshuffled(size: int) -> dict[str, Tensor]:
    """An image for MAE, which orders its patches by noise."""
    return {**image(size), "noise": torch.arange((size // 8) ** 2)[None].float()}


def patches(side: int) -> dict[str, Tensor]:
    rows = F.unfold(picture(8 * side, 8 * side), kernel_size=8, stride=8).transpose(1, 2)
    return {
        "pixel_values": rows,
        "pixel_attention_mask": torch.ones(1, side * side),
        "spatial_shapes": torch.tensor([[side, side]]),
    }


def merged(side: int) -> dict[str, Tensor]:
    """An image for Qwen3-VL: patches in blocks of 2 x 2, each of two equal frames."""
    rows = patches(side)["pixel_values"][0].unflatten(1, (3, 1, 8, 8)).expand(-1, -1, 2, -1, -1).flatten(1)
    blocks = rows.unflatten(0, (side // 2, 2, side // 2, 2)).transpose(1, 2).flatten(0, 3)
    return {"hidden_states": blocks, "grid_thw": torch.tensor([[1, side, side]])}


def of_blocks(output: Tensor) -> Tensor:
    side = math.isqrt(len(output))
    cells = output.unflatten(0, (side // 2, side // 2, 2, 2)).transpose(1, 2)
    return cells.reshape(1, side, side, -1).movedim(-1, 1)


def words(coordinates: int) -> dict[str, Tensor]:
    """Three words at the same places of a page that is this many coordinates wide and high."""
    boxes = torch.tensor([[[2, 4, 18, 12], [21, 4, 30, 13], [2, 40, 50, 60]]])
    return {"input_ids": torch.tensor([[5, 9, 33]]), "bbox": boxes * coordinates // 64}


def video(frames: int) -> dict[str, Tensor]:
    return {"pixel_values": picture(32, 32).expand(1, frames, -1, -1, -1)}


def sound(frames: int) -> dict[str, Tensor]:
    return {"input_values": picture(frames, 10, channels=1)[0]}


def square(output: Tensor) -> Tensor:
    """Cells of a square image (1, prefix + N, D) or (1, C, H, W) as a map (1, D, H, W)."""
    if output.dim() == 4:
        return output
    side = math.isqrt(output.shape[1])
    return output[:, -side * side :].transpose(1, 2).unflatten(2, (side, side))


@dataclass
class Case:
    """A family: its settings, the arguments of a resize, and the same content at the old and at the new size.

    axes: the axes of its tables by the end of their keys. own: the method that the authors' own code uses, where it
    reads other sizes itself. cells: its output as a map, in which the same content lies at the same place.
    """

    settings: dict[str, Any]
    size: dict[str, Any]
    content: tuple[dict[str, Tensor], dict[str, Tensor]]
    axes: dict[str, tuple[Axis, ...]]
    own: str = ""
    cells: Callable[[Tensor], Tensor] = square
    part: str = ""
    asks: dict[str, Any] = field(default_factory=dict)


def grid(side: int, *, relative: bool = False) -> tuple[Axis, ...]:
    return Axis("height", side, relative), Axis("width", side, relative)


def of_time(output: Tensor) -> Tensor:
    """TimeSformer's cells, patch by patch and frame by frame, as (1, D, patches, frames)."""
    return output[:, 1:].transpose(1, 2).unflatten(2, (16, -1))


def of_sound(output: Tensor) -> Tensor:
    return output[:, 2:].transpose(1, 2).unflatten(2, (3, -1))


CASES: dict[str, Case] = {
    "sam": Case(
        SAM, {"image_size": 96}, (image(64), image(96)),
        {"pos_embed": grid(8), "layers.1.attn.rel_pos_h": (Axis("height", 8, relative=True),),
         "layers.0.attn.rel_pos_w": (Axis("width", 3, relative=True),)},
        part="vision_encoder",
    ),
    "beit": Case(
        {**IMAGE, "use_relative_position_bias": True}, {"image_size": 48}, (image(32), image(48)),
        {"relative_position_bias_table": grid(4, relative=True)}, own="bilinear",
        asks={"interpolate_pos_encoding": True},
    ),
    "swin": Case(
        SWIN, {"window": 6}, (image(32), image(48)), {"relative_position_bias_table": grid(4, relative=True)},
    ),
    "timesformer": Case(
        {**IMAGE, "num_frames": 4}, {"frames": 6}, (video(4), video(6)),
        {"time_embeddings": (Axis("time", 4),), "position_embeddings": grid(4)}, cells=of_time,
    ),
    "vit_mae": Case(
        MAE, {"image_size": 48}, (unshuffled(32), unshuffled(48)), {"position_embeddings": grid(4)}, own="bicubic",
        asks={"interpolate_pos_encoding": True},
    ),
    "vitdet": Case(
        {**IMAGE, "pretrain_image_size": 32}, {"image_size": 48}, (image(32), image(48)),
        {"position_embeddings": grid(4)}, own="bicubic",
    ),
    "audio-spectrogram-transformer": Case(
        SOUND, {"frames": 32}, (sound(20), sound(32)),
        {"position_embeddings": (Axis("frequency", 3), Axis("time", 6))}, cells=of_sound,
    ),
    "siglip2_vision_model": Case(
        NAFLEX, {"grid": (6, 6)}, (patches(4), patches(6)), {"position_embedding.weight": grid(4)}, own="bilinear",
    ),
    "layoutlmv3": Case(
        PAPER, {"image_size": 48}, (image(32), image(48)),
        {"pos_embed": grid(4), "x_position_embeddings.weight": (Axis("coordinate", 64),)},
    ),
    "layoutlmv3, words": Case(
        PAPER, {"length": 128, "table": "embeddings.x_position_embeddings.weight"}, (words(64), words(128)),
        {"x_position_embeddings.weight": (Axis("coordinate", 64),)}, cells=lambda output: output.mT[..., None],
    ),
    "qwen3_vl_vision": Case(
        MERGING, {"grid": (12, 12)}, (merged(8), merged(12)), {"pos_embed.weight": grid(8)}, own="bilinear-corners",
        cells=of_blocks,
    ),
}  # fmt: skip


def smooth_model(family: str, case: Case, tables: list[PositionTable]) -> nn.Module:
    """A random model whose tables are smooth, with weights so large that all parts of it matter."""
    model = tiny_model(family, case.settings)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8 if parameter.std() < 0.1 else 1)
        for table in tables:
            if axes := table.layout.axes:
                parameter = model.get_parameter(table.parameter)
                rows = smooth(table.layout, parameter) * (6 if axes[0].relative else 1)
                parameter.copy_(table.layout.stored(rows, like=parameter))
    return model


def answer(model: nn.Module, case: Case, content: dict[str, Tensor], **more: Any) -> Tensor:
    torch.manual_seed(0)  # MAE shuffles its patches
    with torch.no_grad():
        return first_output(model.get_submodule(case.part), {**content, **more})


def on_old_cells(new: Tensor, old: Tensor) -> Tensor:
    return F.interpolate(new, size=old.shape[2:], mode="bilinear", antialias=True)


@together("name", CASES, usual=lambda name: name not in ("vit_mae", "layoutlmv3"))
def test_a_resized_model_sees_the_old_content_as_before(name: str, tmp_path: Path) -> None:
    case, family = CASES[name], name.partition(",")[0]
    plain = saved(tiny_model(family, case.settings), tmp_path / "plain")
    found = [report.table for report in posembed.inspect_checkpoint(plain).tables]
    tables = [table for table in found if isinstance(table, PositionTable)]
    for end, axes in case.axes.items():
        assert {table.layout.axes for table in tables if table.key.endswith(end)} == {axes}

    model = smooth_model(family, case, tables)
    source = saved(model, tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", **case.size).edit
    new = reloaded(model, tmp_path / "out")
    old_content, new_content = case.content
    before = case.cells(answer(model, case, old_content))
    apart = (on_old_cells(case.cells(answer(new, case, new_content)), before) - before).norm()
    for naive in (tiled, cut):
        rough = copy.deepcopy(new)
        with torch.no_grad():
            for change in edit.target.changes:
                parameter, layout = rough.get_parameter(change.table.parameter), change.table.layout
                rows = layout.rows_in(model.get_parameter(change.table.parameter))
                parameter.copy_(change.layout.stored(naive(rows, len(change.layout.rows_in(parameter))), parameter))
        off = (on_old_cells(case.cells(answer(rough, case, new_content)), before) - before).norm()
        assert apart < off

    if case.own:
        said = [check for check in edit.checks if "interpolates its old table" in check]  # of known models
        assert all(f"--method {case.own} " in check for check in said)
        posembed.resize_checkpoint(source, tmp_path / "own", method=case.own, **case.size)
        own = answer(model, case, new_content, **case.asks)
        assert_close(answer(reloaded(model, tmp_path / "own"), case, new_content), own, depth=2)


def test_frames_are_resized_as_timesformer_itself_reads_other_numbers_of_frames(tmp_path: Path) -> None:
    """Its embeddings read any number of frames, but its layers split them by its own."""
    model = tiny_model("timesformer", CASES["timesformer"].settings)
    source = saved(model, tmp_path / "source")
    for frames in (2, 6, 9):
        out = tmp_path / str(frames)
        posembed.resize_checkpoint(source, out, frames=frames, method="nearest")
        own, new = (each.embeddings(video(frames)["pixel_values"]) for each in (model, reloaded(model, out)))
        assert_close(new, own)


def tiled(rows: Tensor, count: int) -> Tensor:
    return rows[torch.arange(count) % len(rows)]


def cut(rows: Tensor, count: int) -> Tensor:
    """The first rows, then zeros: what loading with mismatched sizes amounts to at best."""
    return torch.cat([rows[:count], torch.zeros(max(count - len(rows), 0), rows.shape[1])])


@pytest.mark.parametrize("family", ["sam", "swin", pytest.param("beit", marks=pytest.mark.whole)])
def test_a_model_in_memory_becomes_what_the_files_become(family: str, tmp_path: Path) -> None:
    case = CASES[family]
    model = tiny_model(family, case.settings)
    posembed.resize_checkpoint(saved(model, tmp_path / "source"), tmp_path / "out", **case.size)
    new = reloaded(model, tmp_path / "out")
    posembed.resize_model_(model, **case.size)
    for mine, files in ((model.state_dict(), new.state_dict()), *[(dict(m.named_buffers()) for m in (model, new))]):
        assert mine.keys() == files.keys()
        assert all(torch.equal(mine[name], files[name]) for name in mine)  # index buffers too
    assert torch.equal(answer(model, case, case.content[1]), answer(new, case, case.content[1]))
    if family == "sam":
        assert new.config.prompt_encoder_config.image_size == 96


def test_a_window_that_does_not_fit_is_refused_before_writing(tmp_path: Path) -> None:
    """The last stage of this Swin has a map of 8 x 8, in which no window of 9 fits."""
    source = saved(tiny_model("swin", CASES["swin"].settings), tmp_path / "source")
    with pytest.raises(CheckpointError, match="runs at its own size, but not at the new one"):
        posembed.resize_checkpoint(source, tmp_path / "out", window=9)
    for size, reason in (({"window": 4}, "already has window_size=4"), ({"frames": 9}, "pass --window")):
        with pytest.raises(posembed.PosEmbedError, match=reason):
            posembed.resize_checkpoint(source, tmp_path / "out", **size)
    assert not (tmp_path / "out").exists()


def test_a_stored_index_of_a_window_follows(tmp_path: Path) -> None:
    """Donut and CLAP save the index that says which row two cells of a window read."""
    source = saved(model := tiny_model("donut-swin", {**SWIN, "image_size": 64}), tmp_path / "source")
    posembed.resize_checkpoint(source, tmp_path / "out", window=3)
    new = reloaded(model, tmp_path / "out")
    posembed.resize_model_(model, window=3)
    expected = type(model)(copy.deepcopy(new.config)).state_dict()
    index = [name for name in expected if name.endswith("relative_position_index")]
    assert index
    for resized in (new, model):
        assert all(torch.equal(resized.state_dict()[name], expected[name]) for name in index)
    stored = load_file(source / "model.safetensors")
    narrow = {name: each if each.is_floating_point() else each.int() for name, each in stored.items()}
    save_file(narrow, source / "model.safetensors")
    posembed.resize_checkpoint(source, tmp_path / "narrow", window=3)
    written = load_file(tmp_path / "narrow" / "model.safetensors")
    assert all(written[name].dtype == torch.int32 for name in index), "the dtype of the file stays"
    assert all(torch.equal(written[name], expected[name].int()) for name in index)
    new.get_buffer(index[0])[0, 1] += 1
    with pytest.raises(
        CheckpointError, match="relative_position_index: not resized: it depends on window_size, but is"
    ):
        posembed.resize_checkpoint(saved(new, tmp_path / "wrong"), tmp_path / "none", window=2)


def test_layers_that_share_a_shape_are_shown_together(tmp_path: Path) -> None:
    from posembed.report.checkpoint import alike, facts, name_of, standing_out

    settings = {**IMAGE, "use_relative_position_bias": True, "num_hidden_layers": 4}
    model = tiny_model("beit", settings)
    with torch.no_grad():
        model.layers[2].relative_position_bias.relative_position_bias_table.mul_(10)
    (group,) = alike(posembed.inspect_checkpoint(saved(model, tmp_path / "source")).tables)
    assert name_of(group).endswith("relative_position_bias_table (4 tables)")
    assert "layer.2." in standing_out(group)
    assert ("axes", "height 4, width 4: 7 x 7 differences") in facts(group[0])
    assert ("kind", "learned, relative: a bias for each attention head") in facts(group[0])
    told = dict(facts(group[0], group))
    assert told["layers"].endswith(f"the lines below describe {group[0].table.key}")
    assert "also changes" in dict(facts(group[0]))
    assert "also changes" not in told  # its companions are the other layers


def test_a_window_larger_than_the_map_is_padded_and_not_refused(tmp_path: Path) -> None:
    """No two cells of SAM's 8 x 8 map are 11 apart, but a window of 12 x 12 works."""
    source = saved(model := tiny_model("sam", SAM), tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", window=12).edit
    assert {tuple(change.after.shape) for change in edit.tables} == {(23, 16)}
    content = {"pixel_values": torch.randn(1, 3, 64, 64), "input_points": torch.zeros(1, 1, 1, 2)}
    assert reloaded(model, tmp_path / "out")(**content).pred_masks.isfinite().all()


@pytest.mark.parametrize(("old", "stages", "window"), [(7, 4, 24), pytest.param(8, 2, 20, marks=pytest.mark.whole)])
def test_a_window_must_fit_into_every_stage_at_the_true_size(
    old: int, stages: int, window: int, tmp_path: Path
) -> None:
    """Small copies have fewer stages and smaller windows, and do not show that the last stage has no such map."""
    settings = {"image_size": old * 4 * 2 ** (stages - 1), "patch_size": 4, "embed_dim": 8, "window_size": old}
    model = tiny_model("swin", {**settings, "depths": [1] * stages, "num_heads": [1] * stages})
    source = saved(model, tmp_path / "source")
    with pytest.raises(CheckpointError, match=r"not at the new one .*first set a larger image_size"):
        posembed.resize_checkpoint(source, tmp_path / "out", window=window)
    posembed.resize_checkpoint(source, tmp_path / "out", window=old - 1)
    with torch.no_grad():
        assert first_output(reloaded(model, tmp_path / "out"), image(settings["image_size"])).isfinite().all()


@pytest.mark.parametrize(("old", "new"), [(32, (32, 48)), ([32, 48], (48, 48))])
def test_differences_of_a_grid_that_is_not_square_are_refused(old: Any, new: Any, tmp_path: Path) -> None:
    """transformers' BEiT does not read its own table there: it exchanges height and width."""
    model = tiny_model("beit", {**IMAGE, "image_size": old, "use_relative_position_bias": True})
    with pytest.raises(CheckpointError, match="in which order the model reads"):
        posembed.resize_checkpoint(saved(model, tmp_path / "source"), tmp_path / "out", image_size=new)


def test_a_method_applies_to_the_tables_that_have_it(tmp_path: Path) -> None:
    source = saved(tiny_model("sam", SAM), tmp_path / "source")
    for method, how in (("sam", {"bicubic-antialias", "sam"}), ("vit", {"vit", "linear"})):
        edit = posembed.resize_checkpoint(source, tmp_path / "out", image_size=96, method=method, dry_run=True).edit
        assert {change.how for change in edit.tables} == how
    with pytest.raises(posembed.errors.ArgumentError, match="no method for a grid is called 'none'"):
        posembed.resize_checkpoint(source, tmp_path / "out", image_size=96, method="none", dry_run=True)


@pytest.mark.parametrize(
    ("family", "settings", "size"),
    [
        ("timesformer", CASES["timesformer"].settings, {"frames": 6}),  # its layers split cells by its own frames
        ("layoutlmv3", CASES["layoutlmv3"].settings, {"image_size": 48}),  # a text alone reads no patch
        (
            "beit",  # bicubic for its cells, bilinear for its differences
            {**IMAGE, "use_relative_position_bias": True, "use_absolute_position_embeddings": True},
            {"image_size": 48},
        ),
    ],
)
def test_answers_are_called_the_same_only_if_the_tables_decide_them(
    family: str, settings: dict[str, Any], size: dict[str, Any], tmp_path: Path
) -> None:
    source = saved(tiny_model(family, settings), tmp_path / "source")
    edit = posembed.resize_checkpoint(source, tmp_path / "out", **size, dry_run=True).edit
    assert not any("the same answers" in check for check in edit.checks)
    assert family == "beit" or not any("interpolates itself" in check for check in edit.checks)


def test_biases_of_a_single_head_are_resized(tmp_path: Path) -> None:
    settings = {
        "image_size": 64, "patch_size": 16, "hidden_sizes": [16, 24, 32], "num_attention_heads": [1, 2, 3],
        "depths": [1, 1, 1], "key_dim": [8, 8, 8],
    }  # fmt: skip
    edit = posembed.resize_model_(tiny_model("levit", settings), image_size=128)
    assert all(change.after.shape[1] == 4 * change.before.shape[1] for change in edit.tables)


def test_a_size_without_a_cell_says_what_to_pass() -> None:
    model = tiny_model("vivit", {**IMAGE, "num_frames": 4, "tubelet_size": [2, 8, 8]})
    with pytest.raises(posembed.errors.ArgumentError, match="leaves no cell; pass a larger number of frames"):
        posembed.resize_model_(model, frames=1)
