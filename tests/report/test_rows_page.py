"""The page of rows: its answer claims no more than the intervals allow. The wording is in golden/."""

from __future__ import annotations

import dataclasses

import pytest

from asked import summarise
from made_up_rows import row_runs
from posembed.lab.questions.rows import RowMeasurements
from posembed.report.questions.rows import PAGE
from posembed.statistics import Estimate

VERDICTS = {
    (0.1, 0.2): "late rows are learned poorly, as guides say.",
    (-0.2, -0.1): "late rows are learned better than early rows, contrary to what guides say.",
    (-0.1, 0.1): "these runs do not show that late rows are learned worse than early rows.",
    (None, None): "one run cannot show whether late rows are learned worse than early rows.",
}


@pytest.mark.parametrize("interval", VERDICTS)
def test_the_verdict_follows_the_interval(interval: tuple[float | None, float | None]) -> None:
    summary = summarise(row_runs(3))
    found = Estimate(0.05, *interval)
    rows = tuple(dataclasses.replace(row, late_beyond_early=row.late_beyond_early and found) for row in summary.rows)
    uniform, short, *_ = PAGE.paragraphs(dataclasses.replace(summary, rows=rows))
    for name, text in (("uniform", uniform), ("short", short)):
        assert text.startswith(f"With {name} lengths, ")
        assert text.endswith(VERDICTS[interval])


@pytest.mark.parametrize("reference", ["short", "short+sinusoidal"])
def test_more_training_of_late_rows_is_no_evidence_on_little_training(reference: str) -> None:
    summary = summarise(row_runs(3), reference=reference)
    full, uniform, *_ = answer = PAGE.answer(summary)
    for text, share in ((full, "100%"), (uniform, "13%")):
        assert f" lengths, {share} of the sequences trained" in text
        assert text.endswith("compared with short lengths.")
    assert "Replacing one row of short" in " ".join(answer)
    titles = [table.title for table in PAGE.main_tables(summary)]
    assert "Loss by position, minus that with short lengths" in titles
    assert "Which rows matter, with short lengths" in titles


def test_equal_training_and_a_single_band_give_no_verdict() -> None:
    runs = row_runs(2)
    same = [
        dataclasses.replace(run, measurements=dataclasses.replace(run.measurements, trained=(19_200,) * 64))
        for run in runs
    ]
    assert PAGE.answer(summarise(same))[0].endswith("compared with full lengths.")
    assert "lengths, 100% of" in PAGE.answer(summarise(same))[0]
    alone = [
        dataclasses.replace(
            run,
            spec=dataclasses.replace(run.spec, train_length=1),
            measurements=RowMeasurements((1.0,), (1,), (1.0,), {0: 0.0}, {0: 0.0}, {0: 0.0}),
        )
        for run in runs
    ]
    assert not any("late rows" in text or "times the attention" in text for text in PAGE.answer(summarise(alone)))


def test_without_a_control_or_a_learned_table_nothing_is_claimed_of_rows() -> None:
    alone = PAGE.answer(summarise(row_runs(2, ("full", "short"))))
    assert "compared with full lengths." in alone[0]
    assert "late rows" not in alone[0]
    control = PAGE.answer(summarise(row_runs(2, ("full+sinusoidal", "short+sinusoidal"))))
    assert not any("row" in text for text in control[:-1])


def test_the_tables_hold_the_bands_and_the_figures_draw_what_was_measured() -> None:
    summary = summarise(row_runs(2))
    tables = [PAGE.main_table(summary), *PAGE.tables(summary)]
    for table in tables:
        assert [head.text for head in table.head] == [f"{a}\N{EN DASH}{b}" for a, b in summary.bands.items()]
        assert all(len(row.cells) == 5 for row in table.rows)
    assert [len(table.rows) for table in tables] == [6, 3, 4, 2, 5]
    assert len(list(PAGE.figures(summary))) == 2
    assert len(list(PAGE.figures(summarise(row_runs(1, ("full+rope",)))))) == 1
