"""The tables of known models, against the documents' figures and transformers' own models."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

from posembed.lab.cost.sizes import KNOWN, Size
from together import together

BY_NAME = {size.name: size for size in KNOWN}


@together(
    ("name", "parameters"),
    [
        ("BERT-base", 393_216),
        ("BERT-large", 524_288),
        ("GPT-2 small", 786_432),
        ("GPT-2 medium", 1_048_576),
        ("GPT-2 large", 1_310_720),
        ("2,048 x 768", 1_572_864),
        ("8,192 x 1,024", 8_388_608),
        ("100,000 x 4,096", 409_600_000),
    ],
)
def test_exact_tables(name: str, parameters: int) -> None:
    assert BY_NAME[name].table == parameters


def test_exact_embeddings() -> None:
    size = BY_NAME["512 x 768, 30,000 tokens"]
    assert size.tokens == 23_040_000
    assert size.tokens + size.table == 23_433_216
    assert f"{size.share_of_embeddings:.1%}" == "1.7%"
    assert f"{BY_NAME['GPT-2 small'].share_of_embeddings:.1%}" == "2.0%"


def test_models_are_counted_as_transformers_builds_them() -> None:
    with torch.device("meta"):
        bert = BertModel(BertConfig(), add_pooling_layer=False)
        gpt2 = GPT2Model(GPT2Config(n_embd=1280, n_layer=36, n_head=20))
    assert BY_NAME["BERT-base"].model == sum(p.numel() for p in bert.parameters())
    assert BY_NAME["GPT-2 large"].model == sum(p.numel() for p in gpt2.parameters())


def test_every_known_model_has_its_source() -> None:
    assert all(size.source for size in KNOWN if size.layers)


def test_what_is_not_there_has_no_share() -> None:
    table = Size("a table alone", 7, 5)
    assert (table.table, table.share_of_embeddings, table.model, table.share_of_model) == (35, None, None, None)


def test_the_table_of_the_page_is_computed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "research" / "cost.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) ?\| ([\d,]+ x [\d,]+) \| ([\d,]+) \| ([\d.]+%)? ?\|$", page, flags=re.MULTILINE)
    assert len(rows) == 8
    for name, table, parameters, share in rows:
        size = BY_NAME[name or table]
        assert table == f"{size.rows:,} x {size.width:,}"
        assert parameters == f"{size.table:,}"
        assert share == ("" if size.share_of_embeddings is None else f"{size.share_of_embeddings:.2%}")
