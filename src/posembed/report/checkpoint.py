"""A checkpoint's position tables, as facts for the terminal and as an HTML page with figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from posembed.checkpoints.inspect import CheckpointReport, Learned, TableReport
from posembed.checkpoints.position_tables import PositionTable
from posembed.files import data_of
from posembed.report.page import Lines, Pairs, Part, Picture, Section, picture, render_page
from posembed.report.words import capitalised
from posembed.tables.health import describe_rows
from posembed.tables.layout import Axis, are_sides
from posembed.words import amount

NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # of a layer, in a key
FEWEST_ALIKE = 3  # tables among which one can stand out
STANDS_OUT = 2.0  # times the scale of the middle table
TINY = 1e-30
KINDS = {"learned": "learned", "sinusoidal": "fixed sines and cosines"}
RELATIVE = {
    True: "learned, relative: a bias for each attention head",
    False: "learned, relative: a vector for each difference",
}
IN_BUCKETS = {
    True: "learned, relative: a bias for each attention head and bucket of distances",
    False: "learned, relative: buckets of distances",
}
NO_LENGTH = "any: no length changes the buckets, so the table needs no resize"
WORDS: dict[str, tuple[str, str]] = data_of(__file__)
"""The title and the caption of each figure."""


def facts(report: TableReport, group: Sequence[TableReport] = ()) -> list[tuple[str, str]]:
    """Returns pairs (name, value) that describe a table and what it learned.

    group: the tables of all layers, if the table is one of several that are alike.
    """
    table, learned, kind, length = report.table, report.learned, "not known", "not known"
    rows = [f"{table.rows} rows of {table.width}, {table.dtype}"]
    if isinstance(table, PositionTable):
        layout = table.layout
        kind = RELATIVE[report.of_biases] if report.relative else KINDS[table.kind]
        length = f"{table.length} positions"
        counts = {"reserved": layout.reserved, "prefix": layout.prefix, "tail": layout.tail}
        rows += [amount(number, f"{name} row") for name, number in counts.items() if number]
        rows += [f"a grid of {layout.grid[0]} x {layout.grid[1]}"] if layout.grid else []
    elif table.fixed and not table.in_buckets:
        kind, length = KINDS["learned"], f"any: {table.doubt}"
    elif table.fixed:
        kind, length = IN_BUCKETS[report.of_biases], NO_LENGTH if report.buckets else f"any: {table.doubt}"
    shares = f"{report.share_of_embeddings:.1%} of the embeddings, {report.share_of_model:.1%} of the model"
    lines = [
        ("kind", kind),
        ("usable length", length),
        ("shape", ", ".join(rows)),
        ("size", f"{amount(report.parameters, 'parameter')}: {shares}"),
    ]
    if isinstance(table, PositionTable) and table.layout.axes and not table.layout.grid:
        lines[1:2] = [("axes", axes_in_words(table.layout.axes))]
    fields = table.fields if isinstance(table, PositionTable) else filter(None, (table.field,))
    if values := ", ".join(f"{field} = {field.value}" for field in fields if field.stated):
        lines.append(("config field", values))
    alike_keys = {each.table.key for each in group}
    if others := by_layer(key for key in report.dependents if key not in alike_keys):
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        lines.append(("also changes", ", ".join(others[:3]) + more))
    if len(group) > 1:
        scales = [scale_of(each) for each in group]
        spread = f"root mean square {min(scales):.2g} to {max(scales):.2g}"
        lines.append(("layers", f"{spread}; the lines below describe {table.key}"))
    if report.buckets:
        lines.append(("buckets", buckets_in_words(report)))
    apart = standing_out(group)
    return [*lines, *([] if learned is None else measures(learned)), *([("stands out", apart)] if apart else [])]


def measures(learned: Learned) -> list[tuple[str, str]]:
    """Returns pairs (name, value) of what a table learned."""
    hold = "holds" if learned.directions_90 == 1 else "hold"
    rank = f"{learned.effective_rank:.1f}; {amount(learned.directions_90, 'direction')} {hold} 90% of the variance"
    lines = [("effective rank", rank)]
    if learned.along:
        shown = ", ".join(f"{each.neighbours:.2f} along {each.axis}" for each in learned.along)
        lines.append(("neighbouring cells", f"correlation {shown} (1: smooth, 0: as random numbers)"))
    if mirrored := [each for each in learned.along if each.opposites is not None]:
        shown = ", ".join(f"{each.opposites:.2f} along {each.axis}" for each in mirrored)
        lines.append(
            (
                "both directions",
                f"a difference and its opposite: correlation {shown} (1: the direction does not matter)",
            )
        )
    if learned.bias_by_distance:
        biases = ", ".join(f"{bias:.2f} at {distance}" for distance, bias in learned.bias_by_distance)
        lines.append(("bias by distance", f"{biases} (mean of all heads)"))
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


def by_layer(keys: Iterable[str]) -> list[str]:
    """Returns the keys, with the keys of several layers merged: "layers.*.rel_pos_h (12 tensors)"."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        groups.setdefault(NUMBER.sub("*", key), []).append(key)
    return [same[0] if len(same) == 1 else f"{name} ({len(same)} tensors)" for name, same in groups.items()]


