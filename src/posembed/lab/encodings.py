"""The encodings of ``posembed.nn`` at the sizes of a run."""

from __future__ import annotations

from posembed.lab.runs.spec import TrainingSpec
from posembed.layers.base import PositionEncoding
from posembed.nn.encodings import ENCODINGS as ENCODINGS
from posembed.nn.encodings import Sizes, Use, encoding_by_name
from posembed.nn.encodings import names_for as names_for
from posembed.nn.encodings import split_name as split_name


def build_encoding(
    spec: TrainingSpec, use: Use = "decoder", *, grid: tuple[int, int] | None = None
) -> PositionEncoding:
    """Builds the encoding that a spec names; for images, of ``grid`` (height, width) in patches.

    Raises:
        ArgumentError: a name that is unknown or does not serve this use, or sizes that do not fit.
    """
    sizes = Sizes(
        dim=spec.width,
        heads=spec.heads,
        max_len=spec.train_length,
        longest=spec.longest,
        window=spec.window,
        ring=spec.ring,
        rope_factors=spec.rope_factors,
        grid=grid,
        causal=use == "decoder",
        dropout=spec.dropout,
    )
    return encoding_by_name(spec.encoding, sizes)
