"""What is special about the page of initial values: a published table beside the measurements."""

from __future__ import annotations

from asked import summarise
from made_up_inits import init_runs_of, typical
from posembed.lab.questions.inits import STEPS
from posembed.lab.tasks.table_specs import LOSS
from posembed.report.questions import page_of
from posembed.report.questions.inits import PUBLISHED, agrees


def test_what_disagrees_with_the_published_table_is_named() -> None:
    found = summarise(typical(3))
    page = page_of(found.question)
    answer = " ".join(page.answer(found))
    assert "repeat: the loss of sinusoidal and the steps of sinusoidal." in answer
    assert "cannot confirm the differences in the loss in that table for normal-0.01 and zero." in answer
    on_the_loss = {name: agrees(found, LOSS, name) for name in PUBLISHED[LOSS]}
    assert on_the_loss == {
        "normal-0.02": "the reference",
        "normal-0.01": "not significant",
        "normal-0.05": "agrees",
        "xavier": "agrees",
        "sinusoidal": "disagrees",
        "zero": "not significant",
    }
    (table,) = page.extra_tables(found)
    assert {row.name for row in table.rows} == {*PUBLISHED[LOSS]}
    assert agrees(summarise(typical(1)), STEPS, "xavier") == "unknown"


def test_nothing_is_compared_with_the_published_table_without_its_reference() -> None:
    for found in (summarise(typical(2), reference="xavier"), summarise(init_runs_of({"zero": 1.4, "normal-0.5": 1.5}))):
        page = page_of(found.question)
        assert "that table" not in " ".join(page.answer(found))
        assert not any(table.rows for table in page.extra_tables(found))
