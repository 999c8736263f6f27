"""The question of rows: names, specs, and the arithmetic of its summary."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest

from asked import runs_of, shared, summarise
from made_up_rows import NAMES, row_run, row_runs
from posembed.errors import ArgumentError
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.rows import parts_of
from posembed.lab.runs.results import RunResult
from posembed.lab.tasks.row_specs import AT, ATTENTION, LOSS, TEXT, TRAINED, bands, measured_rows
from posembed.nn.encodings import Sizes, encoding_by_name, names_for
from posembed.report.questions import page_of
from posembed.report.questions.rows import beyond, control_of
from tolerance import assert_close


@pytest.fixture
def data(tmp_path: Path) -> str:
    file = tmp_path / "text.txt"
    file.write_text("a line of text that comes again\n" * 100, encoding="utf-8")
    return str(file)


def test_names_are_lengths_and_an_encoding(tmp_path: Path) -> None:
    file = tmp_path / "a+b.txt"
    file.write_text("3\n")
    assert parts_of("short") == ("short", "learned")
    assert parts_of("short+rope+window") == ("short", "rope+window")
    assert parts_of(f"{file}") == (str(file), "learned")
    assert parts_of(f"{file}+none") == (str(file), "none")


def test_each_name_has_one_spelling(tmp_path: Path) -> None:
    file, plus = tmp_path / "a.txt", tmp_path / "a.txt+learned"
    file.write_text("3\n")
    canonical = QUESTIONS["rows"].canonical
    assert [canonical(name) for name in ("short", "short+", "short+learned")] == ["short"] * 3
    assert [canonical(name) for name in ("short+rope", "shrt+", "missing+learned")] == [
        "short+rope",
        "shrt+",
        "missing+learned",
    ]
    assert canonical(f"{file}+learned") == str(file)
    plus.write_text("5\n")  # now that is a file
    assert canonical(str(plus)) == str(plus)
    [spec] = runs_of(dataclasses.replace(row_run("full").spec), [str(plus)], 1)
    assert (spec.lengths_name, spec.encoding, spec.train_length_counts) == (str(plus), "learned", ((5, 1),))


def test_encodings_with_a_window_are_refused_with_the_reason() -> None:
    def fails_without_window(name: str) -> bool:
        try:
            encoding_by_name(name, Sizes(dim=16, heads=2, max_len=8, longest=8, rope_factors=(1.0,) * 4))
        except ArgumentError as error:
            return "needs window" in str(error)
        return False

    check = QUESTIONS["rows"].check_name
    for name in (*names_for("decoder"), *(f"{name}+window" for name in names_for("decoder"))):
        if fails_without_window(name):
            with pytest.raises(ArgumentError, match=f"'{re.escape(name)}' needs a window, and compare rows sets none"):
                check(f"short+{name}")
        else:
            check(f"short+{name}")


def test_each_run_has_its_own_lengths_and_encoding(data: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("5 9\n16\n", encoding="utf-8")
    names = ["full", "short+rope", str(file), f"{file}+none"]
    specs = runs_of(shared("rows", data=data, train_length=16), names, 2)
    assert [spec.compared for spec in specs] == names * 2
    assert [spec.encoding for spec in specs[:4]] == ["learned", "rope", "learned", "none"]
    assert [spec.lengths_name for spec in specs[:4]] == ["full", "short", str(file), str(file)]
    assert [spec.train_length_counts for spec in specs[:4]] == [(), (), ((5, 9), (16, 1)), ((5, 9), (16, 1))]
    assert len({spec.key() for spec in specs}) == 8
    assert len({str(spec.shared_settings()) for spec in specs}) == 1
    file.unlink()  # a finished run knows its lengths
    drawn = specs[2].lengths_drawn
    assert drawn is not None
    assert drawn.lengths == (5, 16)


@pytest.mark.parametrize("length", [1, 2, 3, 9, 64, 100, 1024])
def test_bands_follow_each_other_from_the_first_to_the_last_position(length: int) -> None:
    found = bands(length)
    assert [p for first, last in found.items() for p in range(first, last + 1)] == list(range(length))


def test_the_summary_is_its_arithmetic() -> None:
    runs = row_runs(3)
    found = summarise(runs)
    of = {(run.spec.compared, run.spec.seed): run.measurements for run in runs}
    assert (found.reference, control_of(found), list(found.names)) == ("full", "sinusoidal", list(NAMES))
    for first, last in bands(64).items():
        places = range(first, last + 1)

        def loss(name: str, seed: int, places: range = places) -> float:
            return math.fsum(of[name, seed].by_x(AT[LOSS])[p] for p in places) / len(places)

        for name in NAMES:
            full = "full+sinusoidal" if "+" in name else "full"
            minus = [loss(name, seed) - loss(full, seed) for seed in range(3)]
            assert_close(found.mean(LOSS, name, first).value, math.fsum(loss(name, seed) for seed in range(3)) / 3)
            versus = found.versus(LOSS, name, first)
            assert (versus is None) == (name == full)
            if versus is not None:
                assert_close(versus.over_seeds.values, minus)
            more = beyond(found, name, "sinusoidal", first)
            assert bool(more) == (name in ("uniform", "short"))
            if more:
                control = [loss(f"{name}+sinusoidal", seed) - loss("full+sinusoidal", seed) for seed in range(3)]
                assert_close(list(more.values()), [a - b for a, b in zip(minus, control, strict=True)])
    assert found.mean(TRAINED, "full", 0).value == 19_200
    at_5 = math.fsum(of["full", seed].by_x(AT[TEXT])[5] for seed in range(3)) / 3
    assert_close(found.mean(AT[TEXT], "full", 5).value, at_5)
    first, *_, last = bands(64)
    early_minus_late = found.mean(TEXT, "full", first).value - found.mean(TEXT, "full", last).value
    assert_close(found.against(TEXT, "full", first, last).value, early_minus_late)
    assert found.mean(TEXT, "full+sinusoidal", 0) is None
    assert all(found.mean(AT[ATTENTION], "full", p).value == pytest.approx(1, abs=0.05) for p in range(64))


def test_another_reference_and_none_of_its_encoding() -> None:
    found = summarise(row_runs(2, ("uniform", "short", "short+sinusoidal")), reference="uniform")
    assert found.versus(LOSS, "short", 0) is not None
    assert found.versus(LOSS, "short+sinusoidal", 0) is None
    assert control_of(found) is None  # there is no uniform+sinusoidal
    for reference in ("short", "short+sinusoidal"):  # each encoding is compared with its own run
        found = summarise(row_runs(2), reference=reference)
        known = [name for name in found.names if found.versus(LOSS, name, 0) is not None]
        assert known == ["full", "uniform", "full+sinusoidal", "uniform+sinusoidal"]


def test_the_control_learns_nothing_of_positions_and_has_the_same_lengths() -> None:
    cases = {
        ("full", "short", "short+none", "full+sinusoidal", "short+sinusoidal"): "sinusoidal",  # there is no full+none
        ("full", "short", "full+rolling", "short+rolling", "full+none", "short+none"): "none",  # rolling has rows
        ("full", "uniform", "short", "full+none", "short+none", *NAMES[3:]): "sinusoidal",  # the most lengths
        ("full", "short", "full+rolling", "short+rolling"): None,
        ("full", "short", "short+none"): None,
        ("full+none", "short+none"): None,
    }
    for names, control in cases.items():
        runs = [
            dataclasses.replace(
                run, position_parameters=64 if "rolling" in run.spec.encoding else run.position_parameters
            )
            for run in row_runs(2, names)
        ]
        found = summarise(runs)
        assert control_of(found) == control, names
        known = [name for name in names if beyond(found, name, control, 0)]
        assert known == [name for name in names if control and name in ("uniform", "short")]


def test_what_late_rows_cost_follows_the_interval() -> None:
    def answer(runs: list[RunResult], **reading: str) -> str:
        found = summarise(runs, **reading)
        return " ".join(page_of(found.question).answer(found))

    assert "the loss that short adds beyond sinusoidal" in answer(row_runs(3))
    assert "late rows are learned poorly, as guides say" in answer(row_runs(3))
    assert "one run cannot show whether late rows" in answer(row_runs(1))
    # More training of late rows is no evidence on little training, and without a control nothing is claimed.
    for text in (answer(row_runs(3), reference="short"), answer(row_runs(2, ("full", "short")))):
        assert "late rows" not in text.replace("late rows matter more", "")
    nothing = {0: 0.0}
    of_rows = dict.fromkeys(("text_increase", "own_increase", "neighbour_increase"), nothing)
    one = measured_rows(loss=(1.0,), trained=(1,), attention=(1.0,), **of_rows, sequences=1)
    short = [
        dataclasses.replace(run, spec=dataclasses.replace(run.spec, train_length=1), measurements=one)
        for run in row_runs(2)
    ]
    assert "late rows" not in answer(short)
