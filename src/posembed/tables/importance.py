"""How much each row of a table matters to a model: how much the model's losses rise if the row is replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from posembed.arguments import checks_arguments
from posembed.errors import ArgumentError
from posembed.statistics import Estimate, estimate
from posembed.tables.rows import table_rows

INSTEAD: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda rows, row: rows.mean(dim=0),
    "neighbour": lambda rows, row: rows[row + 1 if row + 1 < len(rows) else row - 1],
}
"""What replaces a row: functions of all rows (N, D) and the row's index."""


@checks_arguments
def row_importance(
    table: nn.Module | Tensor,
    losses: Callable[[], Tensor],
    *,
    rows: Sequence[int] | None = None,
    instead: str = "mean",
) -> dict[int, Estimate]:
    """Returns, for each row of a model's position table, how much the losses rise if the row is replaced.

    Only ``losses`` depends on the kind of model: the cross-entropy of a classifier's labels, or of the next tokens of a
    language model. Each row needs one call of ``losses``, and all together two more. Afterwards the table is as before.

    Args:
        table: the parameter (N, D), (1, N, D) or (N, 1, D), or the module that has it as ``weight``.
        losses: runs the model, in evaluation mode, on the same B texts in each call. Returns a loss per text, (B,), or
            per token, (B, L), which is averaged over each text.
        rows: the indices of the rows to replace, one at a time. None means all rows.
        instead: "mean", the mean of all rows, or "neighbour", the next row, which is off by one position.

    Raises:
        ArgumentError: a table without values or with fewer than 2 rows, losses of another shape, or a row out of range.

    Examples:
        >>> import torch
        >>> from posembed.tables.importance import row_importance
        >>> table, tokens, labels = torch.randn(20, 4), torch.randn(8, 16, 4), torch.randint(4, (8,))
        >>> def losses():
        ...     logits = (tokens + table[:16]).mean(dim=1)
        ...     return torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        >>> row_importance(table, losses, rows=[0, 16])[16].value  # no text reaches this row
        0.0
    """
    # A weight that is computed from other tensors is not in the state, and replacing its rows would change nothing.
    weight = table if isinstance(table, Tensor) else table.state_dict(keep_vars=True).get("weight")
    if not isinstance(weight, Tensor) or weight.is_meta or len(held := table_rows(weight.detach())) < 2:
        raise ArgumentError(
            "table must be a parameter (N, D) with values and 2 rows or more, or a module with one as its weight, such "
            f"as model.bert.embeddings.position_embeddings; got {type(table).__name__}"
        )
    if instead not in INSTEAD:
        raise ArgumentError(f"instead must be one of {', '.join(INSTEAD)}; got {instead!r}")
    if wrong := [row for row in rows or () if not 0 <= row < len(held)]:
        raise ArgumentError(f"rows must be from 0 to {len(held) - 1}, those of the table; got {wrong[0]}")
    return {
        row: estimate(increase.double().reshape(len(increase), -1).mean(dim=1).tolist())
        for row, increase in increases(held, losses, range(len(held)) if rows is None else rows, instead)
    }


def increases(
    held: Tensor, losses: Callable[[], Tensor], rows: Sequence[int], instead: str
) -> Iterator[tuple[int, Tensor]]:
    """Yields each row's index, and how much the losses rise without the row. held: a view of the rows (N, D)."""

    @torch.no_grad()
    def measured(intact: Tensor | None = None) -> Tensor:
        found = losses()
        if not isinstance(found, Tensor) or not found.dim() or not found.numel():
            raise ArgumentError('losses must return one loss for each text, (N,) or (N, L): pass reduction="none"')
        if not found.isfinite().all():
            raise ArgumentError("losses must be finite; some are not: leave out texts without anything to predict")
        if intact is not None and found.shape != intact.shape:
            raise ArgumentError(
                "losses must be of the same texts in each call; got losses of shape "
                f"{tuple(intact.shape)}, then {tuple(found.shape)}"
            )
        return found

    intact = measured()
    if not torch.allclose(measured(intact).double(), intact.double(), rtol=1e-3, atol=1e-3):
        raise ArgumentError(
            "losses must be equal in each call with the same table: take the same texts in the same order, and call "
            "model.eval() (no dropout)"
        )
    for row in rows:
        kept, other = held[row].clone(), INSTEAD[instead](held, row).clone()
        try:
            held[row] = other
            replaced = measured(intact)
        finally:
            held[row] = kept
        yield row, replaced - intact
