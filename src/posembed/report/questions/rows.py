"""The page of ``compare rows``: loss by position beside how often each row was trained, and which rows matter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from posembed.lab.questions.rows import LEARNED, ByPosition, RowMeasurements, RowRow, RowSpec, RowSummary
from posembed.lab.runs.results import RunResult
from posembed.plots.by_position import Panel, by_position_figure
from posembed.report.page import Cell, Column, Picture, Table, picture, table_of
from posembed.report.questions import FAILED, QuestionPage, estimate_cell
from posembed.report.words import failures, interval, measured, model_size, number, signed
from posembed.statistics import INTERVAL, Estimate

FIRST = "training lengths"
SMALL = 0.01
"""A share of training below this is written with more digits."""


def loss_number(value: float) -> str:
    return f"{value:.3f}"


def nats(value: float) -> str:
    return signed(value, 2)


def share(value: float) -> str:
    return f"{value:.1%}" if value < 10 * SMALL else f"{value:.0%}"


class RowsPage(QuestionPage[RowSummary]):
    of_each = "kind of training lengths"

    def about(self, spec: RowSpec, summary: RowSummary) -> str:
        return (
            f"Each run trains the same small Transformer decoder ({model_size(spec)}) on {spec.data} for "
            f"{spec.steps:,} steps of {spec.batch:,} sequences (tokenizer: {spec.tokenizer}). A learned table of "
            f"{spec.train_length:,} rows is added to its input, unless the name gives another encoding. The runs "
            "differ in the lengths of the training sequences."
        )

    def paragraphs(self, summary: RowSummary) -> list[str]:
        late = [text for row in summary.rows if (text := _late(row, summary))]
        return [*late, " ".join(failures(summary.rows)), _early(summary), _attention(summary)]

    def notes(self, summary: RowSummary) -> list[str]:
        lines = ["full: every sequence has the training length; uniform: 1 to the training length; short: few are long"]
        if summary.control is not None:
            lines.append(
                f"+{summary.control}: without learned rows, so it shows what the lengths do to the model itself"
            )
        return [f"{line}." for line in lines]

    def main_table(self, summary: RowSummary) -> Table:
        return table_of(
            sorted(summary.rows, key=lambda row: row.encoding != LEARNED),
            "Held-out loss by position, in nats per token (lower is better)",
            f"In windows of {summary.train_length:,} tokens. Every run predicts the same tokens after the same "
            "context.",
            *by_band(
                summary,
                lambda row, first: estimate_cell(row.loss[first], loss_number, missing="") if row.seeds else FAILED,
            ),
            first=FIRST,
        )

    def main_tables(self, summary: RowSummary) -> list[Table]:
        found = [self.main_table(summary), trained_table(summary), versus_table(summary), matter_table(summary)]
        return [table for table in found if table.rows]

    def tables(self, summary: RowSummary) -> list[Table]:
        return [trained_table(summary), versus_table(summary), beyond_table(summary), matter_table(summary)]

    def figures(self, summary: RowSummary) -> Iterable[Picture]:
        rows = [row for row in summary.rows if row.seeds]
        learned = [row for row in rows if row.encoding == LEARNED]
        names = [row.name for row in summary.rows]
        how = f"Lines are means. With several runs of a name, bands are {INTERVAL}s."
        if learned:
            panels = [
                panel("times that each row was trained (log scale)", learned, "trained", logarithmic=True),
                panel(
                    f"loss minus that with {summary.reference_lengths} lengths, nats per token",
                    rows,
                    "versus_reference",
                    0.0,
                ),
            ]
            yield picture(
                by_position_figure([each for each in panels if each.lines], names),
                name="late",
                described=" ".join(self.answer(summary)[:1]),
                caption=f"{how} A dashed line is an encoding without learned rows, trained on the same lengths.",
            )
        matters = reference_row(summary)
        shown = [] if matters is None else [matters]
        panels = [
            panel("nats per text, if the row is replaced with the mean row", shown, "text_increase", 0.0),
            panel("nats per text, if the row is replaced with its neighbour", shown, "neighbour_increase", 0.0),
            panel("attention received, relative to even attention", rows, "attention", 1.0),
        ]
        if panels := [each for each in panels if each.lines]:
            yield picture(
                by_position_figure(panels, names),
                name="matter",
                described="The increase in loss for each replaced row, and the attention that each position receives.",
                title="Which rows matter",
                caption=f"{how} Even attention: each token attends equally to itself and all earlier tokens.",
            )

    def values(self, results: Any) -> list[Table]:
        return [
            table for name in dict.fromkeys(result.spec.compared for result in results) if (table := raw(name, results))
        ]


def raw(name: str, results: Sequence[RunResult[Any, Any]]) -> Table | None:
    """Returns every measured value of one name, with one row per position and three columns per seed."""
    runs = {r.spec.seed: r.measurements for r in results if r.spec.compared == name and r.measurements is not None}
    if not runs:
        return None
    columns = [column for seed, measured in runs.items() for column in of_seed(seed, measured)]
    positions = range(len(next(iter(runs.values())).loss))
    says = "The loss in nats per token; the increase with the mean row in nats per text."
    return table_of(positions, f"Values by position, {name}", says, *columns, first="position", name=str)


def of_seed(seed: int, measured: RowMeasurements) -> list[Column]:
    increases = measured.text_increase

    def increase(position: int) -> str:
        return f"{increases[position]:.5f}" if position in increases else ""

    return [
        (f"loss, seed {seed}", lambda position: f"{measured.loss[position]:.5f}"),
        (f"times trained, seed {seed}", lambda position: f"{measured.trained[position]:,}"),
        (f"increase, seed {seed}", increase),
    ]


def panel(title: str, rows: Sequence[RowRow], field: str, marked: float | None = None, **how: Any) -> Panel:
    lines = {}
    for row in rows:
        by_position: ByPosition = getattr(row, f"{field}_by_position")
        if known := {p: value for p, value in by_position.items() if value is not None}:
            lines[row.name] = known
    return Panel(title, lines, marked=marked, **how)


def by_band(summary: RowSummary, cell: Callable[[Any, int], Cell]) -> list[Column]:
    """Returns one column per band of positions, whose cells are ``cell(row, first position)``.

    The last and the first band stay longest on a narrow terminal.
    """
    columns: list[Column] = []
    order = [len(summary.bands) - 1, 0, *range(len(summary.bands) - 2, 0, -1)]
    for index, (first, last) in enumerate(summary.bands.items()):

        def of_row(row: Any, first: int = first) -> Cell:
            return cell(row, first)

        columns.append((Cell(band_name(first, last), rank=order.index(index) + 1), of_row))
    return columns


def band_name(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}\N{EN DASH}{last:,}"


def trained_table(summary: RowSummary) -> Table:
    def cell(row: RowRow, first: int) -> Cell:
        found = row.trained[first]
        return Cell("") if found is None else Cell(f"{found.value:,.0f}", note=share(found.value / summary.sequences))

    return table_of(
        [row for row in summary.rows if row.encoding == LEARNED and row.seeds],
        "How often each row was trained, by position",
        f"The mean number of training sequences that reached a row, of {summary.sequences:,}.",
        *by_band(summary, cell),
        first=FIRST,
    )


def versus_table(summary: RowSummary) -> Table:
    return table_of(
        [row for row in summary.rows if any(row.versus_reference.values())],
        f"Loss by position, minus that with {summary.reference_lengths} lengths",
        "In nats per token, for the same encoding, paired by seed. Above 0 is worse.",
        *by_band(summary, lambda row, first: estimate_cell(row.versus_reference[first], signed, missing="")),
        first=FIRST,
    )


def beyond_table(summary: RowSummary) -> Table:
    return table_of(
        [row for row in summary.rows if any(row.beyond_control.values())],
        f"What is left after subtracting the same difference for {summary.control}",
        f"The difference in the table above minus that of {summary.control}, which has no learned rows. It is what the "
        "lengths cost because rows are trained less. In nats per token, paired by seed.",
        *by_band(summary, lambda row, first: estimate_cell(row.beyond_control[first], signed, missing="")),
        first=FIRST,
    )


MATTER: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("text_increase", "mean row, nats per text", nats),
    ("own_increase", "mean row, token at the row", nats),
    ("later_increase", "mean row, each later token", nats),
    ("neighbour_increase", "neighbour row, nats per text", nats),
    ("attention", "attention, relative to even", number),
)
"""The lines of the table of rows that matter: (field, name, format)."""


class Line:
    """One line of the table of rows that matter."""

    def __init__(self, name: str, values: ByPosition, write: Callable[[float], str]) -> None:
        self.name, self.values, self.write = name, values, write


def matter_table(summary: RowSummary) -> Table:
    row = reference_row(summary)
    lines = [Line(name, getattr(row, field), write) for field, name, write in MATTER] if row is not None else []

    return table_of(
        [line for line in lines if any(line.values.values())],
        f"Which rows matter, with {row.name} lengths" if row is not None else "",
        "The increase in loss if one row is replaced, and the attention that a position receives: means over a "
        "band. The mean row is the mean of the table; the neighbour is the next row.",
        *by_band(summary, lambda line, first: estimate_cell(line.values[first], line.write, missing="")),
        first="measure",
    )


def reference_row(summary: RowSummary) -> RowRow | None:
    """Returns the learned table with the reference's lengths, or else the first learned table that was trained."""
    learned = [row for row in summary.rows if row.encoding == LEARNED and row.seeds]
    return next((row for row in learned if row.name == summary.reference_lengths), learned[0] if learned else None)


