"""Generated pairs of sources and targets: right by independent rules, bounded in length, never in training and test."""

from __future__ import annotations

import datetime
import random
import re

import pytest

from posembed.calls import named
from posembed.errors import ArgumentError, DataError
from posembed.lab.tasks.pairs import (
    DETERMINERS,
    NOUNS,
    PLURAL,
    PROBLEMS,
    SENTENCE_TOKENS,
    VERBS,
    held_out_pairs,
    is_held_out,
    train_pair,
)


@pytest.mark.parametrize("name", PROBLEMS)
def test_pairs_fit_their_bounds_and_their_vocabulary(name: str) -> None:
    problem, draw = PROBLEMS[name], random.Random(0)
    assert len(set(problem.vocabulary)) == len(problem.vocabulary)
    for size in (1, 2, 5):
        bounds = problem.longest(size)
        pairs = [problem.write(size, draw) for _ in range(400)]
        for source, target in pairs:
            assert len(source) <= bounds[0]
            assert len(target) <= bounds[1]
            assert {*source, *target} <= set(problem.tokens)
        assert max(len(target) for _, target in pairs) >= bounds[1] - 3 * size  # the bound is not a loose one


@pytest.mark.parametrize("name", PROBLEMS)
def test_training_and_test_share_no_source(name: str) -> None:
    problem = PROBLEMS[name]
    size = min(problem.test_sizes)
    tested = held_out_pairs(name, size, 50)
    sources = {tuple(source) for source, _ in tested}
    assert len(sources) == 50
    assert tested == held_out_pairs(name, size, 50)
    draw = random.Random(1)
    drawn = [train_pair(problem, problem.train_size, draw)[0] for _ in range(500)]
    assert not any(is_held_out(source) for source in drawn)
    assert all(is_held_out(list(source)) for source in sources)
    assert len({len(source) for source in drawn}) > 1


def test_dates_are_those_that_python_reads() -> None:
    """datetime.strptime reads every format, and gives the date of the target."""
    read = {
        r"\d+/\d+/\d+": "%m/%d/%Y", r"\d+\.\d+\.\d+": "%d.%m.%Y", r"\d+-[A-Z]\w+-\d+": "%d-%b-%Y",
        r"[A-Z]\w+ \d+, \d+": "%B %d, %Y", r"\d+ [A-Z]\w+ \d+": "%d %B %Y", r"[A-Z]\w+ \d+ \d+": "%b %d %Y",
        r"\d{4} [A-Z]\w+ \d+": "%Y %B %d",
    }  # fmt: skip
    draw, seen = random.Random(2), set()
    for _ in range(300):
        source, target = ("".join(side) for side in PROBLEMS["dates"].write(2, draw))
        for written, iso in zip(source.split("; "), target.split(" "), strict=True):
            kinds = [kind for pattern, kind in read.items() if re.fullmatch(pattern, written)]
            kinds = [kind for kind in kinds if kind.startswith("%Y") == bool(re.match(r"\d{4}", written))]
            (kind,) = kinds
            assert datetime.datetime.strptime(written, kind).date().isoformat() == iso
            seen.add(kind)
    assert seen == set(read.values())


def test_letters() -> None:
    source, target = PROBLEMS["copy"].write(6, random.Random(0))
    assert source == target
    source, target = PROBLEMS["reverse"].write(6, random.Random(0))
    assert source[::-1] == target != source


def test_a_translation_worked_by_hand() -> None:
    """Order and agreement: the adjective and the determiner follow the noun, the verb ends the clause."""
    assert len(set(SENTENCE_TOKENS)) == len(SENTENCE_TOKENS)
    drawn = [PROBLEMS["sentences"].write(1, random.Random(seed)) for seed in range(400)]
    for source, target in drawn:
        verb = next(token for token in source if token in VERBS)
        subject = source[: source.index(verb)]
        noun = subject[-1].removesuffix("+s")
        translation, kind = NOUNS[noun]
        ending = "aei"[kind] + "n" * (subject[0] in PLURAL)
        assert (subject[-1] != noun) == (subject[0] in PLURAL)
        tense = {"yesterday": "-is", "tomorrow": "-os"}.get(source[-1], "-as")
        assert target[-3:] == [VERBS[verb], tense, f"-{ending}"]
        start = target.index(translation)
        assert start == (source[-1] in ("today", "yesterday", "tomorrow"))
        phrase = target[start + 1 : start + 2 * len(subject) - 1]
        assert phrase[-2:] == [DETERMINERS[subject[0]], f"-{ending}"]
        assert phrase[1::2] == [f"-{ending}"] * (len(subject) - 1)
        assert target[-4] == "wo"


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"unknown problem 'date'.*did you mean dates"):
        named("problem", "date", PROBLEMS)
    with pytest.raises(DataError, match=r"copy of 1 letters has too few held-out pairs: \d were found and 50 are"):
        held_out_pairs("copy", 1, 50)


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_few_held_out_pairs_are_found_at_every_size(name: str) -> None:
    for size in range(2, 60 if name in ("copy", "reverse") else 12):
        for count in (1, 2, 3):
            assert len(held_out_pairs(name, size, count)) == count
