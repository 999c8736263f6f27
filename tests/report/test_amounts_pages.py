"""The pages about amounts of text and about dropout: what the answers claim. The wording is in golden/."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import replace

import pytest

from asked import summarise
from made_up_amounts import LOSSES, TOKENS, data_runs, dropout_runs, save_amounts
from posembed.lab.questions.amounts import DataSummary, Losses
from posembed.report.questions import data_efficiency, dropout, write_report
from posembed.report.terminal import as_text
from posembed.statistics import Estimate


def with_differences(*differences: tuple[float, float] | None) -> DataSummary:
    """A summary in which rope minus learned has these intervals, in the order of the amounts; None: no loss there."""
    summary = summarise(data_runs(3, ("learned", "rope")))
    found = {
        amount: None if each is None else Estimate(sum(each) / 2, *each, (0.0, 0.0, 0.0))
        for amount, each in zip(TOKENS, differences, strict=True)
    }
    learned, rope = summary.rows
    return dataclasses.replace(summary, rows=(learned, dataclasses.replace(rope, versus_reference=found)))


WORSE, BETTER, NEITHER, BARELY = (0.1, 0.3), (-0.3, -0.1), (-0.1, 0.2), (-0.2, 0.1)


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ((WORSE, WORSE, BETTER), "cross between 1/16 of the text and all of the text: learned is significantly better"),
        ((BETTER, NEITHER, WORSE), "cross between 8,192 tokens and all of the text: rope is significantly better"),
        ((BETTER, None, WORSE), "cross between 8,192 tokens and all of the text: rope is significantly better"),
        ((NEITHER, BETTER, BETTER), "The mean curve of rope crosses that of learned, but not significantly."),
        ((BARELY, NEITHER, BARELY), "The mean curve of rope crosses that of learned, but not significantly."),
        ((WORSE, NEITHER, WORSE), "The mean curve of rope does not cross that of learned at these amounts."),
        ((BETTER, None, BETTER), ""),
        ((BETTER, BARELY, BETTER), "The mean curve of rope does not cross that of learned at these amounts."),
        ((None, None, WORSE), ""),
    ],
)
def test_curves_cross_where_the_intervals_say_so(
    differences: tuple[tuple[float, float] | None, ...], expected: str
) -> None:
    text = " ".join(data_efficiency.crossings(with_differences(*differences)))
    assert expected in text
    assert text.count("cross") == (expected != "")


def test_curves_may_cross_twice_and_one_seed_has_no_crossing() -> None:
    twice = data_efficiency.crossings(with_differences(WORSE, BETTER, WORSE))
    assert [("between 8,192 tokens and 1/16" in s, "between 1/16 of the text and all" in s) for s in twice] == [
        (True, False),
        (False, True),
    ]
    alone = " ".join(data_efficiency.PAGE.answer(summarise(data_runs(1))))
    assert "significantly better" not in alone
    assert "cannot be called better or worse than learned" in alone
    assert "The mean curves of sinusoidal and rope cross that of learned, but not significantly." in alone


def test_the_answer_names_the_best_at_each_amount() -> None:
    paragraphs = data_efficiency.PAGE.answer(summarise(data_runs(3)))
    for number, paragraph in enumerate(paragraphs[: len(TOKENS)]):
        best = min(LOSSES, key=lambda name: LOSSES[name][number])
        assert f", {best} has the lowest held-out loss" in paragraph
    assert re.search(
        r"It grows significantly less with sinusoidal \(.0\.270\) and “none” \(.0\.159\)\.", paragraphs[-2]
    )
    assert "on the training text itself is lowest with sinusoidal" in paragraphs[-2]


def test_runs_are_counted_at_each_amount_and_missing_ones_have_not_failed() -> None:
    for done, counted in ((6, "There is one run per"), (16, "There are 1 to 2 runs per"), (24, "There are 2 runs per")):
        summary = summarise(data_runs(2)[:done])
        assert data_efficiency.PAGE.answer(summary)[-1].startswith(f"{counted} encoding and amount")
        tables = as_text([data_efficiency.PAGE.main_table(summary), *data_efficiency.PAGE.tables(summary)], [])
        assert "failed" not in tables
        assert ("no result" in tables) == (done == 6)


def test_every_amount_has_its_column() -> None:
    again = [run for run in data_runs(2) if run.spec.amount == "1"]
    again = [dataclasses.replace(run, spec=dataclasses.replace(run.spec, amount="8826887")) for run in again]
    table = data_efficiency.PAGE.main_table(summarise([*data_runs(2), *again]))
    assert [head.text for head in table.head][:4] == ["8,192", "551,680", "8,826,887", "8,826,887"]


@pytest.mark.parametrize("times", [0.001, 0.5, 1.0, 1.5, 40.0])
def test_only_a_text_that_is_read_again_is_learned_by_heart(times: float) -> None:
    summary = summarise(data_runs(3))
    summary = dataclasses.replace(summary, tokens_read=round(times * min(TOKENS.values())))
    assert ("by heart" in " ".join(data_efficiency.PAGE.answer(summary))) == (times > 1)
    assert "read 0.0 times" not in str(data_efficiency.PAGE.main_table(summary))


def test_losses_of_zero_can_be_drawn() -> None:
    """The losses of a text of one repeated character."""
    nothing = Losses(held_out=0.0, training=0.0, train_tokens=8192)
    results = [dataclasses.replace(r, measurements=nothing) for r in data_runs(2) if r.spec.amount == "8192"]
    assert len(list(data_efficiency.PAGE.figures(summarise(results)))) == 2


def test_drawn_lengths_are_not_said_to_be_full() -> None:
    run = data_runs(1)[0].spec
    for lengths, expected in ((None, "in sequences of 64 tokens"), ("short", "in sequences of up to 64 tokens")):
        spec = dataclasses.replace(run, train_lengths=lengths)
        assert expected in data_efficiency.PAGE.about(spec, summarise(data_runs(1)))


def test_the_lowest_loss_may_be_shared_and_one_loss_is_not_the_lowest() -> None:
    for names, expected in (
        (("rope",), "rope has a held-out loss of"),
        (("rope", "learned"), "learned has the lowest held-out loss,"),
        (("rope", "learned", "twin"), "learned and twin have the lowest held-out loss,"),
    ):
        runs = data_runs(2, tuple("learned" if name == "twin" else name for name in names))
        encodings = names * (len(runs) // len(names))
        runs = [replace(run, spec=replace(run.spec, encoding=name)) for run, name in zip(runs, encodings, strict=True)]
        assert data_efficiency.PAGE.answer(summarise(runs))[0].startswith(f"With 8,192 tokens, {expected}")


def test_one_amount_has_no_growth_and_no_crossing() -> None:
    summary = summarise([run for run in data_runs(2) if run.spec.amount == "1/16"])
    table = data_efficiency.PAGE.main_table(summary)
    assert [head.text for head in table.head] == ["551,680"]
    assert data_efficiency.crossings(summary) == data_efficiency.growths(summary) == []


def test_the_page_shows_the_tables_of_the_largest_amount(tmp_path) -> None:
    page = write_report(save_amounts(tmp_path, data_runs(2)).path).read_text(encoding="utf-8")
    assert page.count("learned, seed 0: 64 rows of 64") == 1
    assert "8.8269e+06" not in page
    for text in ("8,826,887", "From the runs with the most text.", "read 75 times", "read 1.1 times"):
        assert text in page


def test_the_gap_is_compared_apart_from_the_loss() -> None:
    losses, gap, _ = dropout.PAGE.answer(summarise(dropout_runs(3)))
    assert losses.startswith("Dropout 0.1 has the lowest held-out loss, 2.763 nats.")
    assert "Dropout 0.3 (+0.053) is significantly worse than dropout 0." in losses
    assert "1.300 with dropout 0, 1.050 with dropout 0.1 and 0.730 with dropout 0.3" in gap
    assert "significantly smaller with dropout 0.1 and dropout 0.3 than with dropout 0" in gap
    _, alone, _ = dropout.PAGE.answer(summarise(dropout_runs(1)))
    assert "significantly" not in alone


def test_one_rate_is_not_the_lowest_and_failed_rates_are_named() -> None:
    failed = [
        replace(run, measurements=None, failure="the loss was nan") if run.spec.rate != "0.3" else run
        for run in dropout_runs(1)
    ]
    first = dropout.PAGE.answer(summarise(failed))[0]
    assert first.startswith("Dropout 0.3 has a held-out loss of 2.953 nats.")
    assert "1 of 1 with dropout 0 (seed 0: the loss was nan), 1 of 1 with dropout 0.1 (" in first


def test_another_reference_in_any_spelling(tmp_path) -> None:
    folder = save_amounts(tmp_path, dropout_runs(2)).path
    assert "Compared with dropout 0.3" in write_report(folder, reference=".30").read_text(encoding="utf-8")
