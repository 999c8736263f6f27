"""Which encoding solves problems larger than those it was trained on?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from posembed.lab.found import Axis, Found, Results
from posembed.lab.question import DECLARED, Loaded, Reading, TrainedQuestion
from posembed.lab.runs.spec import with_default_window
from posembed.lab.tasks.problem_texts import PROBLEMS, tokens_read
from posembed.lab.tasks.problems_specs import EXACT, TOKENS, ProblemSpec, wrong_reads
from posembed.measure.metrics import Metric
from posembed.measure.summary import reached
from posembed.words import called, listed, up_to

SOLVED = 0.95
"""A size is solved if the model answers at least this share of its problems, over all seeds, without a mistake."""


class Problem(TrainedQuestion):
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

    def axis(self, results: Results, metric: Metric) -> Axis:
        spec = results[0].spec
        return Axis(PROBLEMS[spec.problem].unit, max(spec.test_sizes), trained=spec.train_size)

    def facts(self, found: Found) -> dict[str, Any]:
        return {"problem": PROBLEMS[found.spec.problem], "largest": max(found.spec.test_sizes)}

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
