"""Why learned-averaged loses distant passkeys, and what keeps them: tails at test time, and other training.

    python benchmarks/passkey_reach.py [FOLDER]

Trains learned-averaged and variants of it on passkeys of up to 64 characters, keeps their weights in FOLDER and tests
them at up to 64 times that size. With other tails, the trained models are tested again. A run takes four minutes on one
core, the tests as long again. You can stop it at any time; it continues after the last finished model. It prints its
results; docs/lengths-learned.md reports them.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posembed.comparison import prepare
from posembed.lab.questions.problems import ProblemSpec
from posembed.lab.runs.train import learning_rate, make_optimizer
from posembed.lab.tasks.problem_texts import PROBLEMS
from posembed.lab.tasks.problems import ProblemSolving, right_tokens
from posembed.layers.averaged import AveragedPositionalEmbedding, DistanceBias
from posembed.layers.base import PositionEncoding
from posembed.nn.encodings import ENCODINGS, Entry, Sizes

SIZES = (32, 64, 128, 256, 512)
FAR_SIZES = {2048: 50, 4096: 20}
"""The sizes that are 32 and 64 times the training size, and how many problems to test there."""


class Penalized(AveragedPositionalEmbedding):
    """AveragedPositionalEmbedding with a penalty in its heads with position, proportional to the distance.

    slope: the penalty per token. near: the number of distances with learned values; distances past it have the last of
    them. start: the distance from which the penalty counts. until: the distance past which it stays the same.
    """

    def __init__(self, *, slope: float, near: int | None = None, start: int = 0, **others: Any) -> None:
        super().__init__(**others)
        self.slope, self.near, self.start, self.until = slope, near, start, 10**9

    def in_layer(self, project: Callable[[Tensor], Tensor]) -> DistanceBias:
        return PenalizedBias(super().in_layer(project), self)


class PenalizedBias(DistanceBias):
    def __init__(self, bias: DistanceBias, of: Penalized) -> None:
        super().__init__(bias.by_distance)
        self.without, self.of = [bias], of

    def formula(self, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        of, without = self.of, self.without[0].formula(device)

        def bias(head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = (q - k).clamp(min=0)
            penalty = of.slope * (distance.clamp(max=of.until) - of.start).clamp(min=0)
            learned = without(head, distance if of.near is None else distance.clamp(max=of.near - 1), 0 * k)
            return learned - torch.where(head < of.heads - of.heads_without, penalty, 0.0)

        return bias


TAILS: Mapping[str, Callable[[DistanceBias, int], tuple[Tensor, Tensor]]] = {
    "the fitted line": lambda bias, n: (bias.intercept, bias.slope),
    "a constant": lambda bias, n: (bias.by_distance[:, n // 2 :].mean(-1), 0 * bias.slope),
    "the line from the last value on": lambda bias, n: from_level(bias.by_distance[:, -8:].mean(-1), bias.slope, n),
    "slope -1 or steeper": lambda bias, n: from_level(level(bias, n), bias.slope.clamp(max=-1), n),
    "slope -1.5 or steeper": lambda bias, n: from_level(level(bias, n), bias.slope.clamp(max=-1.5), n),
    "slope -2 or steeper": lambda bias, n: from_level(level(bias, n), bias.slope.clamp(max=-2), n),
    "nothing: hidden": lambda bias, n: (bias.intercept - 1e4, bias.slope),
}
"""The lines past the training length to test a trained model with: (bias, N) -> intercepts and slopes, (H,) each."""


def level(bias: DistanceBias, n: int) -> Tensor:
    return bias.intercept + bias.slope * torch.tensor(n).log1p()


def from_level(start: Tensor, slope: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Returns the line in log(1 + distance) with this slope that is at ``start`` at distance n."""
    return start - slope * torch.tensor(n).log1p(), slope


class Tested(AveragedPositionalEmbedding):
    """A trained encoding with another tail in some layers, and other queries in the heads without position."""

    tail: Any = staticmethod(TAILS["the fitted line"])
    in_layers: tuple[int, ...] = (0, 1)
    power = 0.0
    """The queries of heads without position are multiplied by (ln n / ln N) ** power where they see n > N tokens."""
    calls = 0

    def in_layer(self, project: Callable[[Tensor], Tensor]) -> DistanceBias:
        bias = super().in_layer(project)
        if self.calls % 2 in self.in_layers:
            with_position = torch.arange(self.heads) < self.heads - self.heads_without
            bias.intercept, bias.slope = (x * with_position for x in self.tail(bias, self.max_len))
        self.calls += 1
        return bias

    def at_queries_keys(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, **_: object
    ) -> tuple[Tensor, Tensor]:
        ratio = (q_positions + 1).clamp(min=self.max_len).log() / torch.tensor(self.max_len).log()
        without = torch.arange(self.heads) >= self.heads - self.heads_without
        factor = torch.where(without.view(-1, 1), ratio.unsqueeze(-2) ** self.power, 1.0)
        return q * factor.unsqueeze(-1), k


