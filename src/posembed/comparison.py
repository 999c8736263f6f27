"""``posembed.compare``: runs a question's experiments and returns the answer. The command line uses it too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posembed.arguments import checks_arguments
from posembed.calls import named
from posembed.lab.cost import results as cost_results
from posembed.lab.cost.measure import checked, measure_cost, plan_cost
from posembed.lab.cost.results import CostSettings, CostSummary, sizes_in_words
from posembed.lab.question import Conduct, Question, Reading, TrainedQuestion
from posembed.lab.questions import QUESTIONS, Cost
from posembed.lab.runs.cluster import knock, sweep_on_ray
from posembed.lab.runs.environment import make_accelerator
from posembed.lab.runs.results import RunFolder, RunResult
from posembed.lab.runs.spec import TrainingSpec
from posembed.lab.runs.sweep import check_tracker, plan, sweep
from posembed.lab.tasks.task import Task
from posembed.measure.jobs import Planned, Progress, silent
from posembed.settings import checked_bounds, take

if TYPE_CHECKING:
    from accelerate import Accelerator
    from pandas import DataFrame
    from torch import Tensor

    from posembed.report.page import Table
    from posembed.report.questions import QuestionPage


@checks_arguments
def compare(question: str, **chosen: Any) -> Comparison:
    """Runs the experiment of a ``posembed compare`` command: trains and compares models, or measures their cost.

    Args:
        question: the name of a command of ``posembed compare`` or ``posembed compare tasks``, such as "lengths",
            "inits", "cost" or "passkey".
        chosen: the command's options, with underscores: ``encodings`` (or ``inits``, ``rates``, ``tasks``), ``seeds``,
            ``out`` (what is finished there is not repeated), ``reference``, ``preset``, ``data``, ``steps``,
            ``device`` and so on. Lists may be Python lists.

    Raises:
        ArgumentError, DataError, RunFolderError: options, data or a run folder cannot be used. Raised before training.

    Examples:
        >>> import posembed
        >>> tiny = {"preset": "quick", "steps": 2, "layers": 1, "width": 16, "heads": 2, "test_tokens": 1024}
        >>> comparison = posembed.compare("lengths", encodings=["rope", "alibi"], out="runs/mine", **tiny)
        >>> sorted(row.name for row in comparison.summary.rows)
        ['alibi', 'rope']
        >>> comparison.report().name  # the page
        'report.html'
    """
    return prepare(question, chosen).run()


@dataclass(frozen=True)
class PreparedCost:
    """A checked cost measurement: its settings and folder. Nothing is measured or written yet."""

    question: Question
    settings: CostSettings
    path: Path

    @property
    def description(self) -> str:
        """The sizes at which the encodings are measured."""
        return sizes_in_words(self.settings)

    @property
    def kept(self) -> bool:
        """Whether the folder has the result already. Raises RunFolderError if it holds other results."""
        return cost_results.kept(self.path, self.settings)

    def plan(self) -> list[Planned]:
        """Returns the encodings with the estimated times to measure them; none, if the folder has the result."""
        return plan_cost(self.settings, kept=self.kept)

    def run(self, progress: Progress = silent) -> Comparison:
        """Measures every encoding unless the folder has the result. ``progress`` is called with (part, done, total)."""
        measure = partial(measure_cost, self.settings, progress)
        result = cost_results.measured_once(self.path, self.settings, measure)
        return Comparison(self.question, self.path, [], CostSummary(result))


@dataclass(frozen=True)
class Prepared:
    """A checked question with its data loaded. Nothing is trained yet."""

    question: TrainedQuestion
    task: Task
    specs: Sequence[TrainingSpec]
    reading: Reading
    conduct: Conduct
    folder: RunFolder
    accelerator: Accelerator

    @property
    def description(self) -> str:
        """Describes the data."""
        return self.task.description

    def plan(self) -> list[Planned]:
        """Returns the runs with their sizes and estimated times; those in the folder take none. Raises RunFolderError
        if the folder holds runs that cannot be compared with them."""
        self.folder.check(*self.specs)
        kept = {result.spec for result in self.folder.results()}
        return plan(self.specs, self.task, self.accelerator, kept)

    def run(
        self, progress: Progress = silent, finished: Callable[[RunResult], None] = lambda result: None
    ) -> Comparison:
        """Trains the runs that are not in the folder yet. ``finished`` is called with each new result."""
        specs, task, folder, conduct = self.specs, self.task, self.folder, self.conduct
        told: Any = {"progress": progress, "finished": finished}
        if conduct.on != "here":
            on, device, cpus = conduct.on, conduct.device, conduct.cpus_per_run or 1
            results = sweep_on_ray(specs, task, folder, address=on, device=device, cpus_per_run=cpus, **told)
        else:
            results = sweep(specs, task, folder, self.accelerator, track=conduct.track, **told)
        return Comparison(self.question, folder.path, results, self.question.summarise(results, self.reading, folder))


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """The answer to a question: ``summary`` has one row per encoding; ``results`` holds the runs that were asked for.

    Examples:
        >>> import posembed
        >>> tiny = {"preset": "quick", "steps": 2, "layers": 1, "width": 16, "heads": 2, "test_tokens": 1024}
        >>> comparison = posembed.compare("lengths", encodings=["rope", "alibi"], out="runs/mine", **tiny)
        >>> comparison.answer()[-1]
        'There is one run per encoding, so there are no intervals over seeds; small differences may be chance.'
    """

    question: Question
    path: Path
    results: Sequence[RunResult]
    summary: Any

    def answer(self) -> list[str]:
        """Returns the answer in sentences."""
        return self._page.answer(self.summary)

    def notes(self) -> list[str]:
        """Returns notes on how to read the main table."""
        return self._page.notes(self.summary)

    def tables(self) -> list[Table]:
        """Returns the main tables."""
        return self._page.main_tables(self.summary)

    def report(self, out: str | Path | None = None) -> Path:
        """Writes the HTML report and returns its path, by default report.html in the run folder."""
        from posembed.report.questions import write_report

        return write_report(self.path, out)

    def learned_tables(self) -> dict[str, dict[int, Tensor]]:
        """Returns the rows of each learned table, (N, D) float32 by training step, from the first successful run.

        >>> posembed.plots.during_training(comparison.learned_tables()["learned"])  # doctest: +SKIP
        """
        from posembed.report.learned import tables_of

        return {name: dict(tables) for name, (_, tables) in tables_of(self._runs, self._shown).items()}

    def attention(self) -> dict[str, Tensor]:
        """Returns the mean attention weights by distance, (layers, H, L), of the first successful run of each name.

        >>> posembed.plots.attention_by_distance(comparison.attention()["rope"])  # doctest: +SKIP
        """
        from posembed.report.learned import attention_of

        return {name: weights for name, (_, weights) in attention_of(self._runs, self._shown).items()}

    def frame(self) -> DataFrame:
        """Returns every measured value as a tidy pandas frame, one row per value, with the columns of
        ``posembed.measure.frame.Value``: run (the name of what is compared), seed, item, metric, x, value and weight.
        Perplexities appear as losses, with the metric "log perplexity"."""
        return self.summary.to_pandas()

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary as plain values that JSON can represent. NaN and infinity become None."""
        return self.summary.to_dict()

    @property
    def _runs(self) -> RunFolder:
        return RunFolder(self.path, getattr(self.question, "Spec", TrainingSpec))

    @property
    def _shown(self) -> Sequence[RunResult]:
        return self.question.shown(self.results)

    @property
    def _page(self) -> QuestionPage:
        from posembed.report.questions import page_of

        return page_of(self.question)

    def __repr__(self) -> str:
        from posembed.report.terminal import as_text

        return as_text(self.tables(), self.answer())

    def _repr_html_(self) -> str:
        from posembed.report.page import render_fragment

        return render_fragment(self.tables(), self.answer())


