"""Each text input layer against what its model in transformers makes of the same tokens with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from posembed import inputs
from together import together
from tolerance import assert_close
from transformers_peers import POSITIONS, TEXT_PEERS, TOKENS, Peer


class Case(NamedTuple):
    peer: Peer
    model: Any
    layer: nn.Module


ALIKE = ("xlm-roberta", "camembert", "roberta, pad 3", "plbart", "siglip", "bert alone")
"""Peers whose embeddings are those of another one here."""
NAMES = [pytest.param(name, marks=pytest.mark.whole) if name in ALIKE else name for name in TEXT_PEERS]


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A model with random weights, and our layer from the files that the model saved.

    Both compute in float64, so that the order in which a gradient is summed does not show.
    """
    peer = TEXT_PEERS[request.param]
    model = peer.build()
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return Case(peer, model.double(), peer.layer.from_checkpoint(folder, **peer.options).double())


def tokens(*shape: int) -> Tensor:
    """Random tokens, none of which is padding in any of the models."""
    return torch.randint(5, TOKENS, shape, generator=torch.Generator().manual_seed(1))


def pad_id(case: Case) -> int:
    return getattr(case.model.config, "pad_token_id", None) or 0


def padded(case: Case, lengths: list[int], side: str) -> tuple[Tensor, Tensor]:
    """Random tokens in rows of these lengths, with the model's own padding on this side, and their mask."""
    width = max(lengths)
    places = torch.arange(width) if side == "right" else torch.arange(width).flip(0)
    mask = places < torch.tensor(lengths)[:, None]
    return tokens(len(lengths), width).where(mask, pad_id(case)), mask


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert_close(ours, theirs)


def assert_same_gradients(case: Case, ours: Tensor, theirs: Tensor) -> None:
    """The gradients of one random linear function of both outputs, for every weight of our layer."""
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    case.layer.zero_grad()
    case.model.zero_grad()
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    stack = case.model.get_submodule(case.peer.stack)
    for name, parameter in case.layer.named_parameters():
        own_name = f"{case.peer.embeddings}.{name}" if case.peer.embeddings else name
        assert_same(parameter.grad, stack.get_parameter(own_name).grad)


def test_consecutive_tokens(case: Case) -> None:
    ids = tokens(3, POSITIONS)
    ids[1, 5] = pad_id(case)  # without a mask it is a token like any other, but for RoBERTa, and is not trained
    ours, theirs = case.layer(ids), case.peer.embed(case.model, ids)
    assert_same(ours, theirs)
    assert_same_gradients(case, ours, theirs)


def test_explicit_ids(case: Case) -> None:
    ids = tokens(2, 8)
    positions = torch.tensor([[4, 0, 2, 2, 6, 1, 1, 5], [0, 1, POSITIONS - 1, 3, 3, 7, 9, 8]])
    if case.peer.first_id is None:  # the model takes none: tokens that move with their ids move the output
        order = positions[0].argsort()
        assert_same(case.layer(ids[:, order], position_ids=order), case.peer.embed(case.model, ids)[:, order])
        return
    ours = case.layer(ids, position_ids=positions)
    theirs = case.peer.embed(case.model, ids, position_ids=positions + case.peer.first_id)
    assert_same(ours, theirs)
    assert_same_gradients(case, ours, theirs)


@together("side", ["left", "right"])
def test_a_padded_token_is_what_it_is_without_padding(case: Case, side: str) -> None:
    ids, mask = padded(case, [5, 8, 1], side)
    ours = case.layer(ids, mask=mask)[mask]
    alone = [row[present][None] for row, present in zip(ids, mask, strict=True)]
    theirs = torch.cat([case.peer.embed(case.model, row)[0] for row in alone])
    assert_same(ours, theirs)
    assert_same_gradients(case, ours, theirs)


def test_dropout_is_the_models_own(case: Case) -> None:
    ids = tokens(2, 8)
    case.layer.train()
    case.model.train()
    torch.manual_seed(3)
    ours = case.layer(ids)
    torch.manual_seed(3)
    theirs = case.peer.embed(case.model, ids)
    case.layer.eval()
    case.model.eval()
    assert_same(ours, theirs)


def test_the_state_dict_holds_the_models_own_weights_and_nothing_else(case: Case) -> None:
    prefix = ".".join(name for name in (case.peer.stack, case.peer.embeddings) if name)
    theirs = case.model.get_submodule(prefix).state_dict()
    state_dict = case.layer.state_dict()
    assert set(state_dict) == {name for name, _ in case.layer.named_parameters()} <= set(theirs)
    assert list(case.layer.buffers()) == []
    for name, weight in state_dict.items():
        assert torch.equal(weight, theirs[name])


ROBERTAS = [name for name, peer in TEXT_PEERS.items() if peer.layer is inputs.RobertaInput]
WITH_TYPES = [name for name in ("bert", "electra", "albert", *ROBERTAS) if name != "mpnet"]


@pytest.mark.parametrize("case", WITH_TYPES, indirect=True)
def test_token_types(case: Case) -> None:
    ids = tokens(2, 8)
    types = torch.arange(16).view(2, 8) // 3 % case.model.config.type_vocab_size
    ours = case.layer(ids, token_type_ids=types)
    theirs = case.peer.embed(case.model, ids, token_type_ids=types)
    assert_same(ours, theirs)
    assert_same_gradients(case, ours, theirs)


@pytest.mark.parametrize("case", ROBERTAS, indirect=True)
@pytest.mark.parametrize("side", ["left", "right"])
def test_roberta_counts_tokens_that_are_not_padding(case: Case, side: str) -> None:
    ids, _ = padded(case, [5, 8, 1], side)
    ours, theirs = case.layer(ids), case.peer.embed(case.model, ids)
    assert_same(ours, theirs)
    assert_same_gradients(case, ours, theirs)


@pytest.mark.parametrize("case", ["opt", "opt, projected"], indirect=True)
def test_opt_counts_over_the_mask(case: Case) -> None:
    ids, mask = padded(case, [5, 8, 1], "left")
    assert_same(case.layer(ids, mask=mask), case.peer.embed(case.model, ids, attention_mask=mask.long()))


@pytest.mark.parametrize("family", ["mpnet", "roberta"])
@pytest.mark.parametrize("pad_id", [0, 1, 5])
def test_padding_is_what_the_model_takes_for_it(family: str, pad_id: int, tmp_path: Path) -> None:
    """transformers' MPNet counts positions by token 1, whatever its config says."""
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(
        family, **sizes, intermediate_size=16, max_position_embeddings=40, pad_token_id=pad_id
    )
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(tmp_path)
    ids = torch.randint(6, 60, (2, 12))
    ids[0, 3:5], ids[1, 8:] = 1, pad_id
    with torch.no_grad():
        expected = model.embeddings(input_ids=ids)
        actual = inputs.RobertaInput.from_checkpoint(tmp_path).eval()(ids)
    counted = ids != (1 if family == "mpnet" else pad_id)
    assert_close(actual[counted], expected[counted])
