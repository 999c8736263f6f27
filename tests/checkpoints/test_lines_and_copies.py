"""Files in which a table, its copies or its ids could be taken for something else."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posembed import resize_checkpoint
from posembed.errors import ArgumentError, CheckpointError
from posembed.tables.fill import sinusoidal_table
from tolerance import assert_close

DIM = 8


def gpt(rows: int, seed: int = 0, *, prefix: str = "") -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    names = {"wte.weight": 30, "wpe.weight": rows, "h.0.mlp.weight": 2 * DIM, "lm_head.weight": 30}
    return {prefix + name: torch.randn(count, DIM, generator=draw) for name, count in names.items()}


def resized(tmp_path: Path, file: dict[str, Any], **how: Any) -> tuple[str, dict[str, Any]]:
    torch.save(file, tmp_path / "old.pt")
    said = resize_checkpoint(tmp_path / "old.pt", tmp_path / "new.pt", **how, overwrite=True)
    return repr(said), torch.load(tmp_path / "new.pt", weights_only=False)


def test_rows_behind_a_dimension_of_one_are_a_line_in_a_model_of_texts(tmp_path: Path) -> None:
    """(1, N, D) as in minGPT, also if N is a square, and (N, 1, D) as in PyTorch's tutorial."""
    for rows in (64, 50, 65):
        table, mask = torch.randn(1, rows, DIM), torch.ones(1, 1, rows, rows).tril()
        state = {"pos_emb": table, "tok_emb.weight": torch.randn(30, DIM), "blocks.0.attn.mask": mask}
        said, new = resized(tmp_path, {"state_dict": state, "config": {"block_size": rows}}, length=rows + 6)
        assert torch.equal(new["state_dict"]["pos_emb"][:, :rows], table), said
        assert torch.equal(new["state_dict"]["blocks.0.attn.mask"][0, 0], torch.ones(rows + 6, rows + 6).tril())
        assert new["config"] == {"block_size": rows + 6}
        for fixed in (sinusoidal_table(rows, DIM), torch.randn(rows, DIM)):
            column = {"pos_encoder.pe": fixed[:, None], "encoder.weight": torch.randn(30, DIM)}
            _, new = resized(tmp_path, column, length=rows + 6, table="pos_encoder.pe")
            assert torch.equal(new["pos_encoder.pe"][:rows, 0], fixed)
            assert len(new["pos_encoder.pe"]) == rows + 6
    _, new = resized(tmp_path, {"pe": sinusoidal_table(50, DIM)[None]}, length=60, table="pe")
    assert_close(new["pe"][0], sinusoidal_table(60, DIM))


def test_rows_that_may_be_a_line_or_a_grid_are_what_the_size_asks_for(tmp_path: Path) -> None:
    for rows in (16, 17):
        state = {"model.pos_emb": torch.randn(1, rows, DIM), "model.input.weight": torch.randn(DIM, 2)}
        _, new = resized(tmp_path, state, length=20)
        assert torch.equal(new["model.pos_emb"][:, :rows], state["model.pos_emb"])
        _, new = resized(tmp_path, state, grid=(6, 6))
        assert new["model.pos_emb"].shape == (1, rows + 20, DIM)
    settings = {"horizon_len": 16, "image_size": 64}
    _, new = resized(tmp_path, {"m": state | {"model.pos_emb": torch.randn(1, 16, DIM)}, "args": settings}, length=20)
    assert new["args"] == settings | {"horizon_len": 20}


