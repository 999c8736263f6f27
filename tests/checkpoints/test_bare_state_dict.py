"""A state dict without a config: its ids and masks change with the table, so that it loads; NaN stays."""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import posembed
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables import Axis, TableLayout
from posembed.tables.modules import is_table_name
from together import together

TABLE = "position_embeddings.weight"
WIDTH = 16


class OwnModel(nn.Module):
    """As people write it: a table, and buffers of its length. Some layers are as wide as the table is long."""

    def __init__(self, length: int, name: str, buffer: Tensor) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(length, WIDTH)
        self.norm = nn.LayerNorm(40)
        self.mix = nn.Linear(40, 40)
        self.register_buffer(name, buffer)


BUFFERS: dict[str, Any] = {
    "positions": lambda length: torch.arange(length),
    "position_ids": lambda length: torch.arange(length)[None],
    "pos": lambda length: torch.arange(length, dtype=torch.int32) + 2,
    "float_position_ids": lambda length: torch.arange(length, dtype=torch.float16)[None],  # as merged files have them
    "token_type_ids": lambda length: torch.zeros(1, length, dtype=torch.long),
    "steps": lambda length: torch.arange(length),
    "column_ids": lambda length: torch.arange(length)[:, None],
    "float_positions": lambda length: torch.arange(length, dtype=torch.float32),
    "causal_mask": lambda length: torch.ones(length, length, dtype=torch.bool).tril(),
    "tril": lambda length: torch.ones(1, 1, length, length).tril(),
    "mask": lambda length: torch.full((length, length), float("-inf")).triu(1),
}


@together("suffix", [".pt", ".safetensors"])
@together("length", [64, 20])
@together("name", BUFFERS)
def test_its_ids_and_masks_follow(name: str, length: int, suffix: str, tmp_path: Path) -> None:
    model = OwnModel(40, name, BUFFERS[name](40))
    source, out = tmp_path / f"x{suffix}", tmp_path / "out.safetensors"
    (torch.save if suffix == ".pt" else save_file)(model.state_dict(), source)
    resized = posembed.resize_checkpoint(source, out, length=length, table=TABLE)
    assert [change.key for change in resized.edit.others] == [name]
    longer = OwnModel(length, name, BUFFERS[name](length))
    expected = longer.state_dict()[name].clone()
    longer.load_state_dict(load_file(out))
    assert torch.equal(longer.state_dict()[name], expected)


@pytest.mark.parametrize(
    "buffer",
    [torch.randperm(40), torch.randint(0, 9, (40, 40)), (torch.arange(40) * 0.995).half()],
    ids=["order", "square", "rounded floats"],
)
def test_ids_of_no_known_pattern_are_refused(buffer: Tensor, tmp_path: Path) -> None:
    save_file(OwnModel(40, "position_ids", buffer).state_dict(), tmp_path / "x.safetensors")
    out = tmp_path / "out.safetensors"
    with pytest.raises(CheckpointError, match="position_ids: not resized: it has the table's length"):
        posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=64, table=TABLE)
    assert not out.exists()


@pytest.mark.parametrize(
    "other",
    [torch.zeros(40, 8, dtype=torch.int32), torch.full((8, 40), 7), torch.randint(0, 99, (5, 40)), torch.eye(40)],
    ids=["rows", "zero points", "packed weights", "weights"],
)
def test_what_has_that_length_by_chance_stays(other: Tensor, tmp_path: Path) -> None:
    save_file(OwnModel(40, "quantized", other).state_dict(), tmp_path / "x.safetensors")
    out = tmp_path / "out.safetensors"
    resized = posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=64, table=TABLE)
    assert resized.edit.others == ()
    assert torch.equal(load_file(out)["quantized"], other)


def test_whole_numbers_of_that_length_are_named_if_they_stay(tmp_path: Path) -> None:
    apart = torch.arange(40)[None] - torch.arange(40)[:, None]
    for buffer in (apart + 39, apart.abs(), torch.randperm(40), torch.randperm(40)[:, None], apart.abs() < 3):
        save_file(OwnModel(40, "distances", buffer).state_dict(), tmp_path / "x.safetensors")
        out = tmp_path / "out.safetensors"
        said = posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=64, table=TABLE, overwrite=True)
        assert "distances: looks like a mask or ids, and stays as it is" in said.edit.remarks
        assert torch.equal(load_file(out)["distances"], buffer)
    ones = {"norm.weight": torch.ones(40), "norm.bias": torch.zeros(40), "q.weight": torch.eye(40, dtype=torch.int8)}
    save_file({TABLE: torch.randn(40, WIDTH), **ones}, tmp_path / "x.safetensors")
    said = posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=64, table=TABLE, overwrite=True)
    assert not said.edit.others
    assert "looks like" not in repr(said)


