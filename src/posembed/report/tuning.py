"""A fine-tuning as sentences and tables for the terminal, and as an HTML page."""

from __future__ import annotations

from statistics import fmean

from posembed.evaluation.measures import METRICS
from posembed.evaluation.results import UNITS, Row
from posembed.measure.estimates import ENOUGH_SEEDS, Comparison, compared_over_seeds, mean_over_items
from posembed.measure.jobs import Planned
from posembed.measure.summary import Summary
from posembed.plots.by_position import Panel, by_position_figure
from posembed.plots.style import DOTS, MUTED
from posembed.report import answers
from posembed.report.evaluation import figures, legend, numbers
from posembed.report.evaluation import tables as values
from posembed.report.page import Cell, Column, Lines, Picture, Section, Table, picture, render_page, table_of
from posembed.report.words import listed, measured, number
from posembed.statistics import INTERVAL, estimate
from posembed.tuning.result import Tuned
from posembed.tuning.run import TunePlan
from posembed.tuning.settings import TRAINED
from posembed.words import amount

FEW_STEPS = 20
"""With fewer steps, a fine-tuning changes a model too little to show what fine-tuning does."""


def answer(tuned: Tuned) -> list[str]:
    """Returns a sentence that says what to use on this text, and sentences that compare the candidates."""
    evaluation, best, length = tuned.evaluation, tuned.recommended, tuned.length
    found = evaluation.summary(tuned.candidates, best)
    metric, estimate = found.headline, best.estimate(tuned.measure, length)
    if estimate is None:
        return [f"{best.name} has no {metric.name} at {length:,}, because its outputs are not finite."]
    where = {"query": "For these queries", "image": "On these images"}.get(evaluation.unit, "On this text")
    value = measured(estimate, metric.write)
    return [
        f"{where}, use {spoken(tuned, best)}: its {metric.name} is {value}.",
        *answers.verdicts(found, metric, length),
        *best_of_all(tuned, found),
    ]


def best_of_all(tuned: Tuned, found: Summary) -> list[str]:
    """Returns sentences on the best row of the table, if it is no candidate. found: the candidates."""
    evaluation, best, metric = tuned.evaluation, tuned.recommended, found.headline
    row = evaluation.best(tuned.measure, tuned.length, evaluation.rows)
    value = None if row is None else row.estimate(tuned.measure, tuned.length)
    if row is None or value is None or row in tuned.candidates:
        return []
    return [
        f"Of all rows, “{row.name}” has the best {metric.name}: {metric.write(value.value)}.",
        *answers.verdicts(evaluation.summary((row, best), best), metric, tuned.length),
        "It is no candidate, because the candidates were fixed before the measurement, and of "
        f"{len(evaluation.rows)} rows the best is partly the best by chance: measure it on other "
        f"{'images' if evaluation.kind == 'images' else 'texts'} before you use it.",
    ]


def spoken(tuned: Tuned, row: Row) -> str:
    """Returns a candidate in words."""
    if row is tuned.candidates[-1] and tuned.evaluation.kind == "images":
        return f"{row.name} on whole images of {tuned.length:,} x {tuned.length:,} pixels"
    if row is tuned.candidates[-1]:
        return f"{row.name} on whole texts of up to {tuned.length:,} tokens"
    original = row.checkpoint == tuned.candidates[0].checkpoint
    return f"{row.checkpoint}{', not fine-tuned,' * original} with “{row.baseline}”"


def rule(tuned: Tuned) -> str:
    candidates = "; ".join(spoken(tuned, row) for row in tuned.candidates)
    many, units = len(tuned.candidates[0].runs) >= ENOUGH_SEEDS, UNITS[tuned.evaluation.unit]
    also = f", both over {units} and over seeds" if many else ""
    return (
        f"The candidates were fixed before the measurement, in the order of their costs: {candidates}. The first of "
        f"them is recommended unless a later one is significantly better{also}. Of many rows, the best is partly the "
        "best by chance."
    )


