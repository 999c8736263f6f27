"""Which encoding solves problems larger than those it was trained on, and should two sides share one table there?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from posembed.calls import named, unknown
from posembed.errors import ArgumentError
from posembed.lab.found import Axis, Found, Results
from posembed.lab.question import DECLARED, Loaded, Reading, TrainedQuestion
from posembed.lab.runs.spec import with_default_window
from posembed.lab.tasks.pairs import PROBLEMS as PAIRS
from posembed.lab.tasks.problem_texts import PROBLEMS, tokens_read
from posembed.lab.tasks.problems_specs import (
    EXACT,
    ONE,
    SAME_ON_BOTH,
    TABLES,
    TOKENS,
    TWO,
    WITHIN,
    ProblemSpec,
    SharingSpec,
    lengths_of,
    wrong_reads,
)
from posembed.measure.metrics import Metric
from posembed.measure.summary import reached
from posembed.words import called, listed, up_to

SOLVED = 0.95
"""A size is solved if the model answers at least this share of its problems, over all seeds, without a mistake."""


class OfSizes(TrainedQuestion):
    """A question about generated problems of several sizes."""

    problems: Mapping[str, Any] = PROBLEMS
    """The problems by name, each with its ``unit`` of size."""

    def axis(self, results: Results, metric: Metric) -> Axis:
        spec = results[0].spec
        return Axis(self.problems[spec.problem].unit, max(spec.test_sizes), trained=spec.train_size)

    def facts(self, found: Found) -> dict[str, Any]:
        return {"problem": self.problems[found.spec.problem], "largest": max(found.spec.test_sizes)}


class Problem(OfSizes):
    """The question about one problem of PROBLEMS."""

    group = "tasks"
    trains = DECLARED["problems"]["trains"]
    metrics: tuple[Metric, ...] = (EXACT, TOKENS)
    loss_unit = "per token of the answers"
    Spec = ProblemSpec
    ReadingType = Reading

    def __init__(self, name: str) -> None:
        self.name = name
        self.asks = f"Which encoding can {PROBLEMS[name].line}, past the sizes it was trained on?"
        self.usual = ("learned", "sinusoidal", "rope", "alibi", *PROBLEMS[name].ids)
        ids = " and ".join(PROBLEMS[name].ids)
        self.names_help = f"Encodings to compare, separated by commas{f'; {ids} ids apply too' if ids else ''}."
        # To find what followed the same characters, a model needs two layers: in the first, each token reads its
        # neighbour. Each head must distinguish all rows of the table, so half as many heads need half as many steps.
        self.presets = self.presets_of("problems", name)

    def check_name(self, name: str) -> None:
        from posembed.lab.tasks.problems import check_encoding

        check_encoding(name, self.name)

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.problems import ProblemSolving

        chosen["train_length"] = tokens_read(self.name, chosen["train_size"])
        with_default_window(chosen)
        return ProblemSolving(self.name), {"problem": self.name}

    def remarks(self, found: Found) -> Iterator[str]:
        solved = self.columns(found).get("solves")
        if solved is None or not any(row.seeds for row in found.rows):
            return
        yield (
            f"A size counts as solved if the model answers at least {SOLVED:.0%} of the problems of that size, and of "
            "every smaller size tested, without a mistake. The largest size solved is "
            f"{listed([f'{solved[row.name]} with {called(row.name)}' for row in found.rows if row.seeds])}."
        )

    def columns(self, found: Found) -> Mapping[str, Mapping[str, str]]:
        tested = found.spec.test_sizes
        if found.headline is not EXACT:
            return {}

        def solves(values: Mapping[Any, float | None]) -> str:
            return up_to(reached(values, SOLVED - 1e-9), tested)  # rounding in the mean must not decide

        def of_mean(name: str) -> str:
            means = found.by_x(EXACT, name)
            return solves({x: None if (mean := means.get(x)) is None else mean.value for x in tested})

        seeds = {
            name: [solves({x: run.value(EXACT.name, x) for x in tested}) for run in found.runs(name).values()]
            for name in found.names
        }
        differ = {name: ", ".join(each) for name, each in seeds.items()}
        more = {} if all(len(set(each)) < 2 for each in seeds.values()) else {"solved by seed": differ}
        return {"solves": {name: of_mean(name) for name in found.names}, **more}


class StateTracking(Problem):
    """The question about a problem whose text asks for the state several times, also tested on other distributions."""

    trains = DECLARED["state-tracking"]["trains"]
    presets_help = "default (minutes), one-layer (PaTH's model, 512 tokens) or six-layers (Liu et al.'s; a GPU)."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.metrics = tuple(wrong_reads(tail) for tail in ("", *PROBLEMS[name].tails))
        self.usual = ("learned", "learned-averaged", "rope", "alibi", "none")
        self.presets = self.presets_of("state-tracking", name)


class Sharing(OfSizes):
    name = "sharing"
    Spec = SharingSpec
    problems = PAIRS
    two_tables: Mapping[str, str]
    """What a second table gains, by its verdict."""
    names_help = f"What to compare, separated by commas: {', '.join((*TABLES, *SAME_ON_BOTH))}."

    def settings(self, preset: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes depend on the problem, so no preset sets them."""
        chosen = super().settings(preset, given)
        problem = named("problem", chosen["problem"], self.problems)
        return {"train_size": problem.train_size, "test_sizes": problem.test_sizes, **chosen}

    def check_name(self, name: str) -> None:
        if name == "learned":
            raise ArgumentError(f"a learned table is {ONE} or {TWO} here; choose one of them, or both")
        if name not in (*TABLES, *SAME_ON_BOTH):
            raise unknown("encoding", name, (*TABLES, *SAME_ON_BOTH), of=" of an encoder and a decoder")

    def load(self, chosen: dict[str, Any]) -> Loaded:
        from posembed.lab.tasks.sharing import Rewriting

        return Rewriting(chosen["problem"]), lengths_of(chosen["problem"], chosen["train_size"])

    def facts(self, found: Found) -> dict[str, Any]:
        trained, unit = found.spec.train_size, self.problems[found.spec.problem].unit
        return super().facts(found) | {"sizes": "one" if trained == 1 else f"1 to {trained:,} {unit}"}

    def remarks(self, found: Found) -> Iterable[str]:
        two = found.versus(WITHIN, TWO) if found.reference == ONE and TWO in found.names else None
        if two is None:
            return
        more = found.row(TWO).position_parameters - found.row(ONE).position_parameters
        yield (
            "Guides call two tables a mistake where one could be shared. The second table adds "
            f"{more:,} parameters ({more / found.row(ONE).parameters:.1%} of the model) {self.two_tables[two.verdict]}"
        )