# --- rows that are not finite

METHODS = ["tile", "hierarchical", "linear", "cubic", "stretch", "random", "mean", "truncate"]


@together("method", METHODS)
@together("value", [float("nan"), float("inf")])
@together("row", [0, 13, 39])
def test_what_is_not_finite_does_not_spread(row: int, value: float, method: str, tmp_path: Path) -> None:
    table = torch.randn(40, WIDTH)
    table[row, 3] = value
    save_file({TABLE: table}, tmp_path / "x.safetensors")
    length, out = 20 if method == "truncate" else 64, tmp_path / "out.safetensors"
    refusal = ""
    try:
        posembed.resize_checkpoint(tmp_path / "x.safetensors", out, length=length, table=TABLE, method=method)
    except CheckpointError as error:
        refusal = str(error)
    assert not refusal or method != "truncate"
    assert refusal or method not in ("tile", "linear", "cubic", "mean") or row == 39
    if refusal:
        assert re.search("1 of its rows hold NaN or infinity, and .* would", refusal)
        assert not out.exists()
    else:
        assert int((~load_file(out)[TABLE].isfinite()).any(1).sum()) <= 1


# --- what a bare file does not say


@pytest.mark.parametrize("key", [TABLE, "roberta.embeddings.position_embeddings.weight"])
@pytest.mark.parametrize("length", [20, 64])
def test_rows_that_may_be_reserved_are_told(key: str, length: int, tmp_path: Path) -> None:
    save_file({key: torch.randn(42, WIDTH)}, tmp_path / "x.safetensors")
    resized = posembed.resize_checkpoint(
        tmp_path / "x.safetensors", tmp_path / "out.safetensors", length=length, table=key
    )
    assert f"{key}: the layout of its rows is unknown; it is assumed that no row is" in resized.edit.target.note
    assert resized.edit.tables[0].after is not None
    assert len(resized.edit.tables[0].after) == length
    stated = posembed.resize_checkpoint(
        tmp_path / "x.safetensors", tmp_path / "o.safetensors", length=length, table=key, reserved=0
    )
    assert torch.equal(stated.edit.tables[0].after, resized.edit.tables[0].after)
    assert not stated.edit.target.note


@pytest.mark.parametrize("prefix", ["", "bert.", "text."])
def test_a_table_beside_relative_positions_is_refused(prefix: str, tmp_path: Path) -> None:
    key = f"{prefix}embeddings.{TABLE}"
    tensors = {key: torch.randn(40, WIDTH)}
    tensors[f"{prefix}encoder.layer.0.attention.self.distance_embedding.weight"] = torch.randn(79, 8)
    save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="relative positions of its length"):
        posembed.resize_checkpoint(tmp_path / "x.safetensors", tmp_path / "out.safetensors", length=64, table=key)
    assert not (tmp_path / "out.safetensors").exists()


# --- tables of other names

OTHERS = {"embed.weight": torch.randn(99, 8), "mlp.weight": torch.randn(40, 8), "mlp.bias": torch.randn(40)}


