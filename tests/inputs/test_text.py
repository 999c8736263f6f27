"""What holds of each text input layer: padding, packing and caching change nothing, and bad input is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from posembed import LearnedPositionalEmbedding, inputs
from posembed.errors import ArgumentError, PositionError
from posembed.inputs.text import TokenEmbedding
from posembed.tables import TableLayout
from together import together
from tolerance import assert_close

MAX_LEN, PAD = 24, 1
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: inputs.BertInput(vocab_size=50, max_len=MAX_LEN, dim=8, pad_id=PAD),
    "bert without types": lambda: inputs.BertInput(vocab_size=50, max_len=MAX_LEN, dim=8, token_types=0, pad_id=None),
    "roberta": lambda: inputs.RobertaInput(vocab_size=50, max_len=MAX_LEN, dim=8, pad_id=PAD),
    "gpt1": lambda: inputs.GPT1Input(vocab_size=50, max_len=MAX_LEN, dim=8),
    "gpt2": lambda: inputs.GPT2Input(vocab_size=50, max_len=MAX_LEN, dim=8),
    "bart": lambda: inputs.BartInput(vocab_size=50, max_len=MAX_LEN, dim=8, pad_id=PAD),
    "bart, scaled, without norm": lambda: inputs.BartInput(
        vocab_size=50, max_len=MAX_LEN, dim=8, scale=True, norm=False
    ),
    "opt": lambda: inputs.OPTInput(vocab_size=50, max_len=MAX_LEN, dim=8),
    "clip text": lambda: inputs.CLIPTextInput(vocab_size=50, max_len=MAX_LEN, dim=8),
    "whisper": lambda: inputs.WhisperDecoderInput(vocab_size=50, max_len=MAX_LEN, dim=8),
    "transformer": lambda: inputs.TransformerInput(vocab_size=50, max_len=MAX_LEN, dim=8),
    "transformer, counting": lambda: inputs.TransformerInput(vocab_size=50, max_len=MAX_LEN, dim=8, pad_id=PAD),
    "convs2s": lambda: inputs.ConvS2SInput(vocab_size=50, max_len=MAX_LEN, dim=8),
}
every_layer = together("name", list(LAYERS))
few_examples = settings(max_examples=4, deadline=None, derandomize=True)


@st.composite
def padded_batches(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Tokens (B, L) and a mask with padding anywhere and at least one token a row."""
    batch, length = draw(st.integers(1, 4)), draw(st.integers(1, MAX_LEN))
    rows = st.lists(st.booleans(), min_size=length, max_size=length).filter(any)
    mask = torch.tensor(draw(st.lists(rows, min_size=batch, max_size=batch)))
    ids = torch.randint(5, 50, (batch, length), generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    return ids.where(mask, PAD), mask


@every_layer
@few_examples
@given(batch=padded_batches())
def test_padding_changes_nothing(name: str, batch: tuple[Tensor, Tensor]) -> None:
    ids, mask = batch
    layer = LAYERS[name]().eval()
    alone = [layer(row[present][None])[0] for row, present in zip(ids, mask, strict=True)]
    assert torch.equal(layer(ids, mask=mask)[mask], torch.cat(alone))
    assert torch.equal(layer(ids, mask=mask.float()), layer(ids, mask=mask))


@every_layer
@few_examples
@given(batch=padded_batches(), data=st.data())
def test_a_cache_changes_nothing(name: str, batch: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    ids, mask = batch
    layer = LAYERS[name]().eval()
    first = int(mask.int().argmax(dim=1).max()) + 1  # by then every row has had a token
    split = data.draw(st.integers(first, ids.shape[1]))
    pieces = [layer(ids[:, :split], mask=mask[:, :split])]
    pieces += [layer(ids[:, i : i + 1], mask=mask[:, : i + 1]) for i in range(split, ids.shape[1])]
    assert torch.equal(torch.cat(pieces, dim=1), layer(ids, mask=mask))


@every_layer
def test_one_offset_or_one_a_row(name: str) -> None:
    layer = LAYERS[name]().eval()
    ids = torch.randint(5, 50, (2, 12))
    whole = layer(ids)
    assert torch.equal(torch.cat((layer(ids[:, :5]), layer(ids[:, 5:], offset=5)), dim=1), whole)
    after = torch.stack((ids[0, 3:10], ids[1, 5:12]))
    expected = torch.stack((whole[0, 3:10], whole[1, 5:12]))
    assert torch.equal(layer(after, offset=torch.tensor([3, 5])), expected)
    assert torch.equal(layer(after, offset=torch.tensor([3, 5]), mask=torch.ones(2, 7)), expected)
    assert torch.equal(layer(ids[:, 5:], offset=torch.tensor(5), mask=torch.ones(2, 7)), whole[:, 5:])
    assert layer(ids[:, :0], mask=torch.ones(2, 4)).shape == (2, 0, 8)


@pytest.mark.parametrize("name", ["roberta", "transformer, counting", "convs2s"])
def test_padding_tokens_are_not_counted(name: str) -> None:
    layer = LAYERS[name]().eval()
    ids = torch.tensor([[PAD, PAD, 7, 8], [6, PAD, 8, PAD]])
    assert torch.equal(layer(ids), layer(ids, mask=ids != PAD))


@pytest.mark.parametrize("name", ["roberta", "transformer, counting", "convs2s"])
def test_a_finished_sequence_goes_on_as_padding(name: str) -> None:
    layer = LAYERS[name]().eval()
    ids = torch.tensor([[PAD], [6]])
    assert torch.equal(layer(ids, offset=3)[1:], layer(ids[1:], offset=3))
    with pytest.raises(ArgumentError, match="row 0 of the mask holds only padding"):
        layer(ids)


@every_layer
def test_a_new_layer_starts_with_tokens_and_positions_of_one_scale(name: str) -> None:
    """In its first training step the table warns if one of the two drowns the other, and a warning is an error."""
    layer = LAYERS[name]()
    layer(torch.randint(5, 50, (2, 12))).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@together("name", ["bert", "roberta", "opt"], usual=lambda name: name == "roberta")
def test_compiled(name: str) -> None:
    layer = LAYERS[name]().eval()
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="eager")
    ids = torch.tensor([[PAD, PAD, 7, 8], [6, 7, 8, 9]])
    for arguments in ({"mask": ids != PAD}, {"position_ids": torch.tensor([3, 1, 2, 0])}):
        assert torch.equal(compiled(ids, **arguments), layer(ids, **arguments))
    with pytest.raises(PositionError, match=r"position 24 has no row"):
        compiled(ids, position_ids=torch.tensor([0, 1, 2, 24]))


@together("name", ["bert", "roberta"], usual=lambda name: name == "roberta")
def test_exported_with_a_mask_at_one_length_and_run_at_another(name: str) -> None:
    layer = LAYERS[name]().eval()
    length = torch.export.Dim("length", max=MAX_LEN)
    shapes = {"token_ids": {1: length}, "mask": {1: length}}
    seen = {"mask": torch.ones(2, 7, dtype=torch.int64)}
    exported = torch.export.export(layer, (torch.randint(5, 50, (2, 7)),), seen, dynamic_shapes=shapes).module()
    ids = torch.randint(5, 50, (2, 13))
    mask = torch.ones(2, 13, dtype=torch.int64)
    mask[0, :4] = 0
    assert torch.equal(exported(ids, mask=mask), layer(ids, mask=mask))


# Bad input

IDS = torch.randint(5, 50, (2, 4))
BAD = {
    "float tokens": ({"token_ids": IDS.float()}, r"token_ids must be integers; got torch\.float32"),
    "tokens without a batch": ({"token_ids": IDS[0]}, r"token_ids must be \(B, L\); got \(4,\)"),
    "float ids": ({"position_ids": torch.rand(4)}, r"position_ids must be integers"),
    "ids of another length": ({"position_ids": torch.arange(5)}, r"position_ids must be .*\(4,\).*got \(5,\)"),
    "ids and a mask": ({"position_ids": torch.arange(4), "mask": torch.ones(2, 4)}, "position_ids or mask, not both"),
    "ids and an offset": ({"position_ids": torch.arange(4), "offset": 2}, "position_ids or offset, not both"),
    "a mask of 2": ({"mask": torch.full((2, 4), 2)}, "a mask must be 1 for tokens and 0 .* got 2"),
    "a row of padding": ({"mask": torch.tensor([[1] * 4, [0] * 4])}, "row 1 of the mask holds only padding"),
    "a mask for attention": ({"mask": torch.ones(2, 1, 4, 4)}, r"mask must be \(B, L\)=\(2, 4\).*got \(2, 1, 4, 4\)"),
    "a shorter mask": ({"mask": torch.ones(2, 3)}, r"mask must be \(B, L\)=\(2, 4\).*got \(2, 3\)"),
    "earlier tokens twice": ({"mask": torch.ones(2, 6), "offset": 2}, "covers 2 earlier tokens, which offset"),
    "a negative offset": ({"offset": -1}, "offset counts the tokens that came before: .*; got -1"),
    "a negative offset, masked": ({"offset": -1, "mask": torch.ones(2, 4)}, "offset counts .*; got -1"),
    "offsets of another batch, masked": (
        {"offset": torch.tensor([1, 2, 3]), "mask": torch.ones(2, 4)},
        r"offset must be .*\(2,\).*got \(3,\)",
    ),
}


@together("layer_name", ["bert", "roberta", "opt"])
@together("name", list(BAD))
def test_bad_input(name: str, layer_name: str) -> None:
    arguments, message = BAD[name]
    with pytest.raises(ArgumentError, match=message):
        LAYERS[layer_name]()(**{"token_ids": IDS, **arguments})


@together(
    "arguments",
    [
        {"token_ids": torch.full((1, MAX_LEN + 1), 5)},
        {"token_ids": torch.full((1, 1), 5), "offset": MAX_LEN},
        {"token_ids": torch.full((1, 1), 5), "offset": torch.tensor([MAX_LEN])},
        {"token_ids": torch.full((1, 1), 5), "position_ids": torch.tensor([MAX_LEN])},
        {"token_ids": torch.full((1, 1), 5), "mask": torch.ones(1, MAX_LEN + 1)},
    ],
)
@every_layer
def test_a_position_without_a_row(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(PositionError, match=r"position 24 has no row: .*his table holds positions 0 to 23"):
        LAYERS[name]()(**arguments)


def test_types_that_do_not_fit() -> None:
    with pytest.raises(ArgumentError, match="this layer has no token types: leave token_type_ids out"):
        LAYERS["bert without types"]()(IDS, token_type_ids=torch.zeros_like(IDS))
    with pytest.raises(ArgumentError, match=r"token_type_ids must be \(B, L\)=\(2, 4\).*; got \(4,\)"):
        LAYERS["bert"]()(IDS, token_type_ids=torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="token_type_ids must be integers"):
        LAYERS["bert"]()(IDS, token_type_ids=torch.zeros(2, 4))


def test_a_side_of_a_model_that_has_one(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="side='decoder'"):
        inputs.GPT2Input.from_checkpoint(tmp_path, side="decoder")


class NewModelInput(inputs.TextInput):
    """What a model that joins declares."""

    declaration = inputs.Declaration(
        families=("new",),
        prefix="decoder.",
        tokens="tok",
        positions="pos",
        norm="ln",
        layout=TableLayout.BART,
        settings={"pad_id": ("pad_token_id",)},
    )

    def __init__(self, vocab_size: int, max_len: int, dim: int, *, pad_id: int | None = 1) -> None:
        super().__init__()
        self.tok = TokenEmbedding(vocab_size=vocab_size, dim=dim, pad_id=pad_id)
        self.pos = LearnedPositionalEmbedding(max_len=max_len, dim=dim, dropout=0.0, layout=TableLayout.BART)
        self.ln = nn.LayerNorm(dim)


def test_a_new_model_is_one_declaration(tmp_path: Path) -> None:
    tensors = {"tok.weight": (50, 8), "pos.weight": (MAX_LEN + 2, 8), "ln.weight": (8,), "ln.bias": (8,)}
    stored = {name: torch.randn(shape) for name, shape in tensors.items()}
    save_file({f"model.decoder.{name}": t for name, t in stored.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "new", "pad_token_id": 3}))
    layer = NewModelInput.from_checkpoint(tmp_path)
    assert (layer.pos.max_len, layer.tok.padding_idx, layer.training) == (MAX_LEN, 3, False)
    rows = stored["tok.weight"][IDS] + stored["pos.weight"][2:6]
    expected = nn.functional.layer_norm(rows, (8,), stored["ln.weight"], stored["ln.bias"])
    assert_close(layer(IDS), expected)


@together(
    ("make", "message"),
    [
        (lambda: TokenEmbedding(vocab_size=5, dim=8, pad_id=5), r"pad_id must be a token, 0 \.\. 4, or None; got 5"),
        (lambda: inputs.TransformerInput(vocab_size=5, max_len=4, dim=7), "dim must be even"),
        (lambda: inputs.RobertaInput(vocab_size=5, max_len=4, dim=8, pad_id=None), "pad_id: expected a whole number"),
    ],
)
def test_bad_sizes(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()
