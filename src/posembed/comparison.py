"""``posembed.compare``: runs the experiments of a question and returns the answer. The command calls it too."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posembed.calls import unknown
from posembed.errors import ArgumentError
from posembed.lab.question import Conduct, Question, Reading, TrainedQuestion
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.cost import Cost
from posembed.lab.runs.spec import TrainingSpec, as_type, options, take_options

if TYPE_CHECKING:
    from accelerate import Accelerator

    from posembed.lab.cost.measure import Progress
    from posembed.lab.cost.settings import CostSettings
    from posembed.lab.runs.plan import PlannedRun
    from posembed.lab.runs.results import RunFolder, RunResult
    from posembed.lab.runs.sweep import Watcher
    from posembed.lab.tasks.task import Task
    from posembed.report.page import Table


def compare(question: str, **chosen: Any) -> Comparison:
    """Answers a question by experiment, as ``posembed compare`` does: trains its models, or measures cost.

    Args:
        question: "lengths", "inits", "text", "images", "cost", or one of the problems: "copy", "reverse",
            "addition", "sorting", "parity", "passkey".
        chosen: what the command's options say, with underscores: ``encodings`` (or ``inits``), ``seeds``, ``out``,
            ``reference``, ``preset``, ``data``, ``steps``, ``device`` and so on. Lists may be lists.

    Raises:
        ArgumentError, DataError, RunFolderError: before anything trains.

    Example:
        >>> answer = compare("lengths", encodings=["rope", "alibi"], preset="quick", out="runs/mine")  # doctest: +SKIP
        >>> answer.summary.rows[0].same_tokens[512].value  # doctest: +SKIP
        >>> answer.report()  # doctest: +SKIP
    """
    return prepare(question, chosen).run()


@dataclass(frozen=True)
class PreparedCost:
    """Checked settings and a folder that can be written; nothing is measured yet."""

    question: Question
    settings: CostSettings
    path: Path

    def run(self, progress: Progress | None = None) -> Comparison:
        """Measures every encoding and keeps the result. ``progress`` hears of (part, done, total)."""
        from posembed.lab.cost.measure import measure_cost
        from posembed.lab.cost.results import save

        result = measure_cost(self.settings, progress or (lambda part, done, total: None))
        save(result, self.path)
        return Comparison(self.question, self.path, [], result)


@dataclass(frozen=True)
class Prepared:
    """Everything is loaded and checked; nothing is trained yet."""

    question: TrainedQuestion[Any, Any, Any]
    task: Task[Any, Any]
    specs: Sequence[TrainingSpec]
    reading: Reading
    conduct: Conduct
    folder: RunFolder[Any]
    accelerator: Accelerator

    def plan(self) -> list[PlannedRun]:
        """Returns the runs with their sizes and an estimate of the time."""
        from posembed.lab.runs.plan import plan

        return plan(self.specs, self.task, self.accelerator)

    def run(self, watcher: Watcher | None = None) -> Comparison:
        """Trains the runs that are not in the folder yet. ``watcher`` hears of every step."""
        from posembed.lab.runs.cluster import sweep_on_ray
        from posembed.lab.runs.sweep import Silent, sweep
        from posembed.lab.runs.tracking import Tracked

        conduct, watcher = self.conduct, watcher or Silent()
        if conduct.on != "here":
            results = sweep_on_ray(
                self.specs,
                self.task,
                self.folder,
                address=conduct.on,
                device=conduct.device,
                cpus_per_run=conduct.cpus_per_run,
                watcher=watcher,
            )
        elif conduct.track:
            with closing(Tracked(self.accelerator, conduct.track, self.folder.path, watcher)) as tracked:
                results = sweep(self.specs, self.task, self.folder, self.accelerator, tracked)
        else:
            results = sweep(self.specs, self.task, self.folder, self.accelerator, watcher)
        summary = self.question.summarise(results, self.reading)
        return Comparison(self.question, self.folder.path, results, summary)


class Comparison:
    """The answer of a question. ``summary`` has one row per encoding, ``results`` every run; both are in ``path``."""

    def __init__(self, question: Question, path: Path, results: Sequence[RunResult[Any, Any]], summary: Any) -> None:
        self.question = question
        self.path = path
        self.results = results
        self.summary = summary

    def answer(self) -> list[str]:
        """Returns the answer in sentences."""
        from posembed.report.questions import page_of

        return page_of(self.question).answer(self.summary)

    def notes(self) -> list[str]:
        """Returns what is needed to read the main table."""
        from posembed.report.questions import page_of

        return page_of(self.question).notes(self.summary)

    def tables(self) -> list[Table]:
        """Returns the main tables."""
        from posembed.report.questions import page_of

        return page_of(self.question).main_tables(self.summary)

    def report(self, out: str | Path | None = None) -> Path:
        """Writes the HTML page of the folder and returns its path. Default: report.html in the folder."""
        from posembed.report.questions import write_report

        return write_report(self.path, out)

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary as plain values that JSON can hold; a perplexity beyond the largest float is None."""
        values = json.dumps(dataclasses.asdict(self.summary))
        return json.loads(values, parse_constant=lambda name: None)

    def __repr__(self) -> str:
        from posembed.report.terminal import as_text

        return as_text(self.tables(), self.answer())

    def _repr_html_(self) -> str:
        from posembed.report.page import render_fragment

        return render_fragment(self.tables(), self.answer())


