"""One HTML page about a checkpoint's position tables: what stands out, in words; then each table in pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from posembed.checkpoints.inspect import MOST_ROWS, CheckpointReport, Learned, TableReport
from posembed.report.checkpoint.pictures import (
    along_figure,
    components_figure,
    fourier_figure,
    grid_components_figure,
    grid_likeness_figure,
    likeness_figure,
    spectrum_figure,
)
from posembed.report.checkpoint.words import described, figures
from posembed.report.page import Lines, Pairs, Part, Picture, Section, picture, render_page, write_page
from posembed.tables.health import describe_rows
from posembed.tables.spectrum import table_spectrum


def write_checkpoint_page(report: CheckpointReport, path: str | Path) -> Path:
    """Write what ``inspect_checkpoint`` found as one self-contained HTML file, whole or not at all.

    Raises:
        ArgumentError: it cannot be written there.
    """
    return write_page(Path(path), render(report), option="--report")


def render(report: CheckpointReport) -> str:
    name = shown_name(report.source)
    return render_page(
        title=f"What do the positions of {name} hold?",
        about=f"{name}{f', {report.model_type}' if report.model_type else ''}: {report.parameters:,} parameters, "
        f"{len(report.tables)} position table{'' if len(report.tables) == 1 else 's'}.",
        answer=answer(report),
        sections=[section_of(table, f"t{index}") for index, table in enumerate(report.tables)],
    )


def shown_name(source: str) -> str:
    """A hub name as it is; of a path, its end, since the rest says nothing to anybody else."""
    path = Path(source)
    return "/".join(path.resolve().parts[-2:]) if path.exists() else source


def answer(report: CheckpointReport) -> list[str]:
    """A paragraph a table, made from its numbers: its size, what stands out, what it learned."""
    if not report.tables:
        return [f"No position table was found: {report.why_none}."]
    several = len(report.tables) > 1
    return [" ".join(sentences(table, f"{table.table.key}: " if several else "")) for table in report.tables]


def sentences(report: TableReport, lead: str) -> Iterator[str]:
    table, learned = report.table, report.learned
    holds = f"{table.rows:,} rows" if table.length is None else f"{table.length:,} positions"
    yield f"{lead}{holds} of width {table.width:,}, {report.share_of_model:.1%} of the model."
    for finding in report.findings:
        where = describe_rows(finding.rows) if len(finding.rows) < table.rows else "all rows"
        stands = "stands out" if len(finding.rows) == 1 else "stand out"
        yield f"{where.capitalize()}{f' {stands}' if finding.what == 'outlying' else f': {finding.what}'}."
    if not report.findings and table.kind == "learned":
        yield "Nothing is wrong with its rows."
    if learned is not None:
        yield from learned_sentences(learned, table.width)


def learned_sentences(learned: Learned, width: int) -> Iterator[str]:
    few, all_of_them = learned.directions_90, min(learned.rows, width)
    yield f"{few:,} of {all_of_them:,} directions hold 90 % of the rows' variance."
    if learned.cosine_by_distance:
        near, far = learned.cosine_by_distance[0], learned.cosine_by_distance[-1]
        yield f"Neighbours have a cosine of {near[1]:.2f} on average, rows {far[0]:,} apart one of {far[1]:.2f}."
    if learned.position_error is not None and learned.order_error is not None:
        yield (
            f"A linear reader of a row says where it stands to {learned.position_error:.0f} positions (a guess: "
            f"{learned.rows / 4:.0f}); of two rows, which comes first, and is wrong {learned.order_error:.1%} of "
            "the time."
        )


def section_of(report: TableReport, name: str) -> Section:
    parts: list[Part] = []
    wrong = [*map(str, report.findings), *([report.table.doubt] if report.table.doubt else [])]
    if wrong:
        parts.append(Lines(tuple(sentence[:1].upper() + sentence[1:] for sentence in wrong)))
    parts.append(Pairs((*described(report), *figures(report.learned))))
    return Section(report.table.key, (*parts, *pictures(report, name)))


def pictures(report: TableReport, name: str) -> list[Picture]:
    """None where the rows of positions are not known, not finite, or too few to measure."""
    layout = report.table.layout
    if layout is None or report.learned is None:
        return []
    front, rows, _ = layout.split(report.values)
    rows, first = rows.float()[:MOST_ROWS], len(front)
    spectrum = table_spectrum(rows)
    strongest = picture(
        spectrum_figure(spectrum),
        name=f"{name}-spectrum",
        described="Singular values of the table, and the share of the variance that the first hold together.",
        title="How much of its width it uses",
        caption="A random table uses all directions alike. The steeper the right curve, the fewer numbers "
        "would say what the rows say.",
    )
    if layout.grid is not None:
        return [
            picture(
                grid_likeness_figure(rows, layout.grid),
                name=f"{name}-likeness",
                described="For nine cells of the grid, the cosine of their rows to all others.",
                title="Which places are alike",
                caption="Nine cells, each marked in a map of the whole grid: red is alike, blue opposite. A spot "
                "around the mark says that near places are alike; a cross, that rows and columns are told apart.",
            ),
            picture(
                grid_components_figure(spectrum, layout.grid),
                name=f"{name}-components",
                described="What each cell holds of the strongest directions of the table.",
                title="Its strongest directions, on the grid",
                caption="What each cell holds of the strongest directions, with their share of the variance. A "
                "direction that changes along one side only tells where a cell stands along that side; speckle is "
                "noise.",
            ),
            strongest,
        ]
    marked = tuple(row for finding in report.findings if finding.what == "outlying" for row in finding.rows)
    return [
        picture(
            along_figure(rows, first=first, marked=marked),
            name=f"{name}-along",
            described="Values of the table, norms of its rows, and the cosine of each row to the next.",
            title="The table from its first row to its last",
            caption="Blue is negative, red positive. Smooth bands are slow waves; speckle is noise, as at the "
            "start of training. A row whose norm or likeness leaves the others' marks a place, or was never "
            "trained.",
        ),
        picture(
            likeness_figure(rows, first=first),
            name=f"{name}-likeness",
            described="The cosine of every two rows.",
            title="Which positions are alike",
            caption="Red is alike, white unrelated, blue opposite. A broad red diagonal says that near positions "
            "are alike; stripes along it, that likeness depends on distance alone; a line across, that one row "
            "is like no other.",
        ),
        strongest,
        picture(
            components_figure(spectrum, first=first),
            name=f"{name}-components",
            described="What each row holds of the strongest directions.",
            title="Its strongest directions",
            caption="What each row holds of the strongest directions. A slope tells far from near; waves tell "
            "neighbours apart; a spike is a row that has a direction of its own.",
        ),
        picture(
            fourier_figure(spectrum),
            name=f"{name}-fourier",
            described="How the power of the strongest directions divides over waves.",
            title="Whether they are waves",
            caption="One dark cell in a line: that direction is one wave, as sinusoids are. A stretch of cells: "
            "waves of nearly one length. Cells all over the line: it is none.",
        ),
    ]
