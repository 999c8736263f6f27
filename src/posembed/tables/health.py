"""Problems of a table in words: the suspects of ``suspects.py`` as findings that a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from posembed.errors import ArgumentError
from posembed.tables.layout import TableLayout
from posembed.tables.rows import table_rows
from posembed.tables.suspects import (
    dead_rows,
    first_equal_row,
    fresh_rows,
    local_median,
    nearer_cosine,
    norm_over_median,
    outlying_rows,
)

TOKEN_RATIO = 3.0
"""The largest ratio to the tokens' norm: at 3, position makes up nine tenths of the variance of token + position."""

SHOWN = 4
"""The largest number of rows whose values a figure lists."""

UNTRAINED = "Train the table, or check whether its key was found when the checkpoint was loaded."
UNREACHED = (
    "If inputs reach them, train on longer inputs, or truncate the table before them and lengthen it from there."
)


@dataclass(frozen=True)
class Finding:
    """One problem of a table: the rows for a program, the rest for a person."""

    what: str
    """"not finite", "dead", "never trained", "repeated", "outlying" or "scale"."""
    rows: tuple[int, ...]
    """Row numbers of the table, ascending."""
    figure: str
    meaning: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}, {describe_rows(self.rows)}: {self.figure}. {self.meaning} {self.remedy}"


def describe_rows(rows: tuple[int, ...]) -> str:
    """Formats row numbers: (0, 127, 510, 511) -> "rows 0, 127, 510-511"."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and row == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], row)
        else:
            runs.append((row, row))
    named = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    return ("row " if len(rows) == 1 else "rows ") + ", ".join(named)


def check_table(
    table: Tensor,
    *,
    layout: TableLayout = TableLayout(),  # noqa: B008  (frozen)
    token_norm: float | None = None,
) -> tuple[Finding, ...]:
    """Lists a table's problems, the worst first; empty for a sound table.

    Args:
        table: (N, D) or (1, N, D), floating.
        layout: how its rows are read. Only the rows of positions are judged; NaN and infinity are found in all.
        token_norm: the mean norm of the token rows that these are added to, times the model's own factor if it has
            one (sqrt(D) in the original Transformer). None skips the check of the scale.

    Raises:
        ArgumentError: a table, layout or norm that cannot be used.
    """
    if token_norm is not None and not token_norm > 0:
        raise ArgumentError(f"token_norm is the mean norm of the token rows, above 0; got {token_norm}")
    rows = table_rows(table).detach().to("cpu", torch.float64)
    length = layout.length(len(rows))
    finite = rows.isfinite().all(dim=1)
    places = layout.front + finite[layout.front : layout.front + length].nonzero()[:, 0]
    return (*_not_finite(~finite), *_findings(rows[places], places, token_norm))


def _not_finite(broken: Tensor) -> Iterator[Finding]:
    if broken.any():
        yield Finding(
            "not finite",
            tuple(broken.nonzero()[:, 0].tolist()),
            f"NaN or infinity in {int(broken.sum())} of {len(broken)} rows",
            "Every sequence that reads one of them becomes NaN.",
            "Go back to a checkpoint from before training diverged, or overwrite these rows.",
        )


def _findings(rows: Tensor, places: Tensor, token_norm: float | None) -> Iterator[Finding]:
    """Yields the problems of finite position rows (n, D); places (n,) are their row numbers in the table."""
    dead = dead_rows(rows)
    if dead.any():
        largest = rows[dead].norm(dim=1).max().item()
        yield Finding(
            "dead",
            tuple(places[dead].tolist()),
            f"norm {largest:.1g} or less, {rows.norm(dim=1).median():.2g} at the median" if largest else "all zeros",
            "These positions add nothing to their tokens, so the model cannot tell them apart.",
            UNTRAINED if dead.all() else UNREACHED,
        )
    rows, places = rows[~dead], places[~dead]
    if not len(rows):
        return

    fresh = fresh_rows(rows)
    if fresh.any():
        yield Finding(
            "never trained",
            tuple(places[fresh].tolist()),
            f"cosine to the nearer neighbour {nearer_cosine(rows)[fresh].mean():.2f}, as for random rows",
            "They have their initial values: training never changed them.",
            UNTRAINED if fresh.all() else UNREACHED,
        )
    first = first_equal_row(rows)
    repeated = first != torch.arange(len(rows))
    if repeated.any():
        example = int(repeated.nonzero()[0])
        yield Finding(
            "repeated",
            tuple(places[repeated].tolist()),
            f"equal to an earlier row; row {places[example]} is row {places[first[example]]} again",
            "The model cannot tell these positions from the ones they repeat.",
            "After tiling this is intended, and tuning separates them; otherwise look for positions computed in a "
            "narrow dtype (bfloat16 cannot count past 256).",
        )
    outlying = outlying_rows(rows) & ~fresh
    if outlying.any():
        cosine = nearer_cosine(rows)
        yield Finding(
            "outlying",
            tuple(places[outlying].tolist()),
            f"{_listed(norm_over_median(rows)[outlying])} times the norm of the surrounding rows, cosine to the nearer "
            f"neighbour {_listed(cosine[outlying])} where {local_median(cosine)[outlying].median():.2f} is usual",
            "Marked positions: the first row often marks the start, others where training sequences ended.",
            "This is not a fault, but tiling repeats the marks and interpolation blurs them: evaluate a resized table.",
        )
    norm = rows.norm(dim=1).median().item()
    if token_norm is not None and norm > TOKEN_RATIO * token_norm:
        yield Finding(
            "scale",
            tuple(places.tolist()),
            f"norm {norm:.3g}, {norm / token_norm:.3g} times the tokens' {token_norm:.3g}",
            "Added to the tokens, these rows dominate them, above all early in training.",
            "Start from rows with the tokens' scale (init='normal', std=0.02), or scale the tokens up by sqrt(D).",
        )


def _listed(values: Tensor) -> str:
    shown = ", ".join(f"{value:.2f}" for value in values[:SHOWN].tolist())
    return shown + (" ..." if len(values) > SHOWN else "")
