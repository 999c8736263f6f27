"""LongRoPE's search for the factors of a trained model (Ding et al. 2024, arXiv:2402.13753, section 3.2).

Each factor divides the frequency of one pair of components, and the first tokens of a text may keep their positions.
The search is evolutionary. It starts from the factors of linear scaling, NTK and YaRN, and from mutations of them. In
each generation the better half of the population stays, and a quarter each is replaced by mutations and by crossovers.
As in the paper, factors are between 1 and 1.25 times the extension, and no factor is below the one before it: slower
pairs are stretched at least as much as faster ones. The loss alone decides, such as the loss of a model on long texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Annotated

import torch
from annotated_types import Ge

from posembed.arguments import checks_arguments
from posembed.errors import ArgumentError
from posembed.layers.rotary import rotary_frequencies
from posembed.layers.rotary_scaling import LinearScaling, LongRopeScaling, NTKScaling, YarnScaling
from posembed.settings import Count, Positive

INITIAL_TOKENS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 64, 128, 256)
"""The numbers of first tokens that may keep their positions (the paper's table 4)."""
FURTHEST = 1.25
"""The highest factor, as a multiple of the extension."""
MUTATED = 0.3
"""The probability that a mutation changes one factor, or that a crossover takes it from the second parent."""
TRIES = 20
"""How often a mutation or crossover is drawn again if it is not new or not in order."""

Genes = tuple[tuple[float, ...], int]
"""The factors of all pairs, and the number of first tokens that keep their positions."""


@dataclass(frozen=True)
class LongRopeSearch:
    """The result of ``search_longrope_factors``.

    Args:
        scaling: the scaling with the lowest loss.
        loss: its loss.
        starts: the loss of each starting point: "linear", "ntk" and "yarn".
        evaluations: the number of losses that were computed.

    Examples:
        >>> from posembed import search_longrope_factors
        >>> found = search_longrope_factors(
        ...     lambda scaling: sum(scaling.long_factors), head_dim=8, original_length=64, length=256, budget=40
        ... )
        >>> found.loss <= min(found.starts.values())
        True
    """

    scaling: LongRopeScaling
    loss: float
    starts: dict[str, float]
    evaluations: int


@checks_arguments
def search_longrope_factors(
    loss: Callable[[LongRopeScaling], float],
    *,
    head_dim: int,
    original_length: Count,
    length: Count,
    base: Positive = 10000.0,
    attention_factor: Positive | None = None,
    budget: Annotated[int, Ge(3)] = 200,
    population: Annotated[int, Ge(4)] = 16,
    seed: int = 0,
) -> LongRopeSearch:
    """Searches for the LongRoPE factors with the lowest loss. The result is never worse than its starting points.

    Args:
        loss: maps a LongRopeScaling to a number, such as the mean loss in nats of a model on texts of ``length``
            tokens, after ``rope.scaling = scaling``. A loss that is not finite counts as the worst.
        head_dim: the width of one head, d; the scaling has d / 2 factors.
        original_length: the training length in tokens. Texts up to this length keep their frequencies.
        length: the length in tokens to search for, above ``original_length``.
        base: the base of RoPE.
        attention_factor: as in ``LongRopeScaling``: None means the paper's, and 1 means none.
        budget: the largest number of evaluations of the loss, at least 3.
        population: the number of candidates in one generation, at least 4. The paper has 64, and about 1,300
            evaluations.
        seed: the same seed and losses give the same factors.

    Raises:
        ArgumentError: lengths, a base, a budget or a population that cannot be used, or a loss that is not a number.

    Examples:
        >>> import math
        >>> from posembed import search_longrope_factors
        >>> def loss(scaling):  # made up: the best factors are 1, 2, 3 and 4
        ...     return sum(abs(math.log(f / best)) for f, best in zip(scaling.long_factors, (1, 2, 3, 4)))
        >>> found = search_longrope_factors(loss, head_dim=8, original_length=64, length=256, budget=500)
        >>> found.loss < 0.1 * min(found.starts.values())
        True
    """
    if length <= original_length:
        raise ArgumentError(
            f"length must be above original_length={original_length}, the length up to which nothing is scaled; got "
            f"{length}"
        )
    extension, random = length / original_length, Random(seed)
    pairs = len(rotary_frequencies(head_dim, base=base))
    known: dict[Genes, float] = {}

    def scaling_of(genes: Genes) -> LongRopeScaling:
        factors, initial_tokens = genes
        return LongRopeScaling(
            (1.0,) * pairs, factors, original_length, extension, attention_factor, initial_tokens=initial_tokens
        )

    def evaluate(genes: Genes | None) -> bool:
        """Computes the loss of new genes. Returns False if there are none, or no budget is left."""
        if genes is None or len(known) >= budget:
            return False
        given = loss(scaling_of(genes))
        try:
            value = float(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(f"loss must return a number for each scaling; got {given!r}") from error
        known[genes] = value if math.isfinite(value) else math.inf
        return True

    starts = {name: (factors, 0) for name, factors in starting_factors(head_dim, original_length, length, base).items()}
    for genes in dict.fromkeys(starts.values()):
        evaluate(genes)
    evolution = _Evolution(random, known, highest=FURTHEST * extension, length=length)
    while len(known) < population and evaluate(evolution.mutation(random.choice(list(starts.values())))):
        pass
    found = True
    while found and len(known) < budget:
        parents = sorted(known, key=known.__getitem__)[: population // 2]
        found = False
        for i in range(population // 2):
            child = evolution.crossover(*random.sample(parents, 2)) if i % 2 and len(parents) > 1 else None
            found |= evaluate(child or evolution.mutation(random.choice(parents)))
    best = min(known, key=known.__getitem__)
    return LongRopeSearch(scaling_of(best), known[best], {name: known[g] for name, g in starts.items()}, len(known))


def starting_factors(head_dim: int, original_length: int, length: int, base: float) -> dict[str, tuple[float, ...]]:
    """Returns the factors that divide the frequencies under linear scaling, NTK and YaRN, for texts of ``length``."""
    frequencies, extension = rotary_frequencies(head_dim, base=base).double(), length / original_length
    scalings = {
        "linear": LinearScaling(factor=extension),
        "ntk": NTKScaling(factor=extension),
        "yarn": YarnScaling(original_length, factor=extension),
    }
    factors = {name: frequencies / scaling.formula(frequencies, extension, base) for name, scaling in scalings.items()}
    # Rounding must not put a factor below the one before it.
    return {name: tuple(torch.cummax(each, 0).values.clamp(min=1).tolist()) for name, each in factors.items()}


class _Evolution:
    """Draws new genes that keep the factors in order. ``known``: the genes that were evaluated before."""

    def __init__(self, random: Random, known: dict[Genes, float], *, highest: float, length: int) -> None:
        self.random, self.known, self.highest = random, known, highest
        self.initial_tokens = [count for count in INITIAL_TOKENS if count < length]

    def mutation(self, genes: Genes) -> Genes | None:
        """Draws some factors again, each between its neighbours. Returns None if nothing new was found."""
        for _ in range(TRIES):
            factors, initial_tokens = list(genes[0]), genes[1]
            for i in range(len(factors)):
                if self.random.random() < MUTATED:
                    low = factors[i - 1] if i else 1.0
                    high = factors[i + 1] if i + 1 < len(factors) else self.highest
                    factors[i] = self.random.uniform(low, max(low, high))
            if self.random.random() < MUTATED:
                initial_tokens = self.random.choice(self.initial_tokens)
            if (child := (tuple(factors), initial_tokens)) not in self.known:
                return child
        return None

    def crossover(self, first: Genes, second: Genes) -> Genes | None:
        """Takes some factors from the second parent. Returns None if nothing new in order was found."""
        for _ in range(TRIES):
            factors = tuple(
                two if self.random.random() < MUTATED else one for one, two in zip(first[0], second[0], strict=True)
            )
            child = factors, self.random.choice((first[1], second[1]))
            if child not in self.known and list(factors) == sorted(factors):
                return child
        return None
