"""What a position table is and what it learned, as names and values, for the page and the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posembed.checkpoints.inspect import Learned, TableReport


def described(report: TableReport) -> list[tuple[str, str]]:
    from posembed.checkpoints.found import PositionTable

    table = report.table
    rows = [f"{table.rows} rows of {table.width}, {table.dtype}"]
    kind, length = "not known", "not known"
    if isinstance(table, PositionTable):
        layout = table.layout
        kind = {"learned": "learned", "sinusoidal": "fixed sines and cosines"}[table.kind]
        length = f"{table.length} positions"
        counts = {"reserved": layout.reserved, "prefix": layout.prefix, "tail": layout.tail}
        rows += [f"{number} {name}" for name, number in counts.items() if number]
        rows += [f"a grid of {layout.grid[0]} x {layout.grid[1]}"] if layout.grid else []
    shares = f"{report.share_of_embeddings:.1%} of the embeddings, {report.share_of_model:.1%} of the model"
    lines = [
        ("kind", kind),
        ("usable length", length),
        ("shape", ", ".join(rows)),
        ("size", f"{report.parameters:,} parameters: {shares}"),
    ]
    if table.field is not None:
        lines.append(("config field", f"{table.field} = {table.field.value}"))
    if report.dependents:
        more = f" and {len(report.dependents) - 3} more" if len(report.dependents) > 3 else ""
        lines.append(("also changes", ", ".join(report.dependents[:3]) + more))
    return lines


def figures(learned: Learned | None) -> list[tuple[str, str]]:
    if learned is None:
        return []
    rank = f"{learned.effective_rank:.1f}; {learned.directions_90} directions hold 90% of the variance"
    lines = [("effective rank", rank)]
    if learned.cosine_by_distance:
        cosines = ", ".join(f"{cosine:.2f} at {distance}" for distance, cosine in learned.cosine_by_distance)
        lines.append(("cosine by distance", cosines))
    if learned.toeplitz is not None:
        lines.append(("Toeplitz residual", f"{learned.toeplitz:.2f} (0: similarity depends on distance alone)"))
    if learned.position_error is not None:
        chance = f"(a guess: {learned.rows / 4:.0f})"
        lines.append(("position", f"a linear probe errs by {learned.position_error:.1f} positions on average {chance}"))
    if learned.order_error is not None:
        lines.append(("order", f"a linear probe errs in {learned.order_error:.1%} of pairs (a guess: 50%)"))
    return lines
