"""Learned positions of patches: every place reads its own row, on any grid, with special tokens around it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor
from transformers import CLIPVisionConfig, DeiTConfig, Dinov2WithRegistersConfig, ViTConfig
from transformers.models.clip.modeling_clip import CLIPVisionEmbeddings
from transformers.models.deit.modeling_deit import DeiTEmbeddings
from transformers.models.dinov2_with_registers.modeling_dinov2_with_registers import Dinov2WithRegistersEmbeddings
from transformers.models.vit.modeling_vit import ViTEmbeddings

from posembed import LearnedGridEmbedding, PositionEncoding
from posembed.errors import PositionError
from posembed.tables import TableLayout
from together import together
from tolerance import assert_close

GRID, DIM = (3, 5), 4
LAYOUTS = [TableLayout(), TableLayout.VIT, TableLayout.DEIT, TableLayout(prefix=1, tail=2)]


def layer_of(layout: TableLayout = TableLayout.VIT, **options) -> LearnedGridEmbedding:
    torch.manual_seed(0)
    std = None if options.get("init") in ("xavier", "zero") else 1.0
    return LearnedGridEmbedding(grid=GRID, dim=DIM, layout=layout, std=std, **options).eval()


def row_of(layer: LearnedGridEmbedding, height: int, width: int, place: int) -> Tensor:
    """The row of the token at this place of an image of height x width patches, told case by case."""
    prefix, registers, tail = layer.layout.prefix, layer.registers, layer.layout.tail
    special = layer.special_weight if layer.factorized else torch.cat((layer.weight[:prefix], layer.weight[-tail:]))
    if place < prefix:
        return special[place]
    if place < prefix + registers:
        return torch.zeros(DIM)
    patch = place - prefix - registers
    if patch >= height * width:
        return special[prefix + patch - height * width]
    row, column = divmod(patch, width)
    if layer.factorized:
        return layer.height_weight[row] + layer.width_weight[column]
    return layer.weight[prefix + row * GRID[1] + column]


@together("layout", LAYOUTS)
@together("registers", [0, 4])
@together("factorized", [False, True])
@together("grid", [(3, 5), (1, 1), (2, 5), (3, 2), (2, 3)])
def test_each_place_reads_its_row(layout: TableLayout, registers: int, factorized: bool, grid: tuple[int, int]) -> None:
    layer = layer_of(layout, registers=registers, factorized=factorized)
    tokens = layout.prefix + registers + grid[0] * grid[1] + layout.tail
    x = torch.randn(2, tokens, DIM)
    expected = torch.stack([row_of(layer, *grid, place) for place in range(tokens)])
    assert torch.equal(layer.rows(grid), expected)
    assert torch.equal(layer(x, grid=grid), x + expected)
    if grid == GRID:
        assert torch.equal(layer(x), x + expected)
        ids = torch.randint(0, tokens, (2, 7))
        assert torch.equal(layer.at_input(x[:, :7], ids), x[:, :7] + expected[ids])
        assert torch.equal(layer.at_input(x, torch.arange(tokens)), layer(x))


def image_layer(rows: Tensor, layout: TableLayout, **options) -> LearnedGridEmbedding:
    return LearnedGridEmbedding(grid=(2, 3), dim=8, layout=layout, init=rows.detach(), dropout=0, **options)


IMAGE = {"hidden_size": 8, "num_attention_heads": 2, "patch_size": 4, "image_size": (8, 12)}
PIXELS = torch.randn(2, 3, 8, 12)


@pytest.mark.parametrize("model", [ViTEmbeddings, DeiTEmbeddings])
def test_the_same_input_as_transformers(model: type) -> None:
    config = (ViTConfig if model is ViTEmbeddings else DeiTConfig)(**IMAGE)
    theirs = model(config).eval()
    torch.nn.init.normal_(theirs.position_embeddings)
    special = [theirs.cls_token]
    if model is DeiTEmbeddings:
        special.append(theirs.distillation_token)
    layout = TableLayout.VIT if model is ViTEmbeddings else TableLayout.DEIT
    layer = image_layer(theirs.position_embeddings[0], layout)
    tokens = [token.expand(2, -1, -1) for token in special] + [theirs.patch_embeddings(PIXELS)]
    assert torch.equal(layer(torch.cat(tokens, dim=1)), theirs(PIXELS))


def test_the_same_input_as_clip() -> None:
    config = CLIPVisionConfig(hidden_size=8, num_attention_heads=2, patch_size=4, image_size=8)
    theirs = CLIPVisionEmbeddings(config)
    pixels = PIXELS[..., :8]
    patches = theirs.patch_embedding(pixels).flatten(2).transpose(1, 2)
    tokens = torch.cat((theirs.class_embedding.expand(2, 1, -1), patches), dim=1)
    layer = LearnedGridEmbedding(
        grid=(2, 2), dim=8, layout=TableLayout.CLIP_VISION, init=theirs.position_embedding.weight.detach(), dropout=0
    )
    assert torch.equal(layer(tokens), theirs(pixels))


def test_registers_get_no_position_as_in_dinov2() -> None:
    config = Dinov2WithRegistersConfig(**{**IMAGE, "image_size": 8}, num_register_tokens=4)
    theirs = Dinov2WithRegistersEmbeddings(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    layer = LearnedGridEmbedding(
        grid=(2, 2), dim=8, layout=TableLayout.VIT, registers=4, init=theirs.position_embeddings[0].detach(), dropout=0
    )
    pixels = PIXELS[..., :8]
    tokens = (theirs.cls_token, theirs.register_tokens)
    x = torch.cat([*(token.expand(2, -1, -1) for token in tokens), theirs.patch_embeddings(pixels)], dim=1)
    assert_close(layer(x), theirs(pixels))


@together("init", ["normal", "truncated_normal", "xavier", "sinusoidal", "zero"])
@together("layout", LAYOUTS)
@together("factorized", [False, True])
def test_initial_values(init: str, layout: TableLayout, factorized: bool) -> None:
    layer = layer_of(layout, init=init, factorized=factorized)
    assert layer.rows().isfinite().all()
    assert layer.rows().any() == (init != "zero")
    torch.manual_seed(0)
    again = copy.deepcopy(layer)
    for parameter in again.parameters():
        parameter.data.fill_(7)
    again.reset_parameters()
    assert torch.equal(again.rows(), layer.rows())


def test_as_a_module() -> None:
    joint, factorized = layer_of(), layer_of(factorized=True)
    assert list(joint.state_dict()) == ["weight"]
    assert list(factorized.state_dict()) == ["height_weight", "width_weight", "special_weight"]
    assert isinstance(joint, PositionEncoding)
    assert joint.layout == TableLayout(prefix=1, grid=GRID)
    for layer in (joint, factorized):
        assert torch.equal(pickle.loads(pickle.dumps(layer)).rows(), layer.rows())
        assert eval(repr(layer)).extra_repr() == layer.extra_repr()
        with torch.device("meta"):
            empty = LearnedGridEmbedding(grid=GRID, dim=DIM, factorized=layer.factorized)
        empty.to_empty(device="cpu").load_state_dict(layer.state_dict())
        assert torch.equal(empty.rows(), layer.rows())


def test_compiled_over_grids() -> None:
    torch._dynamo.reset()
    layer = layer_of(registers=1)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for grid in (GRID, (2, 3)):
        x = torch.randn(2, 2 + grid[0] * grid[1], DIM)
        assert torch.equal(compiled(x, grid=grid), layer(x, grid=grid))
    torch._dynamo.reset()


@pytest.mark.parametrize("grid", [(4, 4), (3, 6), (15, 1)])
@pytest.mark.parametrize("factorized", [False, True])
def test_a_place_without_a_row_is_never_read(grid: tuple[int, int], factorized: bool) -> None:
    layer = layer_of(factorized=factorized)
    message = f"a grid of {grid[0]} x {grid[1]} patches has cells without a row: this table holds 3 x 5"
    with pytest.raises(PositionError, match=message):
        layer(torch.zeros(1, 1 + grid[0] * grid[1], DIM), grid=grid)
    with pytest.raises(PositionError, match="position 16 has no row"):
        layer.at_input(torch.zeros(1, 1, DIM), torch.tensor([16]))
