"""Why learned-averaged loses distant passkeys, and what keeps them: tails at test time, and other training.

    python benchmarks/passkey_reach.py [FOLDER]

Trains learned-averaged and variants of it on passkeys of up to 64 characters, keeps their weights in FOLDER and tests
them at up to 64 times that size. With other tails, the trained models are tested again. A run takes four minutes on one
core, the tests as long again. You can stop it at any time; it continues after the last finished model. It prints its
results; docs/research/lengths-learned.md reports them.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from other_encodings import NOT_KEPT, SharperPositionalEmbedding
from torch import Tensor

import posembed
from posembed.comparison import prepare
from posembed.lab.runs.train import learning_rate, make_optimizer
from posembed.lab.tasks.problem_texts import PROBLEMS
from posembed.lab.tasks.problems import ProblemSolving, right_tokens
from posembed.lab.tasks.problems_specs import ProblemSpec
from posembed.lab.tasks.text_specs import REPEAT_GAIN, SAME_TOKENS
from posembed.layers.averaged import DistanceBias
from posembed.layers.base import PositionEncoding
from posembed.nn.encodings import ENCODINGS, Entry, Sizes

SIZES = (32, 64, 128, 256, 512)
FAR_SIZES = {2048: 50, 4096: 20}
"""The sizes that are 32 and 64 times the training size, and how many problems to test there."""


class Penalized(SharperPositionalEmbedding):
    """SharperPositionalEmbedding with a penalty in its heads with position.

    penalty: the penalty as a function of the distance. near: the number of distances with learned values; distances
    past it have the last of them. until: the distance past which the penalty stays the same.
    """

    def __init__(self, *, penalty: Callable[[Tensor], Tensor], near: int | None = None, **others: Any) -> None:
        super().__init__(**others)
        self.penalty, self.near, self.until = penalty, near, 10**9

    def in_layer(self, project: Callable[[Tensor], Tensor]) -> DistanceBias:
        return PenalizedBias(super().in_layer(project), self)


class Faster(SharperPositionalEmbedding):
    """SharperPositionalEmbedding whose parameters are its rows, divided by ``times``: the rows learn faster."""

    def __init__(self, *, times: float, std: float, **others: Any) -> None:
        super().__init__(std=std / times, **others)
        self.times = times

    def in_layer(self, project: Callable[[Tensor], Tensor]) -> DistanceBias:
        return super().in_layer(lambda rows: project(rows * self.times))


class PenalizedBias(DistanceBias):
    def __init__(self, bias: DistanceBias, of: Penalized) -> None:
        super().__init__(bias.by_distance)
        self.without, self.of = [bias], of

    def formula(self, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        of, without = self.of, self.without[0].formula(device)

        def bias(head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = (q - k).clamp(min=0)
            penalty = of.penalty(distance.clamp(max=of.until).float())
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


class Tested(SharperPositionalEmbedding):
    """A trained encoding with another tail in some layers, and other queries in the heads without position."""

    tail: Any = staticmethod(TAILS["the fitted line"])
    in_layers: tuple[int, ...] = (0, 1)
    power = 0.0
    """The queries of some heads are multiplied by (ln n / ln N) ** power where they see n > N tokens."""
    powered = "without"
    """Which heads: those "without" position, or "all"."""
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
        q, k = super().at_queries_keys(q, k, q_positions, k_positions)
        ratio = (q_positions + 1).clamp(min=self.max_len).log() / torch.tensor(self.max_len).log()
        chosen = torch.arange(self.heads) >= (0 if self.powered == "all" else self.heads - self.heads_without)
        factor = torch.where(chosen.view(-1, 1), ratio.unsqueeze(-2) ** self.power, 1.0)
        return q * factor.unsqueeze(-1), k


Penalty = Callable[[int], Callable[[Tensor], Tensor]]
"""Maps the training length to the penalty as a function of the distance."""


def averaged(
    std: float = 1.0, *, penalty: Penalty | None = None, near: bool = False, log: float = 0.0, times: float = 1.0
) -> Entry:
    """Returns an Entry.

    near: whether only the nearest quarter of the distances has learned values. log: the power of the logarithm of the
    tokens seen with which the logits of the heads without position grow, from a quarter of the training length on; 0
    means that they do not. times: how many times as fast the rows learn.
    """

    def build(sizes: Sizes) -> PositionEncoding:
        n = sizes.length
        others = {"max_len": n, "dim": sizes.dim, "heads": sizes.given("heads"), "std": std}
        others |= {"log_length": n // 4, "log_power": log}
        if times != 1:
            return Faster(times=times, **others)
        if penalty is None:
            return SharperPositionalEmbedding(**others)
        return Penalized(penalty=penalty(n), near=n // 4 if near else None, **others)

    return Entry(build, "learned-averaged, changed", "posembed")


def line_after_quarter(n: int) -> Callable[[Tensor], Tensor]:
    return lambda distance: 8 * (distance + 1 - n // 4).clamp(min=0) / (n - n // 4)


def logarithm_after_quarter(n: int) -> Callable[[Tensor], Tensor]:
    return lambda distance: 6 * ((1 + distance) / (n // 4)).log().clamp(min=0)


TRAINED = {
    "averaged": averaged(),
    "averaged, std .3": averaged(0.3),
    "averaged, std .1": averaged(0.1),
    "averaged, log": averaged(log=True),
    "averaged, std .1, log": averaged(0.1, log=True),
    "averaged, std .1, square root of log": averaged(0.1, log=0.5),
    "learned-averaged-far": NOT_KEPT["learned-averaged-far"],
    **{name: ENCODINGS[name] for name in ("alibi", "rope")},
    "averaged, std .1, 3 times as fast, log": averaged(0.1, log=True, times=3),
    "averaged, std .1, 10 times as fast, log": averaged(0.1, log=True, times=10),
    "averaged, std .3, 3 times as fast, log": averaged(0.3, log=True, times=3),
    "averaged, std .3, 10 times as fast, log": averaged(0.3, log=True, times=10),
    "averaged, fading": averaged(penalty=lambda n: lambda distance: 5 * distance / n),
    "averaged, near, line": averaged(penalty=line_after_quarter, near=True),
    "averaged, near, logarithm, std .3": averaged(0.3, penalty=logarithm_after_quarter, near=True),
    "averaged, near, logarithm, std .1": averaged(0.1, penalty=logarithm_after_quarter, near=True),
    "averaged, near, logarithm, std .1, log": averaged(0.1, penalty=logarithm_after_quarter, near=True, log=True),
    "averaged, near, ALiBi, std .1": averaged(0.1, penalty=lambda n: lambda distance: distance / 16, near=True),
}
"""The last has ALiBi's slope for the first of two heads."""