@pytest.mark.parametrize(
    "beside",
    [
        {"class_token": (1, 1, DIM), "proj.weight": (DIM, 12)},
        {"cls": (1, 1, DIM), "embedding.weight": (DIM, 12)},
        {"mask_token": (1, 1, DIM), "decoder_embed.weight": (DIM, 12)},
        {"x_embedder.proj.weight": (DIM, 4, 1, 1), "y_embedder.table.weight": (10, DIM)},
        {"tok_emb.weight": (30, DIM)},
        {"blocks.0.token_mixing.fc1.weight": (30, DIM)},
    ],
)
def test_rows_on_the_grid_of_an_image(beside: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    """The names of its other tensors say so, or a setting."""
    state = {"pos_embed": torch.randn(1, 16, DIM), **{name: torch.randn(shape) for name, shape in beside.items()}}
    args = {"image_size": 64} if "tok" in next(iter(beside)) else {}
    _, new = resized(tmp_path, {"model": state, "args": args}, grid=(6, 6), table="pos_embed")
    assert new["model"]["pos_embed"].shape == (1, 36, DIM)


def test_a_text_beside_images_is_a_line(tmp_path: Path) -> None:
    """What is nearest to the table decides; elsewhere, a length in the settings."""
    image = {"first_stage.encoder.conv_in.weight": torch.randn(DIM, 3, 3, 3)}
    texts = {"transformer.pos_emb": torch.randn(1, 16, DIM), "transformer.tok_emb.weight": torch.randn(30, DIM)}
    _, new = resized(tmp_path, image | texts, length=20)
    assert new["transformer.pos_emb"].shape == (1, 20, DIM)
    policy = {"model.pos_emb": torch.randn(1, 16, DIM), "model.obs_encoder.conv.weight": torch.randn(DIM, 3, 3, 3)}
    _, new = resized(tmp_path, {"model": policy, "cfg": {"horizon_len": 16}}, length=20)
    assert new["model"]["model.pos_emb"].shape == (1, 20, DIM)


@pytest.mark.parametrize("settings", [{}, {"seq_len": 16}, {"seq_len": 16, "image_size": 64}])
def test_a_grid_of_image_tokens_is_resized_as_one(settings: dict[str, int], tmp_path: Path) -> None:
    state = {"tok_emb.weight": torch.randn(30, DIM), "pos_emb": torch.randn(1, 16, DIM)}
    _, new = resized(tmp_path, {"model": state, "args": settings}, grid=(8, 8), table="pos_emb")
    assert new["model"]["pos_emb"].shape == (1, 64, DIM)


def test_w_pos_is_a_table_and_no_projection(tmp_path: Path) -> None:
    """As in PatchTST, and as in relative attention."""
    projection = {"blocks.0.attn.W_pos.weight": torch.randn(DIM, DIM)}
    for name in ("backbone.W_pos", "pos_emb.weight"):
        _, new = resized(
            tmp_path, projection | {name: torch.randn(16, DIM), "proj.weight": torch.randn(DIM, 2)}, length=20
        )
        assert new[name].shape == (20, DIM)


def test_a_column_beside_a_table_is_none(tmp_path: Path) -> None:
    _, new = resized(tmp_path, {**gpt(16), "audio.pe": torch.randn(50, 1, DIM)}, length=24)
    assert (len(new["wpe.weight"]), len(new["audio.pe"])) == (24, 50)


def test_a_model_with_a_table_of_another_length_is_no_copy(tmp_path: Path) -> None:
    """A teacher and its student, or an encoder and a decoder: only the table that is named changes."""
    for name, other in (("student", "teacher"), ("encoder", "decoder")):
        both = {name: gpt(64), other: gpt(32, 1)}
        for file in (both, dict(reversed(both.items()))):
            said, new = resized(tmp_path, {"model": file}, length=128, table=f"{name}.wpe.weight")
            assert new["model"][name]["wpe.weight"].shape == (128, DIM), said
            assert all(torch.equal(new["model"][other][key], file[other][key]) for key in file[other])
    said, new = resized(tmp_path, {"model": gpt(64), "teacher": gpt(256, 1)}, length=128)
    assert new["teacher"]["wpe.weight"].shape == (256, DIM)
    assert "teacher.wpe.weight: looks like a table of another model, and stays" in said


@pytest.mark.parametrize("prefix", ["_fsdp_wrapped_module.", "_forward_module."])
def test_copies_are_known_under_the_names_that_wrappers_make(prefix: str, tmp_path: Path) -> None:
    average = {**gpt(16, 1, prefix=prefix), "lm_head.bias": torch.randn(64)}
    model = {**gpt(16), "lm_head.bias": torch.randn(50)}  # a vocabulary that is not padded
    average |= {"pos_tagger.weight": torch.randn(12, DIM), "position_ids": torch.arange(16)}
    model |= {"pos_tagger.weight": torch.randn(10, DIM), "position_ids": torch.arange(16)[None]}
    _, new = resized(tmp_path, {"model": model, "ema": average}, length=40)
    assert torch.equal(new["ema"][f"{prefix}wpe.weight"][:16], average[f"{prefix}wpe.weight"])
    assert len(new["ema"][f"{prefix}wpe.weight"]) == len(new["model"]["wpe.weight"]) == 40


def test_two_networks_of_one_file_are_not_mixed_up(tmp_path: Path) -> None:
    """As ema-pytorch names them."""
    both = {**gpt(16, 1, prefix="online_model."), **gpt(16, 2, prefix="ema_model.")}
    parameters = [(name, torch.nn.Parameter(value.clone())) for name, value in both.items()]
    optimizer = torch.optim.AdamW(parameters[:4])
    for _, parameter in parameters[:4]:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    file = {"state_dict": both, "best_state_dict": dict(both), "optimizer": optimizer.state_dict()}
    for name, other in (("online_model", "ema_model"), ("ema_model", "online_model")):
        said, new = resized(tmp_path, file, length=40, table=f"{name}.wpe.weight")
        for each in ("state_dict", "best_state_dict"):
            assert len(new[each][f"{name}.wpe.weight"]) == 40, said
            assert torch.equal(new[each][f"{other}.wpe.weight"], both[f"{other}.wpe.weight"])
        if "optimizer" in new:
            assert len(new["optimizer"]["state"][1]["exp_avg"]) == len(new["state_dict"]["online_model.wpe.weight"])


@pytest.mark.parametrize("name", ["wpe.weight", "pos_emb"])
def test_an_average_among_the_models_own_tensors_changes_with_it(name: str, tmp_path: Path) -> None:
    """As LitEma of latent-diffusion names it, without dots, beside another network with the same names."""
    own = {name if "wpe" in key else key: value for key, value in gpt(16).items()}
    average = {f"model_ema.{key.replace('.', '')}": value + 1 for key, value in own.items()}
    counts = {"model_ema.decay": torch.tensor(0.9), "model_ema.num_updates": torch.tensor(3)}
    networks = {f"{each}.{key}": value.clone() for each in ("model", "aux") for key, value in own.items()}
    state = {**networks, **average, **counts}
    file = {"state_dict": state, "best": {key: value.clone() for key, value in state.items()}}
    of_table = f"model_ema.{name.replace('.', '')}"
    for network, rows in (("model", 40), ("aux", 16)):
        said, new = resized(tmp_path, file, length=40, table=f"{network}.{name}")
        for each in file:
            assert torch.equal(new[each][of_table].flatten(0, -2)[:16], average[of_table]), said
            assert (len(new[each][of_table]), len(new[each][f"{network}.{name}"])) == (rows, 40)
    chance = {"a.b.pos_emb": torch.randn(16, DIM), "c_ema.bpos_emb": torch.randn(16, DIM)}
    _, new = resized(tmp_path, {"m": chance}, length=40, table="a.b.pos_emb")
    assert len(new["m"]["c_ema.bpos_emb"]) == 16


def test_averages_have_names_behind_others_or_the_order_of_the_model(tmp_path: Path) -> None:
    """As ema-pytorch and diffusers keep them. A list of other shapes, or of a small part, stays and is named."""
    model = {**gpt(16), "attn.mask": torch.ones(16, 16).tril()}
    model["tied.weight"] = model["wte.weight"]
    average = list(gpt(16, 1).values())
    file = {
        "model": model,
        "ema": {f"{name}.{key}": value for name in ("online", "ema") for key, value in gpt(16, 2).items()},
        "alone": {f"net.module.{key}": value for key, value in gpt(16, 3).items()},
        "other": {"decay": 0.9, "shadow_params": average},
        "short": {"shadow_params": average[:2]},
        "more": {"shadow_params": [*average, torch.randn(16, DIM)]},
    }
    said, new = resized(tmp_path, file, length=40)
    own = new["model"]["wpe.weight"]
    for each in (new["ema"]["online.wpe.weight"], new["ema"]["ema.wpe.weight"], new["other"]["shadow_params"][1]):
        assert each.shape == own.shape, said
    assert torch.equal(new["alone"]["net.module.wpe.weight"][:16], file["alone"]["net.module.wpe.weight"])
    assert [len(each) for each in new["other"]["shadow_params"]] == [30, 40, 16, 30]
    for name in ("short", "more"):
        assert len(new[name]["shadow_params"][1]) == 16
        assert f"{name}.shadow_params.1: looks like a table of the old size, and stays" in said


def test_tensors_of_another_kind_are_no_copy_of_the_weights(tmp_path: Path) -> None:
    """Such as the masks of pruning, or weights as whole numbers."""
    for kind in (torch.bool, torch.int8):
        beside = {"masks": {key: torch.ones_like(value, dtype=kind) for key, value in gpt(16).items()}}
        said, new = resized(tmp_path, {"model": gpt(16), **beside, "ema": gpt(16, 1)}, length=40)
        assert "masks.wpe.weight: looks like a table of the old size, and stays" in said
        assert len(new["ema"]["wpe.weight"]) == 40
        assert all(torch.equal(new["masks"][key], value) for key, value in beside["masks"].items())


@pytest.mark.parametrize("of", [torch.square, torch.sign, lambda value: torch.relu(value).sign()])
def test_statistics_of_the_weights_stay_and_are_named(of: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    """Such as Fisher's information, SWAG's squares or a mask of zeros and ones: resampled, they mean nothing."""
    beside = {"about": {key: of(value).abs() for key, value in gpt(16).items()}}
    said, new = resized(tmp_path, {"model": gpt(16), **beside, "ema": gpt(16, 1)}, length=40, method="linear")
    assert "about.wpe.weight: looks like a table of the old size, and stays" in said
    assert len(new["ema"]["wpe.weight"]) == 40
    assert all(torch.equal(new["about"][key], value) for key, value in beside["about"].items())


@pytest.mark.parametrize("of", [torch.square, torch.zeros_like])
def test_statistics_and_zeros_say_nothing_about_an_optimizer(of: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    """Zeros are what some tables start with: a copy of them is a copy of the weights."""
    model = {"wpe.weight": torch.randn(16, DIM), "wte.weight": torch.randn(30, DIM)}
    state = {at: {"exp_avg": torch.randn_like(value)} for at, value in enumerate(model.values())}
    beside = {**model, "wpe.weight": of(model["wpe.weight"])}
    file = {"model": model, "beside": beside, "optimizer": {"state": state, "param_groups": [{"params": [0, 1]}]}}
    said, new = resized(tmp_path, file, length=40)
    assert len(new["optimizer"]["state"][0]["exp_avg"]) == 40, said
    assert len(new["beside"]["wpe.weight"]) == (40 if of is torch.zeros_like else 16)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float64])
def test_a_copy_in_another_dtype_changes_too(dtype: torch.dtype, tmp_path: Path) -> None:
    average = {key: value.to(dtype) for key, value in gpt(16, 1).items()}
    _, new = resized(tmp_path, {"model": gpt(16), "ema": average}, length=40)
    assert len(new["ema"]["wpe.weight"]) == 40


def test_arrays_of_numpy_stay_and_are_named(tmp_path: Path) -> None:
    arrays = {key: value.numpy() for key, value in gpt(16, 1).items()}
    said, new = resized(tmp_path, {"model": gpt(16), "ema": arrays, "best": [*arrays.values()]}, length=40)
    for place in ("ema.wpe.weight", "best.1"):
        assert f"{place}: looks like a table of the old size, and stays" in said
    assert len(new["ema"]["wpe.weight"]) == len(new["best"][1]) == 16


def test_ids_follow_the_table_beside_them(tmp_path: Path) -> None:
    state = {}
    for name in ("question", "context"):
        state |= {f"{name}.embeddings.position_ids": torch.arange(16)[None]}
        state |= {f"{name}.embeddings.position_embeddings.weight": torch.randn(16, DIM)}
    state |= {f"{name}_ids": torch.arange(16) for name in ("cls", "expert")}
    _, new = resized(tmp_path, state, length=24, table="context.embeddings.position_embeddings.weight")
    longer = {"context.embeddings.position_ids", "context.embeddings.position_embeddings.weight"}
    assert {key for key in state if not torch.equal(state[key], new[key])} == longer
    assert torch.equal(new["context.embeddings.position_ids"], torch.arange(24)[None])
    table = torch.randn(16, DIM)
    inside = {"wpe.weight": table, "h.0.attn.mask": torch.ones(16, 16).tril()}
    inside |= {"h.0.attn.pos_emb.weight": torch.randn(16, DIM), "h.0.cls_position_ids": torch.arange(16)[None]}
    _, new = resized(tmp_path, inside, length=24, table="wpe.weight")
    assert torch.equal(new["h.0.attn.mask"], torch.ones(24, 24).tril())
    inside = {"transformer.embedding.wpe.weight": torch.randn(16, DIM), "cls_attn_mask": torch.ones(16, 16).tril()}
    inside |= {"transformer.h.0.attn.bias": torch.ones(1, 1, 16, 16).tril(), "transformer.h.0.attn.pos_embed": table}
    _, new = resized(tmp_path, inside, length=24, table="transformer.embedding.wpe.weight")
    assert new["transformer.h.0.attn.bias"].shape == (1, 1, 24, 24)
    assert new["cls_attn_mask"].shape == (24, 24)
    towers = {f"{name}.positional_embedding": torch.randn(17, DIM) for name in ("visual", "text")}
    towers |= {"text.attn_mask": torch.ones(17, 17).tril(), "visual.conv1.weight": torch.randn(DIM, 3, 4, 4)}
    _, new = resized(tmp_path, towers, image_size=32)
    assert new["text.attn_mask"].shape == (17, 17)


def test_stages_with_patches_of_their_own_have_no_known_size(tmp_path: Path) -> None:
    state = {}
    for stage, (side, patch) in enumerate([(8, 4), (4, 2)], start=1):
        state[f"pos_embed{stage}"] = torch.randn(1, side * side, DIM)
        state[f"patch_embed{stage}.proj.weight"] = torch.randn(DIM, 3, patch, patch)
    with pytest.raises((ArgumentError, CheckpointError), match=r"pos_embed1, pos_embed2"):
        resized(tmp_path, {"model": state, "args": {"input_size": 32}}, image_size=64)
    others = ("patch_recovery.conv", "patch_merging.reduction", "depth_patch_embed.proj", "patch_embed2.proj")
    for first, other in (*(("patch_embed.proj", each) for each in others), ("conv1", "conv2"), ("fpn1", "patch_embed")):
        one = {"pos_embed": torch.randn(1, 17, DIM), "cls_token": torch.randn(1, 1, DIM)}
        one |= {f"{name}.weight": torch.randn(DIM, 3, 4, 4) for name in (first, other)}
        _, new = resized(tmp_path, {"model": one, "args": {"img_size": 16}}, image_size=32)
        assert new["args"] == {"img_size": 32}


def test_the_only_convolution_makes_the_patches(tmp_path: Path) -> None:
    """torchvision's is called conv_proj, outside the encoder; in a tower of CLIP alone it may have one frame."""
    torchvision = {"encoder.pos_embedding": torch.randn(1, 17, DIM), "conv_proj.weight": torch.randn(DIM, 3, 16, 16)}
    torchvision |= {"class_token": torch.randn(1, 1, DIM), "encoder.ln.weight": torch.ones(DIM)}
    clip = {"backbone.positional_embedding": torch.randn(17, DIM), "backbone.class_embedding": torch.randn(DIM)}
    frames, image = ({"backbone.conv1.weight": torch.randn(DIM, 3, *kernel)} for kernel in ((1, 16, 16), (16, 16)))
    names = ("moe.dispatch.weight", "mask_patch_token", "heads.patch_loss.weight")
    others = {name: torch.randn(2, DIM) for name in names}  # none makes patches
    for state in (torchvision, torchvision | others, clip | frames, clip | image):
        table = next(iter(state))
        said, new = resized(tmp_path, state, image_size=96)
        assert "taken to have 64 x 64 pixels" in said
        assert new[table].numel() == 37 * DIM
    stem, up = ({"conv_proj.weight": torch.randn(DIM, *each)} for each in ((3, 3, 3), (21, 16, 16)))
    linear = {"encoder.patch_layer.weight": torch.randn(DIM, 768)}
    others = ({"stem.weight": torch.randn(4, 3, 3, 3)}, {"encoder.pos_embedding": torch.randn(1, 17, 4)})
    # Several, of another model, a stem, a layer that makes images of 21 channels larger, and one behind linear patches.
    for other in (*others, stem, up, linear):
        with pytest.raises(ArgumentError, match=r"patch size of encoder\.pos_embedding in pixels is unknown"):
            resized(tmp_path, torchvision | other, image_size=96)
    line = {"encoder.pos_emb": torch.randn(50, DIM), "encoder.conv.weight": torch.randn(DIM, 1, 3, 3)}
    assert resized(tmp_path, line, length=60)[1]["encoder.pos_emb"].shape == (60, DIM)


def test_a_table_with_such_rows_for_each_layer_is_named_if_it_stays(tmp_path: Path) -> None:
    """As mid_pos_embed in YOLOS's own files."""
    state = {"pos_embed": torch.randn(1, 17, DIM), "mid_pos_embed": torch.randn(2, 1, 17, DIM)}
    state |= {"cls_token": torch.randn(1, 1, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, 16, 16)}
    said, new = resized(tmp_path, {"model": state}, image_size=96)
    assert "model.mid_pos_embed: looks like a table of the old size, and stays" in said
    assert torch.equal(new["model"]["mid_pos_embed"], state["mid_pos_embed"])


def test_frames_behind_an_odd_convolution_are_those_of_a_setting(tmp_path: Path) -> None:
    state = {"pos_embed_temporal": torch.randn(1, 8, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, 3, 7, 7)}
    said, new = resized(tmp_path, {"m": state}, frames=16)
    assert new["m"]["pos_embed_temporal"].shape == (1, 16, DIM)
    assert "not known how many frames a row stands for" in said
    said, new = resized(tmp_path, {"m": state, "cfg": {"num_frames": 16}}, frames=32)
    assert new["m"]["pos_embed_temporal"].shape == (1, 16, DIM)
    assert new["cfg"] == {"num_frames": 32}
    assert "not known" not in said
    said, _ = resized(tmp_path, {"m": state, "cfg": {"num_frames": 8}}, frames=48)
    assert "not known" not in said


def test_what_rotates_at_the_old_size_is_named(tmp_path: Path) -> None:
    state = {"pos_embed": torch.randn(1, 17, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, 16, 16)}
    state |= {"blocks.0.attn.rope.freqs_cos": torch.randn(16, 4), "blocks.0.attn.cost.weight": torch.randn(16, 4)}
    said, _ = resized(tmp_path, {"model": state, "args": {"input_size": 64}}, image_size=96)
    assert "rope.freqs_cos: looks like a table of the old size, and stays" in said
    assert "cost" not in said


def test_sizes_of_lines_in_other_forms_follow_or_are_named(tmp_path: Path) -> None:
    forms = {"n_ctx": [16], "block_size": "16", "max_len": 16.0, "lr": 16.0, "dataset_len": "16"}
    said, new = resized(tmp_path, {"model": gpt(16), "config": forms}, length=40)
    assert new["config"] == {**forms, "n_ctx": [40]}
    assert {name for name in forms if f"config.{name}: looks like a setting" in said} == {"block_size", "max_len"}
    state = {"pos_embed": torch.randn(1, 17, DIM), "patch_embed.proj.weight": torch.randn(DIM, 3, 16, 16)}
    said, _ = resized(tmp_path, {"model": state, "args": {"input_size": 64}}, patch_size=8)
    assert "looks like a setting" not in said


def test_an_optimizer_that_names_its_parameters_keeps_its_moments(tmp_path: Path) -> None:
    model = {**gpt(16), "other.weight": torch.randn(16, DIM)}  # of the same shape as the table
    parameters = [(name, torch.nn.Parameter(value.clone())) for name, value in model.items()]
    optimizer = torch.optim.AdamW(parameters)
    for _, parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    if "param_names" not in optimizer.state_dict()["param_groups"][0]:
        pytest.skip("this PyTorch keeps no names")
    at, old = list(model).index("wpe.weight"), optimizer.state_dict()["state"]
    said, new = resized(tmp_path, {"model": model, "optimizer": optimizer.state_dict()}, length=40)
    state = new["optimizer"]["state"]
    assert torch.equal(state[at]["exp_avg"][:16], old[at]["exp_avg"]), said
    assert [len(state[each]["exp_avg"]) for each in state] == [
        40 if each == at else len(old[each]["exp_avg"]) for each in old
    ]


def test_paths_and_times_are_settings(tmp_path: Path) -> None:
    at = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
    args = {"out": tmp_path, "at": at, "from": datetime.time(3), "took": datetime.timedelta(3), "block_size": 16}
    _, new = resized(tmp_path, {"model": gpt(16), "args": args}, length=40)
    assert new["args"] == {**args, "block_size": 40}
    numpy = {"model": {key: value.numpy() for key, value in gpt(16).items()}, "__author__": "x"}
    with pytest.raises(
        (ArgumentError, CheckpointError), match=r"numpy's arrays; make tensors of them with torch\.from_numpy"
    ):
        resized(tmp_path, numpy, length=40)


def test_only_the_named_one_of_two_equally_long_tables_changes(tmp_path: Path) -> None:
    """With the setting that its name belongs to, as in x-transformers, fairseq and Whisper."""
    both = {**gpt(16, prefix="encoder."), **gpt(16, 1, prefix="decoder.")}
    pairs = [("enc_max_len", "dec_max_len"), ("max_source_positions", "max_target_positions")]
    for first, second in (*pairs, ("n_audio_ctx", "n_text_ctx")):
        for name, own in (("encoder", first), ("decoder", second)):
            settings = {first: 16, second: 16}
            said, new = resized(tmp_path, {"model": both, "args": settings}, length=40, table=f"{name}.wpe.weight")
            assert new["args"] == {**settings, own: 40}, said
            lengths = {key: len(new["model"][f"{key}.wpe.weight"]) for key in ("encoder", "decoder")}
            assert lengths == {"encoder": 16, "decoder": 16, name: 40}
    for settings in ({"max_len": 16}, {"max_len": 16, "block_size": 16}):
        file = {"model": both, "args": settings}
        with pytest.raises(
            CheckpointError, match=r"args.max_len.* may each be the length of encoder.* or of decoder.*--keep"
        ):
            resized(tmp_path, file, length=40, table="encoder.wpe.weight")
        _, new = resized(tmp_path, file, length=40, table="encoder.wpe.weight", keep=["args.max_len"])
        assert new["args"] == {**dict.fromkeys(settings, 40), "max_len": 16}
        assert len(new["model"]["decoder.wpe.weight"]) == 16


def test_the_table_of_an_average_among_the_weights_is_named_if_it_stays(tmp_path: Path) -> None:
    for other in ("ema_model.module.", "target_net."):
        both = {**gpt(16, prefix="net."), **gpt(16, 1, prefix=other)}
        said, new = resized(tmp_path, {"state_dict": both}, length=40, table="net.wpe.weight")
        assert f"state_dict.{other}wpe.weight: looks like a table of the old size, and stays" in said
        assert len(new["state_dict"][f"{other}wpe.weight"]) == 16


def test_settings_of_images_stay_with_a_text_of_equal_length(tmp_path: Path) -> None:
    state = {"text.pos_emb": torch.randn(16, DIM), "text.tok_emb.weight": torch.randn(30, DIM)}
    state |= {"visual.pos_embed": torch.randn(1, 16, DIM), "visual.conv1.weight": torch.randn(DIM, 3, 4, 4)}
    args = {"text": {"context_length": 16}, "vision": {"image_size": 16, "seq_len": 16}}
    _, new = resized(tmp_path, {"model": state, "args": args}, length=40)
    assert new["args"] == {**args, "text": {"context_length": 40}}
    said, new = resized(tmp_path, {"model": state, "args": args}, image_size=32)
    assert new["args"] == {**args, "vision": {"image_size": 32, "seq_len": 16}}
    assert "args.vision.seq_len: looks like a setting of the old size" in said
    assert "context_length" not in said
