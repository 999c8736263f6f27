"""What each encoding can do: its parameters, its window, and where its positions end. Read from a table, without torch.

benchmarks/evidence.py writes the table from encodings that it builds (built.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from posembed.lab.advice.needs import LAYERS, Candidate, Needs

TABLE = Path(__file__).with_name("candidates.json")
"""The file has, by kind of model and encoding, a title, where the positions end, and whether there is a window."""

Parameters = Callable[[Needs], int]
_rows: Parameters = lambda n: n.length * n.width  # noqa: E731
_longest: Parameters = lambda n: (n.longest or n.length) * n.width  # noqa: E731
_tupe: Parameters = lambda n: (n.length + 2 * n.width + 4) * n.width  # noqa: E731
PARAMETERS: dict[str, Parameters] = {
    **dict.fromkeys(("learned", "learned-averaged"), _rows),
    **dict.fromkeys(("learned-interpolated", "learned-hierarchical", "learned-tiled", "learned-random"), _rows),
    **dict.fromkeys(("learned-long", "learned-shifted", "learned-randomized", "learned-skipped"), _longest),
    **dict.fromkeys(("learned-1d", "learned-2d"), lambda n: (1 + n.length) * n.width),
    "factorized": lambda n: (1 + sum(n.grid or ())) * n.width,
    "learned-concat": lambda n: n.length * (n.width // 4),
    **dict.fromkeys(("rolling", "rolling/none+logn"), lambda n: n.window * n.width),
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
    "path": lambda n: LAYERS * (64 * n.width + (n.width + 1) * n.attention_heads),
}
"""The number of position parameters in LAYERS layers, at usual sizes. Encodings not listed here have none."""


def candidates(needs: Needs) -> list[Candidate]:
    """Returns every encoding for the kind of model that the user needs."""
    if needs.width % 4 or needs.width // needs.attention_heads % 4 or needs.length < 8:
        from posembed.lab.advice.built import built_candidates

        return built_candidates(needs)  # an encoding may not fit these sizes
    rows = json.loads(TABLE.read_text(encoding="utf-8"))[needs.use]
    return [
        Candidate(name, title, PARAMETERS.get(name, lambda _: 0)(needs), needs.window if window else None, ends)
        for name, (title, ends, window) in rows.items()
    ]
