"""A question of the lab: what it compares, with which settings, and how it summarises the runs.

A question is one object. ``posembed compare``, ``posembed report`` and ``posembed.compare`` use it. To add one, write
its task with its settings and its measured values, declare its metrics in ``metrics.json`` and its texts in
``questions/questions.json``, and add one line to ``questions/__init__.py``. The special parts of its page are in
``posembed/report/questions/PAGE.py``. No question imports torch before its task is built.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from posembed.calls import closest, named
from posembed.errors import ArgumentError
from posembed.files import data_of
from posembed.lab.found import Axis, Found, Results, model_size
from posembed.lab.metrics import metrics
from posembed.lab.runs.results import RunFolder
from posembed.lab.runs.spec import TrainingSpec, merged
from posembed.lab.tasks.text_specs import load_text
from posembed.measure.frame import Frame
from posembed.measure.metrics import Metric
from posembed.settings import Count, Names, Settings, option

if TYPE_CHECKING:
    from posembed.lab.tasks.task import Task
    from posembed.nn.encodings import Use

Loaded: TypeAlias = "tuple[Task, dict[str, Any]]"
"""A task, and the settings that are computed from its data, by name."""


PRESETS, DECLARED = (data_of(__file__, f"questions/{name}") for name in ("presets", "questions"))


@dataclass(frozen=True, kw_only=True)
class Conduct(Settings):
    """Settings for executing runs, common to all questions. None of them changes the result of a run."""

    out: Path | None = option("The run folder. The same command continues where it stopped.", default=None)
    seeds: Count = option("Runs per encoding, each with a different seed.", default=1)
    on: str = option(
        "Where to run: here, ray (RAY_ADDRESS's cluster, or one on this machine) or ray://HOST:PORT.", default="here"
    )
    cpus_per_run: Count | None = option("Cores per run, with --on ray. Default: 1.", default=None)
    track: str | None = option("Log the runs to tensorboard or wandb (Weights & Biases).", default=None)
    device: str | None = option("cpu, cuda or mps. Default: the fastest available.", default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on == "here" and self.cpus_per_run is not None:
            raise ArgumentError("cpus_per_run belongs to runs on Ray; give --on ray, or leave it out")
        if self.on != "here" and self.track is not None:
            raise ArgumentError("track follows runs that train here; leave out --on, or leave out --track")


@dataclass(frozen=True, kw_only=True)
class Reading(Settings):
    """Settings for summarising runs. The run folder keeps them, so that the page repeats the command's answer."""


@dataclass(frozen=True, kw_only=True)
class Compared(Reading):
    reference: str | None = option("The run that the others are compared with.", default=None)


def in_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Question:
    """A question that the lab can answer."""

    name: str
    """The key in questions.json that holds the plain attributes of the question, such as ``asks``."""
    asks: str
    """The question itself, in one sentence."""
    page: str | None = None
    """The module in posembed.report.questions with the special parts of the question's page; None without one."""
    group: str | None = None
    """The parent command: ``posembed compare GROUP NAME``."""
    common: Mapping[str, Any] = {}
    """The default settings of all presets."""
    presets: Mapping[str, Mapping[str, Any]]
    """Sets of default settings, by name; ``preset`` names the default set. questions.json lists the entries of
    presets.json to merge, where later entries override earlier ones; by default, the entry with the question's name."""
    preset: str = "default"
    presets_help: str | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            makers: dict[str, Callable[..., Any]] = {"presets": cls.presets_of, "metrics": metrics}
            for attribute, value in {"presets": (cls.name,), **DECLARED.get(cls.name, {})}.items():
                setattr(cls, attribute, makers[attribute](*value) if attribute in makers else in_tuple(value))

    @classmethod
    def presets_of(cls, *names: str) -> dict[str, dict[str, Any]]:
        """Returns presets of presets.json: the common settings, overridden by the settings of each name in turn."""
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            for preset, settings in PRESETS.get(name, {}).items():
                found[preset] = found.get(preset, dict(cls.common)) | {key: in_tuple(settings[key]) for key in settings}
        return found

    @property
    def kinds(self) -> tuple[type[Settings], ...]:
        """The dataclasses whose fields are the options of the command, in the order of ``--help``."""
        return (self.Choice,)

    @cached_property
    def Choice(self) -> type[Settings]:  # noqa: N802
        """The settings that decide what is compared."""
        chosen = [*self.chosen(), ("preset", str | None, option(self.presets_help or "", default=None))]
        return dataclasses.make_dataclass("Choice", chosen, bases=(Settings,), frozen=True, kw_only=True)

    def chosen(self) -> Iterable[tuple[str, Any, Any]]:
        """Returns the fields of ``Choice``, besides the preset."""
        return ()

    @property
    def shown_defaults(self) -> dict[str, Any]:
        """The default values that ``--help`` shows for settings without a default of their own."""
        return {"preset": self.preset, **self.presets[self.preset]}

    def preset_called(self, name: str | None) -> Mapping[str, Any]:
        """Returns a preset's settings; None means the default. Raises ArgumentError for an unknown name."""
        return named("preset", self.preset if name is None else name, self.presets)

    def shown(self, results: Results) -> Results:
        """Returns the runs whose tables and attention are shown."""
        return results


