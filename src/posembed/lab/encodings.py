"""The encodings of the lab by name. Add one line to add one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from posembed.errors import ArgumentError
from posembed.lab.spec import TrainingSpec
from posembed.layers.alibi import Alibi
from posembed.layers.base import PositionEncoding
from posembed.layers.learned import LearnedPositionalEmbedding
from posembed.layers.none import NoPosition
from posembed.layers.rolling import RollingPositionalEmbedding
from posembed.layers.rotary import RotaryEmbedding
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
    "none": Entry(
        lambda s: NoPosition(),
        "no position; the causal mask alone tells how many tokens came before",
        "Haviv et al. 2022, arXiv:2203.16634",
    ),
}

WINDOW_SUFFIX = "+window"


def split_name(name: str) -> tuple[str, bool]:
    """ "rope+window" -> ("rope", True). Raises ArgumentError for a name that is not known."""
    base = name.removesuffix(WINDOW_SUFFIX)
    if base not in ENCODINGS:
        raise ArgumentError(
            f"unknown encoding {name!r}; known are {', '.join(ENCODINGS)}, "
            f"each also with {WINDOW_SUFFIX} (the same under a causal window)"
        )
    return base, base != name


def build_encoding(spec: TrainingSpec) -> PositionEncoding:
    base, windowed = split_name(spec.encoding)
    encoding = ENCODINGS[base].build(spec)
    if windowed:
        encoding.window = spec.window
    return encoding
