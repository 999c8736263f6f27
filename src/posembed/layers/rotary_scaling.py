"""Scalings of RoPE's frequencies for texts longer than the training texts.

Each scaling is a frozen dataclass of settings with a pure formula from old to new frequencies. RotaryEmbedding takes a
scaling as ``scaling=``. The factor is how many times longer texts become. It can be a fixed number, as in a checkpoint
that was trained with that number. By default it is the ratio of each text's length to the original length, at least 1:
short texts are read as in training, and each longer text is scaled only as far as it needs.

With this ratio, the rotation of a token depends on the length of its whole text. Without ``text_length``, that length
is the largest position plus one (as in transformers' dynamic NTK): per sequence for position ids (B, L), over all
sequences for shared ids (L,). If a sequence is not one whole text (a shard, packed texts, padding under shared ids,
decoding with a cache), only the caller knows the length and must pass it. All rotations change as a text grows. A cache
must then hold keys before their rotation and rotate them with each new query (``at_queries_keys`` with q_positions and
k_positions); a cache of rotated keys needs a fixed factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from posembed.arguments import ChecksCalls, checks_arguments
from posembed.errors import ArgumentError
from posembed.settings import Positive, TwoOrMore

Extension = Annotated[float, Ge(1), Lt(math.inf)]
Factor = float | Tensor
"""How many times longer texts become, at least 1: a number, or a tensor (..., 1) that broadcasts."""


class RotaryScaling(ChecksCalls):
    """The base of all scalings that RotaryEmbedding takes. A subclass defines ``formula`` or overrides ``scaled``."""

    factor: float | None
    original_length: int | None

    def _require_above(self, high: str, low: str) -> None:
        if getattr(self, low) >= getattr(self, high):
            raise ArgumentError(f"{high} must be above {low}; got {getattr(self, high):g} and {getattr(self, low):g}")

    def formula(self, frequencies: Tensor, factor: Factor, base: float) -> Tensor:
        """Computes the frequencies (..., d/2) for texts ``factor`` times longer, given the training frequencies."""
        raise NotImplementedError

    def scaled(self, frequencies: Tensor, *, base: float, length: Tensor) -> tuple[Tensor, Factor]:
        """Scales the frequencies (d/2,) for texts of these lengths. Returns (..., d/2) and the attention factor.

        The attention factor, a number or a tensor (..., 1), multiplies the cosines and sines of queries and keys.
        """
        return self.formula(frequencies, self._factor(length), base), 1.0

    def _factor(self, length: Tensor) -> Factor:
        """Returns the fixed factor, or a tensor (..., 1): the ratio of each text's length to the original length."""
        if self.factor is not None:
            return self.factor
        assert self.original_length is not None
        return (length.to(torch.float32) / self.original_length).clamp(min=1.0).unsqueeze(-1)


