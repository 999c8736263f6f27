"""Claim: a concatenated learned table is better than an added one, because tokens and positions share no components.

    python benchmarks/concatenation.py --out runs/concatenation --seeds 3      # half an hour on two cores

Compares the sum and the concatenation with what lies between them: narrow tokens (the last quarter of each token is
zero) under rows of the full width, full tokens with narrow rows (added in the last quarter alone), and other widths of
the row. Settings: posembed compare lengths. It continues where it stopped.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import posembed
from posembed import LearnedPositionalEmbedding
from posembed.layers import ConcatenatedPositionalEmbedding
from posembed.nn.encodings import ENCODINGS, Entry, Sizes


class NarrowTokens(LearnedPositionalEmbedding):
    """Rows (N, D) added to tokens whose last quarter is zero."""

    def _added(self, x: Tensor, rows: Tensor) -> Tensor:
        kept = torch.arange(self.dim, device=x.device) < self.dim - self.dim // 4
        return super()._added(x * kept, rows)


class NarrowRows(ConcatenatedPositionalEmbedding):
    """Rows (N, D / 4) added to the last quarter of the tokens, which stays."""

    def _added(self, x: Tensor, rows: Tensor) -> Tensor:
        return super()._added(x, x[..., self.dim - self.position_dim :] + rows)


def entry(kind: Any, **arguments: Any) -> Entry:
    return Entry(lambda s: kind(**sizes(s), **{k: f(s) for k, f in arguments.items()}), kind.__name__, "posembed")


def sizes(s: Sizes) -> dict[str, Any]:
    return {"max_len": s.length, "dim": s.dim, "dropout": s.dropout}


IDEAS = {
    "narrow tokens, full rows": entry(NarrowTokens),
    "full tokens, narrow rows": entry(NarrowRows),
    "concatenated, an eighth": entry(ConcatenatedPositionalEmbedding, position_dim=lambda s: s.dim // 8),
    "concatenated, a half": entry(ConcatenatedPositionalEmbedding, position_dim=lambda s: s.dim // 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/concatenation"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--encodings", nargs="+", default=["learned", "learned-concat", *IDEAS])
    arguments = parser.parse_args()
    ENCODINGS.update(IDEAS)
    print(
        posembed.compare(
            "lengths", encodings=arguments.encodings, preset="quick", seeds=arguments.seeds, out=arguments.out
        )
    )


if __name__ == "__main__":
    main()
