"""A checkpoint's position tables, as facts for the terminal and as an HTML page with figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from posembed.checkpoints.found import PositionTable
from posembed.checkpoints.inspect import MOST_ROWS, CheckpointReport, TableReport
from posembed.plots.source import Rows
from posembed.report.page import Lines, Pairs, Part, Picture, Section, picture, render_page, write_page
from posembed.report.words import capitalised
from posembed.tables.health import describe_rows
from posembed.tables.layout import Axis

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # of a layer, in a key
FEWEST_ALIKE = 3  # tables among which one can stand out
STANDS_OUT = 2.0  # times the scale of the middle table
TINY = 1e-30
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
        layout = table.layout
        relative = any(axis.relative for axis in layout.axes)
        kind = KINDS[table.kind] + ", relative" * relative
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
    if isinstance(table, PositionTable) and table.layout.axes and not table.layout.grid:
        lines[1:2] = [("axes", axes_in_words(table.layout.axes))]
    fields = table.fields if isinstance(table, PositionTable) else filter(None, (table.field,))
    if values := ", ".join(f"{field} = {field.value}" for field in fields):
        lines.append(("config field", values))
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


def axes_in_words(axes: Sequence[Axis]) -> str:
    """Returns the axes of a table with their sizes, such as "time 8, height 14, width 14"."""
    sizes = ", ".join(f"{axis.name} {axis.size}" for axis in axes)
    if not any(axis.relative for axis in axes):
        return sizes
    of = "differences" if all(axis.signed for axis in axes) else "distances"
    return f"{sizes}: {' x '.join(str(axis.rows) for axis in axes)} {of}"


def alike(reports: Iterable[TableReport]) -> list[list[TableReport]]:
    """Groups the tables of layers that differ only in their values: equal names, apart from numbers, and layouts."""
    groups: dict[tuple[object, ...], list[TableReport]] = {}
    for report in reports:
        table = report.table
        layout = table.layout if isinstance(table, PositionTable) else None
        findings = tuple(map(str, report.findings))
        same = (NUMBER.sub("*", table.key), table.shape, layout, table.field, table.doubt, findings)
        groups.setdefault(same, []).append(report)
    return list(groups.values())


def name_of(group: Sequence[TableReport]) -> str:
    """Returns the key of a table, or of the tables of several layers: "layers.*.rel_pos_h (4 tables)"."""
    keys = [report.table.key for report in group]
    return keys[0] if len(keys) == 1 else f"{NUMBER.sub('*', keys[0])} ({len(keys)} tables)"


def standing_out(group: Sequence[TableReport]) -> str:
    """Returns which of several tables has values of another scale than the others, or ""."""
    scales = [report.values.float().square().mean().sqrt().item() for report in group]
    middle = sorted(scales)[len(scales) // 2]
    ratios = [max(scale, TINY) / max(middle, TINY) for scale in scales]
    if len(group) < FEWEST_ALIKE or not all(map(math.isfinite, scales)):
        return ""
    at = max(range(len(group)), key=lambda index: abs(math.log(ratios[index])))
    if abs(math.log(ratios[at])) < math.log(STANDS_OUT):
        return ""
    return f"{group[at].table.key}: root mean square {scales[at]:.2g}, in the middle table {middle:.2g}"


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
        sections=[section_of(group, f"t{index}") for index, group in enumerate(alike(report.tables))],
    )


def shown_name(source: str) -> str:
    """Returns a hub name unchanged, or the last two parts of a path."""
    path = Path(source)
    return "/".join(path.resolve().parts[-2:]) if path.exists() else source


def answer(report: CheckpointReport) -> list[str]:
    if not report.tables:
        return [f"No position table was found: {report.why_none}."]
    return [" ".join(sentences(group[0], name_of(group))) for group in alike(report.tables)]


def sentences(report: TableReport, name: str) -> Iterator[str]:
    table, learned = report.table, report.learned
    holds = f"{table.rows:,} rows"
    if isinstance(table, PositionTable):
        relative = any(axis.relative for axis in table.layout.axes)
        holds = f"{table.length:,} {'differences of positions' if relative else 'positions'}"
    yield f"{name}: {holds} of width {table.width:,}, {report.share_of_model:.1%} of the model."
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


def section_of(group: Sequence[TableReport], name: str) -> Section:
    """Returns the section of a table; of several tables that are alike, it shows the first."""
    report = group[0]
    wrong = tuple(capitalised(text) for text in (*map(str, report.findings), report.table.doubt) if text)
    parts: list[Part] = [Lines(wrong)] if wrong else []
    apart = standing_out(group)
    pairs = Pairs((*facts(report), *([("stands out", apart)] if apart else [])))
    return Section(name_of(group), (*parts, pairs, *pictures_of(report, name)))


def pictures_of(report: TableReport, name: str) -> Iterator[Picture]:
    """Yields the figures of a table. Yields none if its layout is unknown, or if its rows are too few or not finite."""
    from posembed.report.checkpoint_pictures import figures  # imports matplotlib, which the terminal does not need

    if not isinstance(report.table, PositionTable) or report.learned is None:
        return
    layout = report.table.layout
    rows = layout.split(report.values)[1].double()[:MOST_ROWS]
    marked = [row for finding in report.findings if finding.what == "outlying" for row in finding.rows]
    after = len(report.values) - layout.front - len(rows)
    flat = layout.shape if len(layout.shape) == 2 and len(rows) == math.prod(layout.shape) else None
    for kind, figure in figures(Rows(rows, layout.front, flat, after), marked):
        title, caption = WORDS[kind]
        yield picture(figure, name=f"{name}-{kind}", described=f"{title}. {caption}", title=title, caption=caption)