def kept(tuned: Tuned) -> list[str]:
    """Returns a sentence on how near the vectors of short texts or images stay to those of the original model."""
    if tuned.kept is None:
        return []
    what, to = "short texts (the queries)", "the original model"
    if tuned.evaluation.kind == "images":
        what, to = "held-out images", "the original model, which reads them at its own size"
    cosine = measured(tuned.kept, lambda end: f"{min(end, 1.0):.3f}")
    return [f"The vectors of {what} have a mean cosine of {cosine} to those of {to}."]


def how(tuned: Tuned) -> list[str]:
    settings = tuned.settings
    seeds = f" Values are means over {settings.seeds} seeds." if settings.seeds > 1 else ""
    windows, size, pieces = f"windows of {tuned.length:,} tokens", "length", "windows in pieces"
    if tuned.evaluation.kind == "images":
        windows, size, pieces = f"images of {tuned.length:,} x {tuned.length:,} pixels", "size", "images in tiles"
    old = (
        f" The fine-tuning at the old {size} read the same {pieces}, in as many steps." if "old" in tuned.names else ""
    )
    few = (
        f" {amount(tuned.steps, 'step')} of training can change little, so this says hardly more than a measurement "
        "of the resized table would: give more --minutes, or --steps."
    )
    return [
        *kept(tuned),
        *([f"New rows started by {settings.method}."] if settings.method is not None else []),
        f"Trained: {TRAINED[settings.train]}; {amount(tuned.steps, 'step')} of {settings.batch} {windows}.{old}{seeds}"
        f"{few * (tuned.steps < FEW_STEPS)}",
        rule(tuned),
    ]


def tables(tuned: Tuned) -> list[Table]:
    """Returns the tables of the terminal."""
    return [*values(tuned.evaluation), *seeds_table(tuned)]


def paragraphs(tuned: Tuned) -> list[str]:
    return [" ".join(answer(tuned)), legend(tuned.evaluation), *how(tuned), *tuned.evaluation.notes]


def seeds_table(tuned: Tuned) -> list[Table]:
    """Returns a table of the candidates' values by seed, if there are several seeds."""
    reference, metric, x = tuned.evaluation.reference, METRICS[tuned.measure], tuned.length
    if len(reference.runs) < 2:
        return []

    def of_seed(number: int) -> Column:
        def cell(row: Row) -> Cell:
            return answers.mean_cell(mean_over_items(metric, row.runs[number : number + 1], x), metric)

        return f"seed {reference.seeds[number]}", cell

    def over_seeds(row: Row) -> Comparison | None:
        ours, theirs = ({run.seed: run for run in each.runs} for each in (row, reference))
        found = None if row is reference else compared_over_seeds(metric, ours, x, theirs, x)
        return None if found is None else Comparison(metric, found)

    def verdict(row: Row) -> str:
        found = over_seeds(row)
        return found.verdict if found else ""

    kind = "ratio" if metric.kind == "log" else "difference"
    return [
        table_of(
            tuned.candidates,
            f"{metric.name} by seed, and the {kind} from the first row with its {INTERVAL} over seeds",
            "",
            *map(of_seed, range(len(reference.runs))),
            (kind, lambda row: answers.comparison_cell(over_seeds(row))),
            (Cell("significant?", kind="words"), verdict),
            first="checkpoint",
        )
    ]


