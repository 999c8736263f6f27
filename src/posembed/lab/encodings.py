"""The encodings of the lab by name. Add one line to add one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from posembed.errors import ArgumentError
from posembed.lab.runs.spec import TrainingSpec
from posembed.layers.alibi import Alibi
from posembed.layers.averaged import AveragedPositionalEmbedding
from posembed.layers.base import PositionEncoding
from posembed.layers.extended import ExtendedPositionalEmbedding
from posembed.layers.fire import Fire
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
from posembed.layers.sinusoidal import SinusoidalPositionalEmbedding

TOKEN_STD = 0.02
"""Of the lab model's token rows: what is added to them should not drown them."""


@dataclass(frozen=True)
class Entry:
    build: Callable[[TrainingSpec], PositionEncoding]
    line: str
    """What it is, in one line."""
    paper: str


ENCODINGS: dict[str, Entry] = {
    "learned": Entry(
        lambda s: LearnedPositionalEmbedding(s.train_length, s.width, dropout=s.dropout),
        "one trained row a position, added to the token; nothing past the last row",
        "Gehring et al. 2017, arXiv:1705.03122",
    ),
    "rolling": Entry(
        lambda s: RollingPositionalEmbedding(s.window, s.width, ring=s.ring, dropout=s.dropout),
        "learned rows reused in a ring, under a causal window",
        "posembed",
    ),
    "sinusoidal": Entry(
        lambda s: SinusoidalPositionalEmbedding(s.width, scale=TOKEN_STD * math.sqrt(2), dropout=s.dropout),
        "fixed sines and cosines, added to the token",
        "Vaswani et al. 2017, arXiv:1706.03762",
    ),
    "rope": Entry(
        lambda s: RotaryEmbedding(s.width // s.heads),
        "queries and keys turned by an angle that grows with position",
        "Su et al. 2021, arXiv:2104.09864",
    ),
    "alibi": Entry(
        lambda s: Alibi(s.heads),
        "a penalty on the scores that grows with distance",
        "Press et al. 2021, arXiv:2108.12409",
    ),
    "t5": Entry(
        # 1 / sqrt(D), as T5 starts.
        lambda s: T5Bias(s.heads, bidirectional=False, std=s.width**-0.5),
        "a learned number on the scores for each head and bucket of distances",
        "Raffel et al. 2020, arXiv:1910.10683",
    ),
    "kerple-log": Entry(
        lambda s: KerpleLog(s.heads),
        "a penalty on the scores, the logarithm of the distance, with two learned numbers a head",
        "Chi et al. 2022, arXiv:2205.09921",
    ),
    "kerple-power": Entry(
        lambda s: KerplePower(s.heads),
        "a penalty on the scores, a power of the distance, with two learned numbers a head",
        "Chi et al. 2022, arXiv:2205.09921",
    ),
    "fire": Entry(
        # The authors' 512 is a quarter of their training length.
        lambda s: Fire(s.heads, threshold=s.train_length / 4),
        "a small network on the scores, reading the distance as a share of the query's position",
        "Li et al. 2024, arXiv:2310.04418",
    ),
    "pope": Entry(
        lambda s: PolarEmbedding(s.width // s.heads, s.heads),
        "queries and keys as lengths, their angles from the position alone",
        "Gopalakrishnan et al. 2025, arXiv:2509.10534",
    ),
    # Trained as plain RoPE. Beyond the training length, frequencies are scaled by the ratio of the length at hand
    # to it, or by factors that are given.
    "rope-linear": Entry(
        lambda s: RotaryEmbedding(s.width // s.heads, scaling=LinearScaling(original_length=s.train_length)),
        "RoPE; at test positions are divided by how many times longer the text is",
        "Chen et al. 2023, arXiv:2306.15595",
    ),
    "rope-ntk": Entry(
        lambda s: RotaryEmbedding(s.width // s.heads, scaling=NTKScaling(original_length=s.train_length)),
        "RoPE; at test its base grows with the text, so that fast turns stay and slow ones are interpolated",
        "Peng et al. 2024, arXiv:2309.00071",
    ),
    "rope-yarn": Entry(
        lambda s: RotaryEmbedding(s.width // s.heads, scaling=YarnScaling(s.train_length)),
        "RoPE; at test slow turns are interpolated, fast ones stay, and attention is sharpened",
        "Peng et al. 2024, arXiv:2309.00071",
    ),
    "rope-llama3": Entry(
        lambda s: RotaryEmbedding(s.width // s.heads, scaling=Llama3Scaling(s.train_length)),
        "RoPE; at test slow turns are interpolated and fast ones stay, with Llama 3's bounds",
        "Llama team 2024, arXiv:2407.21783",
    ),
    "rope-longrope": Entry(
        lambda s: RotaryEmbedding(s.width // s.heads, scaling=longrope(s)),
        "RoPE; at test each turn is divided by a factor of its own, which a search has found (--rope-factors)",
        "Ding et al. 2024, arXiv:2402.13753",
    ),
    "none": Entry(
        lambda s: NoPosition(),
        "no position; the causal mask alone tells how many tokens came before",
        "Haviv et al. 2022, arXiv:2203.16634",
    ),
}


def longrope(s: TrainingSpec) -> LongRopeScaling:
    """Trained as plain RoPE; longer texts are read with the factors given, which a search has found."""
    factors = s.rope_factors
    if not factors and s.longest > s.train_length:
        raise ArgumentError(
            f"rope-longrope divides each turn by a factor of its own beyond {s.train_length:,} tokens: give "
            f"posembed compare lengths its --rope-factors, {s.width // s.heads // 2} numbers, or use rope-yarn or "
            "rope-ntk, which compute theirs"
        )
    factors = factors or (1.0,) * (s.width // s.heads // 2)
    return LongRopeScaling(
        (1.0,) * len(factors), factors, s.train_length, s.longest / s.train_length, attention_factor=1.0
    )


def extended(method: str) -> Callable[[TrainingSpec], PositionEncoding]:
    return lambda s: ExtendedPositionalEmbedding(s.train_length, s.width, method=method, dropout=s.dropout)


def sampled(sampler: str) -> Callable[[TrainingSpec], PositionEncoding]:
    return lambda s: SampledPositionalEmbedding(s.longest, s.width, sampler=sampler, dropout=s.dropout)


ENCODINGS |= {
    "near-far": Entry(
        lambda s: NearFarPositionalEmbedding(s.window, s.width, heads=s.heads, ring=s.ring),
        "half the heads see a window through a ring of learned rows, the others everything by its content",
        "posembed",
    ),
    "learned-averaged": Entry(
        lambda s: AveragedPositionalEmbedding(s.train_length, s.width, heads=s.heads),
        "a learned table, its logits averaged by distance into a bias of each layer; one head without position",
        "posembed",
    ),
    "learned-interpolated": Entry(
        extended("linear"),
        "the learned table, stretched to a longer text when it is read",
        "Chen et al. 2023, arXiv:2306.15595",
    ),
    "learned-hierarchical": Entry(
        extended("hierarchical"),
        "the learned table, row a N + b made of rows a and b when it is read",
        "Su 2020, kexue.fm/archives/7947",
    ),
    "learned-tiled": Entry(
        extended("tile"),
        "the learned table, read over and over",
        "Beltagy et al. 2020, arXiv:2004.05150",
    ),
    "learned-shifted": Entry(
        sampled("shifted"),
        "a learned table for the longest text, each training sequence starting anywhere in it",
        "Kiyono et al. 2021, arXiv:2109.05644",
    ),
    "learned-randomized": Entry(
        sampled("randomized"),
        "a learned table for the longest text, trained at any of its positions in order",
        "Ruoss et al. 2023, arXiv:2305.16843",
    ),
    "learned-skipped": Entry(
        sampled("skipped"),
        "a learned table for the longest text, trained with a gap in each sequence",
        "Zhu et al. 2023, arXiv:2309.10400",
    ),
}

SUFFIXES = {
    "+window": "the same under a causal window",
    "+logn": "the same with logits that grow with the logarithm of the length",
}


def split_name(name: str) -> tuple[str, frozenset[str]]:
    """ "rope+window" -> ("rope", {"+window"}). Raises ArgumentError for a name that is not known."""
    base, *words = name.split("+")
    suffixes = frozenset(f"+{word}" for word in words)
    if base not in ENCODINGS or not suffixes <= SUFFIXES.keys() or len(suffixes) < len(words):
        also = "; ".join(f"{suffix} ({line})" for suffix, line in SUFFIXES.items())
        raise ArgumentError(f"unknown encoding {name!r}; known are {', '.join(ENCODINGS)}, each also with {also}")
    return base, suffixes


def build_encoding(spec: TrainingSpec) -> PositionEncoding:
    base, suffixes = split_name(spec.encoding)
    encoding = ENCODINGS[base].build(spec)
    if "+window" in suffixes:
        encoding.window = spec.window
    if "+logn" in suffixes:
        encoding.log_length = max(spec.train_length, 2)
    return encoding


def position_parameters(spec: TrainingSpec) -> int:
    """How many numbers the encoding of this spec learns. Nothing is drawn."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build_encoding(spec).parameters())
