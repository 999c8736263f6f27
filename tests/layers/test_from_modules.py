"""A layer with the table of somebody else's module or state dict: found under any usual name, and read alike."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from posembed import LearnedGridEmbedding, LearnedPositionalEmbedding, resize_model_
from posembed.errors import ArgumentError, CallError, CheckpointError
from posembed.layers import ExtendedPositionalEmbedding, SampledPositionalEmbedding
from posembed.tables import TableLayout
from posembed.tables.rows import as_table, table_rows
from timm_peer import vision_transformer
from together import together

N, D = 12, 6
NAMES = [
    "weight", "position_embeddings.weight", "position_embedding.weight", "embed_positions.weight", "wpe.weight", "pe",
    "pos_embedding", "pos_embed", "pos_emb.weight", "positional_embedding", "pos_encoder.pe",
]  # fmt: skip
PREFIXES = ["", "module.", "model.encoder.", "bert.embeddings.", "_orig_mod.transformer."]
SHAPES = [(N, D), (1, N, D), (N, 1, D)]
BUFFERS = ["position_ids", "positions", "token_type_ids"]
OTHERS = {"tokens.weight": (50, D), "layers.0.attention.weight": (D, D), "layers.0.attention.bias": (D,), "scale": ()}


def state_dict(key: str, shape: tuple[int, ...], *, prefix: str, buffers: bool, others: bool) -> dict[str, Tensor]:
    tensors = {f"{prefix}{name}": torch.zeros(sizes) for name, sizes in OTHERS.items()} if others else {}
    tensors[prefix + key] = torch.randn(shape)
    return tensors | {f"{prefix}{name}": torch.arange(N)[None] for name in BUFFERS if buffers}


@together("shape", SHAPES)
@together("name", NAMES)
def test_every_usual_name_is_found(name: str, shape: tuple[int, ...]) -> None:
    for prefix, buffers, others in product(PREFIXES, (False, True), (False, True)):
        if name == "weight" and others and prefix:
            continue  # among other tensors it is any module's
        tensors = state_dict(name, shape, prefix=prefix, buffers=buffers, others=others)
        layer = LearnedPositionalEmbedding.from_state_dict(tensors)
        assert torch.equal(as_table(layer.weight, tensors[prefix + name]), tensors[prefix + name])
        assert (layer.max_len, layer.dim, layer.dropout) == (N, D, 0.1)
        assert layer.weight.data_ptr() != tensors[prefix + name].data_ptr()


@pytest.mark.parametrize("shape", SHAPES)
def test_any_name_is_found_if_no_other_tensor_could_be_it(shape: tuple[int, ...]) -> None:
    tensors = {"p.q": torch.randn(shape), "p.r": torch.zeros(D), "p.ids": torch.arange(N), "p.x": torch.zeros(2, 3, 4)}
    layer = LearnedPositionalEmbedding.from_state_dict(tensors)
    assert torch.equal(layer.weight, table_rows(tensors["p.q"]))


@pytest.mark.parametrize("key", ["a.pos_embed", "a", "b.weight", "b"])
def test_a_key_or_a_path_names_one_of_several(key: str) -> None:
    tensors = {"a.pos_embed": torch.randn(N, D), "b.weight": torch.randn(N, D), "ab.weight": torch.randn(N, D)}
    layer = LearnedPositionalEmbedding.from_state_dict(tensors, key=key)
    assert torch.equal(layer.weight, next(tensor for name, tensor in tensors.items() if name.startswith(key)))


def test_a_table_of_two_names_is_one_table() -> None:
    shared = nn.Embedding(N, D)
    module = nn.ModuleDict({"a": nn.ModuleDict({"wpe": shared}), "b": nn.ModuleDict({"wpe": shared})})
    for key in (None, "a", "b", "b.wpe.weight"):
        assert torch.equal(LearnedPositionalEmbedding.from_module(module, key=key).weight, shared.weight)


@pytest.mark.parametrize(
    ("tensors", "key", "message"),
    [
        (
            {"pe": (4, 2), "pos_embed": (1, 5, 2)},
            None,
            r"several.*: pe \(4, 2\), pos_embed \(1, 5, 2\)\. .* key=\.\.\.",
        ),
        ({"a": (4, 2), "b": (5, 2)}, None, r"several.*: a \(4, 2\), b \(5, 2\)\. .* key=\.\.\."),
        ({"a": (4, 2), "b": (5, 2)}, "c", r"'c'; no tensor has its name: a \(4, 2\), b \(5, 2\)\. .* key=\.\.\."),
        ({"a.x": (4, 2), "a.y": (5, 2)}, "a", r"'a'; several.*: a\.x \(4, 2\), a\.y \(5, 2\)"),
        ({"a": (4,)}, None, r"no tensor has its shape\. A table is a floating tensor \(N, D\)"),
        ({}, None, "no tensor has its shape"),
        ({f"t{i}": (4, 2) for i in range(99)}, None, r"t11 \(4, 2\), \.\.\. \(99 in all\)"),
    ],
)
def test_none_or_several_is_an_error_that_lists_them(tensors: dict, key: str | None, message: str) -> None:
    tensors = {name: torch.zeros(shape) for name, shape in tensors.items()}
    with pytest.raises(ArgumentError, match=message):
        LearnedPositionalEmbedding.from_state_dict(tensors, key=key)


def test_a_module_is_no_state_dict_nor_the_reverse() -> None:
    with pytest.raises(ArgumentError, match=re.escape("such as module.state_dict(); got")):
        LearnedPositionalEmbedding.from_state_dict(nn.Embedding(N, D))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="expected a module; got"):
        LearnedPositionalEmbedding.from_module(nn.Embedding(N, D).state_dict())  # type: ignore[arg-type]


# --- modules


class Owner(nn.Module):
    """A module with a table under one of its usual names, and with buffers and tensors of other parts."""

    def __init__(self, name: str, table: Tensor, *, buffers: bool = True) -> None:
        super().__init__()
        path, _, own = name.rpartition(".")
        if own == "weight" and path:
            self.add_module(path, nn.Embedding(*table.shape, _weight=table))
        else:
            self.register_parameter(own, nn.Parameter(table))
        self.norm, self.mix = nn.LayerNorm(D), nn.Linear(D, D)
        for buffer in BUFFERS if buffers else ():
            self.register_buffer(buffer, torch.arange(N)[None])


@together("trained", [True, False])
@together("dtype", [torch.float32, torch.bfloat16, torch.float64])
@together("name", [name for name in NAMES if name != "pos_encoder.pe"])
def test_a_modules_table_keeps_its_values_dtype_and_requires_grad(name: str, dtype: torch.dtype, trained: bool) -> None:
    table = torch.randn(N, D, dtype=dtype)
    module = Owner(name, table).requires_grad_(trained)
    for found in (module, nn.Sequential(nn.Linear(D, D), nn.ModuleDict({"x": module}))):
        layer = LearnedPositionalEmbedding.from_module(found, dropout=0.3, key=None if found is module else "1")
        assert torch.equal(layer.weight, table)
        assert (layer.weight.dtype, layer.weight.requires_grad, layer.dropout) == (dtype, trained, 0.3)
        assert isinstance(layer.weight, nn.Parameter)


def test_the_device_of_a_module_stays() -> None:
    layer = LearnedPositionalEmbedding.from_module(nn.Embedding(N, D, device="meta"))
    assert layer.weight.is_meta


@pytest.mark.parametrize("layout", [TableLayout(), TableLayout.OPT, TableLayout.roberta(pad_id=3)])
def test_there_and_back(layout: TableLayout) -> None:
    layer = LearnedPositionalEmbedding(max_len=N, dim=D, layout=layout)
    again = [
        LearnedPositionalEmbedding.from_module(layer),
        LearnedPositionalEmbedding.from_module(nn.Sequential(nn.Embedding(50, D), layer)),
        LearnedPositionalEmbedding.from_state_dict(layer.state_dict(), layout=layout),
    ]
    for other in again:
        assert (other.layout, other.max_len) == (layout, N)
        assert torch.equal(other.weight, layer.weight)
        layer.load_state_dict(other.state_dict())


@pytest.mark.parametrize("kind", [ExtendedPositionalEmbedding, SampledPositionalEmbedding])
def test_a_subclass_takes_its_own_arguments(kind: type[LearnedPositionalEmbedding]) -> None:
    argument = {"method": "tile"} if kind is ExtendedPositionalEmbedding else {"sampler": "shifted"}
    embedding = nn.Embedding(N, D)
    assert type(layer := kind.from_module(embedding, **argument)) is kind
    assert torch.equal(layer.weight, embedding.weight)


def test_it_gives_what_the_embedding_gives_and_learns_alike() -> None:
    embedding, x = nn.Embedding(N, D), torch.randn(3, 7, D)
    layer = LearnedPositionalEmbedding.from_module(embedding, dropout=0.0)
    ours, theirs = layer(x), x + embedding(torch.arange(7))
    assert torch.equal(ours, theirs)
    for y in (ours, theirs):
        y.square().sum().backward()
    assert torch.equal(layer.weight.grad, embedding.weight.grad)


def test_no_random_number_is_drawn() -> None:
    state = torch.get_rng_state()
    LearnedPositionalEmbedding.from_state_dict({"weight": torch.zeros(N, D)})
    assert torch.equal(torch.get_rng_state(), state)


def test_a_table_that_was_given_is_not_drawn_anew() -> None:
    layer = LearnedPositionalEmbedding.from_module(nn.Embedding(N, D))
    with pytest.raises(ArgumentError, match="was given"):
        layer.reset_parameters()


class Fairseq(nn.Embedding):
    """As in fairseq: token i of a text reads row padding_idx + 1 + i."""

    def __init__(self, rows: int, dim: int, padding_idx: int) -> None:
        super().__init__(rows, dim, padding_idx)
        self.max_positions = rows - padding_idx - 1


def test_reserved_rows_are_read_from_the_module_or_asked_for() -> None:
    table = nn.Embedding(N, D, padding_idx=1)
    with pytest.raises(ArgumentError, match=r"padding_idx=1.*layout=TableLayout\.roberta\(pad_id=1\) if it is row 2"):
        LearnedPositionalEmbedding.from_module(table)
    layer = LearnedPositionalEmbedding.from_module(table, layout=TableLayout.roberta(pad_id=1))
    assert layer.max_len == N - 2
    assert LearnedPositionalEmbedding.from_module(table, layout=TableLayout()).max_len == N
    assert LearnedPositionalEmbedding.from_module(Fairseq(N, D, 1)).layout == TableLayout.roberta(pad_id=1)


# --- images


@together("layout", [TableLayout.VIT, TableLayout.DEIT, TableLayout(), TableLayout(tail=1)])
@together("grid", [(3, 4), (2, 6), (1, 12)])
def test_images(grid: tuple[int, int], layout: TableLayout) -> None:
    table = torch.randn(1, layout.on_grid(*grid).rows(12), D)
    layers = [
        LearnedGridEmbedding.from_state_dict({"pos_embed": table, "cls_token": table[:, :1]}, grid=grid, layout=layout),
        LearnedGridEmbedding.from_module(Owner("pos_embed", table, buffers=False), grid=grid, layout=layout),
    ]
    x = torch.randn(2, table.shape[1], D)
    for layer in layers:
        assert torch.equal(layer.eval()(x), x + table)
    with pytest.raises(ArgumentError, match="Pass the grid and the layout that the table has"):
        LearnedGridEmbedding.from_state_dict({"pos_embed": table}, grid=(5, 5), layout=layout)
    with pytest.raises(ArgumentError, match="two tables"):
        LearnedGridEmbedding.from_state_dict({"pos_embed": table}, grid=grid, layout=layout, factorized=True)


@pytest.mark.parametrize("no_embed_class", [False, True])
def test_timm(no_embed_class: bool) -> None:
    vit = vision_transformer().VisionTransformer(
        img_size=(24, 32), patch_size=8, embed_dim=D, depth=1, num_heads=2, num_classes=0, no_embed_class=no_embed_class
    )
    layout, registers = (TableLayout(), 1) if no_embed_class else (TableLayout.VIT, 0)
    layer = LearnedGridEmbedding.from_module(vit, grid=(3, 4), layout=layout, registers=registers, dropout=0.0)
    patches = torch.randn(2, 12, D)
    tokens = torch.cat((vit.cls_token.expand(2, -1, -1), patches), dim=1)
    assert torch.equal(layer(tokens), vit._pos_embed(patches))
    with pytest.raises(CheckpointError, match="class tokens"):
        resize_model_(vit, length=20)


@pytest.mark.parametrize("name", ["tokens", "embed_tokens", "word_embeddings", "wte", "embed_in", "tok_emb", "shared"])
def test_token_rows_are_never_taken_for_positions(name: str) -> None:
    """A model with RoPE has no other embedding."""
    rows = nn.Embedding(N, D)
    for others in ({}, {"out": nn.Linear(D, N)}):
        with pytest.raises(ArgumentError, match=rf"no tensor has its name: {name}.weight \({N}, {D}\). Name it with"):
            LearnedPositionalEmbedding.from_module(nn.ModuleDict({name: rows, **others}))
        LearnedPositionalEmbedding.from_module(nn.ModuleDict({name: rows, **others}), key=name)
    with pytest.raises(ArgumentError, match="no tensor has its name"):
        LearnedPositionalEmbedding.from_state_dict({f"{name}.weight": rows.weight})


def test_the_only_embedding_of_a_model_with_layers_has_to_be_named() -> None:
    model = nn.ModuleDict({"rows": nn.Embedding(N, D), "out": nn.Linear(D, N)})
    with pytest.raises(ArgumentError, match="no tensor has its name"):
        LearnedPositionalEmbedding.from_module(model)
    assert LearnedPositionalEmbedding.from_module(nn.ModuleDict({"rows": model["rows"]})).max_len == N


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("parametrize", [parametrizations.spectral_norm, parametrizations.weight_norm])
def test_a_parametrized_table_has_the_values_that_its_module_reads(parametrize, around: bool) -> None:
    rows = parametrize(nn.Embedding(N, D)).eval()
    module = nn.ModuleDict({"tokens": nn.Embedding(50, D), "wpe": rows, "out": nn.Linear(D, D)}) if around else rows
    layer = LearnedPositionalEmbedding.from_module(module)
    assert torch.equal(layer.weight, rows.weight)
    assert layer.weight.is_leaf


@pytest.mark.parametrize("decided", ["max_len", "dim", "init", "std"])
def test_what_the_table_decides_is_not_taken(decided: str) -> None:
    with pytest.raises(CallError, match=rf"leave out {decided}\."):
        LearnedPositionalEmbedding.from_module(nn.Embedding(N, D), **{decided: N})
    if decided != "max_len":
        with pytest.raises(CallError, match=rf"leave out {decided}\."):
            LearnedGridEmbedding.from_state_dict({"pe": torch.randn(N, D)}, grid=(1, N - 1), **{decided: N})


@pytest.mark.parametrize("layout", ["roberta", None, 1])
def test_a_layout_of_another_kind_is_refused(layout: Any) -> None:
    with pytest.raises(ArgumentError, match=r"layout: expected a TableLayout, such as TableLayout\.roberta"):
        LearnedPositionalEmbedding.from_state_dict({"pe": torch.randn(N, D)}, layout=layout)