def last_band(summary: RowSummary) -> tuple[int, int]:
    return list(summary.bands.items())[-1]


def _late(row: RowRow, summary: RowSummary) -> str:
    """Says what the lengths did to the loss at the last positions, and whether the rows there are learned poorly."""
    (early, early_end), (first, last) = next(iter(summary.bands.items())), last_band(summary)
    versus, beyond, trained = row.versus_reference[first], row.beyond_control[first], row.trained[first]
    if versus is None or trained is None or row.encoding != LEARNED:
        return ""
    late, control = band_name(first, last), summary.control
    usual = next(each.trained[first] for each in summary.rows if each.name == summary.reference_lengths)
    less = usual is not None and trained.value < usual.value
    text = (
        f"With {row.name} lengths, {'only ' if less else ''}{share(trained.value / summary.sequences)} of the "
        f"sequences trained a row of positions {late}, and the loss there is {measured(versus, signed)} nats compared "
        f"with {summary.reference_lengths} lengths."
    )
    found, at_early = row.late_beyond_early, row.beyond_control[early]
    # More training of late rows than with the reference's lengths does not show what little training costs.
    if beyond is None or found is None or at_early is None or not less or first == early:
        return text
    verdict = {
        "above": "late rows are learned poorly, as guides say",
        "below": "late rows are learned better than early rows, contrary to what guides say",
        "both": "these runs do not show that late rows are learned worse than early rows",
        None: "one run cannot show whether late rows are learned worse than early rows",
    }[found.side_of(0)]
    return (
        f"{text} For {control}, which has no rows to learn, it is {signed(versus.value - beyond.value)}, so "
        f"the learned table loses {measured(beyond, signed)} more than {control} at positions {late}, and "
        f"{measured(at_early, signed)} more at positions {band_name(early, early_end)}. The difference between these "
        f"two numbers, {measured(found, signed)}, is what late rows cost: {verdict}."
    )