@checks_arguments
@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Linear scaling by a fixed ``factor``, or by the ratio of the text's length to ``original_length``.

    It divides all positions by the factor: position interpolation (Chen et al. 2023, arXiv:2306.15595).

    Raises:
        ArgumentError: both or neither of factor and original_length, a factor below 1, or a length below 2.

    Examples:
        >>> from posembed import RotaryEmbedding
        >>> from posembed.layers import LinearScaling
        >>> rope = RotaryEmbedding(16, scaling=LinearScaling(factor=4.0))  # position 8 now has the angles of position 2
    """

    factor: Extension | None = None
    original_length: TwoOrMore | None = None

    def __post_init__(self) -> None:
        if (self.factor is None) == (self.original_length is None):
            raise ArgumentError(
                "give either a fixed factor or an original_length, from which each text's factor follows; "
                f"got factor={self.factor} and original_length={self.original_length}"
            )

    def formula(self, frequencies: Tensor, factor: Factor, base: float) -> Tensor:
        return frequencies / factor


class NTKScaling(LinearScaling):
    """NTK-aware scaling by a fixed ``factor``, or by the ratio of the text's length to ``original_length``.

    It multiplies the base by factor^(d/(d-2)) for heads of width d, which divides the slowest frequency by the factor
    and keeps the fastest (bloc97 2023; Peng et al. 2024, arXiv:2309.00071; equations 14 to 16 of paper/yarn.pdf in
    jquesnelle/yarn). With ``original_length``, it equals transformers' "dynamic" with factor 1.

    Raises:
        ArgumentError: as for ``LinearScaling``.

    Examples:
        >>> from posembed import RotaryEmbedding
        >>> from posembed.layers import NTKScaling
        >>> rope = RotaryEmbedding(16, scaling=NTKScaling(original_length=2048))  # scaled past 2,048 tokens
    """

    def formula(self, frequencies: Tensor, factor: Factor, base: float) -> Tensor:
        pairs = len(frequencies)
        exponents = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device) / max(pairs - 1, 1)
        return frequencies * factor**-exponents


def mixed(slowed: Tensor, frequencies: Tensor, kept: Tensor) -> Tensor:
    """Returns (1 - kept) slowed + kept frequencies; to the bit one of them where kept is 0 or 1, or they agree."""
    return torch.lerp(slowed, frequencies.to(slowed.dtype), kept.to(slowed.dtype))


@checks_arguments
@dataclass(frozen=True)
class YarnScaling(RotaryScaling):
    """YaRN scaling by a fixed ``factor``, or by the ratio of the text's length to ``original_length``.

    "NTK by parts" (Peng et al. 2024, arXiv:2309.00071; equations 17 to 22 of paper/yarn.pdf in jquesnelle/yarn): pairs
    that rotate beta_fast times or more within the original length keep their frequency. Pairs that rotate beta_slow
    times or less have it divided by the factor. A linear ramp joins the two groups. As in the authors' code, the ramp
    runs over the pairs' indices and its ends are rounded outward; in equation 18 it runs over the rotations.

    Raises:
        ArgumentError: a factor below 1, a length below 2, or a beta_fast that is not above beta_slow.

    Examples:
        >>> import torch
        >>> from posembed import RotaryEmbedding
        >>> from posembed.layers import YarnScaling
        >>> rope = RotaryEmbedding(16, scaling=YarnScaling(original_length=64))
        >>> q, k = rope(*torch.randn(2, 1, 4, 256, 16))  # four times longer: scaled by 4
    """

    original_length: TwoOrMore
    factor: Extension | None = None
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    attention_factor: Positive | None = None
    """The factor on the cosines and sines of queries and keys. None means 0.1 ln(factor) + 1."""

    def __post_init__(self) -> None:
        self._require_above("beta_fast", "beta_slow")

    def formula(self, frequencies: Tensor, factor: Factor, base: float) -> Tensor:
        pairs = len(frequencies)
        if base <= 1:
            raise ArgumentError(f"YaRN needs frequencies that fall from pair to pair, so a base above 1; got {base}")

        def index_of(turns: float) -> float:
            return pairs * math.log(self.original_length / (turns * 2 * math.pi)) / math.log(base)

        low = max(math.floor(index_of(self.beta_fast)), 0)
        high = max(min(math.ceil(index_of(self.beta_slow)), 2 * pairs - 1), low + 0.001)
        index = torch.arange(pairs, dtype=frequencies.dtype, device=frequencies.device)
        interpolated = ((index - low) / (high - low)).clamp(0, 1)
        return mixed(frequencies / factor, frequencies, 1 - interpolated)

    def scaled(self, frequencies: Tensor, *, base: float, length: Tensor) -> tuple[Tensor, Factor]:
        factor = self._factor(length)
        own = 0.1 * (factor.log() if isinstance(factor, Tensor) else math.log(factor)) + 1.0
        return self.formula(frequencies, factor, base), own if self.attention_factor is None else self.attention_factor


@checks_arguments
@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """Llama 3.1's scaling (Llama team 2024, arXiv:2407.21783) by ``factor``, or by text length / ``original_length``.

    As in the authors' code, pairs that rotate more than high_frequency_factor times within the original length keep
    their frequency. Pairs that rotate less than low_frequency_factor times have it divided by the factor. Pairs in
    between get a mixture of both, linear in the number of rotations.

    Raises:
        ArgumentError: a factor below 1, a length below 2, or a high_frequency_factor that is not above the low one.

    Examples:
        >>> from posembed import RotaryEmbedding
        >>> from posembed.layers import Llama3Scaling
        >>> rope = RotaryEmbedding(128, base=500_000, scaling=Llama3Scaling(original_length=8192, factor=8.0))
    """

    original_length: TwoOrMore
    factor: Extension | None = None
    low_frequency_factor: Positive = 1.0
    high_frequency_factor: Positive = 4.0

    def __post_init__(self) -> None:
        self._require_above("high_frequency_factor", "low_frequency_factor")

    def formula(self, frequencies: Tensor, factor: Factor, base: float) -> Tensor:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        turns = self.original_length * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return mixed(frequencies / factor, frequencies, kept)


@checks_arguments
@dataclass(frozen=True)
class LongRopeScaling(RotaryScaling):
    """LongRoPE scaling: texts up to the original length use the short factors, longer texts the long factors.

    Each factor divides the frequency of one pair. The factors come from a search (Ding et al. 2024, arXiv:2402.13753).
    ``factor`` is the model's extended length divided by its original length, such as 131,072 / 4,096 for Phi-3. It sets
    the attention factor, sqrt(1 + ln(factor) / ln(original length)), at every length.

    Raises:
        ArgumentError: factors that are not positive, or not one for each pair.

    Examples:
        >>> from posembed import RotaryEmbedding
        >>> from posembed.layers import LongRopeScaling
        >>> scaling = LongRopeScaling((1.0,) * 8, (2.0,) * 8, original_length=4096, factor=2.0)
        >>> rope = RotaryEmbedding(16, scaling=scaling)  # 8 pairs
    """

    short_factors: tuple[Positive, ...]
    long_factors: tuple[Positive, ...]
    original_length: TwoOrMore
    factor: Extension
    attention_factor: Positive | None = None

    def __post_init__(self) -> None:
        if not self.short_factors or len(self.short_factors) != len(self.long_factors):
            raise ArgumentError(
                "short_factors and long_factors must be tuples of the same length, one positive number per pair of "
                f"components of a head; got {self.short_factors} and {self.long_factors}"
            )

    def scaled(self, frequencies: Tensor, *, base: float, length: Tensor) -> tuple[Tensor, Factor]:
        if len(self.short_factors) != len(frequencies):
            raise ArgumentError(
                f"this head has {len(frequencies)} pairs, each with its own factor; "
                f"got {len(self.short_factors)} factors"
            )
        short, long = (frequencies / frequencies.new_tensor(each) for each in (self.short_factors, self.long_factors))
        own = math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))
        attention_factor = own if self.attention_factor is None else self.attention_factor
        return torch.where(length.unsqueeze(-1) > self.original_length, long, short), attention_factor
