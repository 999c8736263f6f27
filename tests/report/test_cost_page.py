"""The page of a measurement of cost: its words, tables and figures, made from made-up numbers."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from made_up_runs import spec
from posembed.errors import ArgumentError, RunFolderError
from posembed.lab.cost.results import OF_COST, CostResult, CostRow, CostSettings, Growth, Passes, Writes, prepare, save
from posembed.lab.runs.results import RunFolder
from posembed.lab.tasks.text_specs import LengthSpec
from posembed.measure.jobs import SETTINGS
from posembed.report.questions import write_report
from posembed.report.questions.cost import PAGE, in_bytes, milliseconds, percent
from posembed.report.words import MINUS, interval
from posembed.statistics import estimate_median
from together import together

LENGTHS = (512, 1024, 2048, 4096)


def passes(value: float, noise: float = 0.001) -> Passes:
    values = estimate_median([value + noise * step for step in (-3, -2, -1, 0, 1, 2, 3)])
    return Passes(values, values)


def row(
    name: str, share: float, added: float, writes: Writes, *, parameters: int = 0, window: int | None = None
) -> CostRow:
    power, stopped = (2, "8,192 tokens would need about 4 GiB, more than 2") if writes.scores else (1, None)
    return CostRow(
        encoding=name,
        parameters=parameters,
        share_of_embeddings=parameters / (parameters + 50_257 * 768),
        window=window,
        alone=passes(0.1 * share),
        attention=passes(0.1 * (1 + added)),
        alone_share=passes(share, 1e-5),
        overhead=passes(added, 0.002),
        writes=writes,
        peak_forward=2 * writes.all,
        peak_backward=3 * writes.all,
        growth=Growth(
            LENGTHS,
            tuple(1e-6 * (n / 512) ** power for n in LENGTHS),
            tuple(1000 * n**power for n in LENGTHS),
            float(power),
            float(power),
            stopped,
        ),
    )


def made_up(*rows: CostRow) -> CostResult:
    settings = CostSettings(encodings=tuple(r.encoding for r in rows))
    environment = {"processor": "A <Processor>", "threads": "1", "torch": "2.9", "device": "cpu"}
    return CostResult(settings, passes(0.1), rows, 128, 2, 60.0, environment)


RESULT = made_up(
    row("learned", 0.0065, 0.0, Writes(3_145_728, 0, 0), parameters=393_216),
    row("rolling", 0.04, -0.12, Writes(0, 6_291_456, 0), parameters=24_576, window=32),
    row("rope", 0.026, 0.03, Writes(0, 6_291_456, 0)),
    row("alibi", 0.015, 0.3, Writes(0, 0, 12_582_912)),
    row("none", 0.0002, 0.0, Writes(0, 0, 0)),
)


def test_the_answer_is_made_from_the_numbers() -> None:
    time, inside, parameters, growth = PAGE.answer(RESULT)
    assert ".65% with learned, 1.5% with alibi, 2.6% with rope and 4.0% with rolling." in time
    assert "none" not in time
    assert "adds 3.0% with rope and 30% with alibi;" in inside
    assert f"{MINUS}12% with rolling;" in inside
    assert "not significant: 0% with learned." in inside
    assert "512 x 768 has 393,216 parameters: 1.0% of the embeddings with 50,257 tokens" in parameters
    assert "0 with alibi, 0 with rope and 24,576 with rolling." in parameters
    assert "1.0 with learned, 1.0 with rope, 1.0 with rolling and 2.0 with alibi" in growth
    assert "4,096 with alibi." in growth


def test_many_encodings_are_not_listed_twice() -> None:
    many = [row(f"rope-{n}", 0.02 + 0.01 * n, 0.05, Writes(0, 8, 0), parameters=n) for n in range(1, 7)]
    time, inside, parameters, growth = PAGE.answer(made_up(RESULT.rows[0], *many))
    assert "from .65% with learned to 8.0% with rope-6." in time
    assert "from 5.0% with rope-1 to 5.0% with rope-6; " in inside
    assert "from 1 with rope-1 to 6 with rope-6." in parameters
    assert "from 1.0 with learned to 1.0 with rope-6." in growth


def test_dear_encodings_are_said_to_be_dear() -> None:
    text = PAGE.answer(made_up(row("alibi", 1.7, 0.2, Writes(0, 0, 8))))[0]
    assert "170% with alibi." in text


def test_nothing_but_none_leaves_the_table() -> None:
    (parameters,) = PAGE.answer(made_up(row("none", 0.0, 0.0, Writes(0, 0, 0))))
    assert parameters.startswith("A learned table of 512 x 768")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0065, ".65%"),
        (0.026, "2.6%"),
        (0.123, "12%"),
        (-0.12, f"{MINUS}12%"),
        (0.0, "0%"),
        (0.00999, "1.0%"),
        (17, "1,700%"),
    ],
)
def test_percent(value: float, text: str) -> None:
    assert percent(value) == text


def test_other_words() -> None:
    assert interval(estimate_median([0.01] * 7), percent) == "1.0%\N{EN DASH}1.0%"
    assert interval(estimate_median([-0.01, *[0.01] * 5]), percent) == f"{MINUS}1.0% to 1.0%"
    assert interval(estimate_median([0.01]), percent) == ""
    assert [milliseconds(s) for s in (1e-5, 0.0123, 0.123)] == ["0.010", "12.30", "123"]
    assert [in_bytes(n) for n in (12, 1536, 3 * 2**20, 5 * 2**30)] == ["12 B", "1.5 KiB", "3.0 MiB", "5.0 GiB"]


def test_the_quoted_figures_stand_beside_ours() -> None:
    quoted = next(table for table in PAGE.main_tables(RESULT) if "published" in table.title)
    assert [(r.name, r.cells[0].text) for r in quoted.rows] == [
        ("learned", ".65%"),
        ("alibi", "1.5%"),
        ("rope", "2.6%"),
    ]
    assert [r.cells[2].text for r in quoted.rows] == ["1.0", "1.0", "1.0"]


def test_what_was_not_tried_is_said() -> None:
    (growth,) = (table for table in PAGE.main_tables(RESULT) if table.title == "Time and memory by length")
    assert growth.rows[0].name == "none"
    longer = dataclasses.replace(RESULT.rows[0].growth, lengths=(*LENGTHS, 8192), seconds=(1.0,) * 5, peak=(1,) * 5)
    result = made_up(dataclasses.replace(RESULT.rows[0], growth=longer), RESULT.rows[3])
    (growth,) = (table for table in PAGE.main_tables(result) if table.title == "Time and memory by length")
    assert growth.rows[-1].cells[-1].text == "not tried"


def test_the_page_is_whole_escaped_and_the_same_each_time() -> None:
    page = PAGE.render(RESULT)
    assert page == PAGE.render(RESULT)
    assert "A &lt;Processor&gt; (threads: 1)," in page
    assert page.count("<figure>") == page.count("<svg ") == 2
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert page.index(".65% with learned") < page.index("<svg ") < page.index("<table>")


def test_it_is_written_beside_its_numbers(tmp_path: Path) -> None:
    save(RESULT, tmp_path)
    assert write_report(tmp_path) == tmp_path / "report.html"
    assert write_report(tmp_path, tmp_path / "other.html").read_text(encoding="utf-8") == PAGE.render(RESULT)
    with pytest.raises(ArgumentError, match="name another file"):
        write_report(tmp_path, tmp_path)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"aws": 3}', "\0"])
def test_a_cost_json_of_the_users_stays(content: str, tmp_path: Path) -> None:
    (tmp_path / OF_COST).write_text(content)
    for refuse in (lambda folder: prepare(folder, RESULT.settings), lambda folder: save(RESULT, folder)):
        with pytest.raises(RunFolderError, match=r"is not a folder of this command .* move its cost.json away"):
            refuse(tmp_path)
    assert (tmp_path / OF_COST).read_text() == content


def test_an_earlier_cost_json_is_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        prepare(tmp_path, RESULT.settings)
        save(RESULT, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {SETTINGS, OF_COST}


@together("name", [field.name for field in dataclasses.fields(RESULT.settings)])
def test_a_cost_json_of_other_settings_stays(name: str, tmp_path: Path) -> None:
    save(RESULT, tmp_path)
    value = getattr(RESULT.settings, name)
    other = {name: {"encodings": ("t5",), "window": 8, "device": "cuda"}.get(name) or 2 * value}
    with pytest.raises(RunFolderError, match=f"results with other settings \\({name}: .* now\\)"):
        prepare(tmp_path, dataclasses.replace(RESULT.settings, **other))


def test_runs_and_costs_have_folders_of_their_own(tmp_path: Path) -> None:
    save(RESULT, tmp_path / "cost")
    with pytest.raises(RunFolderError, match="question: cost there, lengths now"):
        RunFolder(tmp_path / "cost", LengthSpec).prepare(spec("rope"))
    assert {path.name for path in (tmp_path / "cost").iterdir()} == {SETTINGS, OF_COST}
    RunFolder(tmp_path / "runs", LengthSpec).prepare(spec("rope"))
    with pytest.raises(RunFolderError, match="question: lengths there, cost now"):
        prepare(tmp_path / "runs", RESULT.settings)


def test_an_out_that_cannot_be_made_is_found_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for out in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "loop", tmp_path / ("n" * 300)):
        with pytest.raises(RunFolderError, match="cannot be written"):
            prepare(out, RESULT.settings)
