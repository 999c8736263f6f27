"""An encoding at its places does what the lab's model does with it, and hands over what the formula says."""

from __future__ import annotations

import torch

from posembed.lab.cost.instruments import peak_bytes
from posembed.lab.cost.measure import encoding_of
from posembed.lab.cost.places import FLOAT, AttentionWith, Places, Shape, writes
from posembed.lab.cost.results import CostSettings
from posembed.layers.alibi import Alibi
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.layers.none import NoPosition
from posembed.layers.rotary import RotaryEmbedding
from posembed.nn import Attention, Positions
from posembed.nn.encodings import names_for
from together import together
from tolerance import assert_close

SHAPE = Shape(batch=2, length=24, width=32, heads=4)


def built(name: str) -> torch.nn.Module:
    settings = CostSettings(batch=2, length=24, width=32, heads=4, layers=2)
    return encoding_of(settings, name)


def test_learned_at_its_place() -> None:
    layer = LearnedPositionalEmbedding(max_len=24, dim=32, dropout=0.0)
    places = Places(layer, SHAPE)
    made = places.made()
    assert (len(made.queries_keys), len(made.scores)) == (0, 0)
    assert_close(made.input[0], layer(places.x))


def test_rope_at_its_place() -> None:
    layer = RotaryEmbedding(8)
    places = Places(layer, SHAPE)
    q, k = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in places.qkv.split(32, dim=-1)[:2])
    for ours, theirs in zip(places.made().queries_keys, layer(q, k), strict=True):
        assert_close(ours, theirs)


def test_alibi_at_its_place() -> None:
    assert_close(Places(Alibi(4), SHAPE).made().scores[0], Alibi(4)(24))


def test_nothing_is_made_without_position() -> None:
    assert Places(NoPosition(), SHAPE).made() == ((), (), ())
    assert Places(NoPosition(), SHAPE, training=True)() is None


@together("name", names_for("decoder"))
def test_the_formula_is_what_is_handed_over_and_the_peak_is_no_less(name: str) -> None:
    formula = writes(built(name), SHAPE)
    made = Places(built(name), SHAPE).made()
    assert formula.input == sum(FLOAT * t.numel() for t in made.input)
    assert formula.queries_keys == sum(FLOAT * t.numel() for t in made.queries_keys)
    assert formula.scores == sum(FLOAT * t.numel() for t in made.scores)
    last = max((t.nbytes for place in made for t in place), default=0)
    assert peak_bytes(Places(built(name), SHAPE)) >= last


@together("name", names_for("decoder"))
@together("training", [False, True])
def test_a_step_leaves_nothing_behind(name: str, training: bool) -> None:
    torch.manual_seed(0)
    layer = Attention(dim=32, heads=4, dropout=0.0)
    for step in (
        Places(built(name), SHAPE, training=training),
        AttentionWith(built(name), layer, SHAPE, training=training),
    ):
        step()
        step()
        assert step.x.grad is None
        assert all(p.grad is None for p in (*step.encoding.parameters(), *layer.parameters()))


def test_attention_without_position_is_the_layer_itself() -> None:
    torch.manual_seed(0)
    layer = Attention(dim=32, heads=4, dropout=0.0)
    step = AttentionWith(NoPosition(), layer, SHAPE)
    assert_close(step.results()[0], layer(step.x, positions=Positions(NoPosition(), step.x)))


def test_a_step_of_training_has_its_gradients() -> None:
    layer = LearnedPositionalEmbedding(max_len=24, dim=32, dropout=0.0)
    gradients = Places(layer, SHAPE, training=True)()
    assert isinstance(gradients, tuple)
    table = gradients[-1]
    assert_close(table, (Places(layer, SHAPE).x + layer.weight).sum(0).detach())
