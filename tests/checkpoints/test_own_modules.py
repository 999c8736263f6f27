"""``resize_model_`` on modules that no library defines: the table, its buffers and its numbers change together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import posembed
from posembed import (
    LearnedGridEmbedding,
    LearnedPositionalEmbedding,
    RollingPositionalEmbedding,
    inputs,
    resize_model_,
)
from posembed.errors import ArgumentError, CheckpointError, PositionError
from posembed.layers import ExtendedPositionalEmbedding, SampledPositionalEmbedding
from posembed.nn import Decoder
from posembed.tables import TableLayout
from posembed.tables.rows import table_rows
from tiny_models import TEXT, tiny_model
from together import together
from tolerance import assert_close

D, VOCABULARY, LENGTH = 16, 50, 40


class Model(nn.Module):
    """Token rows plus position rows, under some names that people give them."""

    options: ClassVar[dict[str, Any]] = {}
    table: ClassVar[str]

    def __init__(self, length: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCABULARY, D)
        self.mix = nn.Linear(D, D)
        self.build(length)

    def build(self, length: int) -> None:
        raise NotImplementedError

    def added(self, tokens: int) -> Tensor:
        raise NotImplementedError

    def forward(self, ids: Tensor) -> Tensor:
        return self.mix(self.tokens(ids) + self.added(ids.shape[1]))


class Bert(Model):
    """The embeddings of BERT, as in tutorials: position ids in a buffer."""

    table = "position_embeddings.weight"

    def build(self, length: int) -> None:
        self.position_embeddings = nn.Embedding(length, D)
        self.register_buffer("position_ids", torch.arange(length).expand(1, -1))
        self.register_buffer("token_type_ids", torch.zeros(1, length, dtype=torch.long), persistent=False)

    def added(self, tokens: int) -> Tensor:
        ids = self.position_ids[:, :tokens] + self.token_type_ids[:, :tokens]
        return self.position_embeddings(ids)


class Free(Model):
    """A parameter (1, N, D), and a check of the length against an attribute."""

    table = "pos_embedding"

    def build(self, length: int) -> None:
        self.max_len = length
        self.pos_embedding = nn.Parameter(torch.randn(1, length, D))

    def added(self, tokens: int) -> Tensor:
        assert tokens <= self.max_len
        return self.pos_embedding[:, :tokens]


@dataclass(frozen=True)
class Config:
    block_size: int
    width: int = D


class NanoGpt(Model):
    """As nanoGPT does it: a config, and a causal mask in each block."""

    table = "transformer.wpe.weight"

    def build(self, length: int) -> None:
        self.config = Config(length)
        self.transformer = nn.ModuleDict({"wpe": nn.Embedding(length, D), "h": nn.ModuleList(map(Block, [length] * 2))})

    def added(self, tokens: int) -> Tensor:
        assert tokens <= self.config.block_size
        rows = self.transformer.wpe(torch.arange(tokens))
        for block in self.transformer.h:
            rows = block(rows)
        return rows


class Block(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.settings, self.cfg = {"context_length": length}, {"context_length": length}
        self.register_buffer("bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length))
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        tokens = len(rows)
        assert tokens <= self.cfg["context_length"]
        scores = (rows @ rows.T).masked_fill(self.bias[0, 0, :tokens, :tokens] == 0, float("-inf"))
        return (scores + self.mask[:tokens, :tokens]).softmax(-1) @ rows


class Tutorial(Model):
    """The PyTorch tutorial's sinusoids, in a buffer (N, 1, D)."""

    table = "pos_encoder.pe"
    persistent = True

    def build(self, length: int) -> None:
        position = torch.arange(length).unsqueeze(1)
        frequency = torch.exp(torch.arange(0, D, 2) * (-math.log(10000.0) / D))
        pe = torch.zeros(length, 1, D)
        pe[:, 0, 0::2], pe[:, 0, 1::2] = torch.sin(position * frequency), torch.cos(position * frequency)
        self.pos_encoder = nn.Module()
        self.pos_encoder.register_buffer("pe", pe, persistent=self.persistent)

    def added(self, tokens: int) -> Tensor:
        return self.pos_encoder.pe[:tokens, 0]


class Unsaved(Tutorial):
    persistent = False


