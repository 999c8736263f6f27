"""The pages that teach show what their code prints, and the tables that a program writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from run_page import agree, blocks, outputs

DOCS = Path(__file__).parents[1] / "docs"
sys.path.append(str(DOCS))


@pytest.mark.usefixtures("one_thread")
def test_every_output_on_the_pitfall_page_is_what_its_code_prints(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5")
    text = (DOCS / "pitfalls.md").read_text(encoding="utf-8")
    for printed, (code, shown) in zip(outputs(text, tmp_path), blocks(text), strict=True):
        assert agree(printed, shown), f"{code}\nprints\n{printed}\nand the page shows\n{shown}"


def test_two_outputs_agree_up_to_what_machines_differ_by() -> None:
    assert agree("loss 1.00 after 10 steps\n", "loss 1.05 after 10 steps\n")
    assert not agree("loss 1.00 after 10 steps\n", "loss 1.20 after 10 steps\n")
    assert not agree("loss 1.00 after 10 steps\n", "loss 1.00 after 11 steps\n")
    assert not agree("loss 1.00 after 10 steps\n", "loss 1.00 in 10 steps\n")


def test_the_tables_of_known_models_are_what_the_program_writes() -> None:
    pytest.importorskip("transformers", minversion="5")
    import who_uses_what

    page = who_uses_what.PAGE.read_text(encoding="utf-8")
    assert who_uses_what.written(page) == page


def test_a_model_with_a_table_has_its_parameters_and_one_with_rope_has_rotations() -> None:
    pytest.importorskip("transformers", minversion="5")
    from who_uses_what import MODELS

    for model in (model for models in MODELS.values() for model in models):
        if model.encoding.startswith("learned"):
            assert model.shapes, model.name
        if model.encoding.startswith("RoPE") and model.kind:
            fields = model.config.to_dict()
            assert any("rope" in name or "rotary" in name for name in fields), model.name
        assert model.kind or model.source, model.name
        assert model.source or not model.fields, model.name
