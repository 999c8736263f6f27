"""Training on problems: what counts, what one pass tells of greedy decoding, and that a run can be cut off."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from accelerate import Accelerator
from torch.nn import functional as F

from asked import runs_of, shared
from posembed.comparison import prepare
from posembed.errors import ArgumentError
from posembed.lab.runs.sweep import plan
from posembed.lab.runs.train import run
from posembed.lab.tasks.problem_texts import ALPHABET, PROBLEMS, tokens_read
from posembed.lab.tasks.problems import ProblemSolving, check_encoding, ids_of, right_tokens, written_for
from posembed.lab.tasks.problems_specs import EXACT, TOKENS, ProblemSpec
from tolerance import assert_close

TINY = {"layers": 1, "width": 16, "heads": 2, "steps": 4, "batch": 6, "warmup": 2, "test_problems": 8}


def tiny(problem: str = "addition", encoding: str = "coupled", **others: object) -> ProblemSpec:
    given = {**TINY, "train_size": 3, "test_sizes": (2, 5), **others}
    return dataclasses.replace(shared(problem, **given), encoding=encoding)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_ids_are_compared_with_encodings_that_have_a_window(problem: str) -> None:
    names = (*PROBLEMS[problem].ids, "none")
    given = {**TINY, "train_size": 3, "test_sizes": (5,), "window": 2, "device": "cpu"}
    for windowed in ("rolling", "rope+logn+window", "none/alibi+window"):
        prepared = prepare(problem, given | {"encodings": (*names, windowed)})
        assert [spec.encoding for spec in prepared.specs] == [*names, windowed]
    with pytest.raises(ArgumentError, match="window belongs to encodings with a window"):
        prepare(problem, given | {"encodings": names})


@pytest.mark.parametrize("encoding", ["alibi", "coupled"])
def test_only_the_answers_count_and_all_their_tokens_alike(encoding: str) -> None:
    spec, task = tiny(encoding=encoding), ProblemSolving("addition")
    model = task.build(spec)
    ids, position_ids, weights = task.draw(spec, model, 0)
    assert ids.shape == (6, spec.train_length + 1)
    assert weights.shape == (6, spec.train_length)
    assert position_ids.shape == ((6, spec.train_length) if encoding == "coupled" else (spec.train_length,))
    losses = []
    logits = model(ids[:, :-1], position_ids)
    for row, text in enumerate("".join(ALPHABET[token] for token in tokens) for tokens in ids):
        for place in range(text.index("=") + 1, text.index("$") + 1):
            if encoding == "coupled" and place < text.index("$"):
                before, at = position_ids[row, place - 1 : place + 1].tolist()
                if at > before + 1:  # the gap, past which nothing could be looked up
                    continue
            losses.append(F.cross_entropy(logits[row, place - 1], ids[row, place]))
    assert len(losses) < 6 * 5
    assert_close(task.loss(model, ids, position_ids, weights), torch.stack(losses).mean())


@pytest.mark.parametrize(("problem", "encoding"), [("reverse", "coupled"), ("addition", "abacus"), ("copy", "none")])
def test_one_pass_tells_what_greedy_decoding_would_write(problem: str, encoding: str, accelerator: Accelerator) -> None:
    # Trained a little, so that answers begin well and go wrong somewhere.
    spec = tiny(problem, encoding, steps=40, batch=16, learning_rate=1e-2, test_problems=20, test_sizes=(2,))
    model = trained(spec, accelerator)
    tested = right_tokens(spec, model, 2, torch.device("cpu"))
    assert tested is not None
    right, answers = tested
    assert right[answers].any()
    assert right[~answers].all()
    write, draw = written_for(spec), random.Random(f"{problem} 2")
    for told, (question, answer) in zip(right, [write(2, draw) for _ in right], strict=True):
        row, written = told[-len(answer) :].tolist(), ""
        while len(written) < len(answer):
            ids = torch.tensor([[ALPHABET.index(character) for character in question + written]])
            positions = None if encoding == "none" else ids_of(encoding, ids)
            with torch.no_grad():
                written += ALPHABET[model(ids, positions)[0, -1].argmax()]
        assert (written == answer) == all(row)
        rightly = [*row, False].index(False)  # so many before the first mistake
        assert written[:rightly] == answer[:rightly]
        assert written[rightly : rightly + 1] != answer[rightly : rightly + 1] or all(row)


def trained(spec: ProblemSpec, accelerator: Accelerator) -> torch.nn.Module:
    task = ProblemSolving(spec.problem)
    model = task.build(spec)
    optimizer = torch.optim.Adam(model.parameters(), lr=spec.learning_rate)
    for step in range(spec.steps):
        optimizer.zero_grad()
        task.loss(model, *task.draw(spec, model, step)).backward()
        optimizer.step()
    return model.eval()


def test_flip_flops_are_trained_at_one_length_and_tested_on_others(accelerator: Accelerator) -> None:
    toy = {"steps": 200, "batch": 32, "width": 32, "layers": 2, "learning_rate": 1e-2, "test_problems": 100}
    spec, task = tiny("flip-flop", "alibi", train_size=4, test_sizes=(4, 8), **toy), ProblemSolving("flip-flop")
    ids, _, weights = task.draw(spec, task.build(spec), 0)
    texts = ["".join(ALPHABET[token] for token in row) for row in ids]
    assert all(len(text) == 8 and text[-2] == "r" for text in texts)
    assert [int(weight) for weight in (weights > 0).sum(1)] == [text.count("r") for text in texts]
    measured = run(spec, task, accelerator).measurements
    assert measured is not None
    wrong = {(value.metric, value.x): value.value for value in measured.values}
    assert list(wrong) == [
        (f"share of wrong reads{tail}", x) for tail in ("", ", sparse tail", ", dense tail") for x in (4, 8)
    ]
    assert wrong["share of wrong reads", 4] < 0.05


def test_no_test_text_is_trained_on() -> None:
    for problem in ("flip-flop", "tracking"):
        spec, task = tiny(problem, "none", train_size=32, batch=64), ProblemSolving(problem)
        model = task.build(spec)
        trained_on = [tuple(row) for step in range(20) for row in task.draw(spec, model, step)[0].tolist()]
        tested: set[tuple[int, ...]] = set()
        for tail in ("", *PROBLEMS[problem].tails):
            write, draw = written_for(spec, tail), random.Random(f"{problem} 32{tail and f' {tail}'}")
            texts = ["".join(write(32, draw)) for _ in range(100)]
            tested |= {tuple(map(ALPHABET.index, text)) for text in texts}
        assert not tested & set(trained_on)
        assert len(set(trained_on)) == len(trained_on)


def test_a_table_of_the_training_length_has_no_position_beyond(accelerator: Accelerator) -> None:
    measured = run(tiny(encoding="learned"), ProblemSolving("addition"), accelerator).measurements
    assert measured is not None
    assert measured.by_x(EXACT)[2] is not None
    assert measured.by_x(EXACT)[5] is measured.by_x(TOKENS)[5] is None


def test_the_plan_counts_the_rows_of_the_ids(accelerator: Accelerator) -> None:
    (planned,) = plan([tiny()], ProblemSolving("addition"), accelerator)
    assert planned.position_parameters == (5 + 3 + 4) * 16


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_problem_trains_and_is_measured(problem: str, accelerator: Accelerator) -> None:
    spec = tiny(problem, "rolling", steps=1, warmup=1)
    measured = run(spec, ProblemSolving(problem), accelerator).measurements
    assert measured is not None
    assert {value.x for value in measured.values} == {2, 5}
    assert spec.train_length == tokens_read(problem, 3)


def test_bad_input_is_said_before_anything_trains() -> None:
    with pytest.raises(ArgumentError, match=r"abacus ids do not apply to parity.* they apply to copy and addition"):
        check_encoding("abacus", "parity")
    with pytest.raises(
        ArgumentError,
        match=r"unknown encoding 'roap' for copy \(did you mean rope\?\); choose from learned, .*, abacus",
    ):
        check_encoding("roap", "copy")
    with pytest.raises(ArgumentError, match="test_sizes: expected a list, each a whole number of at least 1; got 0"):
        shared("addition", test_sizes=(5, 0))
    with pytest.raises(ArgumentError, match="seeds: expected a whole number of at least 1"):
        runs_of(shared("addition"), ["rope"], 0)
