"""A fine-tuning as sentences and tables for the terminal, and as an HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from posembed.evaluation.measures import MEASURES, Measure
from posembed.evaluation.results import UNITS, Row
from posembed.plots.by_position import Panel, by_position_figure
from posembed.plots.style import DOTS, MUTED
from posembed.report.evaluation import difference, differences, half_width, legend, size_unit, span, tables, value
from posembed.report.page import Cell, Lines, Picture, Section, Table, picture, render_page, table_of
from posembed.report.words import by_outcome, duration, interval, listed, measured
from posembed.statistics import INTERVAL, estimate
from posembed.tuning.result import ENOUGH_SEEDS, Tuned
from posembed.tuning.run import TunePlan
from posembed.tuning.settings import TRAINED


def answer(tuned: Tuned) -> list[str]:
    """Returns one sentence that says what to use on this text, and sentences that compare the candidates."""
    measure, best = MEASURES[tuned.measure], tuned.recommended
    found = best.estimate(measure.name, tuned.length)
    if found is None:
        at = f"at {tuned.length:,} {size_unit(tuned.evaluation)}"
        return [f"{best.name} has no {measure.name} {at}, because its outputs are not finite."]
    ends = f" ({INTERVAL} {span(measure, found)})" if found.low is not None else ""
    where = {"query": "For these queries", "image": "On these images"}.get(tuned.evaluation.unit, "On this text")
    first = f"{where}, use {spoken(tuned, best)}: its {measure.name} is {value(measure, found.value)}{ends}."
    return [first, *compared(tuned, measure, best), *best_of_all(tuned, measure, best)]


def best_of_all(tuned: Tuned, measure: Measure, recommended: Row) -> list[str]:
    """Returns sentences on the best row of the table, if it is no candidate."""
    evaluation, length = tuned.evaluation, tuned.length
    row = evaluation.best(measure.name, length, evaluation.rows)
    found = None if row is None else row.estimate(measure.name, length)
    if row is None or found is None or row in tuned.candidates:
        return []
    verdict = measure.verdict(tuned.versus(row, recommended))
    others = [each for each in evaluation.rows if each not in (*tuned.candidates, row)]
    better = [f"“{each.name}”" for each in others if measure.verdict(tuned.versus(each, recommended)) == "better"]
    return [
        f"Of all rows, “{row.name}” has the best {measure.name}: {value(measure, found.value)}.",
        *by_outcome("the recommended one", [(verdict, "It")], evaluation.unit),
        *by_outcome("the recommended one", [("better", name) for name in better], evaluation.unit),
        "It is no candidate, because the candidates were fixed before the measurement, and of "
        f"{len(evaluation.rows)} rows the best is partly the best by chance: measure it on other texts before you "
        "use it.",
    ]


def spoken(tuned: Tuned, row: Row) -> str:
    """Returns a candidate in words."""
    if row is tuned.candidates[-1] and tuned.evaluation.kind == "images":
        return f"{row.name} on whole images of {tuned.length:,} x {tuned.length:,} pixels"
    if row is tuned.candidates[-1]:
        return f"{row.name} on whole texts of up to {tuned.length:,} tokens"
    original = row.checkpoint == tuned.candidates[0].checkpoint
    return f"{row.checkpoint}{', not fine-tuned,' * original} with “{row.baseline}”"


def compared(tuned: Tuned, measure: Measure, best: Row) -> list[str]:
    """Returns sentences that compare the other candidates with the recommended one."""
    found = []
    for row in tuned.candidates:
        versus = None if row is best else tuned.versus(row, best)
        if versus is not None:
            by = difference(measure, versus.value) + (" times" if measure.perplexity else "")
            ends = interval(versus, lambda end: difference(measure, end))
            paired = f" ({by}{f'; paired {INTERVAL} {ends}' if ends else ''})"
            found.append((measure.verdict(versus), spoken(tuned, row) + paired))
    return by_outcome("it", found, tuned.evaluation.unit)


def rule(tuned: Tuned) -> str:
    candidates = "; ".join(spoken(tuned, row) for row in tuned.candidates)
    many, units = len(tuned.by_seed) >= ENOUGH_SEEDS, UNITS[tuned.evaluation.unit]
    also = f", both over {units} and over seeds" if many else ""
    return (
        f"The candidates were fixed before the measurement, in the order of their costs: {candidates}. The first of "
        f"them is recommended unless a later one is significantly better{also}. Of many rows, the best is partly the "
        "best by chance."
    )


def kept(tuned: Tuned) -> list[str]:
    """Returns a sentence on how near short texts stay to where they were."""
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
    return [
        *kept(tuned),
        *([f"New rows started by {settings.method}."] if settings.method is not None else []),
        f"Trained: {TRAINED[settings.train]}; {tuned.steps:,} steps of {settings.batch} {windows}.{old}{seeds}",
        rule(tuned),
    ]


def paragraphs(tuned: Tuned) -> list[str]:
    return [" ".join(answer(tuned)), legend(tuned.evaluation), *how(tuned), *tuned.evaluation.notes]


def seeds_table(tuned: Tuned) -> list[Table]:
    """Returns a table of the candidates' values by seed, if there are several seeds."""
    if len(tuned.by_seed) < 2:
        return []
    measure = MEASURES[tuned.measure]

    def of_seed(number: int) -> tuple[str, object]:
        rows = {row.name: row for row in tuned.by_seed[number].rows}

        def cell(row: Row) -> str:
            found = rows[row.name].estimate(measure.name, tuned.length)
            return "-" if found is None else value(measure, found.value)

        return f"seed {tuned.settings.seed + number}", cell

    def over_seeds(row: Row) -> object:
        versus = tuned.versus_by_seed(row, tuned.evaluation.reference)
        if versus is None or row is tuned.evaluation.reference:
            return Cell("")
        verdict = measure.verdict(versus)
        return Cell(difference(measure, versus.value), note=f"{half_width(measure, versus)} {verdict}".strip())

    columns = [of_seed(number) for number in range(len(tuned.by_seed))]
    columns.append(("ratio" if measure.perplexity else "difference", over_seeds))
    what = f"{measure.name} by seed, and the {columns[-1][0]} from the first row with its {INTERVAL} over seeds"
    return [table_of(tuned.candidates, what, "", *columns, first="checkpoint")]  # type: ignore[arg-type]


