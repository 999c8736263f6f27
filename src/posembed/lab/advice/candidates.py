"""What each encoding can do: its parameters, its window, and where its positions end. Read from a table, without torch.

benchmarks/evidence.py writes the table from encodings that it builds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from posembed.errors import ArgumentError
from posembed.files import data_of
from posembed.lab.advice.needs import LAYERS, Candidate, Needs

TABLE = data_of(__file__)
"""The title of each encoding, where its positions end, and whether it has a window, by kind of model and name."""

Parameters = Callable[[Needs], int]
_rows: Parameters = lambda n: n.length * n.width  # noqa: E731
_longest: Parameters = lambda n: (n.longest or n.length) * n.width  # noqa: E731
_ring: Parameters = lambda n: n.window * n.width  # noqa: E731
_path: Parameters = lambda n: 67 * n.width + (n.width + 1) * n.attention_heads  # noqa: E731
_tupe: Parameters = lambda n: (n.length + 2 * n.width + 4) * n.width  # noqa: E731
PARAMETERS: dict[str, Parameters] = {
    **dict.fromkeys(("learned", "learned-averaged"), _rows),
    **dict.fromkeys(("learned-interpolated", "learned-hierarchical", "learned-tiled", "learned-random"), _rows),
    **dict.fromkeys(("learned-long", "learned-shifted", "learned-randomized", "learned-skipped"), _longest),
    **dict.fromkeys(("learned-1d", "learned-2d"), lambda n: (1 + n.length) * n.width),
    "factorized": lambda n: (1 + sum(n.grid or ())) * n.width,
    "learned-concat": lambda n: n.length * (n.width // 4),
    **dict.fromkeys(("rolling", "rolling/none+logn"), _ring),
    "rolling/path": lambda n: _ring(n) + LAYERS // 2 * _path(n),
    **dict.fromkeys(("pope", "rope-mixed"), lambda n: n.width),
    **dict.fromkeys(("bipe-rope", "bipe-alibi"), lambda n: -(-n.length // 8) * n.width),
    "seqpe": lambda n: 25_824 + 32 * len(str((n.longest or n.length) - 1)) + 33 * n.width,
    "t5": lambda n: 32 * n.attention_heads,
    **dict.fromkeys(("kerple-log", "kerple-power"), lambda n: 2 * n.attention_heads),
    "tupe": _tupe,
    "tupe-r": lambda n: _tupe(n) + 32 * n.attention_heads,
    "fire": lambda n: 66 + 33 * n.attention_heads,
    **dict.fromkeys(("fox", "cable"), lambda n: LAYERS * (n.width + 1) * n.attention_heads),
    "cope": lambda n: LAYERS * 64 * (n.width // n.attention_heads),
    "dape": lambda n: LAYERS * (32 + 99 * n.attention_heads),
    "path": lambda n: LAYERS * _path(n),
}
"""The number of position parameters in LAYERS layers, at usual sizes. Encodings not listed here have none."""


def candidates(needs: Needs) -> list[Candidate]:
    """Returns every encoding for the kind of model that the user needs."""
    found = [
        Candidate(name, title, PARAMETERS.get(name, lambda _: 0)(needs), needs.window if window else None, ends)
        for name, (title, ends, window) in TABLE[needs.use].items()
    ]
    usual = needs.width % 4 == needs.width // needs.attention_heads % 4 == 0 and needs.length >= 8
    return found if usual else [built(each, needs) for each in found]


def built(each: Candidate, needs: Needs) -> Candidate:
    """Builds an encoding at unusual sizes, which it may not fit. Returns its parameters, or why it cannot be built."""
    from posembed.nn.encodings import Sizes, encoding_by_name
    from posembed.torch_internals import without_memory

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
    try:
        with without_memory():
            encoding = encoding_by_name(each.name, sizes)
    except ArgumentError as error:
        return Candidate(each.name, each.title, problem=str(error))
    parameters = sum(parameter.numel() for parameter in encoding.parameters())
    return dataclasses.replace(each, parameters=parameters, window=encoding.window)
