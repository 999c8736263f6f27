"""One table says how each known family reads its rows, and a new family costs one row of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import posembed
from posembed import inputs
from posembed.checkpoints import layouts
from posembed.tables import TableLayout, families
from posembed.tables.families import FAMILIES, Family, KnownTable, family_of
from together import together

LAYERS = {
    "bert": inputs.BertInput,
    "roberta": inputs.RobertaInput,
    "bart": inputs.BartInput,
    "opt": inputs.OPTInput,
    "openai-gpt": inputs.GPT1Input,
    "gpt2": inputs.GPT2Input,
}


@together("family", LAYERS)
@together("pad_id", [1, 5])
def test_the_input_layers_read_their_tables_as_the_table_says(family: str, pad_id: int) -> None:
    layer: Any = LAYERS[family]
    sizes = {"vocab_size": 20, "max_len": 8, "dim": 4}
    built = layer(**sizes, pad_id=pad_id) if family == "roberta" else layer(**sizes)
    (positions,) = (m for m in built.modules() if isinstance(m, posembed.LearnedPositionalEmbedding))
    assert positions.layout == FAMILIES[family].line_in({"pad_token_id": pad_id})


@together("name", [name for name in vars(inputs) if name.endswith("Input") and name != "TextInput"])
def test_all_models_of_an_input_layer_read_their_table_alike(name: str) -> None:
    declared = getattr(inputs, name).declaration
    known = [FAMILIES[family] for family in declared.families or ("fairseq",) if family in FAMILIES]
    assert known
    assert all((each.line, each.grid) == (declared.family.line, declared.family.grid) for each in known)


def test_what_is_not_in_the_table_reads_row_i_for_position_i() -> None:
    assert family_of({"model_type": "of-my-own"}) == Family()
    assert family_of({}) == Family()
    assert Family().line == TableLayout()


@pytest.mark.parametrize("reserved", [0, 2])
def test_a_family_that_transformers_cannot_build_costs_one_row(
    reserved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = KnownTable(key="encoder.places", fields=(("model", "longest"),), layout=TableLayout(reserved=reserved))
    monkeypatch.setattr(families, "FAMILIES", {**FAMILIES, "of-my-own": Family(tables=(table,))})
    source = tmp_path / "source"
    source.mkdir()
    rows = torch.randn(40 + reserved, 16)
    save_file({"encoder.places": rows, "x": torch.zeros(3)}, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps({"model_type": "of-my-own", "model": {"longest": 40}}))
    posembed.resize_checkpoint(source, tmp_path / "out", length=64)
    new = load_file(tmp_path / "out" / "model.safetensors")["encoder.places"]
    assert new.shape == (64 + reserved, 16)
    assert torch.equal(new[: 40 + reserved], rows)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model"]["longest"] == 64


def test_no_other_file_lists_families() -> None:
    code = "".join(Path(module.__file__ or "").read_text() for module in (layouts,)).lower()
    assert not [name for name in FAMILIES if f'"{name}"' in code]