class Named(Model):
    """A name of its own: the caller says where the table is. Another table has the same length."""

    table = "encoder.where.weight"
    options: ClassVar = {"table": "encoder.where"}

    def build(self, length: int) -> None:
        self.encoder, self.decoder = (nn.ModuleDict({"where": nn.Embedding(size, D)}) for size in (length, LENGTH))
        for part, size in ((self.encoder, length), (self.decoder, LENGTH)):
            part.max_len = size
            part.register_buffer("position_ids", torch.arange(size))

    def added(self, tokens: int) -> Tensor:
        assert tokens <= self.encoder.max_len
        assert self.decoder.max_len == len(self.decoder.position_ids) == self.decoder.where.num_embeddings == LENGTH
        return self.encoder.where(self.encoder.position_ids[:tokens])


class Both(Model):
    """Two tables, resized together, and what is above both."""

    table = "encoder.where.weight"
    options: ClassVar = {"table": ["encoder.where", "decoder.where.weight"]}

    def build(self, length: int) -> None:
        self.encoder, self.decoder = (nn.ModuleDict({"where": nn.Embedding(length, D)}) for _ in "ed")
        self.register_buffer("position_ids", torch.arange(length))

    def added(self, tokens: int) -> Tensor:
        ids = self.position_ids[:tokens]
        return self.encoder.where(ids) + self.decoder.where(ids)


class Tied(Model):
    """One table in two modules."""

    table = "encoder.position_embedding.weight"

    def build(self, length: int) -> None:
        shared = nn.Embedding(length, D)
        self.encoder, self.decoder = (nn.ModuleDict({"position_embedding": shared}) for _ in "ed")

    def added(self, tokens: int) -> Tensor:
        assert self.encoder.position_embedding.weight is self.decoder.position_embedding.weight
        return self.decoder.position_embedding(torch.arange(tokens))


class Fairseq(Model):
    """Rows up to the padding row are reserved, as the caller says."""

    table = "embed_positions.weight"
    options: ClassVar = {"layout": TableLayout.roberta(pad_id=1)}

    def build(self, length: int) -> None:
        self.embed_positions = nn.Embedding(length + 2, D, padding_idx=1)
        self.max_source_positions = length

    def added(self, tokens: int) -> Tensor:
        assert tokens <= self.max_source_positions
        return self.embed_positions(torch.arange(2, 2 + tokens))


class Roberta(Fairseq):
    """The module around the table counts from the padding row, and says so."""

    options: ClassVar = {}

    def build(self, length: int) -> None:
        super().build(length)
        self.padding_idx = 1


class Nystromformer(Model):
    """Its ids show that two rows are reserved."""

    table = "position_embeddings.weight"

    def build(self, length: int) -> None:
        self.position_embeddings = nn.Embedding(length + 2, D)
        self.register_buffer("position_ids", torch.arange(length)[None] + 2)

    def added(self, tokens: int) -> Tensor:
        return self.position_embeddings(self.position_ids[:, :tokens])


class Ours(Model):
    """A layer of posembed, under any name."""

    table = "where.weight"
    kind: Callable[..., LearnedPositionalEmbedding] = LearnedPositionalEmbedding
    arguments: ClassVar[dict[str, Any]] = {}

    def build(self, length: int) -> None:
        self.where = type(self).kind(max_len=length, dim=D, dropout=0.0, **self.arguments)

    def added(self, tokens: int) -> Tensor:
        return self.where.rows(torch.arange(tokens))


class OursReserved(Ours):
    arguments: ClassVar = {"layout": TableLayout.OPT}


class OursExtended(Ours):
    kind, arguments = ExtendedPositionalEmbedding, {"method": "tile"}


class OursSampled(Ours):
    kind, arguments = SampledPositionalEmbedding, {"sampler": "shifted"}


MODELS: list[type[Model]] = [
    Bert, Free, NanoGpt, Tutorial, Unsaved, Named, Both, Tied, Fairseq, Roberta, Nystromformer,
    Ours, OursReserved, OursExtended, OursSampled,
]  # fmt: skip


