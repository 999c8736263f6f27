"""Tables of images, windows and videos in a file without a config, compared with the models of timm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posembed import inspect_checkpoint, resize_checkpoint, resize_table
from posembed.checkpoints.patterns import grid_sinusoid
from posembed.errors import ArgumentError, CheckpointError
from posembed.modelfiles.training_files import leaves
from posembed.tables.layout import Axis, TableLayout
from timm_peer import imported
from tolerance import assert_close

DIM = 8


def resized(state: dict[str, Tensor], folder: Path, settings: dict[str, Any] | None = None, **size: Any) -> Any:
    torch.save({"model": state, "args": settings or {}}, folder / "old.pth")
    resize_checkpoint(folder / "old.pth", folder / "new.pth", overwrite=True, **size)
    return torch.load(folder / "new.pth", weights_only=True)


def swin(window: int) -> dict[str, Tensor]:
    """Returns what a Swin Transformer stores for windows of this size on 8 x 8 windows: also what timm recomputes."""
    timm = imported("timm", "timm.models.swin_transformer")
    sizes = {"img_size": 16 * window, "patch_size": 2, "window_size": window, "embed_dim": DIM, "num_classes": 0}
    model = timm.SwinTransformer(**sizes, depths=(2, 2), num_heads=(1, 2))
    buffers = (each for each in model.named_buffers() if each[1] is not None)
    return {**model.state_dict(), **dict(buffers)}


@pytest.mark.parametrize(("old", "new"), [(4, 6), (7, 4), (5, 5)])
def test_swins_windows_bring_their_indices_and_masks(old: int, new: int, tmp_path: Path) -> None:
    before, settings = swin(old), {"window_size": old, "img_size": 16 * old}
    if old == new:
        with pytest.raises(ArgumentError, match=r"already has args\.window_size=5"):
            resized(before, tmp_path, settings, window=new)
        return
    written, after = resized(before, tmp_path, settings, window=new), swin(new)
    assert written["args"] == {"window_size": new, "img_size": 16 * old}
    for key, value in written["model"].items():
        if key.endswith("bias_table"):
            axes = tuple(Axis(name, old, relative=True) for name in ("height", "width"))
            sizes = {"height": new, "width": new}
            assert torch.equal(value, resize_table(before[key], sizes=sizes, layout=TableLayout(axes=axes)))
        else:
            assert torch.equal(value, after[key] if key.endswith(("index", "attn_mask")) else before[key]), key
    assert sum(key.endswith("attn_mask") for key in written["model"]) == 2


def test_windows_are_those_of_the_index_beside_them(tmp_path: Path) -> None:
    """A table of 5 x 9 differences has windows of 3 x 5, as its index says; another index is refused."""
    timm = imported("timm", "timm.layers.pos_embed_rel")
    table, index = torch.randn(5 * 9, 2), timm.gen_relative_position_index((3, 5))
    state = {"a.relative_position_bias_table": table, "a.relative_position_index": index}
    new = resized(state, tmp_path, window=(4, 6))["model"]
    assert new["a.relative_position_bias_table"].shape == (7 * 11, 2)
    assert torch.equal(new["a.relative_position_index"], timm.gen_relative_position_index((4, 6)))
    for wrong in ({"a.relative_position_index": index.flip(0)}, {"a.relative_position_bias_table": table[:-1]}):
        with pytest.raises(CheckpointError, match="are not the differences of the cells of a square, or of its index"):
            resized({**state, **wrong}, tmp_path, window=(4, 6))


@pytest.mark.parametrize("shape", [(2, 2), (3, 3)])
def test_what_looks_like_an_index_and_is_none_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    state = {"a.relative_position_bias_table": torch.randn(9, 2)}
    state["a.attn_mask"] = torch.ones(*shape[1:], 4, 4) if shape == (2, 2) else torch.zeros(4, 4, dtype=torch.int64)
    with pytest.raises(CheckpointError, match=r"a\.attn_mask: not resized: it has the table's size"):
        resized(state, tmp_path, window=3)


def test_differences_of_a_class_token_span_the_image(tmp_path: Path) -> None:
    """BEiT's class token has three rows behind the differences, which stay."""
    timm = imported("timm", "timm.layers.pos_embed_rel")
    table = torch.randn(7 * 7 + 3, 2)
    state = {f"blocks.{i}.attn.relative_position_bias_table": table for i in range(2)}
    state |= {
        f"blocks.{i}.attn.relative_position_index": timm.gen_relative_position_index((4, 4), class_token=True)
        for i in (0, 1)
    }
    state["patch_embed.proj.weight"] = torch.randn(DIM, 3, 16, 16)
    new = resized(state, tmp_path, {"input_size": (3, 64, 64)}, image_size=96)
    assert new["args"] == {"input_size": (3, 96, 96)}
    for i in range(2):
        longer = new["model"][f"blocks.{i}.attn.relative_position_bias_table"]
        assert (longer.shape, torch.equal(longer[-3:], table[-3:])) == ((11 * 11 + 3, 2), True)
        index = new["model"][f"blocks.{i}.attn.relative_position_index"]
        assert torch.equal(index, timm.gen_relative_position_index((6, 6), class_token=True))


