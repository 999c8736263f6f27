"""A few inexpensive measurements of a table while it trains."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posembed.arguments import ChecksCalls
from posembed.errors import ArgumentError
from posembed.tables.health import Finding
from posembed.tables.rare_rows import EVALUATE, RARE, TRAINED_RARELY
from posembed.tables.rows import table_rows
from posembed.tables.similarity import neighbour_cosine
from posembed.tables.spectrum import Spectrum

SAME_DIRECTION = 1e-9
"""A row counts as unchanged in direction if 1 - cosine to its initial value is at most this. For a row of std .02, one
step of Adam at a learning rate of 1e-4 gives 1e-5."""


def is_whole(values: Tensor) -> bool:
    """Returns whether values are integers. Booleans do not count, because a mask would be read as rows 0 and 1."""
    return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)


class TableMonitor(ChecksCalls):
    """Compares a table with the values it had when the monitor was created, and counts how often each row is trained.

    It counts the backward passes of this process in which a row has a gradient. A row has a gradient if at least one
    sequence of the batch reads it; call ``count`` to count sequences instead.

    Args:
        layer: a PositionEncoding with a table, another module with a ``weight`` (nn.Embedding), or the parameter
            itself: (N, D) or (1, N, D).

    Raises:
        ArgumentError: a layer without a table, or with one on the meta device.

    Examples:
        >>> import torch
        >>> from posembed import LearnedPositionalEmbedding
        >>> from posembed.tables import TableMonitor
        >>> layer = LearnedPositionalEmbedding(max_len=64, dim=32)
        >>> monitor = TableMonitor(layer)
        >>> layer(torch.randn(2, 10, 32)).sum().backward()
        >>> torch.optim.Adam(layer.parameters()).step()
        >>> monitor.state()["rows_unchanged"]  # the step reached rows 0 to 9 of 64
        54.0
        >>> monitor.trained.tolist()[8:12]  # each of the first 10 rows was trained once
        [1, 1, 0, 0]
    """

    def __init__(self, layer: nn.Module | Tensor) -> None:
        self.layer = layer
        self.initial = self.rows()
        """The rows when the monitor was created."""
        self._passes: Tensor | None = None
        self._sequences: Tensor | None = None
        self._watched: int | None = None
        weight = self._weight()
        if isinstance(weight, Tensor) and weight.is_leaf and weight.requires_grad and weight.numel():
            self._passes, self._watched = torch.zeros(len(self.initial), dtype=torch.int64), id(weight)
            monitor = weakref.ref(self)

            def note(gradient: Tensor) -> None:
                if (alive := monitor()) is not None:
                    alive._note(gradient)

            # The parameter must not keep the monitor alive, nor keep calling one that is gone.
            weakref.finalize(self, weight.register_hook(note).remove)

    def _weight(self) -> Any:
        """Returns the parameter that holds the table; another value, or None, if there is none."""
        if isinstance(self.layer, Tensor):
            return self.layer
        read = getattr(self.layer, "table", None)
        table = read() if callable(read) else None
        return table if isinstance(table, nn.Parameter) else getattr(self.layer, "weight", None)

    @torch.no_grad()
    def _note(self, gradient: Tensor) -> None:
        if gradient.numel() != self.initial.numel():  # a shard of the table
            self._passes = None
        if self._passes is None:
            return
        self._passes = self._passes.to(gradient.device)  # so that no step waits for the device
        if gradient.is_sparse:
            rows = torch.zeros_like(self._passes).index_fill_(0, gradient.coalesce().indices()[0], 1)
        else:
            rows = table_rows(gradient).ne(0).any(dim=1)
        self._passes = self._passes + rows  # not in place: a monitor may be created in inference mode

    @property
    def trained(self) -> Tensor | None:
        """How often each row was trained, (N,) int64 on the CPU: the number of sequences given to ``count``, or else of
        backward passes. None if neither is known, because the table is frozen or sharded, is computed from other
        parameters, or was replaced by another parameter."""
        passes = self._passes if self._watched == id(self._weight()) else None
        counts = passes if self._sequences is None else self._sequences
        return None if counts is None else counts.cpu().clone()

    def count(self, rows: Tensor, mask: Tensor | None = None) -> None:
        """Counts the sequences of a batch that read each row. ``trained`` then counts sequences.

        Args:
            rows: the row numbers that the batch reads, (B, L), or (L,) for one sequence.
            mask: of the same shape, False or 0 where a token is padding or not in the loss, True or 1 elsewhere. None
                means all tokens.

        Raises:
            ArgumentError: rows that the table does not have, or a mask of another shape or with other values.

        Examples:
            >>> import torch
            >>> from posembed import LearnedPositionalEmbedding
            >>> from posembed.tables import TableMonitor
            >>> monitor = TableMonitor(LearnedPositionalEmbedding(max_len=4, dim=32))
            >>> mask = torch.tensor([[True, True, True], [True, False, False]])
            >>> monitor.count(torch.arange(3).expand(2, 3), mask)
            >>> monitor.trained.tolist()
            [2, 1, 1, 0]
        """
        if not isinstance(rows, Tensor) or rows.dim() not in (1, 2) or not is_whole(rows):
            got = f"{tuple(rows.shape)} of {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
            raise ArgumentError(f"rows are row numbers, a tensor of integers (B, L) or (L,); got {got}")
        n, ids = len(self.initial), rows.detach().cpu()
        if mask is not None and mask.shape != rows.shape:
            raise ArgumentError(
                f"the mask must have the shape of the rows, {tuple(rows.shape)}; got {tuple(mask.shape)}"
            )
        if mask is not None and not ((mask == 0) | (mask == 1)).all():
            raise ArgumentError(
                "a mask holds True or 1 for the tokens that count, and False or 0 for the others; got other values, as "
                "labels or a mask that is added to scores have; pass the tokenizer's attention_mask, or labels != -100"
            )
        ids = torch.atleast_2d(ids.long())
        present = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.cpu().bool().reshape(ids.shape)
        read = ids[present]
        if read.numel() and not 0 <= int(read.min()) <= int(read.max()) < n:
            raise ArgumentError(f"the table has rows 0 to {n - 1}; got {int(read.min())} to {int(read.max())}")
        # Column n collects the absent tokens. A row that a sequence reads twice counts once.
        seen = torch.zeros(len(ids), n + 1, dtype=torch.bool).scatter_(1, ids.where(present, n), True)
        counts = torch.zeros(n, dtype=torch.int64) if self._sequences is None else self._sequences
        self._sequences = counts + seen[:, :n].sum(dim=0)

    def rare(self) -> Tensor:
        """Returns a boolean mask (N,) of the rows that were trained, but less than a tenth as often as the row that was
        trained most. All False if ``trained`` is None."""
        counts = self.trained
        if counts is None:
            return torch.zeros(len(self.initial), dtype=torch.bool)
        return (counts > 0) & (counts < RARE * counts.max())

    def findings(self) -> tuple[Finding, ...]:
        """Returns a finding that names the rarely trained rows, or nothing if there are none."""
        counts, rare = self.trained, self.rare()
        if counts is None or not rare.any():
            return ()
        unit = "backward passes" if self._sequences is None else "sequences"
        low, high, most = int(counts[rare].min()), int(counts[rare].max()), int(counts.max())
        times = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        rows, figure = tuple(rare.nonzero()[:, 0].tolist()), f"trained in {times} {unit}, others in up to {most:,}"
        return (Finding("rarely trained", rows, figure, TRAINED_RARELY, EVALUATE),)

    def rows(self) -> Tensor:
        """Returns a copy of the table's rows, (N, D), float64 on the CPU."""
        layer: Any = self.layer
        table = layer
        if isinstance(layer, nn.Module):
            read = getattr(layer, "table", None)
            table = read() if callable(read) else getattr(layer, "weight", None)
            base = getattr(layer, "base_layer", None)
            is_adapted = type(layer).__module__.startswith("peft.")
            if is_adapted and isinstance(base, nn.Embedding):  # its weight does not show the adapters of peft
                table = layer(torch.arange(base.num_embeddings, device=base.weight.device))
        if not isinstance(table, Tensor):
            raise ArgumentError(f"{type(self.layer).__name__} has no table of learned rows to watch")
        if table.is_meta:
            raise ArgumentError(
                f"expected a table with values, got one on the meta device ({type(self.layer).__name__}): load its "
                "weights first, and leave it out of offloading"
            )
        return table_rows(table).detach().to("cpu", torch.float64, copy=True)

    def unchanged(self) -> Tensor:
        """Returns a boolean mask (N,) of the rows that training has not changed. Weight decay alone is not a change.

        Weight decay keeps every sign and enlarges no value. Its rounding errors rotate rows less than it shrinks them.
        """
        rows = self.rows()
        if rows.shape != self.initial.shape:
            raise ArgumentError(
                f"the table was {tuple(self.initial.shape)} and is now {tuple(rows.shape)}; create a new TableMonitor"
            )
        weight = self._weight()
        initial = self.initial
        if isinstance(weight, Tensor) and weight.is_floating_point():
            initial = initial.to(weight.dtype).double()  # a cast of the model is no training
        now, then = (F.normalize(x, dim=1, eps=torch.finfo(x.dtype).tiny) for x in (rows, initial))
        turn = 1 - (now * then).sum(dim=1)
        shrinks = (rows * initial >= 0).all(dim=1) & (rows.abs() <= initial.abs()).all(dim=1)
        shrunk = 1 - rows.norm(dim=1) / initial.norm(dim=1).clamp(min=torch.finfo(rows.dtype).tiny)
        decayed = shrinks & (turn <= shrunk)
        return (rows == initial).all(dim=1) | (turn <= SAME_DIRECTION) | decayed

    def state(self) -> dict[str, float]:
        """Measures the table's current values.

        ``rows``: N. ``norm_mean``, ``norm_min``, ``norm_max``: statistics of the rows' norms. ``effective_rank``: exp
        of the entropy of the centered rows' variance shares (Roy and Vetterli 2007). ``rows_unchanged``: the number of
        unchanged rows. ``neighbour_cosine``: the mean cosine of rows i and i + 1, 0 for a single row. If the table is
        not finite, all values are NaN except those that count rows. ``rows_rare``: the number of rows in ``rare()``;
        absent if ``trained`` is None.
        """
        rows = self.rows()
        counts = {"rows": float(len(rows)), "rows_unchanged": float(self.unchanged().sum())}
        if self.trained is not None:
            counts["rows_rare"] = float(self.rare().sum())
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