@together("key", ["positions.weight", "encoding.weight", "pos.weight", "PE.weight", "W_pos.weight", "spatial_pos"])
@together("prefix", ["", "module.", "decoder."])
@together("beside", ["ema", "teacher"])
def test_a_table_of_any_name_is_resized_if_the_user_names_it(
    key: str, prefix: str, beside: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "x.pt", tmp_path / "out.pt"
    names, unwrapped = (
        {other: at + other for other in [*OTHERS, key]} for at in (prefix, prefix.replace("module.", ""))
    )
    table, copy = nn.Parameter(torch.randn(42, 8)), torch.randn(42, 8)
    optimizer = torch.optim.Adam([table])
    table.square().sum().backward()
    optimizer.step()
    model = {names[other]: tensor for other, tensor in {**OTHERS, key: table.detach()}.items()}
    torch.save(
        {
            "model": model,
            beside: {unwrapped[other]: tensor for other, tensor in {**OTHERS, key: copy}.items()},
            "longer": {unwrapped[other]: tensor for other, tensor in {**OTHERS, key: torch.randn(99, 8)}.items()},
            "optimizer": optimizer.state_dict(),
            "max_len": 40,
        },
        path,
    )
    with pytest.raises(
        CheckpointError, match=re.escape(f"found {names[key]} (it may be a table by its name and shape")
    ):
        posembed.resize_checkpoint(path, out, length=64)
    posembed.resize_checkpoint(path, out, length=64, table=names[key], reserved=2)
    written = torch.load(out)
    assert written["max_len"] == 64
    assert written["optimizer"]["state"][0]["exp_avg"].shape == (66, 8)
    assert written["longer"][unwrapped[key]].shape == (99, 8)
    for tensors, old, at in ((written["model"], table.detach(), names), (written[beside], copy, unwrapped)):
        assert torch.equal(tensors[at[key]][:42], old)
        assert len(tensors[at[key]]) == 66
        assert all(torch.equal(tensors[at[other]], OTHERS[other]) for other in OTHERS)


DIFFERENCES = ["rel_pos.emb.weight", "a.relative_position_k.table", "self.distance_embedding.weight"]


NO_TABLES: list[tuple[str, tuple[int, ...], str]] = [
    *((key, (42, 8), "by its name it belongs to tokens, to a layer or to differences of positions")
      for key in ["wte.weight", "pos_proj.weight", "rel_pos.weight", "tokens.weight", *DIFFERENCES]),
    ("mlp.weight", (42, 8), "mlp.bias is beside it"),
    ("rows", (1, 6, 7, 8), "it is F32 of shape (1, 6, 7, 8); a table is a floating tensor (N, D)"),
    ("rows", (42,), "it is F32 of shape (42,); a table is"),
]  # fmt: skip


@together(("key", "shape", "why"), NO_TABLES)
def test_a_tensor_that_is_no_table_is_refused_with_its_reason(
    key: str, shape: tuple[int, ...], why: str, tmp_path: Path
) -> None:
    torch.save(OTHERS | {key: torch.randn(shape)}, tmp_path / "x.pt")
    for stated in ({}, {"reserved": 0}, {"tail": 1}):
        with pytest.raises(CheckpointError, match=re.escape(f"{key}: not resized: {why}")):
            posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", length=64, table=key, **stated)


@together(("given", "key"), [("a.rows", "a.rows.weight"), ("rows.weight", "module.rows.weight"), ("b.rows", "rows")])
def test_a_key_that_is_almost_right_is_answered_with_the_right_one(given: str, key: str, tmp_path: Path) -> None:
    torch.save(OTHERS | {key: torch.randn(42, 8)}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=re.escape(f"--table {given}: no tensor has this key; pass {key}")):
        posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", length=64, table=given)


@together("key", ["pos", "spatial.positions", "pos_table"])
def test_a_square_parameter_named_like_positions_is_proposed(key: str, tmp_path: Path) -> None:
    torch.save({key: torch.randn(256, 256), "fc.weight": torch.randn(256, 256)}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=re.escape(f"found {key} (it may be a table by its name and shape")):
        posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", length=512)


@together("shape", [(1, 14, 20, 8), (1, 8, 197, 8)])
def test_a_grid_is_no_line_because_reserved_rows_are_stated(shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.save({"pos_embed": torch.randn(shape)}, tmp_path / "x.pt")
    with pytest.raises(
        CheckpointError, match="does not show the sides of its grid; pass two numbers in it as --old-grid"
    ):
        posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", length=64, table="pos_embed", reserved=0)


@together(("settings", "per_row"), [
    ({"max_frames": 64}, 1), ({"sample_frames": 32}, 1), ({"fps": 24}, 1), ({"max_frames": 8}, 1),
    ({"num_frames": 8}, 1), ({"num_frames": 16}, 2), ({"num_frames": 32, "max_frames": 64}, 4),
])  # fmt: skip
def test_frames_of_the_data_do_not_say_what_a_row_stands_for(
    settings: dict[str, int], per_row: int, tmp_path: Path
) -> None:
    model = {"pos_embed": torch.randn(1, 8 * 9, 8), "to_patch_embedding.1.weight": torch.randn(8, 768)}
    torch.save({"model": model, "config": settings}, tmp_path / "x.pt")
    posembed.resize_checkpoint(
        tmp_path / "x.pt", tmp_path / "out.pt", table="pos_embed", old_grid=(8, 3, 3), frames=16 * per_row
    )
    assert torch.load(tmp_path / "out.pt")["model"]["pos_embed"].shape == (1, 16 * 9, 8)


def test_a_name_counts_only_in_its_own_call(tmp_path: Path) -> None:
    torch.save(OTHERS | {"rows.weight": torch.randn(42, 8)}, tmp_path / "x.pt")
    posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", length=64, table="rows.weight")
    assert not posembed.inspect_checkpoint(tmp_path / "x.pt").tables
    assert not any(map(is_table_name, ("rows.weight", "weight", "")))


@together("key", ["e.0.self_attn.linear_pos.weight", "pos_ffn.w1.weight", "attn.pos_key.weight", "position.weight"])
def test_layers_with_such_names_are_not_proposed_as_tables(key: str, tmp_path: Path) -> None:
    torch.save(OTHERS | {key: torch.randn(8, 8)}, tmp_path / "x.pt")  # as in conformers, without a bias
    assert not posembed.inspect_checkpoint(tmp_path / "x.pt").tables


@together("before", ["net._orig_mod.", "online_model.", ""])
def test_other_tensors_of_the_name_are_told(before: str, tmp_path: Path) -> None:
    """Copies are known by the names around them, in their own entry; these stay."""
    others = {f"ema_model.{name}": torch.randn(64, 8) for name in ("frames.weight", "other.weight")}
    model = {f"{before}frames.weight": torch.randn(64, 8), f"{before}q.weight": torch.randn(9, 9), **others}
    torch.save({"state_dict": model, "max_len": 64}, tmp_path / "x.pt")
    resize = partial(posembed.resize_checkpoint, tmp_path / "x.pt", tmp_path / "out.pt", length=96)
    with pytest.raises(CheckpointError, match=r"for the latter$"):
        resize(table=f"{before}frames.weight")
    said = resize(table=f"{before}frames.weight", keep=["max_len"]).beside.remarks
    assert said == ("state_dict.ema_model.frames.weight: looks like a table of the old size, and stays as it is",)


def test_tokens_with_the_same_last_part_are_no_other_table(tmp_path: Path) -> None:
    tables = {f"{name}.embed.weight": torch.randn(64, 8) for name in ("tok", "pos")}
    torch.save({"model": tables, "block_size": 64}, tmp_path / "x.pt")
    posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", length=96, table="pos.embed.weight")
    written = torch.load(tmp_path / "out.pt")
    assert [len(each) for each in written["model"].values()] == [64, 96]
    assert written["block_size"] == 96


def test_equal_tables_of_safetensors_are_tied_whatever_their_name(tmp_path: Path) -> None:
    table = torch.randn(42, 8)
    save_file(
        {"a.rows.weight": table, "b.rows.weight": table.clone(), "c.weight": table + 1}, tmp_path / "x.safetensors"
    )
    posembed.resize_checkpoint(
        tmp_path / "x.safetensors", tmp_path / "out.safetensors", length=64, table="a.rows.weight"
    )
    assert [len(each) for each in load_file(tmp_path / "out.safetensors").values()] == [64, 64, 42]


# --- images


OF_IMAGES = {"to_patch_embedding.2.weight": torch.randn(8, 192), "mlp_head.weight": torch.randn(10, 8)}


@together("token", ["cls_token", ""])
@together("prefix", ["", "vit."])
def test_a_table_without_a_batch_dimension_is_a_grid_beside_patches(token: str, prefix: str, tmp_path: Path) -> None:
    others = {**OF_IMAGES, **({token: torch.randn(8)} if token else {})}
    table = torch.randn(64 + len(token[:1]), 8)
    torch.save({prefix + key: each for key, each in {**others, "pos_embedding": table}.items()}, tmp_path / "x.pt")
    in_line = posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "line.pt", length=128, dry_run=True)
    assert in_line.beside.remarks[0].endswith("if its rows are the cells of a grid, pass --grid, not --length")
    posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", grid=(16, 16))
    layout = TableLayout(prefix=len(token[:1]), grid=(8, 8))
    expected = posembed.resize_table(table, grid=(16, 16), layout=layout)
    assert torch.equal(torch.load(tmp_path / "out.pt")[f"{prefix}pos_embedding"], expected)


@together("tokens", ["tok_emb.weight", "embedding.weight"])
def test_a_class_token_of_a_text_makes_no_grid(tokens: str, tmp_path: Path) -> None:
    tensors = {tokens: torch.randn(99, 8), "cls_token": torch.randn(8), "pos_embedding": torch.randn(65, 8)}
    torch.save({"model": tensors, "max_len": 65}, tmp_path / "x.pt")
    posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", length=128)
    written = torch.load(tmp_path / "out.pt")
    assert written["max_len"] == 128
    assert torch.equal(written["model"]["pos_embedding"][:65], tensors["pos_embedding"])


@together("method", [None, "bilinear", "cubic", "nearest"])
@together("frames", [None, 3, 8])
@together("grid", [None, (8, 9)])
def test_a_stated_grid_of_three_axes_needs_no_convolution(
    method: str | None, frames: int | None, grid: tuple[int, int] | None, tmp_path: Path
) -> None:
    size: dict[str, Any] = {name: each for name, each in {"frames": frames, "grid": grid}.items() if each is not None}
    if not size or (method == "bilinear" and not grid) or (method == "cubic" and not frames):
        return
    table, layout = torch.randn(1, 210, 8), TableLayout(axes=(Axis("time", 5), Axis("height", 6), Axis("width", 7)))
    torch.save({"vit.pos_embed": table, **{f"vit.{key}": each for key, each in OF_IMAGES.items()}}, tmp_path / "x.pt")
    resized = posembed.resize_checkpoint(
        tmp_path / "x.pt", tmp_path / "out.pt", **size, old_grid=(5, 6, 7), method=method, overwrite=True
    )
    sizes = {
        **({"time": frames} if frames else {}),
        **(dict(zip(("height", "width"), grid, strict=True)) if grid else {}),
    }
    used = [*(["time"] if frames else []), *(["grid"] if grid else [])]
    default = {"time": "linear", "grid": "bicubic-antialias"}
    own = {"time": ("cubic", "nearest"), "grid": ("bilinear", "nearest")}
    names = dict.fromkeys(method if method in own[each] else default[each] for each in used)
    assert resized.edit.tables[0].how == " and ".join(names)
    expected = posembed.resize_table(table, sizes=sizes, layout=layout, method=method)
    assert torch.equal(torch.load(tmp_path / "out.pt")["vit.pos_embed"], expected)


def test_a_stated_grid_follows_the_number_of_frames(tmp_path: Path) -> None:
    model = {"pos_embed": torch.randn(1, 96, 8), **OF_IMAGES}
    for frames, others in ((12, {}), (12, {"max_frames": 60}), (6, {"skip_frames": 0, "max_frames": 60})):
        torch.save({"model": model, **others, "num_frames": frames}, tmp_path / "x.pt")
        size: dict[str, Any] = {"frames": 2 * frames, "old_grid": (6, 4, 4), "overwrite": True}
        posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", **size)
        written = torch.load(tmp_path / "out.pt")
        assert written["model"]["pos_embed"].shape == (1, 192, 8)
        assert {**others, "num_frames": 2 * frames} == {name: written[name] for name in [*others, "num_frames"]}
    with pytest.raises(CheckpointError, match="are not positions in a line"):
        posembed.resize_checkpoint(
            tmp_path / "x.pt", tmp_path / "line.pt", length=9, reserved=0, old_grid=(6, 4, 4), table="pos_embed"
        )
    with pytest.raises(ArgumentError, match=r"for one axis or a grid is called 'cubik'; choose one of linear.*bicubic"):
        posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "o.pt", grid=(5, 5), **size | {"method": "cubik"})


