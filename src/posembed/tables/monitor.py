"""A few inexpensive measurements of a table while it trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.errors import ArgumentError
from posembed.tables.layout import table_rows
from posembed.tables.similarity import neighbour_cosine
from posembed.tables.spectrum import Spectrum

SAME_DIRECTION = 1e-9
"""The largest 1 - cosine of a row that still has its initial direction. For a row of std .02, one step of Adam at a
learning rate of 1e-4 gives 1e-5."""


class TableMonitor:
    """Compares a table with the values it had when the monitor was created.

    Args:
        layer: a PositionEncoding with a table, another module with a ``weight`` (nn.Embedding), or the parameter
            itself: (N, D) or (1, N, D).

    Raises:
        ArgumentError: a layer without a table.
    """

    def __init__(self, layer: nn.Module | Tensor) -> None:
        self.layer = layer
        self.initial = self.rows()
        """The rows when the monitor was created."""

    def rows(self) -> Tensor:
        """Returns a copy of the table's rows, (N, D), float64 on the CPU."""
        table: Any = self.layer
        if isinstance(table, nn.Module):
            read = getattr(table, "table", None)
            table = read() if callable(read) else getattr(table, "weight", None)
        if not isinstance(table, Tensor):
            raise ArgumentError(f"{type(self.layer).__name__} has no table of learned rows to watch")
        return table_rows(table).detach().to("cpu", torch.float64, copy=True)

    def unchanged(self) -> Tensor:
        """Returns a boolean mask (N,) of the rows that training has not changed. Weight decay alone is not a change.

        Weight decay keeps every sign, and no value grows. Its rounding rotates a row by less than it shrinks the row.
        """
        rows = self.rows()
        if rows.shape != self.initial.shape:
            raise ArgumentError(
                f"the table was {tuple(self.initial.shape)} and is now {tuple(rows.shape)}; create a new TableMonitor"
            )
        now, then = (F.normalize(x, dim=1, eps=torch.finfo(x.dtype).tiny) for x in (rows, self.initial))
        turn = 1 - (now * then).sum(dim=1)
        shrinks = (rows * self.initial >= 0).all(dim=1) & (rows.abs() <= self.initial.abs()).all(dim=1)
        shrunk = 1 - rows.norm(dim=1) / self.initial.norm(dim=1).clamp(min=torch.finfo(rows.dtype).tiny)
        decayed = shrinks & (turn <= shrunk)
        return (rows == self.initial).all(dim=1) | (turn <= SAME_DIRECTION) | decayed

    def state(self) -> dict[str, float]:
        """Measures the table's current values.

        ``rows``: N. ``norm_mean``, ``norm_min``, ``norm_max``: statistics of the rows' norms. ``effective_rank``: exp
        of the entropy of the centered rows' variance shares (Roy and Vetterli 2007). ``rows_unchanged``: the number of
        unchanged rows. ``neighbour_cosine``: the mean cosine of rows i and i + 1, 0 for a single row. If the table is
        not finite, all values are NaN except ``rows`` and ``rows_unchanged``.
        """
        rows = self.rows()
        counts = {"rows": float(len(rows)), "rows_unchanged": float(self.unchanged().sum())}
        if not rows.isfinite().all():
            nothing = ("norm_mean", "norm_min", "norm_max", "effective_rank", "neighbour_cosine")
            return counts | dict.fromkeys(nothing, float("nan"))
        norms = rows.norm(dim=1)
        centred = rows - rows.mean(dim=0)
        # The eigenvalues of the smaller Gram matrix take half the time of a singular value decomposition.
        gram = centred @ centred.T if len(rows) < rows.size(1) else centred.T @ centred
        values = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
        return counts | {
            "norm_mean": norms.mean().item(),
            "norm_min": norms.min().item(),
            "norm_max": norms.max().item(),
            "effective_rank": Spectrum(values, values.new_empty(0)).effective_rank,
            "neighbour_cosine": neighbour_cosine(rows).mean().item() if len(rows) > 1 else 0.0,
        }