def ids(tokens: int) -> Tensor:
    return torch.arange(tokens)[None] % VOCABULARY


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@together("new", [64, 41, 23, 1])
@together("kind", MODELS)
def test_the_module_becomes_one_of_the_new_length(kind: type[Model], new: int) -> None:
    model, built = kind(LENGTH).eval(), kind(new)
    shared = min(new, LENGTH)
    with torch.no_grad():
        expected = model(ids(shared))
        old = tensors(model)[kind.table].clone()
        edit = resize_model_(model, length=new, **kind.options)
        assert torch.equal(model(ids(shared)), expected)
        assert model(ids(new)).shape == (1, new, D)
    rows, before = table_rows(tensors(model)[kind.table]), table_rows(old)
    kept = min(len(rows), len(before))
    assert torch.equal(rows[:kept], before[:kept])
    assert edit.target.length == (LENGTH, new)
    assert edit.tables[0].after.shape == tensors(model)[kind.table].shape
    # Nothing is missing, and nothing else changed.
    assert {k: (t.shape, t.dtype) for k, t in tensors(model).items()} == {
        k: (t.shape, t.dtype) for k, t in tensors(built).items()
    }
    assert {k: vars(m).keys() for k, m in model.named_modules()} == {
        k: vars(m).keys() for k, m in built.named_modules()
    }
    for name, buffer in built.named_buffers():
        assert_close(model.get_buffer(name), buffer)
    built.load_state_dict(model.state_dict())


@together("kind", MODELS)
def test_there_and_back_is_the_module_as_it_was(kind: type[Model]) -> None:
    model, expected = kind(LENGTH), kind(LENGTH)
    for length in (64, LENGTH):
        resize_model_(model, length=length, **kind.options)
    assert repr(model) == repr(expected)
    for name, tensor in tensors(expected).items():
        assert torch.equal(tensors(model)[name], tensor)


@together("trained", [True, False])
@together("dtype", [torch.bfloat16, torch.float64])
@together("kind", [Bert, Free, NanoGpt, Named, Both, Fairseq, OursReserved])
def test_parameters_stay_the_same_objects(kind: type[Model], dtype: torch.dtype, trained: bool) -> None:
    model = kind(LENGTH).to(dtype).requires_grad_(trained)
    before = dict(model.named_parameters())
    resize_model_(model, length=64, method="linear", **kind.options)
    for name, parameter in model.named_parameters():
        assert parameter is before[name]
        assert (parameter.dtype, parameter.requires_grad, parameter.grad) == (dtype, trained, None)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_still_trains_the_table(optimizer: type[torch.optim.Optimizer]) -> None:
    """Without running averages as it is; with them, once those of the old shape are deleted."""
    model = Free(LENGTH)
    optimizer = optimizer(model.parameters(), lr=0.1)
    for length in (LENGTH, 64):
        if length != LENGTH:
            resize_model_(model, length=length)
            optimizer.state.pop(model.pos_embedding, None)
        before = model.pos_embedding.detach().clone()
        model(ids(length)).square().sum().backward()
        optimizer.step()
        assert (model.pos_embedding != before).any(dim=-1).all()
        optimizer.zero_grad()


@pytest.mark.parametrize("method", ["tile", "linear", "hierarchical", "random"])
def test_any_method(method: str) -> None:
    model, expected = Bert(LENGTH), Bert(LENGTH).position_embeddings.weight
    torch.manual_seed(1)
    resize_model_(model, length=64, method=method)
    torch.manual_seed(1)
    assert torch.equal(model.position_embeddings.weight, posembed.resize_table(expected, length=64, method=method))


@pytest.mark.parametrize("make", [lambda n: nn.Embedding(n, D), lambda n: LearnedPositionalEmbedding(max_len=n, dim=D)])
def test_the_table_itself(make: Callable[[int], nn.Module]) -> None:
    module = make(LENGTH)
    resize_model_(module, length=64)
    assert repr(module) == repr(make(64))


def test_a_layer_of_posembed_says_its_new_limit() -> None:
    layer = LearnedPositionalEmbedding(max_len=LENGTH, dim=D, layout=TableLayout.OPT)
    resize_model_(layer, length=64)
    with pytest.raises(PositionError, match="max_len=64"):
        layer(torch.zeros(1, 65, D))


def test_an_image_layer_of_posembed() -> None:
    layer = LearnedGridEmbedding(grid=(3, 4), dim=D, dropout=0.0)
    expected = layer.on_grid((6, 5))
    resize_model_(nn.Sequential(layer), grid=(6, 5))
    assert repr(layer) == repr(expected)
    assert torch.equal(layer(torch.zeros(1, 31, D)), expected(torch.zeros(1, 31, D)))


