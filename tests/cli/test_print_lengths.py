from __future__ import annotations

import io

import pytest
from posembed.cli.compare.print_lengths import length_columns, print_lengths, that_fit
from rich.console import Console

from made_up_runs import run, runs
from posembed.lab.questions.lengths import LengthSummary, summarise_lengths

SUMMARY = summarise_lengths(runs(3), reference="alibi")
FAILURE = "the loss was nan at step 90 of 700; try a lower learning rate"


def printed(summary: LengthSummary, width: int = 100) -> list[str]:
    file = io.StringIO()
    print_lengths(summary, Console(file=file, width=width))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_whole_table_in_100_columns() -> None:
    lines = [line.replace("\N{EN DASH}", "~") for line in printed(SUMMARY)]
    assert lines[:11] == [
        "",
        "Perplexity of the same tokens, by tokens of context: lower is better",
        "",
        "                         64                      95% interval  chopped                    reaches",
        "encoding    window  trained   128    256    512        at 512    at 64  past 64              back",
        "─" * 97,
        "rolling         16     3.72  3.63   3.58   3.55     3.49~3.60     3.72  holds            under 32",
        "alibi                  4.11  4.02   3.97   3.95     3.84~4.06     4.11  holds            under 32",
        "rope                   3.69  4.41   9.83  21.85   21.44~22.27     3.69  5.9 times worse  under 32",
        "sinusoidal             4.01  6.80  14.88  31.26   30.87~31.65     4.01  7.8 times worse  under 32",
        "learned                4.06     -      -      -                   4.06  ends at 64       under 32",
    ]


@pytest.mark.parametrize("width", [100, 90, 80, 60, 40, 20])
def test_columns_are_left_out_and_named_so_that_no_number_breaks(width: int) -> None:
    lines = printed(SUMMARY, width)
    assert max(map(len, lines)) <= width
    shown = that_fit(length_columns(SUMMARY), width)
    for index, name in enumerate(["rolling", "alibi", "rope", "sinusoidal", "learned"]):
        (line,) = [line for line in lines if line.startswith(f"{name} ") and "," not in line]
        assert line.split() == " ".join(column.cells[index].plain for column in shown).split()
    said = " ".join(lines).partition("Left out, for want of room: ")[2].removesuffix(".")
    left_out = [" ".join(column.head.split()) for column in length_columns(SUMMARY) if column not in shown]
    assert said == ", ".join(left_out)


def test_the_first_to_go_are_those_that_matter_least() -> None:
    heads = [column.head.split("\n")[0] for column in that_fit(length_columns(SUMMARY), 54)]
    assert heads == ["encoding", "64", "512", "past 64", "reaches"]


def test_one_run_has_no_interval_and_the_notes_say_so() -> None:
    text = "\n".join(printed(summarise_lengths(runs(1))))
    assert "95%" not in text
    assert "One run of each; no interval is known, and small differences may be chance." in text


def test_reach_is_explained_and_not_overclaimed() -> None:
    none_reaches = "none that holds used text more than 64 tokens back"
    assert none_reaches in "\n".join(printed(SUMMARY))
    far = run("rope", (4.0, 4.0, 4.0, 4.0), gains=(0.4, 0.3, 0.2, 0.0))
    assert none_reaches not in "\n".join(printed(summarise_lengths([far, run("alibi")])))


def test_what_failed_is_the_last_row_and_says_why() -> None:
    lines = printed(summarise_lengths([run("none", failure=FAILURE), *runs(1)]))
    (row,) = [line for line in lines if line.startswith("none ")]
    assert row.split() == ["none", "-", "-", "-", "-", "-", "failed", "at", "step", "90"]
    assert lines.index(row) > max(index for index, line in enumerate(lines) if line.startswith("learned "))
    assert f"none, seed 0: {FAILURE}" in lines


def test_a_name_is_printed_as_it_is() -> None:
    assert any("[red]x[/red]" in line for line in printed(summarise_lengths([run("[red]x[/red]", (4.0,) * 4)])))
