"""The answer to any question, with its tables and figures, made from its metrics and their verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from textwrap import fill
from typing import Any, TypeAlias

from posembed.measure.estimates import Comparison
from posembed.measure.metrics import Metric
from posembed.measure.summary import Summary
from posembed.plots.by_length import CUT, heights, lines_by_x
from posembed.plots.charts import dots_figure, line_chart
from posembed.report.comparisons import comparison_figure
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.words import (
    by_outcome,
    called,
    capitalised,
    failures,
    from_to,
    interval,
    listed,
    measured,
    not_drawn,
    number,
    percent,
)
from posembed.statistics import INTERVAL, Estimate

FAILED = Cell("failed", kind="failed")
HEAD = 24
"""The number of letters after which the head of a column continues on another line of a terminal."""
MOST_NAMED = 12
"""A sentence names up to this many names with their values. Among more names, it gives only the first and the last."""
LOOKS = {"better": "holds", "worse": "worse"}

X: TypeAlias = "int | None"
CellOf: TypeAlias = Callable[[Metric, str, X], Cell]
"""The cell of a metric for a name at an x."""


def paragraphs(found: Summary, remarks: Iterable[str] = ()) -> list[str]:
    """Returns the answer: the values of the main metric, how they compare with the reference, and the remarks."""
    metric = found.headline
    axis = found.axis_of(metric)
    xs: list[X] = [None] if axis is None else list(axis.told or dict.fromkeys([axis.x, axis.trained or axis.x]))
    answer = []
    for x in xs:
        answer.append(" ".join([values(found, metric, x), *against_base(found, metric, x)]))
        answer.append(" ".join(verdicts(found, metric, x)))
    for other in found.metrics[1:]:
        if other.told:
            x = found.x_of(other)
            answer.append(" ".join([values(found, other, x), *verdicts(found, other, x)]))
    return [*answer, *along(found, metric), " ".join(remarks), " ".join(failures(found.rows))]


def along(found: Summary, metric: Metric) -> list[str]:
    """Returns a sentence on the names whose verdict changes along the axis."""
    sentences = []
    for name in found.names:
        at: dict[str, list[str]] = {}
        for x in found.xs(metric):
            each = found.versus(metric, name, x)
            if x is not None and each is not None and each.verdict in LOOKS:
                at.setdefault(each.verdict, []).append(f"{x:,}")
        if len(at) > 1 and (axis := found.axis_of(metric)) is not None:
            places = listed([f"{verdict} at {listed(xs)}" for verdict, xs in at.items()])
            sentences.append(f"{called(name)} is significantly {places} {axis.name} than {found.reference_of(name)}.")
    return [" ".join(sentences)] if sentences else []


def values(found: Summary, metric: Metric, x: X) -> str:
    """Returns a sentence on the values of every name, best first."""
    known = {name: value for name in found.best_first(metric, x) if (value := found.mean(metric, name, x)) is not None}
    unit = "%" if metric.kind == "share" else ""
    texts = [f"{metric.write(value.value)}{unit} with {called(name)}" for name, value in known.items()]
    several = listed(texts) if len(texts) <= MOST_NAMED else f"from {from_to(texts)}"
    without = [called(row.name) for row in found.rows if row.seeds and row.name not in known]
    axis = found.axis_of(metric)
    where = "" if x is None or axis is None else f"At {x:,} {axis.name}, "
    gone = f" {listed(without)} {'has' if len(without) == 1 else 'have'} no value there." if without else ""
    return f"{capitalised(f'{where}the {metric.name} is {several}.')}{gone}" if texts else ""


def against_base(found: Summary, metric: Metric, x: X) -> list[str]:
    """Returns a sentence on how the values at x compare with the same names' values at the base of the axis."""
    base = axis.base if (axis := found.axis_of(metric)) is not None else None
    if base is None or x in (None, base) or not metric.compared:
        return []
    texts = [
        f"{measured(each.kinds[0], metric.write_comparison)} with {called(name)}"
        for name in found.best_first(metric, x)
        if (each := found.against(metric, name, x, base)) is not None
    ]
    how = "multiplied" if metric.ratio else "changed"
    return [f"From {base:,} to {x:,}, it is {how} by {listed(texts)}."] if texts else []


