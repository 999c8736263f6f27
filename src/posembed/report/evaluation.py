"""The parts of a page that only evaluations have: their plan, their baselines and their notes."""

from __future__ import annotations

from posembed.evaluation.plan import Plan, PlannedRow
from posembed.evaluation.results import UNITS, Evaluation
from posembed.evaluation.settings import KINDS
from posembed.report import answers
from posembed.report.page import (
    Cell,
    Column,
    Lines,
    Picture,
    Section,
    Table,
    render_page,
    table_of,
)
from posembed.report.words import capitalised
from posembed.statistics import INTERVAL
from posembed.words import amount


def tables(evaluation: Evaluation) -> list[Table]:
    """Returns the tables of the terminal: one per measure."""
    found = evaluation.summary()
    return [answers.main_table(found, metric=metric) for metric in found.metrics]


def paragraphs(evaluation: Evaluation) -> list[str]:
    return [*answer(evaluation), legend(evaluation), *evaluation.notes]


def answer(evaluation: Evaluation) -> list[str]:
    return [each for each in answers.paragraphs(evaluation.summary()) if each]


def plan_table(plan: Plan) -> Table:
    """Returns a table of the tokens that each row reads at each length, as if no result were kept."""

    def at(length: int) -> Column:
        def cell(row: PlannedRow) -> Cell:
            job = row.jobs[length]
            if job is None:
                return Cell("too long", kind="muted")
            return Cell(f"{job.tokens:,}", note="kept" if job.key in plan.kept else "")

        return Cell(f"{length:,}", rank=plan.lengths[-1] - length), cell

    return table_of(
        plan.rows, "Tokens to read, by text length in tokens", "", *map(at, plan.lengths), first="checkpoint"
    )


def plan_words(plan: Plan) -> list[str]:
    jobs, missing = len(plan.jobs), plan.missing
    tokens = sum(job.tokens for job in missing.values())
    return [
        f"To measure: {', '.join(plan.measures)}. Rows and lengths that read the same tokens in the same way are "
        f"measured once: {amount(jobs, 'measurement')} in all, of which {jobs - len(missing)} are kept. "
        f"{tokens:,} tokens remain to be read.",
        *plan.paths,
        *plan.notes,
    ]


def legend(evaluation: Evaluation) -> str:
    """Returns sentences on the intervals, and on what rows are compared with."""
    units, same = UNITS[evaluation.unit], "size" if evaluation.kind == "images" else "length"
    if evaluation.texts < 2:
        return f"With one {evaluation.unit}, there are no intervals, and any difference may be chance."
    intervals = (
        f"Intervals are {INTERVAL}s over {evaluation.texts:,} {units}; a value has none if all {units} have the same."
    )
    if len(evaluation.rows) == 1:
        return intervals
    return (
        f"{intervals} Reference: {evaluation.reference.name}. Rows are compared with it at the same {same}, paired by "
        f"{evaluation.unit} (perplexities by their ratio), so rows with overlapping intervals can still differ "
        "significantly. Of many rows, the best is partly the best by chance."
    )


def render(evaluation: Evaluation) -> str:
    units = UNITS[evaluation.unit]
    return render_page(
        title=f"How good is the model at {evaluation.lengths[-1]:,} tokens of text?",
        about=f"{capitalised(KINDS[evaluation.kind])}, on {evaluation.texts:,} {units}: "
        f"{', '.join(row.name for row in evaluation.checkpoints)}.",
        answer=answer(evaluation),
        sections=[
            Section("", figures(evaluation)),
            Section("The numbers", numbers(evaluation), says=legend(evaluation)),
            Section("How it was measured", (Lines(evaluation.notes),)),
        ],
    )


def figures(evaluation: Evaluation) -> tuple[Picture, ...]:
    return tuple(answers.figures(evaluation.summary(), " ".join(answer(evaluation))))


def numbers(evaluation: Evaluation) -> tuple[Table, ...]:
    found = answers.tables(evaluation.summary(), values=False)
    return tuple(table for table in (*tables(evaluation), *found) if table.rows)
