"""Claim: an encoding adds almost nothing to a training step, and no peer's step is more than 3 % faster.

    pip install --no-deps --requirement benchmarks/requirements.txt
    python benchmarks/overhead.py    # 12 layers of width 768
    python benchmarks/overhead.py --layers 1 --length 64 --width 96 --rounds 3 --attention-batch 2    # to try it

There are three measurements. In each of them all contestants take turns; the results are medians with their 95 %
intervals:

1. A training step (forward, backward, AdamW) of the lab's decoder, with each of our encodings and each peer's encoding
   in the same model. A step of batch 1 takes seconds on two cores, so that is the default; see --batch. The time of
   such a step varies by a tenth from round to round, which hides an encoding that adds a hundredth.
2. The encoding's own work in that step, forward and backward: once per step if it acts at the input or makes a bias,
   once per layer if it acts at queries and keys. The claims are judged by this measurement.
3. One layer of attention, forward, at the sizes of a published table (batch 32, length 512, width 768): the encoding
   alone, as a share of the layer, compared with that table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pages
import peers
import torch
from torch import Tensor
from torch.nn import functional as F

from posembed.lab.cost.instruments import Step, ratio, take_turns
from posembed.lab.cost.measure import encoding_of
from posembed.lab.cost.places import AttentionWith, Places, Shape, writes
from posembed.lab.cost.results import CostSettings
from posembed.lab.model import Decoder
from posembed.layers.base import PositionEncoding
from posembed.layers.lookup import on_large_pages
from posembed.layers.none import NoPosition
from posembed.nn import Attention
from posembed.report.questions.cost import quoted_share
from posembed.report.words import measured
from posembed.statistics import Estimate, estimate_median
from posembed.words import milliseconds, part

OURS = ("learned", "sinusoidal", "rope", "alibi", "rolling")
NOT_FASTER_BY = 0.03
VOCABULARY = 256
NONE = "none"
COPY = "a copy, the limit"
Contestants = dict[tuple[str, str], PositionEncoding]
"""(library, encoding) -> the encoding."""


class CopyOfInput(PositionEncoding):
    """A copy of the input: the least work of an encoding that returns a new input."""

    def at_input(self, x: Tensor, position_ids: Tensor, *, text_length: int | Tensor | None = None) -> Tensor:
        return Copy.apply(x)


class CopyOfHeads(PositionEncoding):
    """Copies of queries and keys: the least work, in each layer, of an encoding that returns new ones."""

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        return Copy.apply(q), Copy.apply(k)


class Copy(torch.autograd.Function):
    """Copies into large pages, as our layers do. The backward pass copies the gradient in the same way."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return on_large_pages(torch.empty_like(x)).copy_(x)

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return on_large_pages(torch.empty_like(gradient)).copy_(gradient)


def contestants(shape: Shape, layers: int) -> Contestants:
    spec = CostSettings(batch=shape.batch, length=shape.length, width=shape.width, heads=shape.heads, layers=layers)
    found: Contestants = {("-", NONE): NoPosition()}
    found |= {("posembed", name): encoding_of(spec, name) for name in OURS}
    found |= {(COPY, "learned"): CopyOfInput(), (COPY, "rope"): CopyOfHeads()}
    others = peers.peers(length=shape.length, width=shape.width, heads=shape.heads)
    return found | {(peer, name): layer for name in others for peer, layer in others[name].items()}


class TrainingStep:
    """A training step (forward, backward, AdamW) of a model with one encoding."""

    def __init__(self, model: Decoder, shared: torch.optim.Optimizer, encoding: PositionEncoding, shape: Shape) -> None:
        self.model, self.encoding = model, encoding
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(VOCABULARY, (shape.batch, shape.length + 1), generator=generator)
        self.position_ids = encoding.training_positions(shape.batch, shape.length, generator)
        own = list(encoding.parameters())
        self.optimizers = [shared, *([torch.optim.AdamW(own, fused=True)] if own else [])]

    def __call__(self) -> None:
        self.model.encoding = self.encoding
        logits = self.model(self.ids[:, :-1], self.position_ids)
        F.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten()).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


def steps_of_training(found: Contestants, shape: Shape, layers: int) -> dict[tuple[str, str], Step]:
    torch.manual_seed(0)
    model = Decoder(VOCABULARY, shape.width, layers=layers, heads=shape.heads, encoding=NoPosition())
    shared = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return {key: TrainingStep(model, shared, encoding, shape) for key, encoding in found.items()}


def steps_of_places(found: Contestants, shape: Shape) -> dict[tuple[str, str], Step]:
    return {key: Places(encoding, shape, training=True) for key, encoding in found.items() if key[1] != NONE}


def times_a_step(found: Contestants, shape: Shape, layers: int) -> dict[tuple[str, str], int]:
    """Returns how often a training step does the work of one ``Places`` step."""
    return {
        key: layers if writes(encoding, shape).queries_keys else 1 for key, encoding in found.items() if key[1] != NONE
    }


def steps_of_attention(found: Contestants, shape: Shape) -> dict[tuple[str, str], Step]:
    layer = Attention(dim=shape.width, heads=shape.heads, dropout=0.0)
    return {
        ("-", NONE): AttentionWith(NoPosition(), layer, shape),
        **{key: Places(encoding, shape) for key, encoding in found.items() if key[1] != NONE},
    }


def turns(steps: dict[tuple[str, str], Step], rounds: int) -> dict[tuple[str, str], Estimate]:
    times = take_turns({" ".join(key): step for key, step in steps.items()}, seconds=0.0, fewest=rounds)
    return {key: times[" ".join(key)] for key in steps}