class TrainedQuestion(Question):
    """A question that trains models. Subclasses set the attributes, and override ``load`` if the data are not text."""

    common = PRESETS["common"]
    Spec: type[TrainingSpec]
    ReadingType: ClassVar[type[Reading]] = Compared
    use: Use = "decoder"
    """The kind of model that it trains, which determines the encodings that it can compare."""
    usual: tuple[str, ...]
    """The names to compare by default."""
    usual_reference: str | None = None
    names_help: str = "Encodings to compare, separated by commas."
    varied_help: str = ""
    """The help of the option that lists the values of ``Spec.VARIED``, the second field in which runs differ."""
    usual_seeds: int = 1

    @property
    def kinds(self) -> tuple[type[Settings], ...]:
        return self.Choice, self.ReadingType, Conduct, self.Spec

    def chosen(self) -> Iterable[tuple[str, Any, Any]]:
        yield self.compared, Names, option(self.names_help, default=self.usual)
        if self.varied is not None:
            yield self.varied, Names, option(self.varied_help, default=self.presets[self.preset][self.varied])

    @property
    def shown_defaults(self) -> dict[str, Any]:
        computed = dict.fromkeys(("train_size", "test_sizes"), "depends on the problem")
        computed |= {"window": "that of these layers and this training length", "ring": "the window"}
        return computed | super().shown_defaults | {"reference": self.usual_reference, "seeds": self.usual_seeds}

    @property
    def compared(self) -> str:
        """The name of the option that lists the compared names: "encodings", "inits" and so on."""
        return f"{self.Spec.COMPARED}s"

    @property
    def varied(self) -> str | None:
        """The name of the option that lists the values of ``Spec.VARIED``, such as "amounts"; None without one."""
        return None if self.Spec.VARIED is None else f"{self.Spec.VARIED}s"

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the preset's settings, overridden by the given settings that are not None."""
        return merged(self.preset_called(preset), given)

    def check(self, names: Sequence[str], reading: Reading) -> None:
        """Raises ArgumentError for an invalid name or reference. Called before the data is loaded."""
        for name in names:
            self.check_name(name)
        wanted = getattr(reading, "reference", None)
        if wanted not in (None, *names):
            meant = "".join(f" (did you mean {name}?)" for name in closest(str(wanted), names, most=1))
            raise ArgumentError(
                f"the reference {wanted!r} is not compared{meant}; the names are {', '.join(names)}; add it"
            )

    def check_used(self, names: Sequence[str], given: Mapping[str, Any]) -> None:
        """Raises ArgumentError for a window, a ring or factors that none of the compared encodings has."""
        parts = {part for name in names for each in name.split("/") for part in each.split("+")}
        for name, users, of in (
            ("window", {"rolling", "window"}, "encodings with a window: rolling, or NAME+window"),
            ("ring", {"rolling"}, "encodings with a ring: rolling"),
            ("rope_factors", {"rope-longrope"}, "rope-longrope"),
        ):
            if name in given and not users & parts:
                raise ArgumentError(f"{name} belongs to {of}; none is compared, so leave it out")

    def check_name(self, name: str) -> None:
        """Raises ArgumentError for a name that this question cannot compare."""
        from posembed.nn.encodings import split_mixture

        split_mixture(name, self.use)

    def canonical(self, text: str) -> str:
        """Returns the standard spelling of a compared name or of a value of ``Spec.VARIED``: "rope+logn+window" for
        "rope+window+logn". Returns other texts unchanged."""
        layers = (layer.split("+") for layer in text.split("/"))
        return "/".join("+".join([base, *sorted(suffixes)]) for base, *suffixes in layers)

    def prepare(self, chosen: dict[str, Any]) -> tuple[Task, Any]:
        """Loads the data. Returns the task, and a spec with all shared settings but no compared name."""
        if chosen["warmup"] > chosen["steps"]:
            raise ArgumentError(f"warmup: expected at most the {chosen['steps']:,} steps; got {chosen['warmup']:,}")
        task, found = self.load(chosen)
        shared = {name: value for name, value in chosen.items() if name != self.varied}
        return task, self.Spec(question=self.name, **shared, **found)

    def values(self, chosen: Mapping[str, Any]) -> list[str]:
        """Returns the values of ``Spec.VARIED`` in the settings; an empty list without such a field."""
        given = () if self.varied is None else chosen[self.varied]
        return list(dict.fromkeys(map(self.canonical, given)))

    def specs(self, shared: Any, names: Sequence[str], seeds: int, values: Sequence[str] = ()) -> list[Any]:
        """Returns one spec per name, value and seed. All runs of a seed come before the next seed, and all names of a
        value before the next value. ``values``: the values of ``Spec.VARIED``, if it has such a field."""
        varied: list[dict[str, Any]] = [{shared.VARIED: value} for value in values] if shared.VARIED else [{}]
        return [
            dataclasses.replace(shared, seed=seed, **{shared.COMPARED: name}, **each)
            for seed in range(seeds)
            for each in varied
            for name in dict.fromkeys(names)
        ]

    metrics: tuple[Metric, ...]
    """What the question measures, the main metric first. questions.json lists their groups in metrics.json."""
    items: str = "documents"
    """The plural noun for the items by which a metric has values."""
    of_each: str = "encoding"
    """The word after "per" in a number of runs: "3 runs per encoding"."""
    loss_unit: str = "per token"
    """The unit of a training loss."""
    tables_note: str = ""
    """A sentence below the heading of the learned tables."""

    def axis(self, results: Results, metric: Metric) -> Axis | None:
        """Returns the x axis of a metric; None if the metric has a single value."""
        return None

    def frame(self, results: Results, reading: Any) -> Frame:
        """Returns every measured value of the results."""
        return Frame.of(results)

    def reference_of(self, found: Found, name: str) -> str | None:
        """Returns the name that a name is compared with; None for the reference itself."""
        return None if name == found.reference else found.reference

    def special(self, found: Found) -> Any:
        """Returns the data of the page's special part, as a dataclass of plain values; None without such a part."""
        return None

    trains: str
    """What was trained and measured, in a sentence or two. Braces name ``found``, ``spec``, ``size`` or ``facts``."""

    def facts(self, found: Found) -> dict[str, Any]:
        """Returns more values for the braces in ``trains``, by name."""
        return {}

    def about(self, found: Found) -> str:
        """Describes in a sentence or two what was trained and measured."""
        return self.trains.format(found=found, spec=found.spec, size=model_size(found.spec), **self.facts(found))

    def remarks(self, found: Found) -> Iterable[str]:
        """Returns sentences of the answer that the metrics do not give."""
        return ()

    def columns(self, found: Found) -> Mapping[str, Mapping[str, str]]:
        """Returns columns of the main table that the metrics do not give: the text of each name, by head."""
        return {}

    def counted(self, found: Found) -> Mapping[str, Mapping[str, int]]:
        """Returns counts of the held-out data, such as the number of examples by label, by the title of their table."""
        return {}

    def summarise(self, results: Results, reading: Any = None, folder: RunFolder | None = None) -> Found:
        """Summarises runs that share all settings except the compared name, the value of ``Spec.VARIED`` and the seed.
        ``folder``: the run folder; without it, the runs' tables are unknown.

        The reference is that of ``reading``, or else the usual one if it was run, or else the first name. Raises
        ArgumentError if no run is finished, or if the reading's reference was not run.
        """
        reading = reading or self.ReadingType()
        names = list(dict.fromkeys(result.spec.compared for result in results))
        if not names:
            raise ArgumentError("no run is finished yet; there is nothing to summarise")
        wanted = getattr(reading, "reference", None)
        if wanted not in (None, *names):
            raise ArgumentError(f"the reference {wanted!r} was not run; the finished runs are {', '.join(names)}")
        usual = self.usual_reference if self.usual_reference in names else names[0]
        reference = (wanted or usual) if isinstance(reading, Compared) else None
        return Found(self, results, reading, reference, folder)

    task: str
    """The class of the task on text, as MODULE:CLASS below lab.tasks, such as "rows:TrainedRows"."""

    def load(self, chosen: dict[str, Any]) -> Loaded:
        """Checks and completes the settings in ``chosen``, loads the data, and returns the task."""
        corpus = load_text(chosen)
        return resolve_name(f"posembed.lab.tasks.{self.task}")(corpus), {"data_sha256": corpus.sha256}