@together("patch", [4, (4, 4), (2, 4), 16])
@together("new", [(6, 6), (6, 5)])
def test_image_sizes_grow_with_the_grid(patch: int | tuple[int, int], new: tuple[int, int]) -> None:
    """A patch of 4 pixels, and 4 x 4 patches, make sizes that equal numbers of cells by chance."""

    def sizes(grid: tuple[int, int]) -> dict[str, Any]:
        height, width = (each * side for each, side in zip(grid, sides, strict=True))
        whole = {"image_size": height, "grid_size": grid[0]} if height == width and grid[0] == grid[1] else {}
        return whole | {"img_size": (height, width), "cells_grid_size": list(grid), "num_patches": math.prod(grid),
                        "seq_len": math.prod(grid), "num_frames": 16, "input_size": 7 * 16, "sizes": 16}  # fmt: skip

    sides = (patch, patch) if isinstance(patch, int) else patch
    model = nn.Sequential(nn.Conv2d(3, D, patch, patch), LearnedGridEmbedding(grid=(4, 4), dim=D))
    for name, value in sizes((4, 4)).items():
        setattr(model, name, value)
    resize_model_(model, grid=new)
    assert {name: getattr(model, name) for name in sizes((4, 4))} == {**sizes((4, 4)), **sizes(new)}


@pytest.mark.parametrize("name", ["learned", "learned-hierarchical", "learned-tiled", "learned-shifted"])
def test_a_decoder_of_posembed(name: str) -> None:
    model = Decoder(layers=2, dim=D, heads=2, encoding=name, max_len=LENGTH).eval()
    x = torch.randn(1, 64, D)
    with torch.no_grad():
        expected = model(x[:, :LENGTH])
        resize_model_(model, length=64)
        assert torch.equal(model(x[:, :LENGTH]), expected)
        assert_close(model(x)[:, :LENGTH], expected, depth=2)


def test_rows_that_were_drawn_for_a_length_are_not_resized() -> None:
    model = Decoder(layers=1, dim=D, heads=2, encoding="learned-random", max_len=LENGTH)
    with pytest.raises(CheckpointError, match="drawn the rows past its own for a fixed length"):
        resize_model_(model, length=64)


@together("name", ["sinusoidal", "rope", "alibi", "t5", "fire", "pope", "none", "learned-averaged"])
def test_a_decoder_without_a_table_of_positions_is_refused(name: str) -> None:
    model = Decoder(layers=1, dim=D, heads=2, encoding=name, max_len=LENGTH)
    with pytest.raises(ArgumentError, match="expected one position table"):
        resize_model_(model, length=64)


@pytest.mark.parametrize("layer", [inputs.BertInput, inputs.GPT2Input, inputs.RobertaInput, inputs.OPTInput])
def test_an_input_layer_of_posembed(layer: Callable[..., nn.Module]) -> None:
    module = layer(vocab_size=VOCABULARY, max_len=LENGTH, dim=D).eval()
    expected = module(ids(LENGTH))
    resize_model_(module, length=64)
    assert torch.equal(module(ids(LENGTH)), expected)
    assert module(ids(64)).shape == (1, 64, D)
    layer(vocab_size=VOCABULARY, max_len=64, dim=D).load_state_dict(module.state_dict())


def test_x_transformers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = pytest.importorskip("x_transformers")
        model = peer.TransformerWrapper(
            num_tokens=VOCABULARY, max_seq_len=LENGTH, attn_layers=peer.Decoder(dim=D, depth=1, heads=2)
        ).eval()
        with torch.no_grad():
            expected = model(ids(LENGTH))
            resize_model_(model, length=64)
            assert torch.equal(model(ids(LENGTH)), expected)
            assert model(ids(64)).shape == (1, 64, VOCABULARY)


# --- refusals


def with_buffer(name: str, values: Tensor) -> nn.Module:
    model = Bert(LENGTH)
    model.register_buffer(name, values)
    return model


def holding(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)


class ClassToken(Free):
    def build(self, length: int) -> None:
        super().build(length)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, D))


def scaled_sinusoids() -> nn.Module:
    model = Tutorial(LENGTH)
    model.pos_encoder.pe.mul_(0.5)
    return model


def parametrized() -> nn.Module:
    model = Bert(LENGTH).eval()
    parametrizations.spectral_norm(model.position_embeddings)
    return model