def rows_of(times: dict[tuple[str, str], Estimate], cells: Callable[[tuple[str, str]], list[str]]) -> list[list[str]]:
    """Returns the rows of a table, each of our encodings next to its peers."""
    order = sorted(times, key=lambda key: (key[1] != NONE, OURS.index(key[1]) if key[1] in OURS else 0))
    return [[key[1], key[0], milliseconds(times[key].value), *cells(key)] for key in order]


def described(value: Estimate) -> str:
    return measured(value, part)


def added(times: dict[tuple[str, str], Estimate], key: tuple[str, str]) -> str:
    """Returns the time that an encoding adds, relative to the step without one."""
    share = ratio(times[key], times[("-", NONE)])
    less = Estimate(
        share.value - 1,
        None if share.low is None else share.low - 1,
        None if share.high is None else share.high - 1,
        share.values,
    )
    return described(less)


def own_share(time: Estimate, often: int, step: Estimate) -> Estimate:
    """Estimates the time of an encoding's own work, as a share of the step without an encoding."""
    return estimate_median([often * value / step.value for value in time.values])


def published(name: str) -> str:
    quoted = quoted_share(name)
    return "" if quoted is None else part(quoted)


def against_ours(times: dict[tuple[str, str], Estimate], key: tuple[str, str]) -> str:
    """Returns a peer's time as a multiple of ours; below 1, the peer is faster."""
    ours = ("posembed", key[1])
    return "" if key == ours or ours not in times else f"{ratio(times[key], times[ours]).value:.3f}"


def verdicts(shares: dict[tuple[str, str], Estimate], attention: dict[tuple[str, str], Estimate]) -> list[str]:
    """Returns the verdict on each claim. shares: each encoding's share of a training step."""
    lines = []
    for name in OURS:
        quoted, ours = quoted_share(name), ("posembed", name)
        if quoted is not None:
            for of, share in (
                ("a step of training", shares[ours]),
                ("attention", ratio(attention[ours], attention[("-", NONE)])),
            ):
                lines.append(
                    f"- {name}: {part(share.value)} of {of}, at most the published {part(quoted)}: "
                    f"{pages.at_most(share, quoted)}."
                )
    for library, name in shares:
        if library not in ("posembed", COPY):
            times = estimate_median(
                [
                    (1 + ours) / (1 + theirs)
                    for ours, theirs in zip(
                        shares[("posembed", name)].values, shares[(library, name)].values, strict=True
                    )
                ]
            )
            lines.append(
                f"- {name}: a step takes {times.value:.4f} times as long as with {library}, at most 1.03: "
                f"{pages.at_most(times, 1 + NOT_FASTER_BY)}."
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1, help="sequences in the training step")
    parser.add_argument("--attention-batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of whole steps and of attention")
    parser.add_argument("--own-rounds", type=int, default=41, help="rounds of an encoding's own work")
    args = parser.parse_args()
    keep = all(getattr(args, name) == parser.get_default(name) for name in vars(args))

    shape = Shape(args.batch, args.length, args.width, args.heads)
    wide = Shape(args.attention_batch, args.length, args.width, args.heads)
    found = contestants(shape, args.layers)
    in_a_model = {key: encoding for key, encoding in found.items() if key[0] != COPY}
    step = turns(steps_of_training(in_a_model, shape, args.layers), args.rounds)
    own = turns(steps_of_places(found, shape), args.own_rounds)
    often = times_a_step(found, shape, args.layers)
    shares = {key: own_share(own[key], often[key], step[("-", NONE)]) for key in own}
    attention = turns(steps_of_attention(contestants(wide, args.layers), wide), args.rounds)

    lines = ["# What an encoding adds", "", "    python benchmarks/overhead.py", ""]
    lines += [pages.machine(*peers.PACKAGES), ""]
    lines += [
        f"Medians of {args.rounds} rounds in which all encodings take turns, with 95 % intervals of the median.",
        "",
    ]
    lines += [
        f"## A training step: {args.layers} layers, width {args.width}, batch {args.batch}, length {args.length}",
        "",
        'Forward, backward and AdamW. "Added" is relative to the step without position, round by round.',
        "",
    ]
    head = ["encoding", "of", "ms", "added", "times ours"]
    lines += pages.table(head, rows_of(step, lambda key: [added(step, key), against_ours(step, key)]))
    lines += [
        "## The encoding's own work in that step",
        "",
        f"Forward and backward, {args.own_rounds} rounds. The share is the time multiplied by how often a step "
        "does this work, relative to the step without position.",
        "",
    ]
    lines += pages.table(
        ["encoding", "of", "ms", "of the step", "published", "times ours"],
        rows_of(
            own,
            lambda key: [described(shares[key]), published(key[1]), against_ours(own, key)],
        ),
    )
    lines += [
        f"## Compared with attention, forward: batch {args.attention_batch}, length {args.length}, width {args.width}",
        "",
        "The encoding alone, for one layer; “none” is the layer of attention. Published: a table copied by guides.",
        "",
    ]
    plain = attention[("-", NONE)]

    def beside(key: tuple[str, str]) -> list[str]:
        if key[1] == NONE:
            return ["", "", ""]
        return [
            described(ratio(attention[key], plain)),
            published(key[1]),
            against_ours(attention, key),
        ]

    lines += pages.table(
        ["encoding", "of", "ms", "of attention", "published", "times ours"], rows_of(attention, beside)
    )
    lines += ["## The claims", "", *verdicts(shares, attention), ""]
    pages.write("overhead", lines, keep=keep)


if __name__ == "__main__":
    main()
