"""What a position table is and what it learned, as names and values, for the page and the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posembed.checkpoints.inspect import Learned, TableReport

KINDS = {"learned": "learned", "sinusoidal": "fixed sines and cosines"}


def described(report: TableReport) -> list[tuple[str, str]]:
    from posembed.checkpoints.found import PositionTable

    table, kind, length = report.table, "not known", "not known"
    rows = [f"{table.rows} rows of {table.width}, {table.dtype}"]
    if isinstance(table, PositionTable):
        kind, length, layout = KINDS[table.kind], f"{table.length} positions", table.layout
        counts = {"reserved": layout.reserved, "prefix": layout.prefix, "tail": layout.tail}
        rows += [f"{number} {name}" for name, number in counts.items() if number]
        rows += [f"a grid of {layout.grid[0]} x {layout.grid[1]}"] if layout.grid else []
    shares = f"{report.share_of_embeddings:.1%} of the embeddings, {report.share_of_model:.1%} of the model"
    lines = {
        "kind": kind,
        "usable length": length,
        "shape": ", ".join(rows),
        "size": f"{report.parameters:,} parameters: {shares}",
    }
    if table.field is not None:
        lines["config field"] = f"{table.field} = {table.field.value}"
    if report.dependents:
        more = f" and {len(report.dependents) - 3} more" if len(report.dependents) > 3 else ""
        lines["also changes"] = ", ".join(report.dependents[:3]) + more
    return list(lines.items())


def figures(learned: Learned | None) -> list[tuple[str, str]]:
    if learned is None:
        return []
    lines = {
        "effective rank": f"{learned.effective_rank:.1f}; {learned.directions_90} directions hold 90% of the variance"
    }
    if learned.cosine_by_distance:
        cosines = (f"{cosine:.2f} at {distance}" for distance, cosine in learned.cosine_by_distance)
        lines["cosine by distance"] = ", ".join(cosines)
    if learned.toeplitz is not None:
        lines["Toeplitz residual"] = f"{learned.toeplitz:.2f} (0: similarity depends on distance alone)"
    if learned.position_error is not None:
        error = f"a linear probe errs by {learned.position_error:.1f} positions on average"
        lines["position"] = f"{error} (a guess: {learned.rows / 4:.0f})"
    if learned.order_error is not None:
        lines["order"] = f"a linear probe errs in {learned.order_error:.1%} of pairs (a guess: 50%)"
    return list(lines.items())
