"""Every encoding of the lab trains, and is measured beyond its training length."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from encoding_names import is_usual
from posembed.errors import ArgumentError
from posembed.lab.runs import train
from posembed.lab.tasks.language import LanguageModelling
from posembed.lab.tasks.task import build_encoding
from posembed.lab.tasks.text_specs import SAME_TOKENS, LengthSpec
from posembed.nn import Sizes, encoding_by_name
from together import asked, together

BIASES = ["t5", "kerple-log", "kerple-power", "fire"]
AT_THE_END = ["learned-concat", "tupe-r"]
"""These have no position past the training length."""
SCALED = ["rope-linear", "rope-ntk", "rope-yarn", "rope-llama3"]


@together("name", [*BIASES, "pope", *SCALED, "p-rope", "hope", "bipe-rope", "bipe-alibi", "seqpe"], usual=is_usual)
def test_it_learns_and_has_a_loss_at_four_times_its_length(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, name: str
) -> None:
    spec = dataclasses.replace(spec, encoding=name, steps=30, dropout=0.0, test_lengths=(16, 64))
    before = build_encoding(spec).state_dict()
    result = train.run(spec, task, accelerator)
    assert result.failure is None
    assert result.losses[-1][1] < 0.8 * result.losses[0][1]
    assert result.measurements is not None
    assert all(loss is not None and math.isfinite(loss) for loss in result.measurements.by_x(SAME_TOKENS).values())
    assert result.position_parameters == sum(value.numel() for value in before.values())


def test_scaled_rope_trains_as_plain_rope_does(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator
) -> None:
    """Up to rounding the run is the same; what differs is what comes after the training length."""
    spec = dataclasses.replace(spec, dropout=0.0, test_lengths=(16, 64))
    plain = train.run(dataclasses.replace(spec, encoding="rope"), task, accelerator)
    assert plain.measurements is not None
    factors = tuple(1.0 + pair for pair in range(spec.width // spec.heads // 2))
    for name in [*SCALED, "rope-longrope"] if asked["whole"] else ("rope-yarn", "rope-longrope"):
        given = factors if name == "rope-longrope" else ()
        scaled = train.run(dataclasses.replace(spec, encoding=name, rope_factors=given), task, accelerator)
        assert scaled.measurements is not None
        assert scaled.measurements.by_x(SAME_TOKENS)[16] == pytest.approx(
            plain.measurements.by_x(SAME_TOKENS)[16], abs=1e-3
        )
        assert scaled.measurements.by_x(SAME_TOKENS)[64] != plain.measurements.by_x(SAME_TOKENS)[64]


@together("head_dim", [1, 3, 5])
@together("sizes", [{}, {"longest": 64}, {"longest": 64, "rope_factors": (1.0, 2.0)}])
def test_an_odd_head_gives_longrope_the_error_of_rope(head_dim: int, sizes: dict[str, Any]) -> None:
    for name in ("rope", "rope-longrope"):
        with pytest.raises(ArgumentError, match=f"head_dim must be even and positive, got {head_dim}"):
            encoding_by_name(name, Sizes(dim=3 * head_dim, heads=3, max_len=16, **sizes))


def test_longrope_for_texts_shorter_than_the_training_texts() -> None:
    encoding = encoding_by_name("rope-longrope", Sizes(dim=8, heads=2, max_len=16, longest=4))
    plain = encoding_by_name("rope", Sizes(dim=8, heads=2))
    for ours, theirs in zip(*(each.cos_sin(torch.arange(16)) for each in (encoding, plain)), strict=True):  # type: ignore[operator]
        assert torch.equal(ours, theirs)


def test_longrope_needs_factors(spec: LengthSpec) -> None:
    spec = dataclasses.replace(spec, encoding="rope-longrope", test_lengths=(16, 64))
    with pytest.raises(ArgumentError, match=r"give rope_factors, \d+ numbers, as published for a model"):
        build_encoding(spec)
    with pytest.raises(ArgumentError, match="got 1 factors"):
        build_encoding(dataclasses.replace(spec, rope_factors=(2.0,)))
    build_encoding(dataclasses.replace(spec, test_lengths=(16,)))  # nothing is longer, and nothing is scaled


def test_settings_that_ask_for_nothing_do_not_name_a_run(spec: LengthSpec) -> None:
    """So that runs made before there was such a setting are found."""
    assert "rope_factors" not in spec.shared_settings()
    assert spec.key() != dataclasses.replace(spec, rope_factors=(2.0,)).key()


@pytest.mark.parametrize("name", AT_THE_END)
def test_it_learns_and_ends_at_its_length(
    spec: LengthSpec, task: LanguageModelling, accelerator: Accelerator, name: str
) -> None:
    spec = dataclasses.replace(spec, encoding=name, steps=30, dropout=0.0, test_lengths=(16, 64))
    result = train.run(spec, task, accelerator)
    assert result.failure is None
    assert result.losses[-1][1] < 0.8 * result.losses[0][1]
    assert result.measurements is not None
    assert result.measurements.by_x(SAME_TOKENS)[16] is not None
    assert result.measurements.by_x(SAME_TOKENS)[64] is None


@pytest.mark.parametrize("name", [*BIASES, *AT_THE_END, "pope"])
def test_what_it_learns_is_trained_without_weight_decay(task: LanguageModelling, spec: LengthSpec, name: str) -> None:
    model = task.build(dataclasses.replace(spec, encoding=name))
    decayed, others = (group["params"] for group in train.make_optimizer(spec, model).param_groups)
    parameters = list(model.encoding.parameters())
    assert parameters
    assert all(any(p is other for other in others) for p in parameters)
    assert not any(p is other for p in parameters for other in decayed)
    model(torch.randint(50, (2, 16))).square().mean().backward()
    assert all(p.grad is not None for p in parameters)
