"""The encodings by name: how to build each, what it is, and which models it suits. To add an encoding, add an entry.

A name means the same everywhere: in ``posembed.nn``, in ``posembed compare`` and in its reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Literal

from posembed.arguments import checks_arguments, explains_errors
from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.layers.alibi import Alibi
from posembed.layers.averaged import AveragedPositionalEmbedding
from posembed.layers.base import PositionEncoding
from posembed.layers.concatenated import ConcatenatedPositionalEmbedding
from posembed.layers.content.cope import Cope
from posembed.layers.content.dape import Dape
from posembed.layers.content.fox import Cable, Fox
from posembed.layers.content.path import HouseholderPath
from posembed.layers.digits.bipe import BilevelEncoding
from posembed.layers.digits.seqpe import SequentialPositionalEmbedding
from posembed.layers.extended import ExtendedPositionalEmbedding
from posembed.layers.fire import Fire
from posembed.layers.images.grid import LearnedGridEmbedding
from posembed.layers.images.lookhere import LookHere
from posembed.layers.images.rotary import AxialRotaryEmbedding, MixedRotaryEmbedding
from posembed.layers.kerple import KerpleLog, KerplePower
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.layers.none import NoPosition
from posembed.layers.pope import PolarEmbedding
from posembed.layers.relative import T5Bias
from posembed.layers.rolling import RollingPositionalEmbedding
from posembed.layers.rotary import RotaryEmbedding, pairs_within, rotary_frequencies
from posembed.layers.rotary_scaling import LinearScaling, Llama3Scaling, LongRopeScaling, NTKScaling, YarnScaling
from posembed.layers.sampled import SampledPositionalEmbedding
from posembed.layers.score_bias import require_divisible
from posembed.layers.sinusoidal import SinusoidalGridEmbedding, SinusoidalPositionalEmbedding
from posembed.layers.tupe import Tupe
from posembed.nn.per_layer import PerLayer
from posembed.settings import Count, Pair, Positive, Probability

TOKEN_STD = 0.02
"""The standard deviation of a model's token rows (``gpt2_init_``). Position rows should not be much larger."""

Use = Literal["decoder", "encoder", "images"]
"""A causal model of a sequence, a bidirectional model of a sequence, and a model of an image's patches."""


