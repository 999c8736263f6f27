"""What layers refuse: what was expected, what came, what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from posembed import Alibi, LearnedGridEmbedding, LearnedPositionalEmbedding, RotaryEmbedding
from posembed.errors import ArgumentError, PositionError
from posembed.layers import (
    AveragedPositionalEmbedding,
    AxialRotaryEmbedding,
    BilevelEncoding,
    ConcatenatedPositionalEmbedding,
    Dape,
    ExtendedPositionalEmbedding,
    Fire,
    KerpleLog,
    KerplePower,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NTKScaling,
    PolarEmbedding,
    RollingPositionalEmbedding,
    SampledPositionalEmbedding,
    SequentialPositionalEmbedding,
    SinusoidalGridEmbedding,
    SinusoidalPositionalEmbedding,
    T5Bias,
    Tupe,
    YarnScaling,
)
from posembed.layers.extended import RANDOM
from posembed.nn import Decoder
from posembed.tables import TableLayout
from together import together

learned = partial(LearnedPositionalEmbedding, max_len=8, dim=4)
grid = partial(LearnedGridEmbedding, grid=(3, 5), dim=4)
extended = partial(ExtendedPositionalEmbedding, max_len=6, dim=4)
rolling = partial(RollingPositionalEmbedding, window=4, dim=6)
averaged = partial(AveragedPositionalEmbedding, max_len=8, dim=8, heads=2)
bilevel = partial(BilevelEncoding, max_len=4, dim=16)
concatenated = partial(ConcatenatedPositionalEmbedding, max_len=9, dim=8, position_dim=3, dropout=0.0)
sampled = partial(SampledPositionalEmbedding, max_len=9, dim=4)
layer, on_grid = learned(dropout=0), grid()
x, patches = torch.zeros(2, 3, 4), torch.zeros(2, 16, 4)
q, five = torch.randn(1, 1, 3, 8), torch.randn(2, 2, 5, 8)
not_finite = torch.zeros(8, 4)
not_finite[5, 1] = float("nan")
windowed = Alibi(2)
windowed.window = 4
with_ntk = RotaryEmbedding(8, scaling=NTKScaling(original_length=8))

LEARNED: list[tuple[Callable[[], object], str]] = [
    (lambda: learned(init="uniform"), "unknown init 'uniform'; choose from normal, .*, or a tensor"),
    (lambda: learned(init="zero", std=1.0), "leave it out for 'zero'"),
    (lambda: learned(init=x[0], std=1.0), "leave it out for a given table"),
    (lambda: learned(dim=5, init="sinusoidal"), "dim must be even; got 5"),
    (lambda: learned(init=not_finite), "must be finite; got nan in row 5"),
    (lambda: learned(init=torch.zeros(9, 4)), r"must be \(8, 4\) floats.*got \(9, 4\)"),
    (lambda: learned(layout=TableLayout.VIT), r"no prefix, tail or grid; got .*\(prefix=1\). Use LearnedGridEmbedding"),
    (lambda: learned(init=torch.zeros(8, 4)).reset_parameters(), "load_state_dict"),
    (lambda: layer(torch.zeros(3, 4)), r"x must be \(B, L, D=4\); got \(3, 4\)"),
    (lambda: layer(torch.zeros(2, 3, 5)), r"x must be \(B, L, D=4\); got \(2, 3, 5\)"),
    (lambda: layer(x.long()), r"integer x must be \(B, L\); got \(2, 3, 4\)"),
    (lambda: layer(torch.zeros(3).long()), r"integer x must be \(B, L\); got \(3,\)"),
    (lambda: layer(torch.zeros(2, 3).bool()), r"x, unless it is \(B, L, D\) floats, must be integers; got torch.bool"),
    (lambda: layer(x, torch.arange(3.0)), r"position_ids must be integers; got torch.float32. .*\.long\(\)"),
    (lambda: layer(x, torch.ones(2, 3).bool()), "position_ids must be integers; got torch.bool"),
    (lambda: layer(x, torch.arange(4)), r"\(L,\)=\(3,\) or \(B, L\)=\(2, 3\) for this input; got \(4,\)"),
    (lambda: layer(x, torch.zeros(3, 3).long()), r"got \(3, 3\)"),
    (lambda: layer(x, torch.zeros(3, 2).long()), r"got \(3, 2\)"),
    (lambda: layer(x, torch.zeros(1, 2, 3).long()), r"got \(1, 2, 3\)"),
    (lambda: layer(x, torch.tensor(1)), r"got \(\)"),
    (lambda: layer(x, torch.arange(3), offset=2), "position_ids or offset, not both: add the offset to the ids"),
    (lambda: layer(x, torch.arange(3), offset=torch.tensor([1, 2])), "not both"),
    (lambda: layer(x, offset=-1), "offset counts the tokens that came before: 0, 1, 2, ...; got -1"),
    (lambda: layer(x, offset=torch.tensor([2, -3])), "got -3"),
    (lambda: layer(x, offset=1.5), "got 1.5"),
    (lambda: layer(x, offset=torch.tensor([1.0, 2.0])), "offset must be integers; got torch.float32"),
    (lambda: layer(x, offset=torch.tensor([1, 2, 3])), r"\(B,\)=\(2,\) for this input; got \(3,\)"),
    (lambda: layer(x, offset=torch.ones(2, 1).long()), r"offset must be a number or \(B,\)"),
    (lambda: learned(check_ids=False).rows(torch.tensor([0.5])), "position_ids must be integers"),
]
OTHER_INPUTS: list[tuple[Callable[[], object], str]] = [
    (lambda: grid(layout=TableLayout.OPT), "no reserved rows and no other grid"),
    (lambda: grid(layout=TableLayout.VIT.on_grid(5, 3)), "no other grid; got .*5, 3"),
    (lambda: grid(init="uniform"), "unknown init 'uniform'; choose from normal"),
    (lambda: grid(init=torch.zeros(15, 4)), r"must be \(16, 4\) floats"),
    (lambda: grid(init=torch.zeros(16, 4), factorized=True), "has two tables"),
    (lambda: grid(init=torch.zeros(16, 4)).reset_parameters(), "load_state_dict"),
    (lambda: on_grid(patches[:, 1:]), r"\(B, 16, D=4\), 1 special tokens and 3 x 5 patches; got \(2, 15, 4\)"),
    (lambda: on_grid(patches, grid=(2, 5)), r"\(B, 11, D=4\), .* 2 x 5 patches; got \(2, 16, 4\). Pass grid="),
    (lambda: on_grid(patches[0]), r"got \(16, 4\)"),
    (lambda: on_grid(patches, grid=(0, 5)), "grid: expected a pair"),
    (lambda: on_grid(patches, (3, 5)), r"position_ids must be a tensor of integers; got \(3, 5\)"),
    (lambda: on_grid.rows((0, 5)), "grid: expected a pair"),
    (lambda: on_grid.at_input(patches, torch.arange(16.0)), "position_ids must be integers"),
    (lambda: extended(method=RANDOM, longest=None), "longest must be .* at least max_len=6; got None"),
    (lambda: extended(method=RANDOM, longest=5), "longest must be .* at least max_len=6; got 5"),
    (lambda: extended(method=RANDOM, longest=9.0), "longest: expected a whole number"),
    (lambda: extended(method=RANDOM, longest="9"), "longest: expected a whole number"),
    (lambda: extended(method="tile", longest=9), "leave it out for 'tile'"),
    (lambda: extended(method="truncate"), "unknown method 'truncate'; choose from tile, hier"),
    (lambda: extended(method="stretch"), "unknown method 'stretch'; choose from tile, hier"),
    *((lambda wrong=wrong: concatenated(position_dim=wrong), "position_dim") for wrong in (0, 8, 9, -1, 2.5)),
    (lambda: concatenated(dim=1, position_dim=None), "dim: expected a whole number of at least 2"),
    (lambda: concatenated()(torch.zeros(1, 2, 3)), "D=8"),
    (lambda: sampled(sampler="random"), r"'random' \(did you mean randomized\?\); choose from shifted, "),
    (lambda: rolling(window=8, ring=7), r"ring=7 is smaller than window=8.*at least 8"),
    (lambda: SinusoidalPositionalEmbedding(1), "even.*1"),
    (lambda: SinusoidalPositionalEmbedding(7), "even.*7"),
    (lambda: SinusoidalGridEmbedding(grid=(2, 2), dim=6), r"dim must be a multiple of 4, .*; got 6"),
    (lambda: SequentialPositionalEmbedding(longest=10, dim=8, width=6, encoder_heads=4),
     "width must be a multiple of encoder_heads; got 6 and 4"),
    *((lambda wrong=wrong: bilevel(between=wrong), "between") for wrong in (None, windowed, "rope")),
    (lambda: Decoder(dim=16, heads=2, layers=1, encoding=bilevel(between=RotaryEmbedding(4))), "head_dim=4"),
]  # fmt: skip
ROTATIONS: list[tuple[Callable[[], object], str]] = [
    (lambda: RotaryEmbedding(0), "even.*0"),
    (lambda: RotaryEmbedding(5), "even.*5"),
    (lambda: RotaryEmbedding(8, pairs=5), "a head of width 8 has 4 pairs; got pairs=5"),
    (lambda: RotaryEmbedding(8, pairing="neox"), "half_split"),  # type: ignore[arg-type]
    (lambda: RotaryEmbedding(8)(q, q, torch.arange(3), offset=1), "not both"),
    (lambda: RotaryEmbedding(6)(q, q), r"\(B, H, L, d=6\)"),
    (lambda: AxialRotaryEmbedding(head_dim=6, grid=(4, 5)), "head_dim must be a multiple of 4, two pairs .*; got 6"),
    (lambda: PolarEmbedding(head_dim=4, heads=2, delta_init="one"), "one of zero, uniform; got 'one'"),
    (lambda: PolarEmbedding(head_dim=8, heads=3)(five, five), r"\(B, H=3, L, d\)"),
    (lambda: with_ntk(five, five, text_length=0), "text_length counts the tokens of a text, from 1; got 0"),
    (lambda: with_ntk(five, five, text_length=2.5), "text_length must be a whole number; got 2.5"),
    (lambda: with_ntk(five, five, text_length=torch.ones(2)), "text_length must be integers"),
    (lambda: with_ntk(five, five, text_length=torch.ones(3).long()), r"\(B,\)=\(2,\) or .* for this input; got \(3,\)"),
    (lambda: with_ntk(five, five, text_length=torch.ones(2, 4).long()), r"or \(B, L\) with L=5; got \(2, 4\)"),
    (lambda: LinearScaling(), "give either a fixed factor or an original_length.* got factor=None"),
    (lambda: NTKScaling(factor=2.0, original_length=64), "give either"),
    (lambda: LinearScaling(factor=0.5), "factor: expected a number of at least 1; got 0.5"),
    (lambda: YarnScaling(1), "at least 2; got 1"),
    (lambda: YarnScaling(64, beta_fast=1.0), "beta_fast must be above beta_slow"),
    (lambda: YarnScaling(64, attention_factor=0.0), "attention_factor: expected a number above 0"),
    (lambda: RotaryEmbedding(8, base=1.0, scaling=YarnScaling(64)), "a base above 1; got 1"),
    (lambda: Llama3Scaling(64, high_frequency_factor=1.0), "high_frequency_factor must be above"),
    (lambda: LongRopeScaling((1.0,), (1.0, 2.0), 64, 2.0), "the same length"),
    (lambda: RotaryEmbedding(8, scaling=LongRopeScaling((1.0,), (1.0,), 64, 2.0)), "has 4 pairs.*got 1 factors"),
    *((lambda wrong=wrong: LongRopeScaling((1.0,) * len(wrong), wrong, 64, 2.0), "long_factors|one positive number per")
      for wrong in ((), (math.nan, 1.0), (1.0, math.nan), (math.inf,), (0.0,), ("2",), torch.ones(1))),
    (lambda: LongRopeScaling([1.0], (-1.0,), 64, 2.0), "long_factors: expected a list, each a number above 0"),
    (lambda: LongRopeScaling(1.0, 2.0, 64, 2.0), "short_factors: expected a list"),
    (lambda: LongRopeScaling((1.0,), (2.0,), 64, None), "factor: expected a number of at least 1; got None"),
    (lambda: LongRopeScaling((1.0,), (2.0,), None, 2.0), "original_length: .* whole number of at least 2; got None"),
    (lambda: LongRopeScaling((1.0,), (2.0,), 64, 2.0, math.nan), "attention_factor: expected a finite number above 0"),
]  # fmt: skip
BIASES: list[tuple[Callable[[], object], str]] = [
    *((partial(kind, 0), "heads: expected a whole number of at least 1; got 0")
      for kind in (Alibi, T5Bias, KerpleLog, KerplePower, Fire)),
    (lambda: T5Bias(4, buckets=2), "even and at least 4, got 2"),
    (lambda: T5Bias(4, buckets=9), "even and at least 4, got 9"),
    (lambda: T5Bias(4, buckets=1, bidirectional=False), "at least 2, got 1"),
    (lambda: T5Bias(4, max_distance=8), "above the 8 distances that have a bucket of their own, got 8"),
    (lambda: averaged(max_len=7), "at least 8; got 7"),
    (lambda: averaged(dim=10, heads=4), "multiple of heads.*got 10 and 4"),
    (lambda: averaged(heads_without=2), "heads_without.*got 2"),
    *((partial(Dape, wrong), "bias") for wrong in (RotaryEmbedding(8), Tupe(max_len=8, dim=8, heads=2), None)),
]  # fmt: skip


@together(("call", "message"), [*LEARNED, *OTHER_INPUTS, *ROTATIONS, *BIASES])
def test_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


WITHOUT_A_ROW: list[tuple[Callable[[], object], str]] = [
    (lambda: layer(x, torch.tensor([0, -1, 2])), "position -1 has no row: this table holds positions 0 to 7"),
    (lambda: learned(layout=TableLayout.OPT).rows(torch.tensor([-2])), "position -2 has no row: .* Count from 0"),
    (lambda: extended(method="tile").eval().rows(torch.tensor([-1, 8])), "position -1 has no row"),
    (lambda: concatenated()(torch.zeros(1, 2, 8), torch.tensor([0, 9])), "position 9 has no row"),
    (lambda: concatenated()(torch.zeros(1, 2, 8), torch.tensor([-1, 0])), "position -1 has no row"),
    (lambda: sampled(sampler="shifted").eval()(torch.zeros(1, 10, 4)), "position 9 has no row"),
    (lambda: sampled(sampler="shifted").training_positions(64, 10, torch.Generator()), "position 9 has no row"),
    (lambda: bilevel(between=RotaryEmbedding(8)).at_input(torch.randn(1, 2, 16), torch.tensor([0, -1])), "-1"),
    (lambda: SinusoidalGridEmbedding(grid=(2, 2), dim=8).at_input(torch.zeros(1, 6, 8), torch.arange(6)), "no row"),
]


@together(("call", "message"), WITHOUT_A_ROW)
def test_a_position_without_a_row(call: Callable[[], object], message: str) -> None:
    with pytest.raises(PositionError, match=message):
        call()