def trained(task: ProblemSolving, spec: ProblemSpec, folder: Path, bfloat16: bool) -> Any:
    """Returns the model of a spec with its trained weights, which are read from the folder if they are there."""
    suffix = ", bfloat16" if bfloat16 else ""
    length = "" if spec.steps == 2000 else f", {spec.steps} steps"
    model, path = task.build(spec), folder / f"{spec.encoding}, seed {spec.seed}{length}{suffix}.pt"
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
        tested = right_tokens(replace(spec, test_problems=problems), model, size, torch.device("cpu"))
        assert tested is not None
        cells.append(f"{100 * tested[0].all(dim=1).double().mean().item():5.1f}")
    return " | ".join(cells)


def by_distance(spec: ProblemSpec, model: Any, size: int) -> str:
    """Returns the exact match in percent by the number of characters between the key and the answer, in quarters."""
    drawn = random.Random(f"passkey {size}")
    behind = [size + 1 - PROBLEMS["passkey"].write(size, drawn)[0].index("#") for _ in range(spec.test_problems)]
    tested = right_tokens(spec, model, size, torch.device("cpu"))
    assert tested is not None
    quarter = (torch.tensor(behind) * 4 // (size + 1)).clamp(max=3)
    shares = [tested[0].all(dim=1)[quarter == n].double().mean().item() for n in range(4)]
    return " | ".join(f"{100 * share:5.1f}" for share in shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/passkey-reach"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--models", nargs="+", choices=TRAINED, default=list(TRAINED))
    parser.add_argument("--far", action="store_true", help="test at 2,048 and 4,096 characters too; takes long")
    parser.add_argument("--bfloat16", action="store_true", help="train under autocast, which takes half the time")
    parser.add_argument("--tails", action="store_true", help="test the models with other tails too")
    parser.add_argument("--text", type=int, metavar="STEPS", help="instead, measure the perplexity after so many steps")
    arguments = parser.parse_args()
    ENCODINGS.update(TRAINED)
    if arguments.text is not None:
        perplexity(arguments.models, arguments.text, arguments.seeds, arguments.folder / "text")
        return
    settings = {
        "seeds": arguments.seeds,
        "steps": arguments.steps,
        "device": "cpu",
        "out": arguments.folder,
        "test_sizes": SIZES,
    }
    prepared = prepare("passkey", {"encodings": arguments.models, **settings})
    for spec in prepared.specs:
        model = trained(prepared.task, spec, arguments.folder, arguments.bfloat16)
        with torch.no_grad():
            sizes = (*SIZES, *FAR_SIZES) if arguments.far else SIZES
            print(f"{spec.encoding}, seed {spec.seed} | {exact(spec, model, sizes)}", flush=True)
            print(f"  at {SIZES[-1]}, by distance, in quarters | {by_distance(spec, model, SIZES[-1])}", flush=True)
            if arguments.tails and type(model.encoding) is SharperPositionalEmbedding:
                test_other_tails(spec, model)
            if arguments.tails and isinstance(model.encoding, Penalized):
                model.encoding.until = model.encoding.max_len
                print(f"  the penalty constant past the training length | {exact(spec, model, sizes)}", flush=True)


def perplexity(models: list[str], steps: int, seeds: int, folder: Path) -> None:
    """Prints the perplexity of the same tokens by length, and the gain of a repeated passage by the tokens between."""
    settings = {"preset": "quick", "steps": steps, "seeds": seeds, "device": "cpu", "out": folder}
    if steps != 500:  # as in learned_full_attention.py
        settings |= {"warmup": 100, "test_tokens": 65_536}
    found = posembed.compare("lengths", encodings=models, **settings).summary
    for name in found.names:
        for metric in (SAME_TOKENS, REPEAT_GAIN):
            by_x = found.by_x(metric, name)
            cells = [f"{size}: {estimate.value:.3f} {estimate.values}" for size, estimate in by_x.items() if estimate]
            print(f"{name} | {' | '.join(cells)}", flush=True)


def test_other_tails(spec: ProblemSpec, model: Any) -> None:
    model.encoding.__class__ = Tested
    for powered, power in (("without", 0.8), ("without", 1.0), ("without", 1.2), ("without", 2.0), ("all", 1.0)):
        model.encoding.powered, model.encoding.power = powered, power
        print(f"  heads {powered}: times (ln n / ln N)^{power:g} | {exact(spec, model, (128, 512))}", flush=True)
    model.encoding.power = 0.0
    for layers, names in {(0, 1): tuple(TAILS), (0,): ("nothing: hidden",), (1,): ("a constant",)}.items():
        for name in names:
            model.encoding.tail, model.encoding.in_layers, model.encoding.calls = TAILS[name], layers, 0
            print(f"  layers {layers}: {name} | {exact(spec, model, (128, 512))}", flush=True)


if __name__ == "__main__":
    main()