@checks_arguments
@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of the model that an encoding is built for. None means unknown, unless the argument says otherwise.

    Args:
        dim: the width D.
        heads: the number of heads H. None for a model without attention heads.
        kv_heads: the number of key/value heads, a divisor of heads. None means as many as heads.
        max_len: the training length in tokens.
        longest: the length of the longest text at test time, in tokens. None means max_len.
        window: the causal window in tokens, for encodings that need one and for names with "+window".
        ring: the number of rows of the encoding "rolling". None means the window.
        rope_factors: the factors of "rope-longrope", one per pair of components of a head.
        grid: (height, width) of an image in patches; one token precedes the patches.
        causal: True for a decoder, False for an encoder.
        dropout: the probability of dropout where rows are added to the input.
        layers: the number of layers. None builds one encoding, even if each layer should have its own.
        head_width: the width of a head. None means dim / heads.

    Raises:
        ArgumentError: a size below 1, or sizes that do not fit each other.

    Examples:
        >>> from posembed.nn import Sizes, encoding_by_name
        >>> encoding_by_name("rolling", Sizes(dim=64, heads=4, window=16)).table().shape
        torch.Size([16, 64])
    """

    dim: Count
    heads: Count | None = None
    kv_heads: Count | None = None
    max_len: Count | None = None
    longest: Count | None = None
    window: Count | None = None
    ring: Count | None = None
    rope_factors: tuple[Positive, ...] = ()
    grid: Pair | None = None
    causal: bool = True
    dropout: Probability = 0.0
    layers: Count | None = None
    head_width: Count | None = None

    def __post_init__(self) -> None:
        if self.heads is not None and self.kv_heads is not None and self.heads % self.kv_heads:
            raise ArgumentError(f"kv_heads must divide heads={self.heads}; got {self.kv_heads}")

    @explains_errors
    def given(self, name: Literal["heads", "max_len", "window", "grid"]) -> Any:
        """Returns the size with this name. Raises ArgumentError if it is None."""
        if getattr(self, name) is None:
            raise ArgumentError(
                f"this encoding needs {name}, which the model does not give; pass {name}=..."
                f"{'' if name == 'max_len' else ' in Sizes to encoding_by_name'}, or choose an encoding without it"
            )
        return getattr(self, name)

    @property
    def head_dim(self) -> int:
        if self.head_width is not None:
            return self.head_width
        require_divisible(self.dim, self.given("heads"))
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
    """A named encoding: how to build it, a one-line description, its paper and uses, and what its ``on_grid`` does."""

    build: Callable[[Sizes], PositionEncoding]
    line: str
    paper: str
    uses: tuple[Use, ...] = ("decoder",)
    regridded: str = ""


def rope(scaling: Callable[[Sizes], Any]) -> Callable[[Sizes], PositionEncoding]:
    return lambda s: RotaryEmbedding(s.head_dim, scaling=scaling(s))


def extended(method: str) -> Callable[[Sizes], PositionEncoding]:
    return lambda s: ExtendedPositionalEmbedding(
        max_len=s.length,
        dim=s.dim,
        method=method,
        longest=max(s.tested, s.length) if method == "random" else None,
        dropout=s.dropout,
    )


def sampled(sampler: str) -> Callable[[Sizes], PositionEncoding]:
    return lambda s: SampledPositionalEmbedding(max_len=s.tested, dim=s.dim, sampler=sampler, dropout=s.dropout)


def longrope(s: Sizes) -> LongRopeScaling:
    """Returns a scaling that trains as plain RoPE and reads longer texts with the given factors."""
    factors, pairs = s.rope_factors, len(rotary_frequencies(s.head_dim))
    if not factors and s.tested > s.length:
        raise ArgumentError(
            f"rope-longrope divides each frequency by its own factor beyond {s.length:,} tokens: give rope_factors, "
            f"{pairs} numbers, as published for a model, or use rope-yarn or rope-ntk, which compute their factors"
        )
    factors, extension = factors or (1.0,) * pairs, max(s.tested, s.length) / s.length
    return LongRopeScaling((1.0,) * len(factors), factors, s.length, extension, attention_factor=1.0)


def t5(s: Sizes) -> T5Bias:
    return T5Bias(s.given("heads"), bidirectional=not s.causal, std=s.dim**-0.5)  # T5's initial values


def tupe(s: Sizes, **arguments: Any) -> PositionEncoding:
    return Tupe(max_len=s.length, dim=s.dim, heads=s.given("heads"), **arguments)


def bipe(between: Callable[[Sizes], Any]) -> Callable[[Sizes], PositionEncoding]:
    """Builds BiPE such that consecutive ids split a training text into eight segments."""
    return lambda s: BilevelEncoding(max_len=-(-s.length // 8), dim=s.dim, between=between(s), dropout=s.dropout)


def seqpe(s: Sizes, build: Callable[..., PositionEncoding] = SequentialPositionalEmbedding) -> PositionEncoding:
    longest, width = max(s.tested, s.length), 32
    # The output of the last norm has a size of 1, so that rows get the scale of tokens.
    return build(longest=longest, dim=s.dim, width=width, scale=width**-0.5, dropout=s.dropout)


def sinusoidal(s: Sizes) -> PositionEncoding:
    # Patches get sinusoids of amplitude 1, as in MAE: fixed sinusoids cannot grow, but patches, projected by a trained
    # matrix, can. At the scale of tokens, images drowned them: the training loss was 1.2 instead of .2.
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
    "rolling": Entry(lambda s: RollingPositionalEmbedding(window=s.given("window"), dim=s.dim, ring=s.ring),
        "learned rows reused in a ring, under a causal window", "posembed"),
    "sinusoidal": Entry(sinusoidal,
        "fixed sines and cosines, added to the token",
        "Vaswani et al. 2017, arXiv:1706.03762", ANYWHERE, "it continues to count patches"),
    "rope": Entry(lambda s: RotaryEmbedding(s.head_dim),
        "queries and keys rotated by an angle that grows with position", "Su et al. 2021, arXiv:2104.09864", EITHER),
    "alibi": Entry(lambda s: Alibi(s.given("heads")),
        "a penalty on the scores that grows with distance", "Press et al. 2021, arXiv:2108.12409", EITHER),
    "t5": Entry(t5,
        "a learned number added to the scores for each head and bucket of distances",
        "Raffel et al. 2020, arXiv:1910.10683", EITHER),
    "kerple-log": Entry(lambda s: KerpleLog(s.given("heads")),
        "a penalty on the scores that grows with the logarithm of the distance; two learned numbers per head",
        "Chi et al. 2022, arXiv:2205.09921", EITHER),
    "kerple-power": Entry(lambda s: KerplePower(s.given("heads")),
        "a penalty on the scores that grows with a power of the distance; two learned numbers per head",
        "Chi et al. 2022, arXiv:2205.09921", EITHER),
    "tupe": Entry(tupe,
        "a learned table whose logits, by matrices of its own, are added to the scores; nothing past the last row",
        "Ke et al. 2021, arXiv:2006.15595", EITHER),
    "tupe-r": Entry(lambda s: tupe(s, relative=t5(s)),
        "tupe with T5's bias in addition", "Ke et al. 2021, arXiv:2006.15595", EITHER),
    # The authors' 512 is a quarter of their training length.
    "fire": Entry(lambda s: Fire(s.given("heads"), threshold=s.length / 4),
        "a bias on the scores from a small network, which reads the distance as a share of the query's position",
        "Li et al. 2024, arXiv:2310.04418"),
    "pope": Entry(lambda s: PolarEmbedding(head_dim=s.head_dim, heads=s.kv_heads or s.given("heads")),
        "queries and keys give magnitudes, and positions alone give their angles",
        "Gopalakrishnan et al. 2025, arXiv:2509.10534", EITHER),
    "p-rope": Entry(lambda s: RotaryEmbedding(s.head_dim, pairs=int(0.75 * s.head_dim / 2)),
        "RoPE without the slowest quarter of its rotations, whose components keep their content at every position",
        "Barbero et al. 2024, arXiv:2410.06205", EITHER),
    "hope": Entry(lambda s: RotaryEmbedding(s.head_dim, pairs=pairs_within(s.length, s.head_dim)),
        "RoPE without the rotations that take longer than the training length for a turn",
        "Chen et al. 2024, arXiv:2410.21216", EITHER),
    "bipe-rope": Entry(bipe(lambda s: RotaryEmbedding(s.head_dim)),
        "learned rows within a segment, and RoPE between segments; they end where position ids say",
        "He et al. 2024, arXiv:2401.16421", EITHER),
    "bipe-alibi": Entry(bipe(lambda s: Alibi(s.given("heads"), scale=96)),
        "learned rows within a segment, and ALiBi between segments; they end where position ids say",
        "He et al. 2024, arXiv:2401.16421", EITHER),
    "seqpe": Entry(seqpe,
        "a small Transformer reads the decimal digits of a position, and its output is added to the token",
        "Li et al. 2025, arXiv:2506.13277", EITHER),
    # These train as plain RoPE. Beyond the training length, frequencies are scaled by the ratio of the text's length
    # to the training length, or by given factors.
    "rope-linear": Entry(rope(lambda s: LinearScaling(original_length=s.length)),
        "RoPE; at test time, positions are divided by the ratio of the text's length to the training length",
        "Chen et al. 2023, arXiv:2306.15595"),
    "rope-ntk": Entry(rope(lambda s: NTKScaling(original_length=s.length)),
        "RoPE; at test time its base grows with the text: fast rotations stay, slow ones are interpolated",
        "Peng et al. 2024, arXiv:2309.00071"),
    "rope-yarn": Entry(rope(lambda s: YarnScaling(s.length)),
        "RoPE; at test time slow rotations are interpolated, fast ones stay, and attention is sharpened",
        "Peng et al. 2024, arXiv:2309.00071"),
    "rope-llama3": Entry(rope(lambda s: Llama3Scaling(s.length)),
        "RoPE; at test time slow rotations are interpolated and fast ones stay, with Llama 3's bounds",
        "Llama team 2024, arXiv:2407.21783"),
    "rope-longrope": Entry(rope(longrope),
        "RoPE; at test time each frequency is divided by its own given factor",
        "Ding et al. 2024, arXiv:2402.13753"),
    "fox": Entry(lambda s: Fox(dim=s.dim, heads=s.given("heads")),
        "a gate of each token multiplies the weights of all earlier tokens", "Lin et al. 2025, arXiv:2503.02130"),
    "cable": Entry(lambda s: Cable(dim=s.dim, heads=s.given("heads")),
        "a bias of each token is added to the scores of all earlier tokens", "Veisi et al. 2025, arXiv:2503.08067"),
    "cope": Entry(lambda s: Cope(s.head_dim),
        "learned rows read at positions that count, for each query, the tokens that it picks out",
        "Golovneva et al. 2024, arXiv:2405.18719"),
    "dape": Entry(lambda s: Dape(KerpleLog(s.given("heads"))),
        "a small network reads the scores and kerple-log's bias of all heads", "Zheng et al. 2024, arXiv:2405.14722"),
    "path": Entry(lambda s: HouseholderPath(dim=s.dim, heads=s.given("heads"), kv_heads=s.kv_heads),
        "each token applies a Householder-like matrix to all earlier keys", "Yang et al. 2025, arXiv:2505.16381"),
    "none": Entry(lambda s: NoPosition(),
        "no position; in a decoder, the causal mask still shows each token how many came before it",
        "Haviv et al. 2022, arXiv:2203.16634", ANYWHERE, "there is nothing to change"),
    "learned-averaged": Entry(
        lambda s: AveragedPositionalEmbedding(max_len=s.length, dim=s.dim, heads=s.given("heads")),
        "a learned table; its logits, averaged by distance, are each layer's bias; one head has no position",
        "posembed"),
    "learned-concat": Entry(
        lambda s: ConcatenatedPositionalEmbedding(max_len=s.length, dim=s.dim, dropout=s.dropout),
        "one trained row per position, in place of the last quarter of the token; nothing past the last row",
        "posembed", EITHER),
    "learned-interpolated": Entry(extended("linear"),
        "the learned table, stretched to a longer text when it is read", "Chen et al. 2023, arXiv:2306.15595"),
    "learned-hierarchical": Entry(extended("hierarchical"),
        "the learned table; when it is read, rows a and b give row a N + b", "Su 2020, kexue.fm/archives/7947"),
    "learned-tiled": Entry(extended("tile"),
        "the learned table, repeated from its start", "Beltagy et al. 2020, arXiv:2004.05150"),
    "learned-random": Entry(extended("random"),
        "the learned table, continued by random rows of the same scale", "Beltagy et al. 2020, arXiv:2004.05150"),
    "learned-long": Entry(
        lambda s: LearnedPositionalEmbedding(max_len=max(s.tested, s.length), dim=s.dim, dropout=s.dropout),
        "a learned table for the longest text, trained on short texts alone, which leave its later rows as they were",
        "Gehring et al. 2017, arXiv:1705.03122"),
    "learned-shifted": Entry(sampled("shifted"),
        "a learned table for the longest text; each training sequence starts at a random position",
        "Kiyono et al. 2021, arXiv:2109.05644"),
    "learned-randomized": Entry(sampled("randomized"),
        "a learned table for the longest text, trained at random positions in order",
        "Ruoss et al. 2023, arXiv:2305.16843"),
    "learned-skipped": Entry(sampled("skipped"),
        "a learned table for the longest text, trained with a random gap in each sequence",
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
        "each of its two tables is resized along its own axis, like learned-2d"),
    "sinusoidal-2d": Entry(lambda s: SinusoidalGridEmbedding(grid=s.given("grid"), dim=s.dim, dropout=s.dropout),
        "fixed sines and cosines, half of the width for the column, half for the row",
        "He et al. 2022, arXiv:2111.06377", IMAGES, "it is evaluated between the old positions"),
    "rope-axial": Entry(lambda s: AxialRotaryEmbedding(head_dim=s.head_dim, grid=s.given("grid")),
        "RoPE, half of whose rotations grow with the column, half with the row",
        "Heo et al. 2024, arXiv:2403.13298", IMAGES, "it continues to count rows and columns"),
    "rope-mixed": Entry(
        lambda s: MixedRotaryEmbedding(head_dim=s.head_dim, heads=s.kv_heads or s.given("heads"), grid=s.given("grid")),
        "RoPE with a learned direction in the image and frequency for each head and rotation",
        "Heo et al. 2024, arXiv:2403.13298", IMAGES, "it continues to count rows and columns"),
    "lookhere": Entry(lambda s: LookHere(heads=s.given("heads"), grid=s.given("grid")),
        "heads that see a quarter of the image each, with a penalty that grows with distance; a third see all of it",
        "Fuller et al. 2024, arXiv:2405.13985", IMAGES, "it continues to count rows and columns"),
}
# fmt: on

SUFFIXES = {
    "+window": "the same under a causal window",
    "+logn": "the same with logits that grow with the logarithm of the length",
}


def names_for(use: Use) -> tuple[str, ...]:
    return tuple(name for name, entry in ENCODINGS.items() if use in entry.uses)


def split_name(name: str, use: Use = "decoder") -> tuple[str, frozenset[str]]:
    """Splits "rope+window" into "rope" and {"+window"}.

    Raises:
        ArgumentError: an unknown name, or an encoding that is not for this use.
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
        reason = "encodes positions in a sequence, but the patches of an image form a grid"
    elif ENCODINGS[base].uses == IMAGES:
        reason = "places the patches of an image in a grid, but a text is a sequence"
    elif base == "rolling" or "+window" in suffixes:
        reason = "needs a causal window, but an encoder attends in both directions"
    else:
        reason = "is for a decoder, or for texts longer than the training texts"
    raise ArgumentError(f"{name!r} {reason}; choose from {names}")