def plan_words(plan: TunePlan, estimate: Mapping[str, float]) -> list[str]:
    """Returns what a fine-tuning would do, in sentences. estimate: that of the plan."""
    settings, texts, old = plan.settings, plan.texts, plan.setup.old_length
    steps = int(estimate["steps"])
    items = steps * settings.batch
    pictures = plan.original.kind == "images"
    unit, windows = ("pixels", "image") if pictures else ("tokens", "window")
    return [
        f"{plan.source}: from {old:,} to {settings.length:,} {unit}. Trained: {TRAINED[settings.train]}.",
        parts_of(plan),
        f"{steps:,} steps of {settings.batch} {windows}s, so that each {windows} is read "
        f"{items / len(texts.windows):.1f} times.",
        *starts(plan),
        times(plan, estimate),
        f"To write: {listed([str(place) for place in plan.places.values()])}.",
    ]


def times(plan: TunePlan, estimate: Mapping[str, float]) -> str:
    """Returns sentences on how long a fine-tuning takes, and on minutes that are too few for its other parts."""
    pictures, minutes = plan.original.kind == "images", plan.settings.minutes
    unit = "pixels" if pictures else "tokens"
    parts = {
        "prepare": f"embedding {'images' if pictures else 'passages'} by the original model",
        "train tuned": f"fine-tuning at {plan.settings.length:,} {unit}",
        "train old": f"the same fine-tuning at {plan.setup.old_length:,} {unit}",
        "measure": "measuring",
    }
    each = [f"{what}: {duration(estimate[name])}" for name, what in parts.items() if estimate.get(name)]
    total = sum(seconds for name, seconds in estimate.items() if name != "steps")
    said = f"Estimated times on this machine: {'; '.join(each)}. In all: about {duration(total)}."
    if minutes is not None and estimate["steps"] == 1:
        said += f" The {minutes:g} minutes of --minutes leave time for a single step: give more minutes, or --steps."
    return said


def starts(plan: TunePlan) -> list[str]:
    """Returns a sentence on how the new rows are first computed, if that was chosen by trying."""
    if not plan.starts:
        return []
    tried = listed([f"{loss:.2f} if they start by {method}" for method, loss in plan.starts.items()])
    return [
        f"New rows start by {plan.settings.method}: before the fine-tuning, the loss per token of training windows is "
        f"{tried}."
    ]


def parts_of(plan: TunePlan) -> str:
    """Returns sentences on what is trained on and what measures the result."""
    texts, collection, length = plan.texts, plan.setup.collection, plan.settings.length
    number, trained, held_out, short = (
        f"{len(each):,}" for each in ((*texts.training, *texts.held_out), texts.training, texts.held_out, texts.short)
    )
    alike = "".join(f"{note} " for note in texts.notes)
    if plan.original.kind == "images":
        return (
            f"Images whose short side has {length:,} pixels: {number}. {held_out} of them are held out to measure the "
            f"result, {trained} are trained on. {alike}Smaller images, which are not used: "
            f"{short}."
        )
    used = "only searched" if plan.original.kind == "sentences" and collection is None else "not used"
    measure = (
        f"{held_out} of them are held out to measure the result, {trained} are trained on, in {len(texts.windows):,} "
        "windows."
    )
    if collection is not None:
        measure = (
            f"All of them are trained on, in {len(texts.windows):,} windows. The result is measured by "
            f"{len(collection.queries):,} queries on {len(collection.documents):,} documents."
        )
    return f"Documents with {length:,} tokens: {number}. {measure} {alike}Shorter documents, which are {used}: {short}."


def figure_of_rows(tuned: Tuned) -> list[Picture]:
    """Returns a picture of how far each position's row moved, if a table of sequences was resized."""
    if not any(tuned.moved):
        return []
    old, seeds = tuned.old_rows, len(tuned.moved)
    rows = {position: estimate([100 * each[position] for each in tuned.moved]) for position in tuned.moved[0]}
    parts = {f"the {old:,} rows of the original": True, "the new ones": False}
    values = {name: [each.value for at, each in rows.items() if (at < old) == is_old] for name, is_old in parts.items()}
    said = ", ".join(
        f"{fmean(found):.2g}%{' on average' * (not number)} for {name}"
        for number, (name, found) in enumerate(values.items())
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
        title=f"Is it worth fine-tuning {evaluation.reference.checkpoint} at {tuned.length:,} {size_unit(evaluation)}?",
        about=f"{evaluation.texts:,} held-out {UNITS[evaluation.unit]}, which were not trained on."
        if evaluation.unit != "query"
        else f"{evaluation.texts:,} queries of your own, which were not trained on.",
        answer=[" ".join(answer(tuned))],
        sections=[
            Section("", (differences(evaluation), *figure_of_rows(tuned))),
            Section("The numbers", (*tables(evaluation), *seeds_table(tuned)), says=legend(evaluation)),
            Section("How it was measured", (Lines((*how(tuned), *evaluation.notes)),)),
        ],
    )