def test_sizes_of_training_texts_are_named(tmp_path: Path) -> None:
    args = argparse.Namespace(tokens_per_sample=40, max_positions=40, train_crop_size=40)
    torch.save({"args": args, "model": OTHERS | {"pos_embed.weight": torch.randn(40, 8)}}, tmp_path / "x.pt")
    resized = posembed.resize_checkpoint(tmp_path / "x.pt", tmp_path / "out.pt", length=20)
    assert resized.beside.remarks == (
        "args.tokens_per_sample: looks like a setting of the old size, and stays as it is",
    )


@together("name", ["x.pt", "x.pyth", "x.safetensors"])
def test_a_pointer_of_git_lfs_is_no_broken_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 12\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        posembed.inspect_checkpoint(tmp_path / name)


def test_a_named_table_with_a_stated_layout_is_a_line_if_a_length_is_asked_for(tmp_path: Path) -> None:
    """As in Decision Transformer, with rows for each step of a game beside an encoder of images."""
    table, beside = torch.randn(1, 65, 8), {"state_encoder.0.weight": torch.randn(8, 4, 8, 8)}
    torch.save({"pos_emb": table[:, :50], "global_pos_emb": table, **beside}, tmp_path / "x.pt")
    for key, rows in {"pos_emb": 50, "global_pos_emb": 65}.items():
        out = tmp_path / f"{key}.pt"
        with pytest.raises(CheckpointError):
            posembed.resize_checkpoint(tmp_path / "x.pt", out, length=80, table=key)
        posembed.resize_checkpoint(tmp_path / "x.pt", out, length=80, table=key, reserved=0)
        assert torch.equal(torch.load(out)[key], posembed.resize_table(table[:, :rows], length=80))
