"""The encodings that serve an encoder of a sequence, which sees both ways."""

from __future__ import annotations

from collections.abc import Callable

from posembed.errors import ArgumentError
from posembed.lab.encodings import ENCODINGS
from posembed.lab.image_encodings import IMAGE_ENCODINGS
from posembed.lab.runs.spec import TrainingSpec
from posembed.layers.base import PositionEncoding
from posembed.layers.relative import T5Bias

AS_IN_A_DECODER = ("learned", "sinusoidal", "rope", "alibi", "kerple-log", "kerple-power", "pope", "none")
"""ALiBi's and KERPLE's penalties grow with the distance either way; "none" leaves a bag of tokens."""

BOTH_WAYS: dict[str, Callable[[TrainingSpec], PositionEncoding]] = {
    **{name: ENCODINGS[name].build for name in AS_IN_A_DECODER},
    "t5": lambda s: T5Bias(s.heads, bidirectional=True, std=s.width**-0.5),
}


def require_both_ways(name: str) -> None:
    """Raise ArgumentError for a name that is not known, or of what an encoder of text has no use for."""
    if name in BOTH_WAYS:
        return
    base, *suffixes = name.split("+")
    if name in IMAGE_ENCODINGS:
        reason = f"{name!r} places the patches of an image in a grid, and a text is a sequence"
    elif base not in ENCODINGS:
        reason = f"unknown encoding {name!r}"
    elif base == "rolling" or "window" in suffixes:
        reason = f"{name!r} needs a causal window, and an encoder sees all tokens both ways"
    else:
        reason = f"{name!r} is for a decoder, or for texts longer than those trained on, of which there are none here"
    raise ArgumentError(f"{reason}; choose among {', '.join(BOTH_WAYS)}")


def build_both_ways(spec: TrainingSpec) -> PositionEncoding:
    require_both_ways(spec.encoding)
    return BOTH_WAYS[spec.encoding](spec)
