"""A checkpoint's position tables, as facts for the terminal and as an HTML page with figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from posembed.checkpoints.found import PositionTable
from posembed.checkpoints.inspect import MOST_ROWS, CheckpointReport, TableReport
from posembed.plots.source import Rows
from posembed.report.page import Lines, Pairs, Part, Picture, Section, picture, render_page, write_page
from posembed.report.words import capitalised
from posembed.tables.health import describe_rows

KINDS = {"learned": "learned", "sinusoidal": "fixed sines and cosines"}
# The title and the caption of each figure.
WORDS = {
    "spectrum": (
        "How much of its width the table uses",
        "A random table uses all directions equally. The steeper the right curve, the fewer directions the rows use.",
    ),
    "grid-similarity": (
        "Which cells are similar",
        "Each map marks one of nine cells and shows how similar all cells are to it: red is similar, blue opposite. A "
        "spot around the mark shows that nearby cells are similar; a cross shows that rows and columns are separate.",
    ),
    "grid-components": (
        "The strongest directions, on the grid",
        "Each cell's coordinate along the strongest directions, with their share of the variance. A direction that "
        "varies along only one axis encodes the position on that axis; speckle is noise.",
    ),
    "along": (
        "The table from its first row to its last",
        "Blue is negative, red positive. Smooth bands are slow waves; speckle is noise, as at the start of training. "
        "A row whose norm or similarity stands out has a special role, or was never trained.",
    ),
    "similarity": (
        "Which positions are similar",
        "Red is similar, white unrelated, blue opposite. A broad red diagonal shows that nearby positions are similar. "
        "Stripes along it show that similarity depends only on distance. A line across shows a row unlike all others.",
    ),
    "components": (
        "The strongest directions",
        "Each row's coordinate along the strongest directions. A slope distinguishes distant rows, and waves "
        "distinguish neighbours. A spike is a row with a direction of its own.",
    ),
    "fourier": (
        "Whether the strongest directions are waves",
        "Each line is a direction. One dark cell means a single wave, such as a sinusoid. Several adjacent cells mean "
        "waves of similar lengths. Cells all over the line mean that the direction is not a wave.",
    ),
}


def facts(report: TableReport) -> list[tuple[str, str]]:
    """Returns pairs (name, value) that describe a table and what it learned."""
    table, learned, kind, length = report.table, report.learned, "not known", "not known"
    rows = [f"{table.rows} rows of {table.width}, {table.dtype}"]
    if isinstance(table, PositionTable):
        kind, length, layout = KINDS[table.kind], f"{table.length} positions", table.layout
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
    if learned is None:
        return lines
    rank = f"{learned.effective_rank:.1f}; {learned.directions_90} directions hold 90% of the variance"
    lines.append(("effective rank", rank))
    if learned.cosine_by_distance:
        cosines = ", ".join(f"{cosine:.2f} at {distance}" for distance, cosine in learned.cosine_by_distance)
        lines.append(("cosine by distance", cosines))
    if learned.toeplitz is not None:
        lines.append(("Toeplitz residual", f"{learned.toeplitz:.2f} (0: similarity depends only on distance)"))
    if learned.position_error is not None:
        error = f"a linear probe errs by {learned.position_error:.1f} positions on average"
        lines.append(("position", f"{error} (guessing: {learned.rows / 4:.0f})"))
    if learned.order_error is not None:
        lines.append(("order", f"a linear probe errs in {learned.order_error:.1%} of pairs (guessing: 50%)"))
    return lines


def write_checkpoint_page(report: CheckpointReport, path: str | Path) -> Path:
    """Writes a report of ``inspect_checkpoint`` as a self-contained HTML file. Raises the errors of ``write_page``."""
    return write_page(Path(path), render(report))


def render(report: CheckpointReport) -> str:
    name = shown_name(report.source)
    kind = f", {report.model_type}" if report.model_type else ""
    return render_page(
        title=f"What did the position tables of {name} learn?",
        about=f"{name}{kind}: {report.parameters:,} parameters; position tables: {len(report.tables)}.",
        answer=answer(report),
        sections=[section_of(table, f"t{index}") for index, table in enumerate(report.tables)],
    )


def shown_name(source: str) -> str:
    """Returns a hub name unchanged, or the last two parts of a path."""
    path = Path(source)
    return "/".join(path.resolve().parts[-2:]) if path.exists() else source


def answer(report: CheckpointReport) -> list[str]:
    if not report.tables:
        return [f"No position table was found: {report.why_none}."]
    return [" ".join(sentences(table)) for table in report.tables]


def sentences(report: TableReport) -> Iterator[str]:
    table, learned = report.table, report.learned
    holds = f"{table.length:,} positions" if isinstance(table, PositionTable) else f"{table.rows:,} rows"
    yield f"{table.key}: {holds} of width {table.width:,}, {report.share_of_model:.1%} of the model."
    for finding in report.findings:
        where = describe_rows(finding.rows) if len(finding.rows) < table.rows else "all rows"
        guess = " (perhaps)" if finding.what == "rarely trained" else ""
        yield f"{capitalised(where)}: {finding.what}{guess}."
    if not report.findings and isinstance(table, PositionTable) and table.kind == "learned":
        yield "No problems were found in its rows."
    if learned is None:
        return
    yield f"{learned.directions_90:,} of {min(learned.rows, table.width):,} directions hold 90% of the rows' variance."
    if learned.cosine_by_distance:
        near, far = learned.cosine_by_distance[0], learned.cosine_by_distance[-1]
        yield f"Neighbouring rows have a mean cosine of {near[1]:.2f}; rows {far[0]:,} apart, {far[1]:.2f}."
    if learned.position_error is not None and learned.order_error is not None:
        yield (
            f"A linear probe predicts a row's position with a mean error of {learned.position_error:.0f} positions "
            f"(guessing: {learned.rows / 4:.0f}), and orders {learned.order_error:.1%} of pairs of rows incorrectly "
            "(guessing: 50%)."
        )


def section_of(report: TableReport, name: str) -> Section:
    wrong = tuple(capitalised(text) for text in (*map(str, report.findings), report.table.doubt) if text)
    parts: list[Part] = [Lines(wrong)] if wrong else []
    return Section(report.table.key, (*parts, Pairs(tuple(facts(report))), *pictures_of(report, name)))


def pictures_of(report: TableReport, name: str) -> Iterator[Picture]:
    """Yields the figures of a table. Yields none if its layout is unknown, or if its rows are too few or not finite."""
    from posembed.report.checkpoint_pictures import figures  # imports matplotlib, which the terminal does not need

    if not isinstance(report.table, PositionTable) or report.learned is None:
        return
    layout = report.table.layout
    rows = layout.split(report.values)[1].double()[:MOST_ROWS]
    marked = [row for finding in report.findings if finding.what == "outlying" for row in finding.rows]
    after = len(report.values) - layout.front - len(rows)
    for kind, figure in figures(Rows(rows, layout.front, layout.grid, after), marked):
        title, caption = WORDS[kind]
        yield picture(figure, name=f"{name}-{kind}", described=f"{title}. {caption}", title=title, caption=caption)