def _early(summary: RowSummary) -> str:
    row = reference_row(summary)
    if row is None or not any(row.text_increase.values()):
        return ""
    (first, end), late = next(iter(summary.bands.items())), last_band(summary)
    text, near = row.text_increase, row.neighbour_increase
    a, b, c, d = text[first], text[late[0]], near[first], near[late[0]]
    if a is None or b is None or c is None or d is None or len(summary.bands) < 2:
        return ""
    early, last = band_name(first, end), band_name(*late)
    return (
        f"Replacing one row of {row.name} with the mean row raises the loss of a text by {nats(a.value)} nats for rows "
        f"{early} and {nats(b.value)} for rows {last}: {_difference(row, 'text_increase')}. Replacing it with its "
        f"neighbour, so that the position is off by one, costs {nats(c.value)} and {nats(d.value)} nats: "
        f"{_difference(row, 'neighbour_increase')}."
    )


def _difference(row: RowRow, name: str) -> str:
    found: Estimate | None = row.early_minus_late[name]
    side = None if found is None else found.side_of(0)
    words = {
        "above": "early rows matter more",
        "below": "late rows matter more",
        "both": "the difference is not significant",
        None: "there is no interval for the difference",
    }[side]
    return words if side is None or found is None else f"{words} (the difference is {difference(found)})"


def difference(found: Estimate) -> str:
    known = interval(found, nats)
    return nats(found.value) + (f", interval {known}" if known else "")


def _attention(summary: RowSummary) -> str:
    row = reference_row(summary)
    if row is None:
        return ""
    (first, end), (start, last) = next(iter(summary.bands.items())), last_band(summary)
    zero, early, late = row.attention_by_position.get(0), row.attention[first], row.attention[start]
    if zero is None or early is None or late is None or len(summary.bands) < 2:
        return ""
    return (
        f"With {row.name} lengths, position 0 receives {measured(zero)} times the attention that it would receive if "
        f"every token attended equally to all tokens it sees; positions {band_name(first, end)} receive "
        f"{measured(early)} times, and positions {band_name(start, last)} {measured(late)} times."
    )


PAGE = RowsPage()
