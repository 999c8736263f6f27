"""Attention by distance, against sums over pairs of tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from plots.drawings import all_axes, title
from posembed import plots
from posembed.errors import ArgumentError
from posembed.nn.by_distance import even_by_distance, mean_by_distance
from tolerance import assert_close


def weights(batch: int, heads: int, length: int, *, causal: bool) -> Tensor:
    scores = torch.randn(batch, heads, length, length)
    hidden = torch.ones(length, length).triu(1).bool() & causal
    return scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, 2, 9])
def test_means_by_distance_average_pairs(length: int, causal: bool) -> None:
    given = weights(2, 3, length, causal=causal)
    found = mean_by_distance(given)
    for head in range(3):
        for d in range(length):
            pairs = [given[b, head, i, i - d] for b in range(2) for i in range(d, length)]
            if not causal:
                pairs += [given[b, head, i - d, i] for b in range(2) for i in range(d, length)]
            assert_close(found[head, d].item(), torch.stack(pairs).mean().item(), dtype=torch.float32)


@pytest.mark.parametrize("window", [None, 1, 4, 50])
def test_an_even_head_is_the_dotted_line(window: int | None) -> None:
    length = 9
    seen = torch.ones(length, length).tril().triu(1 - (window or length))
    even = (seen / seen.sum(dim=1, keepdim=True))[None, None]
    assert_close(mean_by_distance(even)[0], even_by_distance(length, window), dtype=torch.float32)
    axes = plots.attention_by_distance(even, window=window)
    dotted, head = all_axes(axes)[1].get_lines()
    assert list(dotted.get_ydata()) == pytest.approx(list(head.get_ydata()), nan_ok=True)


@pytest.mark.parametrize("causal", [True, False])
def test_each_layer_has_a_panel_and_each_head_a_line(causal: bool) -> None:
    layers = tuple(weights(2, 3, 16, causal=causal) for _ in range(5))
    axes = plots.attention_by_distance(layers)
    panels = axes.child_axes
    assert [title(panel) for panel in panels] == [f"layer {n}" for n in range(1, 6)]
    assert all(len(panel.get_lines()) == 1 + 3 for panel in panels)
    shares = dict(zip(panels[0].get_yticks(), (label.get_text() for label in panels[0].get_yticklabels()), strict=True))
    assert shares == {1e-4: ".01%", 1e-2: "1%", 1: "100%"}
    assert (f"tokens {'back' if causal else 'away'} (log scale)") in [text.get_text() for text in axes.texts]
    means = torch.stack([mean_by_distance(layer) for layer in layers])
    if causal:
        for a, b in zip(panels, plots.attention_by_distance(means).child_axes, strict=True):
            assert list(a.get_lines()[1].get_ydata()) == pytest.approx(list(b.get_lines()[1].get_ydata()), nan_ok=True)


def test_the_attentions_of_a_model_of_transformers() -> None:
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    bert = BertModel(BertConfig(vocab_size=30, **sizes, attn_implementation="eager"))
    gpt = GPT2Model(GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, attn_implementation="eager"))
    for model, direction in ((bert, "away"), (gpt, "back")):
        ids = torch.randint(30, (2, 12))
        axes = plots.attention_by_distance(model(ids, output_attentions=True).attentions)
        assert len(axes.child_axes) == 2
        assert f"tokens {direction} (log scale)" in [text.get_text() for text in axes.texts]


def test_weights_of_layers_with_other_shapes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="output_attentions=True"):
        plots.attention_by_distance([torch.rand(1, 2, 4, 4), torch.rand(1, 2, 5, 5)])