def prepare(name: str, chosen: Mapping[str, Any]) -> Prepared | PreparedCost:
    """Checks a question's settings and loads its data. Takes the arguments of ``compare`` and raises its errors."""
    question = named("question", str(name), QUESTIONS)
    given = {key: str(value) if isinstance(value, torch.device) else value for key, value in chosen.items()}
    checked_bounds(given, *question.kinds, of=f" of {question.name}")
    if isinstance(question, TrainedQuestion):
        return prepare_training(question, given)
    assert isinstance(question, Cost)
    choice: Any = question.Choice(**take(question.Choice, given))
    settings = {**question.preset_called(choice.preset), **take(CostSettings, given)}
    return PreparedCost(question, checked(CostSettings(**settings)), choice.out)


def prepare_training(question: TrainedQuestion, given: dict[str, Any]) -> Prepared:
    choice = take(question.Choice, given)
    preset, names = choice.pop("preset", None), choice.pop(question.compared, question.usual)
    names = tuple(question.canonical(name) for name in names)
    conduct = Conduct(**{"seeds": question.usual_seeds} | take(Conduct, given))
    read = take(question.ReadingType, given)
    if "reference" in read:
        read["reference"] = question.canonical(read["reference"])
    reading = question.ReadingType(**read)
    settings = take(question.Spec, given) | choice
    if conduct.track is not None:
        check_tracker(conduct.track)
    if conduct.on not in ("here", "ray"):
        knock(conduct.on)
    question.check(names, reading)
    question.check_used(names, settings)
    chosen = question.settings(preset, settings)
    task, shared = question.prepare(chosen)
    specs = question.specs(shared, names, conduct.seeds, question.values(chosen))
    folder = RunFolder(conduct.out or Path("runs") / question.name, question.Spec, reading)
    accelerator = make_accelerator(shared.precision, conduct.device, track=conduct.track, tracking=folder.tracking)
    return Prepared(question, task, specs, reading, conduct, folder, accelerator)
