from __future__ import annotations

from pathlib import Path

from made_up_problems import runs as problem_runs
from made_up_runs import runs, save
from posembed.lab.questions import QUESTIONS


def test_report_says_where_the_page_is(posembed, tmp_path: Path) -> None:
    folder = save(tmp_path, runs(1, ("rope", "alibi"))).path
    assert posembed("report", folder) == (0, f"report: {folder / 'report.html'}\n", "")
    page = (folder / "report.html").read_bytes()
    assert posembed("report", folder, "--out", tmp_path / "page.html").out == f"report: {tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").read_bytes() == page


def test_a_problem_has_its_page(posembed, tmp_path: Path) -> None:
    problems = save(tmp_path / "addition", problem_runs(1)).path
    assert posembed("report", problems).code == 0
    assert QUESTIONS["addition"].asks in (problems / "report.html").read_text(encoding="utf-8")


def test_what_cannot_be_reported_is_one_line(posembed, tmp_path: Path) -> None:
    mistakes = {"is not a run folder": posembed("report", tmp_path)}
    folder = save(tmp_path / "lengths", runs(1, ("rope", "alibi"))).path
    mistakes["the reference 'xpos' was not run; the finished runs are rope, alibi"] = posembed(
        "report", folder, "--reference", "xpos"
    )
    problems = save(tmp_path / "addition", problem_runs(1)).path
    mistakes["--reference is for questions that compare"] = posembed("report", problems, "--reference", "rope")
    empty = posembed("report", folder, "--out", "")
    assert (empty.code, "expected a path" in empty.err) == (1, True)
    for message, done in mistakes.items():
        assert (done.code, done.out) == (1, "")
        assert message in done.err
        assert done.err.count("\n") == 1
