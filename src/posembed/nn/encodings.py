"""The encodings by name: what each is, how it is built, and which models it serves. Add one entry to add one.

A name means the same everywhere: in ``posembed.nn``, in ``posembed compare`` and in its reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.layers.alibi import Alibi
from posembed.layers.averaged import AveragedPositionalEmbedding
from posembed.layers.base import PositionEncoding
from posembed.layers.extended import ExtendedPositionalEmbedding
from posembed.layers.fire import Fire
from posembed.layers.grid import LearnedGridEmbedding
from posembed.layers.kerple import KerpleLog, KerplePower
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.layers.near_far import NearFarPositionalEmbedding
from posembed.layers.none import NoPosition
from posembed.layers.pope import PolarEmbedding
from posembed.layers.relative import T5Bias
from posembed.layers.rolling import RollingPositionalEmbedding
from posembed.layers.rotary import RotaryEmbedding
from posembed.layers.rotary_scaling import LinearScaling, Llama3Scaling, LongRopeScaling, NTKScaling, YarnScaling
from posembed.layers.sampled import SampledPositionalEmbedding
from posembed.layers.sinusoidal import SinusoidalGridEmbedding, SinusoidalPositionalEmbedding

TOKEN_STD = 0.02
"""The scale of a model's token rows (``gpt2_init_``): what is added to them should not drown them."""

Use = Literal["decoder", "encoder", "images"]
"""A causal model of a sequence, a model of a sequence that sees both ways, and one of an image's patches."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of the model that an encoding is built for; None for what is unknown.

    Args:
        dim: width D.
        heads: H. None for a model without attention heads.
        kv_heads: the number of key/value heads, a divisor of heads. None means heads.
        max_len: the training length in tokens.
        longest: the longest text at test. None means max_len.
        window: the causal window of the encodings that need one, and of names with "+window".
        ring: the rows of the rolling table. None means the window.
        rope_factors: those of rope-longrope, one for each pair of a head's components.
        grid: (height, width) of an image in patches; one token stands before them.
        causal: a decoder's attention; False for an encoder's.
        dropout: applied where rows are added to the input.
    """

    dim: int
    heads: int | None = None
    kv_heads: int | None = None
    max_len: int | None = None
    longest: int | None = None
    window: int | None = None
    ring: int | None = None
    rope_factors: tuple[float, ...] = ()
    grid: tuple[int, int] | None = None
    causal: bool = True
    dropout: float = 0.0

    def given(self, name: str) -> Any:
        """Returns the size of this name. Raises ArgumentError if it is None."""
        if getattr(self, name) is None:
            raise ArgumentError(
                f"this encoding needs {name}, and the model has given none: build the encoding by encoding_by_name "
                f"with Sizes({name}=...), or choose one that works without"
            )
        return getattr(self, name)

    @property
    def head_dim(self) -> int:
        return self.dim // self.given("heads")

    @property
    def length(self) -> int:
        """The training length. Raises ArgumentError if it is None."""
        return self.given("max_len")

    @property
    def tested(self) -> int:
        """The length of the longest text that the encoding reads."""
        return self.length if self.longest is None else self.longest


@dataclass(frozen=True)
class Entry:
    """An encoding, with a line that says what it is, and another that says what its ``on_grid`` does."""

    build: Callable[[Sizes], PositionEncoding]
    line: str
    paper: str
    uses: tuple[Use, ...] = ("decoder",)
    regridded: str = ""


def rope(scaling: Callable[[Sizes], Any]) -> Callable[[Sizes], PositionEncoding]:
    return lambda s: RotaryEmbedding(s.head_dim, scaling=scaling(s))


def extended(method: str) -> Callable[[Sizes], PositionEncoding]:
    return lambda s: ExtendedPositionalEmbedding(max_len=s.length, dim=s.dim, method=method, dropout=s.dropout)


def sampled(sampler: str) -> Callable[[Sizes], PositionEncoding]:
    return lambda s: SampledPositionalEmbedding(max_len=s.tested, dim=s.dim, sampler=sampler, dropout=s.dropout)


