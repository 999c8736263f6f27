"""The page about classified texts, from made-up results: who differs from whom, the numbers, nothing loaded."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import escape

from made_up_classes import save_classes, text_run, text_runs
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.question import Compared
from posembed.lab.questions import QUESTIONS
from posembed.lab.questions.classification import TextSummary
from posembed.report.questions import write_report
from posembed.report.questions.accuracy import smallest_significant
from posembed.report.questions.text import PAGE, best_first
from tolerance import assert_close

FAILURE = "the loss was nan at step 30"


def summary_of(results: list, reference: str | None = None) -> TextSummary:
    return QUESTIONS["text"].summarise(results, Compared(reference=reference))


def said(results: list, reference: str | None = None) -> str:
    return " ".join(PAGE.answer(summary_of(results, reference)))


def page_of(folder: Path, results: list) -> str:
    return write_report(save_classes(folder, results).path).read_text(encoding="utf-8")


def test_which_differences_are_significant() -> None:
    summary = summary_of(text_runs(5))
    assert [row.name for row in best_first(summary)] == ["t5", "learned", "sinusoidal", "none"]
    significant = {row.name: row.difference.significant for row in summary.rows if row.difference}
    assert significant == {"learned": False, "t5": True, "none": True}
    text = said(text_runs(5))
    assert re.search("learned [(][+].* is not significantly different from sinusoidal[.]", text)
    assert re.search("t5 [(][+][0-9].*better.*“none” [(]\N{MINUS SIGN}[0-9].*worse", text)
    assert "58.3%" in text  # the most frequent of the classes
    assert_close(summary.most_frequent, 350 / 600)
    assert 0 < (smallest_significant(row.difference for row in summary.rows) or 0) < 0.05


def test_one_run_has_no_interval_over_seeds() -> None:
    text = said(text_runs(1))
    assert "unknown over seeds" in text
    assert "is significantly" not in text
    assert "are significantly" not in text
    assert smallest_significant(row.difference for row in summary_of(text_runs(1)).rows) is None
    cells = {row.name: row.cells[-1].text for row in PAGE.main_table(summary_of(text_runs(1))).rows}
    assert cells == {"t5": "unknown", "learned": "unknown", "none": "unknown", "sinusoidal": ""}


def test_one_encoding_alone_and_a_reference_that_failed() -> None:
    alone = "on 600 held-out examples is 69.8% with learned."
    assert alone in said(text_runs(2, ("learned",)))
    assert alone in said([text_run("sinusoidal", failure=FAILURE), *text_runs(2, ("learned",))])
    failed = [text_run("learned", failure=FAILURE), text_run("sinusoidal", failure=FAILURE)]
    assert said(failed).startswith(f"Failed runs are left out: 1 of 1 with learned (seed 0: {FAILURE}), 1 of 1 with")


def test_another_reference() -> None:
    assert re.search("t5 [(][+].* significantly better than “none”[.]", said(text_runs(3), reference="none"))
    with pytest.raises(ArgumentError, match="the reference 'rope' was not run; the finished runs are learned"):
        said(text_runs(2), reference="rope")


class Sources(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_page_answers_first_and_loads_nothing(seeds: int, tmp_path: Path) -> None:
    results = [*text_runs(seeds), text_run("rope", seed=9, failure=FAILURE)]
    page = page_of(tmp_path, results)
    order = [
        *map(escape, PAGE.answer(summary_of(results))),
        "accuracy minus that of sinusoidal",
        ">The numbers<",
        ">Training<",
    ]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    assert page.count("<svg") >= 3  # differences, the learned table, training
    assert "training loss, nats per example" in page
    assert "macro F1" in page
    assert all(source.startswith(("data:", "#")) for source in Sources(page).sources)


def test_macro_f1_only_where_classes_are_uneven(tmp_path: Path) -> None:
    even = [text_run(name, seed, even=True) for seed in range(2) for name in ("learned", "sinusoidal")]
    assert "macro F1" not in page_of(tmp_path, even).split("Evidence")[0]


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        write_report(tmp_path)