def split_mixture(name: str, use: Use = "decoder") -> list[tuple[str, frozenset[str]]]:
    """Splits a name with encodings of several layers, "rope+window/none". Returns ``split_name`` of each."""
    return [split_name(each, use) for each in name.split("/")]


def needs_window(name: str) -> bool:
    """Whether a decoder's encoding can be built only with a window."""
    return any(base == "rolling" or "+window" in suffixes for base, suffixes in split_mixture(name))


@checks_arguments
def encoding_by_name(name: str, sizes: Sizes) -> PositionEncoding:
    """Builds the encoding with this name in ``ENCODINGS``. The name can end in one of ``SUFFIXES``: "rope+window".

    "rope+window/none" names the encodings of successive layers, in a cycle: see ``PerLayer``. The encoding is for
    images if ``sizes`` has a grid; otherwise ``sizes.causal`` decides between a decoder and an encoder.

    Raises:
        ArgumentError: an unknown name, an encoding that does not support such a model, or a size that the encoding
            needs and that is None or does not fit.

    Examples:
        >>> from posembed.nn import Sizes, encoding_by_name
        >>> encoding_by_name("alibi", Sizes(dim=64, heads=4))
        Alibi(4, scale=1.0)
        >>> encoding_by_name("rope+window", Sizes(dim=64, heads=4, window=16)).window
        16
        >>> encoding_by_name("alibi/none", Sizes(dim=64, heads=4, layers=3))
        PerLayer([Alibi(4, scale=1.0), NoPosition(), Alibi(4, scale=1.0)])
    """
    return encoding_of_layers([name], sizes)