def buckets_in_words(report: TableReport) -> str:
    """Returns which distances share a bucket: "... distances up to 7 have one each, and all from 91 on share one"."""
    after = [bucket for bucket in report.buckets if bucket.first is not None and bucket.first > 0]
    before = [bucket for bucket in reversed(report.buckets) if bucket.last is not None and bucket.last < 0]
    sides = [("before the query", [(-(b.last or 0), b.first) for b in before])]
    sides.append(("after it", [(b.first or 0, b.last) for b in after]))
    words = []
    for where, steps in sides:
        if not steps:
            words.append(f"{where}, all distances share one")
            continue
        alone = next((first for first, last in steps if last is None or abs(last) != first), steps[-1][0])
        words.append(f"{where}, distances up to {alone - 1} have one each, and all from {steps[-1][0]} on share one")
    unread = sorted(set(range(report.table.rows)) - {bucket.row for bucket in report.buckets})
    words += [f"no distance reads {describe_rows(tuple(unread))}"] if unread else []
    return "; ".join(words)


def axes_in_words(axes: Sequence[Axis]) -> str:
    """Returns the axes of a table with their sizes, such as "time 8, height 14, width 14"."""
    sizes = ", ".join(f"{axis.name} {axis.size}" for axis in axes)
    if are_sides(axes):
        return f"differences from -{axes[0].size} to {axes[1].size - 1}; a larger one reads the first or the last row"
    if not any(axis.relative for axis in axes):
        return sizes
    of = "differences" if all(axis.signed for axis in axes) else "distances"
    return f"{sizes}: {' x '.join(str(axis.rows) for axis in axes)} {of}"


def alike(reports: Iterable[TableReport]) -> list[list[TableReport]]:
    """Groups the tables of layers that differ only in their values, and in the numbers in their names."""
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


def scale_of(report: TableReport) -> float:
    return report.values.float().square().mean().sqrt().item()


def standing_out(group: Sequence[TableReport]) -> str:
    """Returns a text on the one table of several whose values differ most in scale, or "" if none stands out."""
    scales = [scale_of(report) for report in group]
    if len(group) < FEWEST_ALIKE or not all(map(math.isfinite, scales)):
        return ""
    middle = sorted(scales)[len(scales) // 2]
    ratios = [max(scale, TINY) / max(middle, TINY) for scale in scales]
    at = max(range(len(group)), key=lambda index: abs(math.log(ratios[index])))
    if abs(math.log(ratios[at])) < math.log(STANDS_OUT):
        return ""
    return f"{group[at].table.key}: root mean square {scales[at]:.2g}, in the middle table {middle:.2g}"


def render(report: CheckpointReport) -> str:
    """Returns the page of a report of ``inspect_checkpoint``."""
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
        relative = report.relative
        holds = f"{table.length:,} {'differences of positions' if relative else 'positions'}"
    width = (
        f", with a bias for each of {amount(table.width, 'head')},"
        if report.of_biases
        else f" of width {table.width:,},"
    )
    several = f" The numbers are those of {table.key}." if name != table.key else ""
    yield f"{name}: {holds}{width} {report.share_of_model:.1%} of the model{' each' if several else ''}.{several}"
    for finding in report.findings:
        where = describe_rows(finding.rows) if len(finding.rows) < table.rows else "all rows"
        guess = " (perhaps)" if finding.what == "rarely trained" else ""
        yield f"{capitalised(where)}: {finding.what}{guess}."
    judged = table.in_buckets or (isinstance(table, PositionTable) and table.kind == "learned")
    if not report.findings and judged:
        yield "No problems were found in its rows."
    if table.fixed:
        why = (
            "Its rows are buckets of distances, so it needs no resize" if table.in_buckets else capitalised(table.doubt)
        )
        yield f"{why}."
    yield from (f"{capitalised(name)}: {value}." for name, value in (measures(learned) if learned else []))


def section_of(group: Sequence[TableReport], name: str) -> Section:
    """Returns the section of a table; of several tables that are alike, it shows the first."""
    report = group[0]
    doubt = "" if report.table.fixed else report.table.doubt
    wrong = tuple(capitalised(text) for text in (*map(str, report.findings), doubt) if text)
    parts: list[Part] = [Lines(wrong)] if wrong else []
    return Section(name_of(group), (*parts, Pairs(tuple(facts(report, group))), *pictures_of(group, name)))


def pictures_of(group: Sequence[TableReport], name: str) -> Iterator[Picture]:
    """Yields the figures of the first table, and of the layers.

    Yields none if its layout is unknown, or if its rows are too few or not finite.
    """
    from posembed.report import checkpoint_pictures as pictures  # imports matplotlib, which the terminal does not need

    for kind, figure in pictures.figures_of(group):
        title, caption = WORDS[kind]
        yield picture(figure, name=f"{name}-{kind}", described=f"{title}. {caption}", title=title, caption=caption)