def sam(grid: int, window: int) -> dict[str, Tensor]:
    state = {"pos_embed": torch.randn(1, grid, grid, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, 16, 16)}
    for block, size in enumerate((window, grid)):
        state |= {f"blocks.{block}.attn.rel_pos_{side}": torch.randn(2 * size - 1, DIM // 2) for side in "hw"}
    return state | {"neck.weight": torch.randn(DIM, DIM, 3, 3)}


def test_sams_global_blocks_follow_the_image_and_its_windows_stay(tmp_path: Path) -> None:
    state = sam(6, 4)
    for size, changed in (({"image_size": 192}, {"pos_embed", "blocks.1"}), ({"window": 7}, {"blocks.0"})):
        new = resized(state, tmp_path, **size)["model"]
        for key, value in state.items():
            same = not key.startswith(tuple(changed))
            assert torch.equal(new[key], value) if same else new[key].shape != value.shape, key
    assert resized(state, tmp_path, grid=(12, 10))["model"]["blocks.1.attn.rel_pos_w"].shape == (19, DIM // 2)


def test_differences_of_another_image_are_refused(tmp_path: Path) -> None:
    """In ViTDet, the table is that of the small images of the pretraining, and as large as a window."""
    state = {**sam(16, 4), "pos_embed": torch.randn(1, 17, DIM)}
    new = resized(state, tmp_path, image_size=128)["model"]
    for key in state:
        assert (key == "pos_embed") == (new[key].shape != state[key].shape), key
    with pytest.raises(CheckpointError, match="its differences are neither those of the grid"):
        resized(state, tmp_path, window=5, table="blocks.0.attn.rel_pos_h")


@pytest.mark.parametrize("by_name", [False, True])
def test_a_stated_grid_is_that_of_images(by_name: bool, tmp_path: Path) -> None:
    """A text table with as many rows as the image table, or as its cells, stays as it is."""
    tokens = {"decoder.tok_emb.weight": torch.randn(30, DIM)}
    patches = {"encoder.patch_embed.weight": torch.randn(DIM, 3, 4, 4)}
    clip = {"token_embedding.weight": torch.randn(30, DIM), "visual.conv1.weight": torch.randn(DIM, 3, 4, 4)}
    for image, text, beside, front in (
        ("encoder.pos_embed", "decoder.pos_emb.weight", {**tokens, "encoder.cls_token": torch.randn(1, 1, DIM)}, 1),
        ("encoder.pos_embed", "decoder.pos_emb.weight", {**tokens, **patches}, 0),
        ("encoder.pos_embed", "decoder.pos_embed", {**tokens, **patches}, 1),
        ("visual.positional_embedding", "positional_embedding", clip, 1),
    ):
        for rows in (32, 33):
            shape = (32 + front, DIM) if "visual" in image else (1, 32 + front, DIM)
            state = {text: torch.randn(rows, DIM), image: torch.randn(shape), **beside}
            given = {"old_grid": (4, 8), "grid": (4, 16), **({"table": image} if by_name else {})}
            new = resized(state, tmp_path, {"max_text_len": rows}, **given)
            assert (new["args"], torch.equal(new["model"][text], state[text])) == ({"max_text_len": rows}, True)
            layout = TableLayout(prefix=front, grid=(4, 8))
            assert torch.equal(new["model"][image], resize_table(state[image], grid=(4, 16), layout=layout)), image


def test_stated_rows_are_those_of_any_table_that_has_positions(tmp_path: Path) -> None:
    for front, tail in ((0, 1), (5, 0), (3, 2)):
        state = {"pos_embed": torch.randn(1, front + 16 + tail, DIM), "cls_token": torch.randn(1, 1, DIM)}
        rows = {"reserved": front or None, "tail": tail or None}
        for given in ({"grid": (6, 5)}, {"grid": (6, 5), "old_grid": (4, 4)}, {"grid": (6, 5), "table": "pos_embed"}):
            new = resized(state, tmp_path, **rows, **given)["model"]["pos_embed"]
            layout = TableLayout(prefix=front, grid=(4, 4), tail=tail)
            assert torch.equal(new, resize_table(state["pos_embed"], grid=(6, 5), layout=layout)), (rows, given)
        state = {"time_embed": torch.randn(1, front + 8 + tail, DIM), "norm.weight": torch.randn(DIM)}
        new = resized(state, tmp_path, frames=16, **rows)["model"]["time_embed"]
        assert torch.equal(new[:, :front], state["time_embed"][:, :front])
        assert torch.equal(new[:, front + 16 :], state["time_embed"][:, front + 8 :])
    state = {
        "text.position_embeddings.weight": torch.randn(66, DIM),
        "segment_position_embeddings.weight": torch.ones(2, 8),
    }
    given = {"table": "text.position_embeddings.weight", "reserved": 2}
    new = resized(state, tmp_path, {"max_len": 64}, length=128, **given)
    assert (new["args"], len(new["model"]["text.position_embeddings.weight"])) == ({"max_len": 128}, 130)
    with pytest.raises(CheckpointError, match="has 66 rows, and none is left beside 66 reserved"):
        resized(state, tmp_path, length=128, **given | {"reserved": 66})
    state = {"a.relative_position_bias_table": torch.randn(9, 2)}
    with pytest.raises(CheckpointError, match="none of its rows can be reserved"):
        resized(state, tmp_path, window=3, table="a.relative_position_bias_table", reserved=1)


PATCHES = {"patch_embed.proj.weight": torch.ones(DIM, 3, 4, 4), "cls_token": torch.ones(1, 1, DIM)}


def vit(rows: int) -> dict[str, Tensor]:
    return {"pos_embed": torch.randn(1, rows, DIM), **PATCHES}


def within(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in state.items()}


TIMES = {**vit(33), "time_embed": torch.randn(1, 32, DIM)}
READER = {
    **within("encoder.", vit(33)),
    "tok_emb.weight": torch.ones(50, DIM),
    "decoder.pos_embed": torch.ones(1, 34, DIM),
}
EMBED = "vision_model.embeddings."
CLIP = {f"{EMBED}position_embedding.weight": torch.randn(33, DIM), f"{EMBED}class_embedding": torch.ones(DIM)}
CLIP |= {
    f"{EMBED}patch_embedding.weight": torch.ones(DIM, 3, 4, 4),
    "text_model.embeddings.token_embedding.weight": torch.ones(9, DIM),
}
CLIP |= {"text_model.embeddings.position_embedding.weight": torch.randn(34, DIM)}
CLASS_IN_TIME = {**vit(33), "temporal_embedding": torch.randn(1, 9, DIM)}
PAIR = {**vit(17), "decoder_pos_embed": torch.randn(1, 16, DIM), "mask_token": torch.ones(1, 1, DIM)}
TWO = {**within("teacher.", vit(18)), **within("student.", vit(17)), "teacher.dist_token": torch.ones(1, 1, DIM)}
WIDE = {
    "pos_embed": torch.randn(1, 225, DIM),
    "patch_embed.proj.weight": torch.ones(DIM, 3, 16, 16),
    "cls_token": torch.ones(1, 1, DIM),
}
SAM = {"pos_embed": torch.randn(1, 4, 6, DIM), **PATCHES, "text.token_embedding.weight": torch.ones(30, DIM)}
SAM |= {"text.positional_embedding": torch.randn(24, DIM)}
FAIRSEQ = {"encoder.embed_tokens.weight": torch.ones(30, DIM), "encoder.embed_positions.weight": torch.randn(66, DIM)}
LINE = "encoder.embed_positions.weight"
BIASES = "layers.0.attn.relative_position_bias_table"
WINDOWS = {BIASES: torch.randn(49, 2)}
DEEP = {"pos_embed_temporal": torch.randn(1, 8, DIM), "pos_embed_spatial": torch.randn(1, 16, DIM)}
DEEP |= {"patch_embed.proj.weight": torch.ones(DIM, 3, 5, 7, 7)}
SIX = {"grid": (6, 6), "old_grid": (4, 8)}


@pytest.mark.parametrize(
    ("state", "before", "size", "rows", "after"),
    [
        (TIMES, {"num_frames": 32}, SIX, {"pos_embed": 37}, {"num_frames": 32}),
        (TIMES, {"num_frames": 32}, {**SIX, "table": "pos_embed"}, {"pos_embed": 37}, {"num_frames": 32}),
        (TIMES, {"num_frames": 32}, {**SIX, "frames": 64}, {"pos_embed": 37, "time_embed": 64}, {"num_frames": 64}),
        (READER, {"max_len": 34}, SIX, {"encoder.pos_embed": 37}, {"max_len": 34}),
        (READER, {}, {**SIX, "table": "encoder.pos_embed"}, {"encoder.pos_embed": 37}, {}),
        (CLIP, {}, SIX, {f"{EMBED}position_embedding.weight": 37}, {}),
        (
            {**vit(17), "time_embed": torch.randn(1, 8, DIM)},
            {"num_frames": 8, "img_size": 16},
            {"grid": (6, 6), "frames": 16, "reserved": 1},
            {"pos_embed": 37, "time_embed": 16},
            {"num_frames": 16, "img_size": 24},
        ),
        (
            CLASS_IN_TIME,
            {"num_frames": 8},
            {**SIX, "frames": 16, "reserved": 1},
            {"pos_embed": 37, "temporal_embedding": 17},
            {"num_frames": 16},
        ),
        (
            PAIR,
            {"input_size": 16},
            {"image_size": 32, "reserved": 1},
            {"pos_embed": 65, "decoder_pos_embed": 64},
            {"input_size": 32},
        ),
        (PAIR, {}, {"old_grid": (2, 8), "grid": (4, 8)}, {"pos_embed": 33, "decoder_pos_embed": 32}, {}),
        (
            TWO,
            {"img_size": 16},
            {"image_size": 32, "reserved": 2},
            {"teacher.pos_embed": 66, "student.pos_embed": 65},
            {"img_size": 32},
        ),
        (WIDE, {"img_size": [224, 256]}, {"grid": (28, 32), "tail": 0}, {"pos_embed": 897}, {"img_size": [448, 512]}),
        (SAM, {}, {"grid": (6, 6), "old_grid": (4, 6), "table": "pos_embed", "reserved": 0}, {"pos_embed": 6}, {}),
        (SAM, {}, {"grid": (6, 6), "old_grid": (4, 6)}, {"pos_embed": 6}, {}),
        (WINDOWS, {"window_size": 4}, {"window": 3, "table": BIASES, "tail": 0}, {BIASES: 25}, {"window_size": 3}),
        (FAIRSEQ, {"max_positions": 64}, {"length": 96, "tail": 0}, {LINE: 98}, {"max_positions": 96}),
        (DEEP, {"n_frames": 16}, {"frames": 32}, {"pos_embed_temporal": 16}, {"n_frames": 32}),
    ],
)  # fmt: skip
def test_what_is_stated_of_one_table_leaves_others_as_they_are(
    state: dict[str, Tensor],
    before: dict[str, Any],
    size: dict[str, Any],
    rows: dict[str, int],
    after: dict[str, Any],
    tmp_path: Path,
) -> None:
    """Tables of frames and of texts, and the other half of a pair, keep the reading of their names and settings."""
    new = resized(state, tmp_path, before, **size)
    changed = {key: new["model"][key] for key in state if new["model"][key].shape != state[key].shape}
    assert {key: value.shape[value.dim() > 2] for key, value in changed.items()} == rows
    assert new["args"] == after
    assert all(torch.equal(new["model"][key], state[key]) for key in state.keys() - changed.keys())


def test_frames_of_the_data_are_not_those_of_a_row(tmp_path: Path) -> None:
    """As in MViT, whose convolution of depth 3 has a stride of 2."""
    state = {"pos_embed_temporal": torch.randn(1, 8, DIM), "pos_embed_spatial": torch.randn(1, 16, DIM)}
    state["patch_embed.proj.weight"] = torch.randn(DIM, 3, 3, 7, 7)
    for settings, rows, changed in (
        ({"num_frames": 16}, 16, {"num_frames": 32}),
        ({"num_frames": 16, "max_frames": 24}, 16, {"num_frames": 32, "max_frames": 24}),
        ({"num_frames": 24, "max_frames": 64}, 10, {"num_frames": 32, "max_frames": 64}),
        ({"max_frames": 64}, 32, {"max_frames": 64}),
    ):
        new = resized(state, tmp_path, settings, frames=32)
        assert (new["model"]["pos_embed_temporal"].shape[1], new["args"]) == (rows, changed)


def test_videos_have_frames_and_sides(tmp_path: Path) -> None:
    """In one table, or in one for each."""
    cells = {"pos_embed": torch.randn(1, 1 + 4 * 3 * 3, DIM), "patch_embed.weight": torch.randn(DIM, 3, 2, 16, 16)}
    settings = {"num_frames": 8, "img_size": 48}
    new = resized(cells, tmp_path, settings, frames=16, image_size=80, old_grid=(4, 3, 3))
    assert new["args"] == {"num_frames": 16, "img_size": 80}
    layout = TableLayout(prefix=1, axes=(Axis("time", 4), Axis("height", 3), Axis("width", 3)))
    sizes = {"time": 8, "height": 5, "width": 5}
    assert torch.equal(new["model"]["pos_embed"], resize_table(cells["pos_embed"], sizes=sizes, layout=layout))
    with pytest.raises(CheckpointError, match="has 37 rows, not 5 reserved rows, a grid of 4 x 2 x 3"):
        resized(cells, tmp_path, frames=16, old_grid=(4, 2, 3), reserved=5)
    with pytest.raises(CheckpointError, match="has 37 rows, 28 more than a grid of 3 x 3"):
        resized(cells, tmp_path, image_size=80, old_grid=(3, 3))
    apart = {"pos_embed": torch.randn(1, 10, DIM), "time_embed": torch.randn(1, 8, DIM)}
    apart["patch_embed.proj.weight"] = torch.randn(DIM, 3, 16, 16)
    for frames, grid in ((16, None), (16, (5, 5)), (None, (5, 5))):
        new = resized(apart, tmp_path, settings, **{k: v for k, v in (("frames", frames), ("grid", grid)) if v})
        assert new["model"]["time_embed"].shape == (1, frames or 8, DIM)
        assert new["model"]["pos_embed"].shape == (1, 26 if grid else 10, DIM)
        assert new["args"] == {"num_frames": frames or 8, "img_size": 80 if grid else 48}


def test_a_table_with_a_dimension_for_each_side(tmp_path: Path) -> None:
    """Channels last or first. A grid that is not square is given."""
    for shape, new, given in (
        ((1, 4, 4, DIM), (1, 6, 6, DIM), {}),
        ((1, DIM, 4, 4), (1, DIM, 6, 6), {}),
        ((1, 4, 5, DIM), (1, 6, 6, DIM), {"old_grid": (4, 5)}),
    ):
        table = torch.randn(shape)
        long = resized({"pos_embed": table}, tmp_path, grid=(6, 6), table="pos_embed", **given)["model"]["pos_embed"]
        assert long.shape == new
        first = shape[1] == DIM
        cells, actual = (each if first else each.permute(0, 3, 1, 2) for each in (table, long))
        scaled = torch.nn.functional.interpolate(
            cells, size=(6, 6), mode="bicubic", antialias=True, align_corners=False
        )
        assert_close(actual, scaled)
    [report] = inspect_checkpoint(tmp_path / "old.pth").tables
    assert "does not show the sides of its grid" in report.table.doubt


def test_fixed_sines_and_cosines_are_recomputed(tmp_path: Path) -> None:
    """Also in a table with a dimension for each side, and in one whose grid is given."""
    fixed = {sides: grid_sinusoid(sides, DIM) for sides in ((4, 4), (6, 6), (3, 5))}
    for old, given in (((4, 4), {}), ((3, 5), {"old_grid": (3, 5)})):
        for shape in ((1, *old, DIM), (1, -1, DIM)):
            new = resized({"pos_embed": fixed[old].view(shape)}, tmp_path, grid=(6, 6), table="pos_embed", **given)
            assert_close(new["model"]["pos_embed"].view(-1, DIM), fixed[6, 6])


def test_a_grid_is_that_of_an_image_that_a_setting_states(tmp_path: Path) -> None:
    """Also if the number of rows is a square by accident, or if the image is no multiple of the patch."""
    for rows, patch, old, new, grid, prefix in (
        (9 * 16, 16, (144, 256), (288, 512), (9, 16), 0),  # 12 x 12
        (1 + 14 * 16, 16, [224, 256], (448, 512), (14, 16), 1),  # 15 x 15
        (1 + 24 * 8, 16, (384, 128), (512, 128), (24, 8), 1),
        (1 + 27 * 27, 14, 384, 518, (27, 27), 1),
        (27 * 27, 14, [3, 384, 384], 520, (27, 27), 0),
    ):
        state = {"pos_embed": torch.randn(1, rows, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, patch, patch)}
        written = resized(state, tmp_path, {"img_size": old}, image_size=new)
        sides = new if isinstance(new, tuple) else (new, new)
        layout = TableLayout(prefix=prefix, grid=grid)
        expected = resize_table(state["pos_embed"], grid=(sides[0] // patch, sides[1] // patch), layout=layout)
        assert torch.equal(written["model"]["pos_embed"], expected), old
        whole = new if isinstance(old, int) else type(old)((*old[:-2], *sides))
        assert written["args"] == {"img_size": whole}


def test_patches_that_do_not_cut_the_stated_image_into_the_grid_have_no_known_size(tmp_path: Path) -> None:
    """Patches of 7 pixels that begin at each fourth, and the patches of a latent image."""
    for rows, patch, size in ((1 + 14 * 14, 7, 56), (16 * 16, 2, 256)):
        state = {"pos_embed": torch.randn(1, rows, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, patch, patch)}
        with pytest.raises(ArgumentError, match="the patch size of pos_embed in pixels is unknown; pass --grid"):
            resized(state, tmp_path, {"image_size": size}, image_size=2 * size)
        assert resized(state, tmp_path, {"image_size": size}, grid=(3, 3))["args"] == {"image_size": size}


def test_a_given_grid_is_not_that_of_the_text(tmp_path: Path) -> None:
    """Its rows are fewer than the cells, or so many that most of them would come before the grid."""
    for grid, new in (((12, 16), (224, 256)), ((6, 8), (128, 160))):
        state = {"positional_embedding": torch.randn(77, DIM), "visual.conv1.weight": torch.randn(DIM, 3, 16, 16)}
        state["visual.positional_embedding"] = image = torch.randn(1 + grid[0] * grid[1], DIM)
        written = resized(state, tmp_path, old_grid=grid, image_size=new)["model"]
        assert torch.equal(written["positional_embedding"], state["positional_embedding"])
        layout = TableLayout(prefix=1, grid=grid)
        expected = resize_table(image, grid=(new[0] // 16, new[1] // 16), layout=layout)
        assert torch.equal(written["visual.positional_embedding"], expected)


def test_a_convolution_further_out_is_that_of_patches_if_its_name_says_so(tmp_path: Path) -> None:
    for name, known in (("encoder.patch_embed.proj.weight", True), ("encoder.conv_in.weight", False)):
        state = {"decoder.pos_embed": torch.randn(1, 16, DIM), name: torch.randn(DIM, 3, 8, 8)}
        if known:
            assert resized(state, tmp_path, image_size=48)["model"]["decoder.pos_embed"].shape == (1, 36, DIM)
        else:
            with pytest.raises(ArgumentError, match=r"the patch size of decoder\.pos_embed in pixels is unknown"):
                resized(state, tmp_path, image_size=48, table="decoder.pos_embed")


def test_tables_of_one_image_change_together(tmp_path: Path) -> None:
    """Those of an encoder and a decoder (MAE), and those of a teacher and a student, whose heads stay (DINOv2)."""
    patches, heads = (
        {"patch_embed.proj.weight": torch.randn(DIM, 3, 16, 16)},
        {"dino_head.mlp.weight": torch.randn(3, DIM)},
    )
    mae = {"pos_embed": torch.randn(1, 17, DIM), "decoder_pos_embed": torch.randn(1, 17, DIM // 2), **patches}
    new = resized(mae, tmp_path, image_size=96)["model"]
    assert (new["pos_embed"].shape, new["decoder_pos_embed"].shape) == ((1, 37, DIM), (1, 37, DIM // 2))
    mae["decoder_pos_embed"] = torch.randn(1, 64, DIM // 2)  # of other cells
    new = resized(mae, tmp_path, {"img_size": 64}, image_size=96)
    assert (new["model"]["decoder_pos_embed"].shape, new["args"]) == ((1, 64, DIM // 2), {"img_size": 96})
    said = resize_checkpoint(tmp_path / "old.pth", tmp_path / "new.pth", image_size=96, overwrite=True)
    assert said.beside.remarks == ("model.decoder_pos_embed: looks like a table of another image, and stays as it is",)
    backbone = {f"backbone.{key}": value for key, value in {"pos_embed": mae["pos_embed"], **patches}.items()} | heads
    for file in (
        {"teacher": backbone},
        {"teacher": backbone, "student": {f"module.{key}": value for key, value in backbone.items()}},
        {"model": {f"{side}.{key}": value for side in ("student", "teacher") for key, value in backbone.items()}},
    ):
        torch.save({**file, "dino_loss": {"center": torch.ones(1, 3)}}, tmp_path / "dino.pth")
        resize_checkpoint(tmp_path / "dino.pth", tmp_path / "large.pth", image_size=96, overwrite=True)
        tables = dict(leaves(torch.load(tmp_path / "large.pth", weights_only=True)))
        changed = [place for place, value in tables.items() if value.shape == (1, 37, DIM)]
        assert len(changed) == (1 if list(file) == ["teacher"] else 2)
        assert all(place[-1].endswith("backbone.pos_embed") for place in changed)


def test_the_last_row_of_a_text_may_be_that_of_its_class_token(tmp_path: Path) -> None:
    """As in open_clip's CoCa: also in a file of its training, whose table has a row more than there are positions."""
    table = torch.randn(9, DIM)
    state = {"text.positional_embedding": table, "text.cls_emb": torch.randn(DIM)}
    new = resized(state, tmp_path, {"context_length": 8}, length=16)
    assert new["args"] == {"context_length": 16}
    assert torch.equal(new["model"]["text.positional_embedding"], torch.cat((table[:8], table[:8], table[8:])))


@pytest.mark.parametrize("named", [{}, {"table": "trunk.pos_embed"}])
def test_sam_2_interpolates_its_tables_itself(named: dict[str, str], tmp_path: Path) -> None:
    state = {"trunk.pos_embed": torch.randn(1, DIM, 7, 7), "trunk.pos_embed_window": torch.randn(1, DIM, 8, 8)}
    state["trunk.patch_embed.proj.weight"] = torch.randn(DIM, 3, 7, 7)
    with pytest.raises(CheckpointError, match="so it needs no resize; give its config the new image_size"):
        resized(state, tmp_path, image_size=1536, **named)


def test_patches_of_a_spectrogram_may_overlap(tmp_path: Path) -> None:
    """As in AST, whose patches of 16 x 16 begin at each tenth bin and frame. Those of a picture are said not to."""
    state = {"v.pos_embed": torch.randn(1, 2 + 12 * 101, DIM), "v.patch_embed.proj.weight": torch.randn(DIM, 1, 16, 16)}
    for size in ({"image_size": (128, 512)}, {"patch_size": 8}):
        with pytest.raises(ArgumentError, match=r"the patch size of v\.pos_embed in pixels is unknown"):
            resized(state, tmp_path, old_grid=(12, 101), **size)
    assert resized(state, tmp_path, old_grid=(12, 101), grid=(12, 50))["model"]["v.pos_embed"].shape == (1, 602, DIM)
    state = {"pos_embed": torch.randn(1, 211, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, 16, 16)}
    torch.save(state, tmp_path / "old.pth")
    said = resize_checkpoint(tmp_path / "old.pth", tmp_path / "said.pth", old_grid=(21, 10), image_size=(384, 192))
    assert "336 x 160 pixels, in patches that do not overlap; if they do, pass --grid" in repr(said)
    state = {"pos_embed": torch.randn(1, 197, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, 16, 16)}
    torch.save(state, tmp_path / "square.pth")
    for number, size in enumerate(({"image_size": 384}, {"grid": (24, 24)}, {"patch_size": 8})):
        said = resize_checkpoint(tmp_path / "square.pth", tmp_path / f"{number}.pth", **size)
        assert ("224 x 224 pixels, in patches that do not overlap" in repr(said)) == ("image_size" in size)


def test_distances_whose_cells_are_in_the_code_are_named(tmp_path: Path) -> None:
    """As in LeViT. The reason of all tables is said once."""
    state = {f"blocks.{layer}.attn.attention_biases": torch.randn(4, 49) for layer in range(8)}
    torch.save({**state, "blocks.0.mlp.weight": torch.randn(8, 8)}, tmp_path / "levit.pth")
    reports = inspect_checkpoint(tmp_path / "levit.pth").tables
    assert [report.table.key for report in reports] == list(state)
    with pytest.raises(CheckpointError, match=r"save_for_hf\(model, FOLDER\)") as refused:
        resize_checkpoint(tmp_path / "levit.pth", tmp_path / "out.pth", image_size=448)
    assert str(refused.value).count("save_for_hf") == 1
    assert "blocks.5.attn.attention_biases and 2 more (its columns" in str(refused.value)