def longrope(s: Sizes) -> LongRopeScaling:
    """Trained as plain RoPE; longer texts are read with the given factors, which a search has found."""
    factors = s.rope_factors
    if not factors and s.tested > s.length:
        raise ArgumentError(
            f"rope-longrope divides each turn by a factor of its own beyond {s.length:,} tokens: give "
            f"posembed compare lengths its --rope-factors, {s.head_dim // 2} numbers, or use rope-yarn or rope-ntk, "
            "which compute theirs"
        )
    factors = factors or (1.0,) * (s.head_dim // 2)
    return LongRopeScaling((1.0,) * len(factors), factors, s.length, s.tested / s.length, attention_factor=1.0)


def sinusoidal(s: Sizes) -> PositionEncoding:
    # Patches get sinusoids at their own scale, as MAE's do: they cannot grow, and patches, projected by a trained
    # matrix, can. At a token's scale images drowned them: a training loss of 1.2 where this scale gives .2.
    scale = TOKEN_STD * math.sqrt(2) if s.grid is None else 1.0
    return SinusoidalPositionalEmbedding(s.dim, scale=scale, dropout=s.dropout)


EITHER: tuple[Use, ...] = ("decoder", "encoder")
ANYWHERE: tuple[Use, ...] = ("decoder", "encoder", "images")
IMAGES: tuple[Use, ...] = ("images",)

# fmt: off
ENCODINGS: dict[str, Entry] = {
    "learned": Entry(lambda s: LearnedPositionalEmbedding(max_len=s.length, dim=s.dim, dropout=s.dropout),
        "one trained row per position, added to the token; nothing past the last row",
        "Gehring et al. 2017, arXiv:1705.03122", EITHER),
    "rolling": Entry(
        lambda s: RollingPositionalEmbedding(window=s.given("window"), dim=s.dim, ring=s.ring, dropout=s.dropout),
        "learned rows reused in a ring, under a causal window", "posembed"),
    "sinusoidal": Entry(sinusoidal,
        "fixed sines and cosines, added to the token",
        "Vaswani et al. 2017, arXiv:1706.03762", ANYWHERE, "it continues to count patches"),
    "rope": Entry(lambda s: RotaryEmbedding(s.head_dim),
        "queries and keys turned by an angle that grows with position", "Su et al. 2021, arXiv:2104.09864", EITHER),
    "alibi": Entry(lambda s: Alibi(s.given("heads")),
        "a penalty on the scores that grows with distance", "Press et al. 2021, arXiv:2108.12409", EITHER),
    # 1 / sqrt(D), as T5 starts.
    "t5": Entry(lambda s: T5Bias(s.given("heads"), bidirectional=not s.causal, std=s.dim**-0.5),
        "a learned number on the scores for each head and bucket of distances",
        "Raffel et al. 2020, arXiv:1910.10683", EITHER),
    "kerple-log": Entry(lambda s: KerpleLog(s.given("heads")),
        "a penalty on the scores, the logarithm of the distance, with two learned numbers per head",
        "Chi et al. 2022, arXiv:2205.09921", EITHER),
    "kerple-power": Entry(lambda s: KerplePower(s.given("heads")),
        "a penalty on the scores, a power of the distance, with two learned numbers per head",
        "Chi et al. 2022, arXiv:2205.09921", EITHER),
    # The authors' 512 is a quarter of their training length.
    "fire": Entry(lambda s: Fire(s.given("heads"), threshold=s.length / 4),
        "a small network on the scores, reading the distance as a share of the query's position",
        "Li et al. 2024, arXiv:2310.04418"),
    "pope": Entry(lambda s: PolarEmbedding(head_dim=s.head_dim, heads=s.kv_heads or s.given("heads")),
        "queries and keys as lengths, their angles from the position alone",
        "Gopalakrishnan et al. 2025, arXiv:2509.10534", EITHER),
    # Trained as plain RoPE. Beyond the training length, frequencies are scaled by the ratio of the text's length
    # to it, or by given factors.
    "rope-linear": Entry(rope(lambda s: LinearScaling(original_length=s.length)),
        "RoPE; at test, positions are divided by how many times longer the text is",
        "Chen et al. 2023, arXiv:2306.15595"),
    "rope-ntk": Entry(rope(lambda s: NTKScaling(original_length=s.length)),
        "RoPE; at test its base grows with the text, so that fast turns stay and slow ones are interpolated",
        "Peng et al. 2024, arXiv:2309.00071"),
    "rope-yarn": Entry(rope(lambda s: YarnScaling(s.length)),
        "RoPE; at test slow turns are interpolated, fast ones stay, and attention is sharpened",
        "Peng et al. 2024, arXiv:2309.00071"),
    "rope-llama3": Entry(rope(lambda s: Llama3Scaling(s.length)),
        "RoPE; at test slow turns are interpolated and fast ones stay, with Llama 3's bounds",
        "Llama team 2024, arXiv:2407.21783"),
    "rope-longrope": Entry(rope(longrope),
        "RoPE; at test each turn is divided by a factor of its own, which a search has found (--rope-factors)",
        "Ding et al. 2024, arXiv:2402.13753"),
    "none": Entry(lambda s: NoPosition(),
        "no position; a causal mask alone shows each token how many came before it",
        "Haviv et al. 2022, arXiv:2203.16634", ANYWHERE, "there is nothing to change"),
    "near-far": Entry(
        lambda s: NearFarPositionalEmbedding(
            near_window=s.given("window"), dim=s.dim, heads=s.given("heads"), ring=s.ring
        ),
        "half the heads see a window through a ring of learned rows, the others everything by its content", "posembed"),
    "learned-averaged": Entry(
        lambda s: AveragedPositionalEmbedding(max_len=s.length, dim=s.dim, heads=s.given("heads")),
        "a learned table, its logits averaged by distance into a bias of each layer; one head without position",
        "posembed"),
    "learned-interpolated": Entry(extended("linear"),
        "the learned table, stretched to a longer text when it is read", "Chen et al. 2023, arXiv:2306.15595"),
    "learned-hierarchical": Entry(extended("hierarchical"),
        "the learned table, row a N + b made of rows a and b when it is read", "Su 2020, kexue.fm/archives/7947"),
    "learned-tiled": Entry(extended("tile"),
        "the learned table, read over and over", "Beltagy et al. 2020, arXiv:2004.05150"),
    "learned-shifted": Entry(sampled("shifted"),
        "a learned table for the longest text, each training sequence starting anywhere in it",
        "Kiyono et al. 2021, arXiv:2109.05644"),
    "learned-randomized": Entry(sampled("randomized"),
        "a learned table for the longest text, trained at any of its positions in order",
        "Ruoss et al. 2023, arXiv:2305.16843"),
    "learned-skipped": Entry(sampled("skipped"),
        "a learned table for the longest text, trained with a gap in each sequence",
        "Zhu et al. 2023, arXiv:2309.10400"),
    "learned-1d": Entry(
        lambda s: LearnedPositionalEmbedding(max_len=1 + math.prod(s.given("grid")), dim=s.dim, dropout=s.dropout),
        "one trained row per patch; the patches form a line",
        "Dosovitskiy et al. 2021, arXiv:2010.11929", IMAGES,
        "its line of rows is interpolated linearly to the new number of patches"),
    "learned-2d": Entry(lambda s: LearnedGridEmbedding(grid=s.given("grid"), dim=s.dim, dropout=s.dropout),
        "one trained row per patch; the rows form a grid",
        "Dosovitskiy et al. 2021, arXiv:2010.11929", IMAGES,
        "its grid of rows is resized bicubically, with antialiasing, as timm does"),
    "factorized": Entry(
        lambda s: LearnedGridEmbedding(grid=s.given("grid"), dim=s.dim, factorized=True, dropout=s.dropout),
        "a trained row for the height plus one for the width",
        "Dehghani et al. 2023, arXiv:2307.06304", IMAGES,
        "each of its two tables is resized along its side, like learned-2d"),
    "sinusoidal-2d": Entry(lambda s: SinusoidalGridEmbedding(grid=s.given("grid"), dim=s.dim, dropout=s.dropout),
        "fixed sines and cosines, half of the width for the column, half for the row",
        "He et al. 2022, arXiv:2111.06377", IMAGES, "it is evaluated between the old positions"),
}
# fmt: on

SUFFIXES = {
    "+window": "the same under a causal window",
    "+logn": "the same with logits that grow with the logarithm of the length",
}


def names_for(use: Use) -> tuple[str, ...]:
    """Returns the names of the encodings that serve such a model."""
    return tuple(name for name, entry in ENCODINGS.items() if use in entry.uses)


def split_name(name: str, use: Use = "decoder") -> tuple[str, frozenset[str]]:
    """Splits "rope+window" into "rope" and {"+window"}.

    Raises:
        ArgumentError: a name that is unknown, or an encoding that does not serve such a model.
    """
    base, *words = name.split("+")
    suffixes = frozenset(f"+{word}" for word in words)
    if base not in ENCODINGS or not suffixes <= SUFFIXES.keys() or len(suffixes) != len(words):
        also = "; ".join(f"{suffix} ({line})" for suffix, line in SUFFIXES.items())
        also = f", each also with {also}" if use == "decoder" else ""
        raise unknown("encoding", name, names_for(use), also=also)
    if use in ENCODINGS[base].uses and (use == "decoder" or not suffixes):
        return base, suffixes
    names = ", ".join(names_for(use))
    if use == "images":
        reason = "encodes positions in a sequence, and the patches of an image form a grid"
    elif ENCODINGS[base].uses == IMAGES:
        reason = "places the patches of an image in a grid, and a text is a sequence"
    elif base == "rolling" or "+window" in suffixes:
        reason = "needs a causal window, and an encoder sees all tokens both ways"
    else:
        reason = "is for a decoder, or for texts longer than the training texts"
    raise ArgumentError(f"{name!r} {reason}; choose among {names}")


def encoding_by_name(name: str, sizes: Sizes) -> PositionEncoding:
    """Builds the encoding of this name in ``ENCODINGS``, which may end in the ``SUFFIXES``: "rope+window".

    It is for images if ``sizes`` has a grid, else for a decoder or an encoder by ``causal``.

    Raises:
        ArgumentError: an unknown name, an encoding that does not serve such a model, or one that needs a size that
            is None or does not fit.
    """
    use: Use = "images" if sizes.grid is not None else "decoder" if sizes.causal else "encoder"
    base, suffixes = split_name(name, use)
    encoding = ENCODINGS[base].build(sizes)
    if "+window" in suffixes:
        encoding.window = sizes.given("window")
    if "+logn" in suffixes:
        encoding.log_length = max(sizes.length, 2)
    return encoding