def averaged(std: float = 1.0, **penalty: Callable[[int], float]) -> Entry:
    """Returns an Entry. ``penalty``: the arguments of Penalized, as functions of the training length."""

    def build(sizes: Sizes) -> PositionEncoding:
        others = {"max_len": sizes.length, "dim": sizes.dim, "heads": sizes.given("heads"), "std": std}
        if not penalty:
            return AveragedPositionalEmbedding(**others)
        return Penalized(**others, **{name: value(sizes.length) for name, value in penalty.items()})

    return Entry(build, "learned-averaged, changed", "posembed")


TRAINED = {
    "averaged": averaged(),
    "averaged, fading": averaged(slope=lambda n: 5 / n),
    "averaged, near": averaged(slope=lambda n: 8 / (n - n // 4), near=lambda n: n // 4, start=lambda n: n // 4 - 1),
    "averaged, std .1": averaged(0.1),
    "averaged, near, std .1": averaged(0.1, slope=lambda n: 1 / 16, near=lambda n: n // 4),
}
"""The last has ALiBi's slope for the first of two heads. A penalty of 8 at the training length, or of 5, leaves a
distant token a weight of less than a thousandth, or a hundredth, of a near one's."""


def trained(task: ProblemSolving, spec: ProblemSpec, folder: Path, bfloat16: bool) -> Any:
    """Returns the model of a spec with its trained weights, which are read from the folder if they are there."""
    suffix = ", bfloat16" if bfloat16 else ""
    model, path = task.build(spec), folder / f"{spec.encoding}, seed {spec.seed}{suffix}.pt"
    if not path.exists():
        optimizer = make_optimizer(spec, model)
        for step in range(spec.steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(spec, step)
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = task.loss(model, *task.draw(spec, model, step))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip)
            optimizer.step()
            optimizer.zero_grad()
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path))
    return model.eval()


def exact(spec: ProblemSpec, model: Any, sizes: Iterable[int]) -> str:
    """Returns the exact match at each size, in percent."""
    cells = []
    for size in sizes:
        problems = FAR_SIZES.get(size, spec.test_problems)
        right = right_tokens(replace(spec, test_problems=problems), model, size, torch.device("cpu"))
        assert right is not None
        cells.append(f"{100 * right.all(dim=1).double().mean().item():5.1f}")
    return " | ".join(cells)


def by_distance(spec: ProblemSpec, model: Any, size: int) -> str:
    """Returns the exact match in percent by the number of characters between the key and the answer, in quarters."""
    drawn = random.Random(f"passkey {size}")
    behind = [size + 1 - PROBLEMS["passkey"].write(size, drawn)[0].index("#") for _ in range(spec.test_problems)]
    right = right_tokens(spec, model, size, torch.device("cpu"))
    assert right is not None
    quarter = (torch.tensor(behind) * 4 // (size + 1)).clamp(max=3)
    shares = [right.all(dim=1)[quarter == n].double().mean().item() for n in range(4)]
    return " | ".join(f"{100 * share:5.1f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/passkey-reach"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--models", nargs="+", choices=TRAINED, default=list(TRAINED))
    parser.add_argument("--far", action="store_true", help="test at 2,048 and 4,096 characters too; takes long")
    parser.add_argument("--bfloat16", action="store_true", help="train under autocast, which takes half the time")
    parser.add_argument("--tails", action="store_true", help="test the models with other tails too")
    arguments = parser.parse_args()
    ENCODINGS.update(TRAINED)
    settings = {"seeds": arguments.seeds, "device": "cpu", "out": arguments.folder, "test_sizes": SIZES}
    prepared = prepare("passkey", {"encodings": arguments.models, **settings})
    for spec in prepared.specs:
        model = trained(prepared.task, spec, arguments.folder, arguments.bfloat16)
        with torch.no_grad():
            sizes = (*SIZES, *FAR_SIZES) if arguments.far else SIZES
            print(f"{spec.encoding}, seed {spec.seed} | {exact(spec, model, sizes)}", flush=True)
            print(f"  at {SIZES[-1]}, by distance, in quarters | {by_distance(spec, model, SIZES[-1])}", flush=True)
            if arguments.tails and spec.encoding == "averaged":
                test_other_tails(spec, model)
            if arguments.tails and isinstance(model.encoding, Penalized):
                model.encoding.until = model.encoding.max_len
                print(f"  the penalty constant past the training length | {exact(spec, model, sizes)}", flush=True)


def test_other_tails(spec: ProblemSpec, model: Any) -> None:
    model.encoding.__class__ = Tested
    for power in (1.0, 2.0):
        model.encoding.power = power
        print(f"  content heads times (ln n / ln N)^{power:g} | {exact(spec, model, (128, 512))}", flush=True)
    model.encoding.power = 0.0
    for layers in ((0, 1), (0,), (1,)):
        for name, tail in TAILS.items():
            model.encoding.tail, model.encoding.in_layers, model.encoding.calls = tail, layers, 0
            print(f"  layers {layers}: {name} | {exact(spec, model, (128, 512))}", flush=True)


if __name__ == "__main__":
    main()