def verdicts(found: Summary, metric: Metric, x: X = None) -> list[str]:
    """Returns one sentence per verdict, with the names that have it. Without any interval, as after one run per name,
    returns no sentence: a later one gives the reason, and a table shows the comparisons."""
    known = found.all_versus(metric, x)
    if not metric.compared or all(each.verdict == "unknown" and not each.width for each in known.values()):
        return []
    sentences = []
    for reference in dict.fromkeys(found.references.values()):
        texts = [
            (each.verdict, f"{called(name)} ({in_words(each, found)})")
            for name, each in known.items()
            if found.references[name] == reference
        ]
        sentences += by_outcome(called(reference), texts, found.unit)
    halves = sorted(each.width / 2 for each in known.values() if each.over_seeds and each.over_seeds.low is not None)
    if halves and metric.kind == "share":
        told = [abs(each.value) for each in known.values() if each.verdict in LOOKS]
        if (least := metric.write(min([halves[len(halves) // 2], *told]))) != "0.0":
            sentences.append(f"Differences below about {least} points would not be significant here.")
    return sentences


def in_words(each: Comparison, found: Summary) -> str:
    """Formats a comparison with its intervals: "+3.1 points; +1.0 to +5.2 over seeds, +2.0 to +4.2 over images"."""
    write = each.metric.write_comparison
    unit = " times" if each.metric.ratio else " points" if each.metric.kind == "share" else ""
    seeds, items = interval(each.over_seeds, write), interval(each.over_items, write)
    kinds = [f"{seeds} over seeds"] * bool(seeds) + [f"{items} over {found.items}"] * bool(items)
    known = f"; {', '.join(kinds)}" if items else seeds and f", {seeds}"
    return f"{write(each.value)}{unit}{known}"


def significant(metric: Metric) -> str:
    return f"A comparison is significant if each of its intervals is known and excludes {metric.same:g}."


def estimate_cell(of: Estimate | None, write: Callable[[float], str] = number, *, missing: str = "") -> Cell:
    """Returns a cell with a mean and its interval below, or what stands for a missing value."""
    return Cell(missing, kind="muted") if of is None else Cell(write(of.value), note=interval(of, write))


def mean_cell(of: Estimate | None, metric: Metric, missing: str = "") -> Cell:
    return estimate_cell(of, metric.write, missing=missing or metric.missing)


def mean_of(found: Summary) -> CellOf:
    return lambda metric, name, x: mean_cell(found.mean(metric, name, x), metric, found.missing(name, x))


def comparison_cell(each: Comparison | None, missing: str = "") -> Cell:
    """Returns a cell with a comparison and its intervals (the one over seeds first), coloured by the verdict."""
    if each is None:
        return Cell(missing, kind="muted")
    write = each.metric.write_comparison
    known = filter(None, [interval(each.over_seeds, write), interval(each.over_items, write)])
    return Cell(write(each.value), note="; ".join(known), kind=LOOKS.get(each.verdict, ""))


def with_base(compared: Callable[[Metric, str, X, X], Comparison | None], base: X) -> CellOf:
    return lambda metric, name, x: comparison_cell(compared(metric, name, x, base))


def columns(found: Summary, metric: Metric, cell: CellOf, *, ranked: int = 0) -> Iterator[Column]:
    """Yields one column per x, or a single one. ``ranked``: the ``Cell.rank`` of the answer's x; 0 hides no column."""
    axis = found.axis_of(metric)
    failed = not any(row.seeds for row in found.rows)  # nothing was measured anywhere
    for x in (None,) if failed else found.xs(metric):
        trained = axis is not None and x is not None and x == axis.trained
        rank = ranked and (ranked if x == found.x_of(metric) else ranked + (2 if trained else 5))
        unit = ", %" if metric.kind == "share" else ""
        head = fill(f"{metric.name}{unit}", HEAD) if x is None else f"{x:,}"
        below = [
            *([axis.notes[x]] if axis is not None and x is not None and x in axis.notes else []),
            *(["trained"] if trained else []),
        ]

        def of(row: Any, x: X = x) -> Cell:
            return cell(metric, row.name, x) if row.seeds else FAILED

        yield Cell(head, note=", ".join(below), rank=rank), of


def main_table(found: Summary, extra: Iterable[Column] = (), metric: Metric | None = None) -> Table:
    """Returns the table that the terminal also shows: a metric, by default the main one, and its comparison with the
    reference."""
    metric = metric or found.headline
    x = found.x_of(metric)
    shown = [*extra, *columns(found, metric, mean_of(found), ranked=1)]
    single = [other for other in found.metrics[1:] if found.axis_of(other) is None and x is None and not other.table]
    for other in single:
        shown += columns(found, other, mean_of(found), ranked=6)
    if metric.compared and found.all_versus(metric, x):
        shown += versus_columns(found, metric, x)
    return table_of(
        [found.row(name) for name in found.best_first(metric, x)],
        titled(found, metric),
        " ".join(
            filter(None, [*(each.says for each in (metric, *single)), significant(metric), own_references(found)])
        ),
        *shown,
        first=found.of_each.partition(" ")[0],
    )


def own_references(found: Summary) -> str:
    """Returns a sentence on which name is compared with which, if they have different references."""
    if len(set(found.references.values())) < 2:
        return ""
    return f"Compared are {listed([f'{called(a)} with {called(b)}' for a, b in found.references.items()])}."


def titled(found: Summary, metric: Metric) -> str:
    axis = found.axis_of(metric)
    unit = " in percent" if metric.kind == "share" else metric.unit and f", in {metric.unit}"
    best = {"low": "lower is better", "high": "higher is better", None: ""}[metric.better]
    return f"{capitalised(metric.name)}{unit}{best and f' ({best})'}{'' if axis is None else f', by {axis.name}'}"


def versus_columns(found: Summary, metric: Metric, x: X) -> Iterator[Column]:
    """Yields the columns of a comparison with the reference: over seeds, over items, and the verdict."""
    versus = {row.name: found.versus(metric, row.name, x) for row in found.rows}
    write = metric.write_comparison

    def column(of: Callable[[Comparison], Cell], kind: str = "") -> Callable[[Any], Cell]:
        return lambda row: of(each) if (each := versus[row.name]) else Cell("", kind=kind)

    sign = f"{'times' if metric.ratio else 'minus'} {found.short_reference}"
    where = "over seeds" if x is None else f"at {x:,}"
    yield Cell(sign, note=where, rank=2), column(lambda each: estimate_cell(each.kinds[0], write))
    if any(each and each.over_seeds and each.over_items for each in versus.values()):
        over_items = column(lambda each: Cell(interval(each.over_items, write), kind="muted"))
        yield Cell(INTERVAL, note=f"over {found.items}", rank=4), over_items
    words = column(lambda each: Cell(each.verdict, kind=LOOKS.get(each.verdict, "words")), kind="words")
    yield Cell("significant?", kind="words", rank=3), words


def tables(found: Summary, *, values: bool = True) -> Iterator[Table]:
    """Yields the other tables: all metrics compared with the reference and with the base and, if ``values``, the values
    of the other metrics."""
    first = found.of_each.partition(" ")[0]
    rows = [row for row in map(found.row, found.best_first(found.headline, found.x)) if row.seeds]
    others = [row for row in rows if row.name in found.references]
    for title in dict.fromkeys(metric.table for metric in found.metrics if metric.table):
        group = [metric for metric in found.metrics if metric.table == title]
        shown = [column for metric in group for column in columns(found, metric, mean_of(found))]
        yield table_of(rows, title, " ".join(metric.says for metric in group if metric.says), *shown, first=first)
    for metric in found.metrics:
        axis = found.axis_of(metric)
        base = None if axis is None else axis.base
        kind = "Ratios" if metric.ratio else "Differences"
        both = any(
            each.over_seeds and each.over_items
            for x in found.xs(metric)
            for each in found.all_versus(metric, x).values()
        )
        two = f" The first interval is over seeds, the second over {found.items}." if both else ""
        says = f"{kind}, paired by {found.paired_by}.{two} {significant(metric)}"

        def versus(metric: Metric, name: str, x: X) -> Cell:
            return comparison_cell(found.versus(metric, name, x), "not in both")

        if values and axis is not None and metric is not found.headline:
            shown = list(columns(found, metric, mean_of(found)))
            yield table_of(rows, titled(found, metric), metric.says, *shown, first=first)
        if not metric.compared:
            continue
        if base is not None and (metric is found.headline or metric.told):
            title = f"{capitalised(metric.name)}, compared with its own value at {base:,}"
            yield table_of(rows, title, says, *columns(found, metric, with_base(found.against, base)), first=first)
        if found.references:
            title = f"{capitalised(metric.name)}, compared with {found.compared_with}"
            compared = versus_columns(found, metric, None) if axis is None else columns(found, metric, versus)
            if axis is not None or metric is not found.headline:
                yield table_of(others, title, says, *compared, first=first)
            if base is not None and (metric is found.headline or metric.told):
                title = f"Change of {metric.name} from {base:,}, compared with {found.compared_with}"
                yield table_of(others, title, says, *columns(found, metric, with_base(found.change, base)), first=first)


def counts_table(title: str, counts: Mapping[str, int]) -> Table:
    """Returns a table of numbers, the largest first, with their shares."""
    total = sum(counts.values())
    return table_of(
        sorted(counts.items(), key=lambda pair: -pair[1]),
        title,
        "",
        ("number", lambda pair: f"{pair[1]:,}"),
        ("share, %", lambda pair: percent(pair[1] / total)),
        first="",
        name=lambda pair: pair[0],
    )


def figures(found: Summary, described: str) -> Iterator[Picture]:
    """Yields the main figures: lines by x, then comparisons with the reference, or values."""
    metric, names = found.headline, [row.name for row in found.rows]
    drawn = next((each for each in found.metrics if found.axis_of(each) is not None), None)
    axis = None if drawn is None else found.axis_of(drawn)
    if drawn is not None and axis is not None and len(found.xs(drawn)) > 1:
        lines = lines_by_x(found, drawn, [row.name for row in found.drawn if row.seeds], axis.trained)
        shares = drawn.kind in ("share", "score")
        cut = math.inf if found.whole_axis else CUT
        ends, scale = (None, "") if shares else (heights(lines, cut), " (log scale)")
        by_axis = [x for x in found.xs(drawn) if x is not None]
        how: dict[str, Any] = {"ticks": by_axis, "trained": axis.trained, "logarithmic": ends}
        how |= {"names": [name for name in names if name not in found.baselines], "baselines": found.baselines}
        unit = {"score": ", in percent", "time": ", in seconds"}.get(drawn.kind, "")
        title = f"{titled(found, drawn)}{unit}{scale}"
        figure = line_chart(lines, title=title, below=f"{axis.name}{scale if min(by_axis) else ''}", **how)
        bands = [found.bands]
        if any(line.end is not None for line in lines):
            bands.append(f"✕ N: {found.past_end} N.")
        if ends and not found.whole_axis:
            bands.append(f"The axis ends at {ends[1]:.3g}; a line that leaves it has its last value at its name.")
        yield picture(figure, name="values", described=described, caption=" ".join([*bands, *not_drawn(found.rows)]))
    compared = found.all_versus(metric, found.x)
    if compared and metric.compared:
        caption = (
            f"The line is {found.compared_with}. {own_references(found)} With several runs per {found.of_each}, thick "
            f"bars are {INTERVAL}s over seeds. Thin bars, if any, are {INTERVAL}s over the held-out {found.items}."
        )
        figure = comparison_figure(compared, names, found.compared_with)
        yield picture(figure, name="comparisons", described=described, caption=caption)
    if found.x is None:
        known = [(name, found.mean(metric, name)) for name in found.best_first(metric)]
        dots: list[tuple[str, Any, str]] = [
            (name, each, metric.write(each.value)) for name, each in known if each is not None
        ]
        if dots:
            figure = dots_figure(dots, title=titled(found, metric), below="")
            yield picture(figure, name="means", described=described, caption=found.dots)
