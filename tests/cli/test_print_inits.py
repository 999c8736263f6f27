from __future__ import annotations

import io

from rich.console import Console

from made_up_inits import init_run, init_runs_of, typical
from posembed.cli.compare.print_inits import print_inits
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
