"""Builds each encoding to find what it can do, for the table candidates.json and for unusual sizes."""

from __future__ import annotations

from functools import cache
from typing import Literal

import torch

from posembed.errors import ArgumentError, PositionError
from posembed.lab.advice.needs import LAYERS, Candidate, Needs
from posembed.nn import Decoder, Encoder, Sizes, encoding_by_name
from posembed.nn.encodings import ENCODINGS, Use, names_for, split_mixture
from posembed.torch_internals import without_memory

ALSO: dict[Use, tuple[str, ...]] = {"decoder": ("rope+window", "alibi+window", "rolling/none+logn")}
"""More names to measure, with a suffix or with different encodings by layer."""
SAID = {"+window": "under a causal window", "+logn": "with logits that grow with the logarithm of the length"}
TRAINED, LONGEST = 8, 16
"""The training length and the longest length, in tokens, of the small models that ``end_of`` tries out."""
ENDS: dict[Literal["training", "longest"], int] = {"training": TRAINED, "longest": LONGEST}


def names_of(use: Use) -> tuple[str, ...]:
    """Returns the names of all candidates for a kind of model."""
    return *names_for(use), *ALSO.get(use, ())


def built_candidates(needs: Needs) -> list[Candidate]:
    """Returns every encoding for the kind of model that the user needs."""
    heads = needs.attention_heads
    sizes = Sizes(
        dim=needs.width,
        heads=heads,
        max_len=needs.length,
        longest=needs.longest or needs.length,
        window=needs.window,
        rope_factors=(1.0,) * max(needs.width // heads // 2, 1),
        grid=needs.grid,
        causal=needs.use == "decoder",
        layers=LAYERS,
    )
    return [candidate(name, needs.use, sizes) for name in names_of(needs.use)]


@cache
def candidate(name: str, use: Use, sizes: Sizes) -> Candidate:
    lines = [
        ENCODINGS[base].line.partition(";")[0] + "".join(f" ({SAID[suffix]})" for suffix in sorted(suffixes))
        for base, suffixes in split_mixture(name, use)
    ]
    title = f"one layer after the other: {' / '.join(lines)}" if len(lines) > 1 else lines[0]
    try:
        with without_memory():
            encoding = encoding_by_name(name, sizes)
    except ArgumentError as error:
        return Candidate(name, title, problem=str(error))
    parameters = sum(parameter.numel() for parameter in encoding.parameters())
    return Candidate(name, title, parameters, encoding.window, end_of(name, use))


@cache
def end_of(name: str, use: Use) -> Literal["training", "longest"] | None:
    """Runs a small model on inputs past ``TRAINED`` and past ``LONGEST`` to find where an encoding's positions end.
    Returns None if they do not end, and for images, whose encodings are resized instead."""
    if use == "images":
        return None
    width, heads = 32, 4
    kind, causal = (Decoder, True) if use == "decoder" else (Encoder, False)
    sizes = Sizes(
        dim=width,
        heads=heads,
        max_len=TRAINED,
        longest=LONGEST,
        window=2,
        rope_factors=(1.0,) * 4,
        causal=causal,
        layers=2,
    )
    with torch.device("cpu"), torch.random.fork_rng(devices=[]), torch.no_grad():
        model = kind(dim=width, heads=heads, layers=2, encoding=encoding_by_name(name, sizes)).eval()
        for end, length in ENDS.items():
            try:
                model(torch.zeros(1, length + 1, width))
            except PositionError:
                return end
    return None