def prepare(name: str, chosen: Mapping[str, Any]) -> Prepared | PreparedCost:
    """Checks every setting of a question and loads its data. ``chosen`` is as in ``compare``.

    Raises:
        ArgumentError, DataError, RunFolderError: settings, data or a folder that cannot work.
    """
    if not isinstance(name, str) or name not in QUESTIONS:
        raise unknown("question", str(name), QUESTIONS)
    question = QUESTIONS[name]
    if isinstance(question, Cost):
        return prepare_cost(question, chosen)
    assert isinstance(question, TrainedQuestion)
    return prepare_training(question, chosen)


def prepare_cost(question: Cost, chosen: Mapping[str, Any]) -> PreparedCost:
    from posembed.lab.cost.measure import checked
    from posembed.lab.cost.results import prepare as prepare_folder

    given = dict(chosen)
    out = given.pop("out", None)
    path = Path("runs") / question.name if out is None else as_type("out", out, Path)
    settings = question.Settings(**take_options(question.Settings, given))
    refuse_unknown(question, given, question.Settings)
    settings = checked(settings)
    prepare_folder(path, settings)
    return PreparedCost(question, settings, path)


def prepare_training(question: TrainedQuestion[Any, Any, Any], chosen: Mapping[str, Any]) -> Prepared:
    from posembed.lab.runs.cluster import knock
    from posembed.lab.runs.environment import make_accelerator
    from posembed.lab.runs.results import RunFolder
    from posembed.lab.runs.tracking import check_tracker, tracking_folder

    given = dict(chosen)
    names = given.pop(question.compared, None)
    names = question.usual if names is None else as_type(question.compared, names, tuple[str, ...])
    preset = given.pop("preset", None)
    preset = None if preset is None else as_type("preset", preset, str)
    conduct = Conduct(**take_options(Conduct, given))
    reading = question.ReadingType(**take_options(question.ReadingType, given))
    settings = take_options(question.Spec, given)
    refuse_unknown(question, given, question.ReadingType, Conduct, question.Spec)
    if conduct.cpus_per_run < 1:
        raise ArgumentError(f"cpus_per_run must be at least 1, got {conduct.cpus_per_run}")
    if conduct.track is not None:
        check_tracker(conduct.track)
        if conduct.on != "here":
            raise ArgumentError("--track follows runs that train here; leave out --on, or leave out --track")
    if conduct.on not in ("here", "ray"):
        knock(conduct.on)
    question.check(names, conduct.seeds, reading)
    task, shared = question.prepare(question.settings(preset, settings))
    specs = question.specs(shared, names, conduct.seeds)
    folder = RunFolder(conduct.out or Path("runs") / question.name, question.Spec, reading)
    tracking = tracking_folder(folder.path)
    accelerator = make_accelerator(shared.precision, conduct.device, track=conduct.track, tracking=tracking)
    return Prepared(question, task, specs, reading, conduct, folder, accelerator)


def refuse_unknown(question: Question, left: Mapping[str, Any], *settings: type[Any]) -> None:
    """Raises ArgumentError if options are left that none of the settings has."""
    if left:
        own = [question.compared, "preset"] if isinstance(question, TrainedQuestion) else ["out"]
        known = [*own, *(name for kind in settings for name in options(kind))]
        raise unknown("option", min(left), known, of=f" of {question.name}")