def encoding_of_layers(entries: Sequence[PositionEncoding | str], sizes: Sizes) -> PositionEncoding:
    """Builds a model's encoding from a list of its layers' encodings or names. The list starts again after its end.

    Layers with the same name share one encoding, unless its parameters are per layer. Raises ArgumentError as
    ``encoding_by_name`` does, or for more entries than layers.
    """
    entries = [part for each in entries for part in (each.split("/") if isinstance(each, str) else [each])]
    if sizes.layers is not None and len(entries) > sizes.layers:
        raise ArgumentError(
            f"expected at most one encoding for each of the layers={sizes.layers}; got {len(entries)}: leave out the "
            "last ones, or build a model with more layers"
        )
    by_name: dict[str, PositionEncoding] = {}
    layers = []
    for each in islice(cycle(entries), sizes.layers or len(entries)):
        if isinstance(each, str):
            if each not in by_name or by_name[each].per_layer:
                by_name[each] = _encoding_of_one(each, sizes)
            each = by_name[each]
        layers.append(each)
    return layers[0] if len(set(layers)) == 1 else PerLayer(layers)


def _encoding_of_one(name: str, sizes: Sizes) -> PositionEncoding:
    use: Use = "images" if sizes.grid is not None else "decoder" if sizes.causal else "encoder"
    base, suffixes = split_name(name, use)
    encoding = ENCODINGS[base].build(sizes)
    if "+window" in suffixes:
        encoding.window = sizes.given("window")
    if "+logn" in suffixes:
        encoding.log_length = max(sizes.length, 2)
    return encoding


@checks_arguments
def encoding(name: str, **sizes: Any) -> PositionEncoding:
    """Builds an encoding by its name: ``encoding_by_name`` with the fields of ``Sizes`` as arguments.

    Args:
        name: a name in ``posembed.nn.ENCODINGS``, optionally with "+window" or "+logn"; or one name per layer, as in
            "rope/none".
        sizes: ``dim``, and those that the encoding needs among ``heads``, ``kv_heads``, ``max_len``, ``longest``,
            ``window``, ``ring``, ``rope_factors``, ``grid``, ``causal``, ``dropout`` and ``layers``;
            ``posembed.nn.Sizes`` explains them.

    Raises:
        ArgumentError: as for ``encoding_by_name`` and ``Sizes``.

    Examples:
        >>> import posembed
        >>> posembed.encoding("rope", dim=64, heads=4)
        RotaryEmbedding(16, base=10000.0, pairing='half_split', scaling=None, pairs=None)
    """
    return encoding_by_name(name, Sizes(**sizes))