def normed(norm: Callable[..., nn.Module]) -> nn.Module:
    model = Bert(LENGTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weight_norm is deprecated
        norm(model.position_embeddings, "weight")
    return model


REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "no table": (lambda: nn.Linear(2, 2), {}, "expected one position table; no tensor has its shape"),
    "no name": (lambda: Named(LENGTH), {}, r"no tensor has its name: .*encoder\.where\.weight \(40, 16\).* table="),
    "token rows alone": (lambda: holding(nn.Embedding(9, 2)), {}, "no tensor has its name"),
    "several": (lambda: holding(Bert(LENGTH), Free(LENGTH)), {}, r"several tensors could be it: 0\.pos.*, 1\.pos_emb"),
    "a wrong name": (lambda: Bert(LENGTH), {"table": "nope"}, "at 'nope'; no tensor has its name"),
    "no names": (lambda: Bert(LENGTH), {"table": []}, "got none"),
    "tables of two lengths": (
        lambda: holding(Bert(LENGTH), Free(8)), {"table": ["0.position_embeddings", "1.pos_embedding"]}, "one length",
    ),
    "its own length": (lambda: Bert(LENGTH), {"length": LENGTH}, "already holds 40"),
    "no length": (lambda: Bert(LENGTH), {"length": 0}, "takes 1 to"),
    "an image": (lambda: Bert(LENGTH), {"length": None, "grid": (2, 3)}, "grid"),
    "no such method": (lambda: Bert(LENGTH), {"method": "nope"}, "nope"),
    "sinusoids with a method": (lambda: Tutorial(LENGTH), {"method": "linear"}, "fixed sinusoid"),
    "sinusoids of another formula": (scaled_sinusoids, {}, "not a fixed sinusoid with a known formula"),
    "sinusoids of another formula, among others": (
        lambda: holding(Bert(LENGTH), scaled_sinusoids()), {"table": ["0.position_embeddings", "1.pos_encoder.pe"]},
        "not a fixed sinusoid with a known formula",
    ),
    "a ring": (
        lambda: holding(RollingPositionalEmbedding(window=4, dim=D)), {"table": "0"}, "not positions in a line",
    ),
    "ids in another order": (lambda: with_buffer("ids", torch.randperm(LENGTH)), {}, "neither ids nor a mask"),
    "class tokens": (lambda: ClassToken(LENGTH), {}, "class tokens"),
    "a padding row": (lambda: Fairseq(LENGTH), {}, "padding_idx=1"),
    "a model of transformers inside": (
        lambda: holding(tiny_model("bert", TEXT)), {}, r"BertModel of transformers.*pass model\.get_submodule",
    ),
    "a layout for transformers": (lambda: tiny_model("bert", TEXT), {"layout": TableLayout()}, "leave layout"),
    "several tables of transformers": (lambda: tiny_model("bert", TEXT), {"table": ["a", "b"]}, "name one table"),
    "no name of a table": (lambda: Bert(LENGTH), {"table": 3}, "table takes the name|table: expected text"),
    "a parametrized table": (parametrized, {}, "computed by a parametrization.*remove_parametrizations"),
    **{
        f"{norm.__name__} of {name}": (
            lambda norm=norm: normed(norm), {"table": name and f"position_embeddings.{name}"}, "read through .*Remove",
        )
        for norm, name in (
            (weight_norm, "weight_v"), (weight_norm, "weight_g"), (spectral_norm, None), (spectral_norm, "weight_orig"),
            (prune.identity, "weight_mask"),
        )
    },
    "a table without values": (lambda: Bert(LENGTH).to("meta"), {}, "on the meta device"),
    "a grid": (
        lambda: ClassToken(13), {"length": None, "grid": (6, 4), "layout": TableLayout.VIT.on_grid(3, 4)},
        r"patches.*resize_table",
    ),
}  # fmt: skip


@together("case", REFUSED)
def test_a_refusal_leaves_the_module_as_it_was(case: str) -> None:
    build, arguments, message = REFUSED[case]
    model = build()
    before, shown = {name: tensor.clone() for name, tensor in tensors(model).items()}, repr(model)
    before = {name: tensor for name, tensor in before.items() if not tensor.is_meta}
    with pytest.raises((ArgumentError, CheckpointError), match=message):
        resize_model_(model, **{"length": 64, **arguments})
    assert repr(model) == shown
    assert all(torch.equal(tensors(model)[name], tensor) for name, tensor in before.items())


