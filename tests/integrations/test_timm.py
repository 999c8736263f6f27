"""Encodings inside timm's VisionTransformer."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posembed import LearnedGridEmbedding, LearnedPositionalEmbedding, resize_model_
from posembed.errors import ArgumentError, PosEmbedError
from posembed.tables import TableLayout
from timm_peer import imported, vision_transformer
from together import together
from tolerance import assert_close, close

KINDS: list[dict[str, Any]] = [
    {},
    {"class_token": False, "global_pool": "avg"},
    {"reg_tokens": 3},
    {"no_embed_class": True},
    {"reg_tokens": 2, "no_embed_class": True, "qk_norm": True},
]
ENCODINGS = ("rope", "alibi", "t5", "kerple-log", "pope", "learned", "learned-1d", "learned-2d", "factorized",
             "sinusoidal-2d", "rope-axial", "rope-mixed", "lookhere")  # fmt: skip


@pytest.fixture(scope="module")
def timm() -> Any:
    return vision_transformer()


@pytest.fixture
def replace(timm: Any) -> Any:
    from posembed.integrations.timm import replace_positions

    return replace_positions


def tiny(timm: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    settings = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
    return timm.VisionTransformer(**settings | changes).eval()


def run(model: nn.Module, pixels: Tensor) -> Tensor:
    with torch.no_grad():
        return model(pixels)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_old_rows_give_the_old_outputs(kind: dict[str, Any], timm: Any, replace: Any) -> None:
    model, pixels = tiny(timm, **kind), torch.randn(2, 3, 16, 16)
    want, rows, prefix = run(model, pixels), model.pos_embed[0].detach().clone(), model.num_prefix_tokens
    if model.no_embed_class:
        rows = torch.cat((torch.randn(prefix, 16), rows))  # the first ones are not read
    layout = TableLayout(prefix=prefix)
    for encoding in (
        LearnedGridEmbedding(grid=(4, 4), dim=16, init=rows, layout=layout, dropout=0),
        LearnedPositionalEmbedding(max_len=len(rows), dim=16, init=rows, dropout=0),
    ):
        assert_close(run(replace(model, encoding), pixels), want, depth=2)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_encoding_reaches_the_outputs(kind: dict[str, Any], timm: Any, replace: Any) -> None:
    model, pixels = tiny(timm, **kind), torch.randn(2, 3, 16, 16)
    known = {"none": run(replace(model, "none"), pixels)}
    for seed, name in enumerate(ENCODINGS):
        torch.manual_seed(seed)
        known[name] = run(replace(model, name), pixels)
        assert known[name].isfinite().all()
        assert not any(close(known[name], known[other], depth=2) for other in known if other != name), name
    assert torch.equal(run(replace(model, "none"), pixels), known["none"])


def test_alibi_is_a_mask_of_distances_along_the_line_of_patches(timm: Any, replace: Any) -> None:
    model, pixels = tiny(timm, reg_tokens=2), torch.randn(1, 3, 16, 16)
    nn.init.zeros_(model.pos_embed)
    place = torch.tensor([0, 0, 0, *range(1, 17)])
    bias = torch.stack([-(2.0**-slope) * (place - place[:, None]).abs() for slope in (4, 8)])
    with torch.no_grad():
        want = model(pixels, attn_mask=bias.unsqueeze(0))
    assert_close(run(replace(model, "alibi"), pixels), want, depth=2)


def test_other_sizes_copies_files_and_gradient_checkpointing(timm: Any, replace: Any) -> None:
    model, pixels = tiny(timm, dynamic_img_size=True), torch.randn(2, 3, 8, 24)
    for name in ("rope", "learned-2d", "sinusoidal-2d", "rope-mixed", "lookhere", "t5"):
        replace(model, name)
        want = run(model, pixels)
        assert want.isfinite().all()
        assert torch.equal(run(copy.deepcopy(model), pixels), want)
        torch.save(model, file := io.BytesIO())
        file.seek(0)
        assert torch.equal(run(torch.load(file, weights_only=False), pixels), want)
        fresh = replace(tiny(timm, dynamic_img_size=True), name)
        fresh.load_state_dict(model.state_dict())
        assert torch.equal(run(fresh, pixels), want)
    square = torch.randn(2, 3, 16, 16)
    plain = replace(model, "t5").train()
    again = copy.deepcopy(plain)
    again.set_grad_checkpointing()
    for each in (plain, again):
        each(square).square().sum().backward()
    for (key, one), other in zip(plain.named_parameters(), again.parameters(), strict=True):
        assert_close(one.grad, other.grad, depth=4, scale=[each.grad for each in again.parameters()], msg=key)
    with pytest.raises(ArgumentError, match="on_grid"):
        replace(model, "learned-2d").train()(pixels)
    model.positions.encoding.requires_grad_(False)  # nothing of it trains, on any grid
    assert model.train()(pixels).isfinite().all()


@together("settings", [{}, {"layer_decay": 0.65}])
def test_optimizers_treat_an_encoding_as_the_table_that_it_replaces(
    settings: dict[str, Any], timm: Any, replace: Any
) -> None:
    def groups(model: Any) -> dict[str, Any]:
        made = imported("timm", "timm.optim").create_optimizer_v2(model, weight_decay=0.05, **settings)
        numbers = {
            id(each): (g["weight_decay"], g["lr_scale"] if settings else 1)
            for g in made.param_groups
            for each in g["params"]
        }
        return {name: numbers[id(each)] for name, each in model.named_parameters()}

    for name in ENCODINGS:
        want = groups(model := tiny(timm))
        for each in (replace(model, name), copy.deepcopy(model)):
            got = groups(each)
            own = {key: got.pop(key) for key in [*got] if key.startswith("positions.")}
            assert {*own.values()} <= {want["pos_embed"]}, name
            assert got == {key: numbers for key, numbers in want.items() if key != "pos_embed"}


@pytest.mark.parametrize("part", ["positions", "positions.encoding"])
def test_a_resized_grid_reads_its_own_cells(part: str, timm: Any, replace: Any) -> None:
    model = replace(tiny(timm, dynamic_img_size=True), "learned-2d")
    resize_model_(model.get_submodule(part), grid=(2, 6))
    assert model.positions.grid == (2, 6)
    for cells in ((4, 4), (2, 6)):
        pixels = torch.randn(2, 3, *(4 * side for side in cells))
        right = copy.deepcopy(model)
        right.positions.encoding = right.positions.encoding.on_grid(cells)
        assert torch.equal(run(model, pixels), run(right, pixels))


@together(
    ("size", "grid"),
    [({"image_size": 24}, (6, 6)), ({"image_size": (8, 24)}, (2, 6)), ({"grid": (3, 4)}, (3, 4)),
     ({"grid": (2, 2), "table": "positions.encoding"}, (2, 2))],
)  # fmt: skip
def test_a_resized_model_is_built_for_images_of_the_new_size(
    size: dict[str, Any], grid: tuple[int, int], timm: Any, replace: Any
) -> None:
    settings = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "dynamic_img_size": True}
    built = imported("timm").create_model("vit_tiny_patch16_224", **settings).eval()
    for model in (tiny(timm, dynamic_img_size=True), built):
        pixels = torch.randn(2, 3, 4 * grid[0], 4 * grid[1])
        want = run(replace(model, "learned-2d"), pixels)
        for each in (copy.deepcopy(model), model):
            resize_model_(each, **size)
            assert each.positions.grid == each.patch_embed.grid_size == grid
            assert_close(run(each, pixels), want, depth=2)
            each.train()(pixels).sum().backward()
    for name in ("alibi", "factorized", "learned-1d"):
        with pytest.raises(PosEmbedError, match=r"^positions\.encoding \(\w+\): "):
            resize_model_(replace(built, name), **size | {"table": None})


def test_refusals(timm: Any, replace: Any) -> None:
    distilled = type("Distilled", (timm.VisionTransformer,), {"_pos_embed": lambda self, x: x + self.pos_embed})
    parallel = tiny(timm, attn_layer="diff")
    for model, encoding, sizes, message in (
        (tiny(timm, patch_drop_rate=0.5), "rope", {}, "patch_drop_rate"),
        (tiny(timm, pos_embed="none"), "rope", {}, "pos_embed"),
        (nn.Linear(2, 2), "rope", {}, "VisionTransformer"),
        (parallel, "rope", {}, "DiffAttention"),
        (tiny(timm), "rolling", {"window": 3}, "causal window"),
        (distilled(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2), "rope", {}, "reads pos_embed"),
        (tiny(timm), LearnedGridEmbedding(grid=(4, 4), dim=12), {}, "dim"),
    ):
        with pytest.raises(ArgumentError, match=message):
            replace(model, encoding, **sizes)
    assert parallel.pos_embed is not None
    assert run(replace(parallel, "learned-2d"), torch.randn(1, 3, 16, 16)).isfinite().all()
    for grid in ((3, 3), (5, 5)):
        with pytest.raises(ArgumentError, match=r"pass encoding\.on_grid\(\(4, 4\)\)"):
            replace(tiny(timm), LearnedGridEmbedding(grid=grid, dim=16))
