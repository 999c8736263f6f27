from __future__ import annotations

import io

from posembed.cli.compare.print_inits import print_inits
from rich.console import Console

from made_up_inits import init_run, init_runs_of, typical
from posembed.lab.questions.inits import InitSummary, summarise_inits


def printed(summary: InitSummary, width: int = 120) -> list[str]:
    file = io.StringIO()
    print_inits(summary, Console(file=file, width=width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_whole_table() -> None:
    lines = printed(summarise_inits(typical(3)))
    assert lines[1] == "Held-out loss after 600 steps, nats a token: lower is better"
    rows = [line.split()[0] for line in lines[6:13]]
    assert (rows[0], rows[-1]) == ("sinusoidal-0.02", "sinusoidal")
    assert "neighbour" in lines[3]
    assert not any("Left out" in line for line in lines)


def test_what_does_not_fit_is_named() -> None:
    text = " ".join(printed(summarise_inits(typical(3)), width=60))
    assert "Left out, for want of room: " in text
    assert "neighbour cosine" in text.split("Left out")[1]
    assert "sinusoidal-0.02" in text


def test_one_run_of_each_and_a_failure() -> None:
    failed = init_run("normal-0.5", 0, failure="the loss was nan at step 3 of 600")
    text = " ".join(printed(summarise_inits([*init_runs_of({"zero": 1.4}), failed])))
    assert "normal-0.5, seed 0: the loss was nan at step 3 of 600" in text
    assert "95%" not in text


def test_what_failed_and_what_is_unknown_is_said_as_it_is() -> None:
    """Two seeds of most; of one start a run failed, of another both, of a third only one was run."""
    failure = "the loss was nan at step 3 of 600"
    runs = init_runs_of({"normal-0.02": 1.4, "zero": 1.5, "xavier": 1.6}, seeds=2)
    runs = [run for run in runs if (run.spec.init, run.spec.seed) != ("xavier", 1)]
    runs += [init_run("normal-0.5", 1.7), init_run("normal-0.5", 0, seed=1, failure=failure)]
    runs += [init_run("sinusoidal", 0, seed=seed, failure=failure) for seed in range(2)]
    text = " ".join(printed(summarise_inits(runs)))
    assert "Training failed from normal-0.5 in 1 of 2 runs and sinusoidal." in text
    assert "of xavier and normal-0.5 no interval is known, from one shared seed" in text
    only = [run for run in runs if run.spec.init != "zero"]
    assert "a single run of each" not in " ".join(printed(summarise_inits(only)))