def plan_words(plan: TunePlan) -> list[str]:
    """Returns what a fine-tuning would do, in sentences."""
    settings, texts, collection, kind = plan.settings, plan.texts, plan.setup.collection, plan.original.kind
    unit, items = ("pixels", "images") if kind == "images" else ("tokens", "documents")
    trained, held_out, short = (f"{len(each):,}" for each in (texts.training, texts.held_out, texts.short))
    windows, steps, minutes = len(texts.windows), int(plan.estimate()["steps"]), settings.minutes
    few = f"The {minutes or 0:g} minutes of --minutes leave time for a single step: give more minutes, or --steps."
    result = f"{held_out} other {items}, which are held out"
    if collection is not None:
        result = f"{len(collection.queries):,} queries on {len(collection.documents):,} documents"
    used = "only searched" if kind == "sentences" and collection is None else "not used"
    tried = listed([f"{loss:.2f} if they start by {method}" for method, loss in plan.starts.items()])
    start = f"New rows start by {settings.method}: before the fine-tuning, the loss per token of training windows is "
    return [
        f"{plan.source}: from {plan.setup.old_length:,} to {settings.length:,} {unit}. Trained: "
        f"{TRAINED[settings.train]}.",
        f"To train on: {trained} {items} of {settings.length:,} {unit} or more, in {windows:,} windows; {steps:,} "
        f"steps of {settings.batch:,} windows, so that each window is read "
        f"{number(steps * settings.batch / windows)} times.",
        " ".join([f"To measure the result: {result}. Smaller {items}, {used}: {short}.", *texts.notes]),
        *([f"{start}{tried}."] if tried else []),
        *([few] if minutes is not None and steps == 1 else []),
        f"To write: {listed([str(place) for place in plan.places.values()])}.",
    ]


def planned(plan: TunePlan) -> list[Planned]:
    """Returns the parts of a run, with their estimated times. Parts that take no time are left out."""
    estimate, pictures = plan.estimate(), plan.original.kind == "images"
    unit, steps = "pixels" if pictures else "tokens", int(estimate["steps"])
    parts = {
        "prepare": f"embedding {'images' if pictures else 'passages'} by the original model",
        "train tuned": f"fine-tuning at {plan.settings.length:,} {unit}",
        "train old": f"the same fine-tuning at {plan.setup.old_length:,} {unit}",
        "measure": "measuring",
    }
    return [
        Planned(name, None, estimate[part], steps=steps if part.startswith("train") else None)
        for part, name in parts.items()
        if estimate.get(part)
    ]


def figure_of_rows(tuned: Tuned) -> list[Picture]:
    """Returns a picture of how far each position's row moved, if a table of sequences was resized."""
    if not any(tuned.moved):
        return []
    old, seeds = tuned.old_rows, len(tuned.moved)
    rows = {position: estimate([100 * each[position] for each in tuned.moved]) for position in tuned.moved[0]}
    parts = {f"the {old:,} rows of the original": True, "the new ones": False}
    values = {name: [each.value for at, each in rows.items() if (at < old) == is_old] for name, is_old in parts.items()}
    said = ", ".join(
        f"{fmean(found):.2g}%{' on average' * (not at)} for {name}"
        for at, (name, found) in enumerate(values.items())
        if found
    )
    what = "How far each position's row moved, relative to its norm before the fine-tuning"
    figure = by_position_figure([Panel("How far each position's row moved, in percent", {"": rows})], [""])
    figure.axes[0].set_ylim(0)
    figure.axes[0].axvline(old, color=MUTED, linewidth=1, linestyle=DOTS, zorder=0)
    over = f" The line is the mean over {seeds} seeds, with its {INTERVAL}." if seeds > 1 else ""
    return [
        picture(
            figure,
            name="rows",
            described=f"{what}: {said}.",
            caption=f"{what}: {said}. Left of the dotted line are the rows that the original has. Of many rows, "
            f"neighbours are averaged.{over}",
        )
    ]


def render(tuned: Tuned) -> str:
    evaluation = tuned.evaluation
    return render_page(
        title=f"Is it worth fine-tuning {evaluation.reference.checkpoint} at {tuned.length:,} "
        f"{'pixels' if evaluation.kind == 'images' else 'tokens'}?",
        about=f"{evaluation.texts:,} held-out {UNITS[evaluation.unit]}, which were not trained on."
        if evaluation.unit != "query"
        else f"{evaluation.texts:,} queries of your own, which were not trained on.",
        answer=[" ".join(answer(tuned))],
        sections=[
            Section("", (*figures(evaluation), *figure_of_rows(tuned))),
            Section("The numbers", (*numbers(evaluation), *seeds_table(tuned)), says=legend(evaluation)),
            Section("How it was measured", (Lines((*how(tuned), *evaluation.notes)),)),
        ],
    )
