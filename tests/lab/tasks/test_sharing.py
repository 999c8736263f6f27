"""Encoder-decoders in the lab: where the tables are, what counts, and what one pass says of greedy decoding."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

from asked import shared
from posembed.errors import ArgumentError, DataError
from posembed.lab.questions import QUESTIONS
from posembed.lab.runs.train import check, run
from posembed.lab.tasks.pairs import held_out_pairs
from posembed.lab.tasks.problems_specs import EXACT, LOSS, SAME_ON_BOTH, TABLES, TOKENS, SharingSpec
from posembed.lab.tasks.sharing import Rewriting
from posembed.nn.encodings import names_for
from together import together
from tolerance import assert_close

TINY = {"layers": 1, "width": 16, "heads": 2, "steps": 3, "batch": 6, "warmup": 1, "test_pairs": 8}


def tiny(encoding: str = "one-table", problem: str = "reverse", **others: object) -> SharingSpec:
    sizes = {"train_size": 2, "test_sizes": (1, 2, 3)} if problem in ("dates", "sentences") else {}
    sizes = sizes or {"train_size": 4, "test_sizes": (3, 6)}
    return dataclasses.replace(shared("sharing", problem=problem, **{**TINY, **sizes, **others}), encoding=encoding)


@together("name", [*TABLES, *SAME_ON_BOTH])
def test_where_the_tables_are(name: str) -> None:
    """Rows for the longest source and target, with their ends; the rest of the model is the same for all."""
    spec = tiny(name, "dates")
    assert (spec.source_length, spec.target_length, spec.train_length) == (39, 22, 61)
    model = Rewriting("dates").build(spec)
    total, of_positions = model.sizes()
    rows = {"one-table": 39, "two-tables": 39 + 22, "encoder-table": 39, "decoder-table": 22}.get(name)
    if rows is not None:
        assert of_positions == rows * spec.width
        assert model.encoding.table().shape == (rows, spec.width)
    assert (model.encoding.encoder is model.encoding.decoder) == (name == "one-table")
    other = Rewriting("dates").build(tiny("none", "dates"))
    assert total - of_positions == other.sizes()[0]
    for key, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[key], value)


def test_what_is_the_same_on_both_sides_has_a_form_for_each() -> None:
    assert set(SAME_ON_BOTH) <= {*names_for("encoder")} & {*names_for("decoder")}


@pytest.mark.parametrize("problem", ["dates", "sentences"])
def test_only_the_targets_count_and_all_their_tokens_alike(problem: str) -> None:
    spec, task = tiny(problem=problem), Rewriting(problem)
    model = task.build(spec)
    source, target, weights = task.draw(spec, model, 0)
    found = []
    for row, text in zip(source, target, strict=True):
        read, written = row[row != 0], text[text != 0]  # alone, without padding
        found.append(F.cross_entropy(model(read[None], written[None, :-1])[0], written[1:], reduction="none"))
    assert len({len(losses) for losses in found}) > 1
    assert_close(task.loss(model, source, target, weights), torch.cat(found).mean())


def test_one_pass_tells_what_greedy_decoding_would_write() -> None:
    # Trained a little, so that some targets begin well and go wrong somewhere.
    spec, task = tiny(problem="copy", width=32, batch=32, train_size=3, test_sizes=(2,)), Rewriting("copy")
    model = task.build(spec)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(60):
        optimizer.zero_grad()
        task.loss(model, *task.draw(spec, model, step)).backward()
        optimizer.step()
    model.eval()
    pairs = held_out_pairs("copy", 2, 12)
    right, _, counted = task.scored(model, pairs)
    assert right.any()
    assert not right.all()
    sources, targets = task.encode(pairs)
    written = targets[:, :1]
    with torch.no_grad():
        while written.size(1) < targets.size(1):
            written = torch.cat((written, model(sources, written)[:, -1].argmax(dim=-1, keepdim=True)), dim=1)
    same = (written == targets)[:, 1:]
    assert torch.equal((same | ~counted).all(dim=1), (right | ~counted).all(dim=1))
    before_mistake = right.long().cumprod(dim=1).bool()
    assert torch.equal(same & before_mistake, before_mistake)


def test_a_table_has_no_row_past_training_and_sinusoids_do(accelerator: Accelerator) -> None:
    for name, past in (("two-tables", None), ("sinusoidal", float)):
        measured = run(tiny(name), Rewriting("reverse"), accelerator).measurements
        assert measured is not None
        for values in map(measured.by_x, (EXACT, TOKENS, LOSS)):
            assert values[3] is not None
            assert (values[6] is None) == (past is None)


def test_what_is_refused() -> None:
    question = QUESTIONS["sharing"]
    with pytest.raises(ArgumentError, match="a learned table is one-table or two-tables here"):
        question.check_name("learned")
    with pytest.raises(
        ArgumentError, match="unknown encoding 'fire' of an encoder and a decoder; choose from one-table"
    ):
        question.check_name("fire")
    with pytest.raises(ArgumentError, match="test_sizes: expected a list, each a whole number of at least 1; got 0"):
        tiny(problem="dates", test_sizes=(0, 1))
    with pytest.raises(DataError, match="too few held-out pairs"):
        check(tiny(test_sizes=(1,), test_pairs=90), Rewriting("reverse"))


def test_the_model_s_sides_share_one_token_table() -> None:
    model: nn.Module = Rewriting("copy").build(tiny(problem="copy"))
    assert [name for name, _ in model.named_parameters() if "tokens" in name] == ["tokens.weight"]
