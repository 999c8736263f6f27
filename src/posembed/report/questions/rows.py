"""What is special about ``compare rows``: what late rows cost beyond a control, and which rows matter."""

from __future__ import annotations

from collections.abc import Iterator

from posembed.lab.found import Found
from posembed.lab.tasks.row_specs import AT, ATTENTION, LEARNED, LOSS, NEIGHBOUR, TEXT, TRAINED, bands
from posembed.measure.metrics import Metric
from posembed.plots.by_position import Panel, by_position_figure
from posembed.report.answers import estimate_cell
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import QuestionPage
from posembed.report.words import called, measured, signed
from posembed.statistics import INTERVAL, estimate, paired_difference

MATTERS = {
    "above": "early rows matter more",
    "below": "late rows matter more",
    "both": "not significant",
    None: "there is no interval",
}
"""What a difference between early and late rows means, by the side of its interval."""


class Page(QuestionPage):
    def remarks(self, found: Found) -> Iterator[str]:
        early, *_, late = [*bands(found.spec.train_length)] * 2
        control = control_of(found)
        for name in found.names if control is not None and early != late else ():
            costs = paired_difference(beyond(found, name, control, late), beyond(found, name, control, early))
            ours, usual = (found.mean(TRAINED, each, late) for each in (name, found.reference_of(name) or name))
            # More training of late rows than with the reference's lengths does not show what little training costs.
            if costs is None or ours is None or usual is None or ours.value >= usual.value:
                continue
            verdict = {
                "above": "late rows are learned poorly, as guides say",
                "below": "late rows are learned better than early rows, contrary to what guides say",
                "both": "these runs do not show that late rows are learned worse than early rows",
                None: "one run cannot show whether late rows are learned worse than early rows",
            }[costs.side_of(0)]
            yield (
                f"Between the rows from position {early:,} and those from {late:,} on, the loss that {called(name)} "
                f"adds beyond {called(control or '')}, which has no rows to learn, "
                f"changes by {measured(costs, signed)}: {verdict}."
            )
        for name, metric in [(name, metric) for name in found.names for metric in (TEXT, NEIGHBOUR) if early != late]:
            if (each := found.against(metric, name, early, late)) is not None:
                difference = each.kinds[0]
                yield (
                    f"With {called(name)}, the {metric.name}, differs by {measured(difference, metric.write)} between "
                    f"the rows from position {early:,} and those from {late:,} on: {MATTERS[difference.side_of(0)]}."
                )

    def extra_tables(self, found: Found) -> Iterator[Table]:
        control, xs = control_of(found), list(bands(found.spec.train_length))

        def column(x: int) -> Column:
            def cell(row: object) -> Cell:
                by_seed = beyond(found, row.name, control, x)  # type: ignore[attr-defined]
                return estimate_cell(estimate(list(by_seed.values())) if by_seed else None, signed, missing="")

            return f"{x:,}", cell

        yield table_of(
            [row for row in found.rows if any(beyond(found, row.name, control, x) for x in xs)],
            f"Loss compared with {found.reference}, beyond the same difference of {control}",
            f"A difference minus that of {control}, which has no learned rows. It is what the lengths cost because "
            "rows are trained less. In nats per token, paired by seed.",
            *map(column, xs),
            first="kind",
        )

    def figures(self, summary: Found) -> Iterator[Picture]:
        names = list(summary.names)
        differences = {
            name: {p: each.kinds[0] for p in xs(summary, LOSS) if (each := summary.versus(AT[LOSS], name, p))}
            for name in names
        }
        title = f"loss minus that of {summary.reference}, nats per token"
        panels = [
            panel(summary, TRAINED, "times that each row was trained (log scale)"),
            Panel(title, {name: line for name, line in differences.items() if line}, marked=0.0),
            panel(summary, TEXT, "nats per text, if the row is replaced with the mean row"),
            panel(summary, NEIGHBOUR, "nats per text, if the row is replaced with its neighbour"),
            panel(summary, ATTENTION, "attention received, relative to even attention"),
        ]
        if drawn := [each for each in panels if each.lines]:
            yield picture(
                by_position_figure(drawn, names),
                name="positions",
                described="How often each row was trained, and what each position and row costs and receives.",
                caption=f"Lines are means. With several runs of a name, bands are {INTERVAL}s. A dashed line is an "
                "encoding without learned rows, trained on the same lengths.",
            )
        yield from super().figures(summary)


def xs(found: Found, metric: Metric) -> list[int]:
    return [x for x in found.xs(AT[metric]) if x is not None]


def panel(found: Found, metric: Metric, title: str) -> Panel:
    lines = {
        name: {p: mean for p in xs(found, metric) if (mean := found.mean(AT[metric], name, p))}
        for name in found.names
        if metric is not TRAINED or found.row(name).position_parameters
    }
    marked = {TEXT: 0.0, NEIGHBOUR: 0.0, ATTENTION: 1.0}.get(metric)
    return Panel(title, {name: line for name, line in lines.items() if line}, metric is TRAINED, marked)


def control_of(found: Found) -> str | None:
    """Returns the control: the encoding without position parameters that ran with the reference's lengths and with the
    most other lengths of the learned table; None if no encoding ran with any."""
    reference = found.specs[found.reference or found.names[0]].lengths_name
    learned = {spec.lengths_name for spec in found.specs.values() if spec.encoding == LEARNED}
    run_with: dict[str, set[str]] = {}
    for name, spec in found.specs.items():
        if found.row(name).seeds and not found.row(name).position_parameters:
            run_with.setdefault(spec.encoding, set()).add(spec.lengths_name)
    shared = {name: len(learned & lengths) for name, lengths in run_with.items() if reference in lengths}
    best = max(shared, key=shared.__getitem__, default=None)
    return best if best is not None and shared[best] > 1 else None


def beyond(found: Found, name: str, control: str | None, x: int) -> dict[int, float]:
    """Returns, by seed, the change of the loss from the reference's lengths to the name's, minus the control's
    change."""
    own_spec = found.specs[name]
    wanted = own_spec.lengths_name, control
    theirs = next((n for n, spec in found.specs.items() if (spec.lengths_name, spec.encoding) == wanted), None)
    if own_spec.encoding != LEARNED or theirs is None:
        return {}
    own, their_own = found.reference_of(name), found.reference_of(theirs)
    if own is None or their_own is None:
        return {}
    a, b, c, d = (found.by_seed(LOSS, each, x) for each in (name, own, theirs, their_own))
    return {
        seed: (a[seed] - b[seed]) - (c[seed] - d[seed]) for seed in sorted(a.keys() & b.keys() & c.keys() & d.keys())
    }
