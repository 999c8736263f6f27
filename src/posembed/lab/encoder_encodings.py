"""The encodings that serve an encoder of a sequence, which sees both ways."""

from __future__ import annotations

from collections.abc import Callable

from posembed.errors import ArgumentError
from posembed.lab.encodings import ENCODINGS, WINDOW_SUFFIX
from posembed.lab.image_encodings import IMAGE_ENCODINGS
from posembed.lab.spec import TrainingSpec
from posembed.layers.base import PositionEncoding

BOTH_WAYS: dict[str, Callable[[TrainingSpec], PositionEncoding]] = {
    name: ENCODINGS[name].build for name in ("learned", "sinusoidal", "rope", "alibi", "none")
}
"""ALiBi's penalty grows with the distance either way; "none" leaves a bag of tokens."""


def require_both_ways(name: str) -> None:
    """Raise ArgumentError for a name that is not known, or of what an encoder of text has no use for."""
    base = name.removesuffix(WINDOW_SUFFIX)
    if name in BOTH_WAYS:
        return
    choose = f"choose among {', '.join(BOTH_WAYS)}"
    if name in IMAGE_ENCODINGS:
        raise ArgumentError(
            f"{name!r} places the patches of an image in a grid, and a text is a sequence; {choose}"
        )
    if base not in ENCODINGS:
        raise ArgumentError(f"unknown encoding {name!r}; {choose}")
    if base != name or base == "rolling":
        raise ArgumentError(
            f"{name!r} tells positions apart under a causal window, and an encoder sees all tokens both ways; {choose}"
        )
    raise ArgumentError(f"{name!r} is for a decoder, whose tokens see none after them; {choose}")


def build_both_ways(spec: TrainingSpec) -> PositionEncoding:
    require_both_ways(spec.encoding)
    return BOTH_WAYS[spec.encoding](spec)