def test_a_layout_says_that_a_class_token_is_a_position() -> None:
    model = ClassToken(LENGTH)
    resize_model_(model, length=64, layout=TableLayout())
    assert model(ids(64)).shape == (1, 64, D)


OTHERS = ("num_heads", "hidden_size", "image_size", "resolution", "grid_size", "input_size", "pos_weight",
          "num_positive", "frames_per_second", "silence_id", "context_dim")  # fmt: skip
LENGTHS = ("max_len", "block_size", "max_position_embeddings", "n_ctx", "num_positions", "seq_length", "context_size")


@together("name", (*OTHERS, *LENGTHS))
def test_what_has_the_length_by_chance_stays(name: str) -> None:
    model = Bert(LENGTH)
    model.wide, model.config, model.recurrent = nn.Linear(LENGTH, LENGTH), {name: LENGTH}, nn.LSTM(LENGTH, 4)
    setattr(model, name, LENGTH)
    model.register_buffer("quantized", torch.randint(0, 9, (5, LENGTH)))
    nn.init.zeros_(model.wide.bias)
    resize_model_(model, length=64)
    assert (model.wide.in_features, model.recurrent.input_size) == (LENGTH, LENGTH)
    assert getattr(model, name) == model.config[name] == (64 if name in LENGTHS else LENGTH)
    assert (model.wide.weight.shape, model.quantized.shape) == ((LENGTH, LENGTH), (5, LENGTH))


# --- what PyTorch keeps beside the values


@pytest.mark.parametrize("build", [lambda: Bert(LENGTH), lambda: tiny_model("bert", TEXT)])
def test_earlier_outputs_do_not_stop_training(build: Callable[[], nn.Module]) -> None:
    """Their graph keeps autograd's node of the parameter, which knows its shape."""
    model = build().train()

    def outputs(length: int) -> Tensor:
        found = model(ids(length))
        return found if isinstance(found, Tensor) else found[0]

    earlier = outputs(LENGTH)
    hooked = []
    for parameter in model.parameters():
        if parameter.shape[-2:-1] == (LENGTH,):
            parameter.register_hook(lambda gradient: hooked.append(gradient.shape))
    resize_model_(model, length=64)
    outputs(64).square().sum().backward()
    assert hooked
    assert all(p.grad is None or p.grad.shape == p.shape for p in model.parameters())
    assert earlier.requires_grad


def test_new_rows_are_trained_if_they_were_computed_in_inference_mode() -> None:
    model = Bert(LENGTH)
    with torch.inference_mode():
        resize_model_(model, length=64)
    model(ids(64)).square().sum().backward()
    assert model.position_embeddings.weight.grad.any()


def test_a_distributed_model_is_refused(tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for wrapped in (nn.parallel.DistributedDataParallel(Bert(LENGTH)), fully_shard(Bert(LENGTH))):
            with pytest.raises(ArgumentError, match="before the model is wrapped or sharded"):
                resize_model_(wrapped, length=64)
            assert dict(wrapped.named_buffers()).popitem()[1].shape == (1, LENGTH)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("other", [None, {}, nn.Parameter(torch.zeros(LENGTH, D)), "bert"])
def test_what_is_no_module_is_refused(other: Any) -> None:
    with pytest.raises(ArgumentError, match=r"model: expected a module; got "):
        resize_model_(other, length=64)


def test_every_module_around_a_shared_parameter_says_its_size() -> None:
    encoder, decoder = Bert(LENGTH), Bert(LENGTH)
    decoder.position_embeddings.weight = encoder.position_embeddings.weight
    resize_model_(holding(encoder, decoder), length=64)
    assert repr(encoder) == repr(decoder) == repr(Bert(64))


def test_a_shared_buffer_may_be_given_by_any_of_its_names() -> None:
    for name in ("0", "1"):
        first, second = Tutorial(LENGTH).pos_encoder, nn.Module()
        second.register_buffer("pe", first.pe)
        resize_model_(holding(first, second), length=64, table=f"{name}.pe")
        assert first.pe is second.pe
        assert len(first.pe) == 64


@pytest.mark.parametrize("whole", [np.int64, torch.tensor])
def test_lengths_of_other_libraries(whole: Callable[[int], Any]) -> None:
    model = Free(LENGTH)
    model.max_len = np.int64(LENGTH)
    resize_model_(model, length=whole(64))
    assert (type(model.max_len), model.max_len, len(model.added(64))) == (int, 64, 1)
