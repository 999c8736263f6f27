"""Generated retrieval tasks that need no data: passkey and needle, as in LongEmbed (arXiv:2404.12096).

Every document is filler of the wanted length with one fact at a random place; the query asks for the fact. All lengths
have the same facts and queries. The wording of the passkey task is that of Mohtashami and Jaggi (arXiv:2305.16300), the
facts and the filler of the needle task are our own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from posembed.errors import ArgumentError
from posembed.evaluation.collection import Collection
from posembed.files import data_of

DATA = data_of(__file__)


@dataclass(frozen=True)
class GeneratedTask:
    """A generated task. facts: a function of a seeded generator that returns (query, fact) pairs in random order.
    shuffled: whether each document has its filler in an order of its own."""

    facts: Callable[[random.Random], list[tuple[str, str]]]
    filler: Sequence[str]
    shuffled: bool


def passkeys(draw: random.Random) -> list[tuple[str, str]]:
    names = [f"{given} {family}" for given, family in itertools.product(*DATA["people"].values())]
    draw.shuffle(names)
    keys = draw.sample(range(10_000, 100_000), len(names))
    return [
        (
            f"What is the pass key for {name}?",
            f"{name}'s pass key is {key}. Remember it. {key} is the pass key for {name}.",
        )
        for name, key in zip(names, keys, strict=True)
    ]


def needles(draw: random.Random) -> list[tuple[str, str]]:
    pairs = [
        (each["query"].format(city), each["fact"].format(city, draw.choice(each["ends"])))
        for city in DATA["cities"]
        for each in DATA["facts"]
    ]
    draw.shuffle(pairs)
    return pairs


GENERATED = {
    "passkey": GeneratedTask(passkeys, DATA["filler"]["passkey"], shuffled=False),
    "needle": GeneratedTask(needles, DATA["filler"]["needle"], shuffled=True),
}


def generate(task: str, *, length: int, documents: int, seed: int, count: Callable[[str], int]) -> Collection:
    """Returns a collection of documents of ``length`` tokens, or a few less, because their sentences are whole.

    count: a function that counts the tokens of a text, including special tokens. Half of the documents are asked for,
    as in LongEmbed. The same seed and task give the same facts at every length.
    """
    of = GENERATED[task]
    draw = random.Random(f"{task} {seed}")
    facts = of.facts(draw)
    if documents > len(facts):
        raise ArgumentError(f"texts: the task {task} has at most {len(facts)} documents; got {documents}")
    facts = facts[:documents]
    room = length - max(count(fact) for _, fact in facts)
    if room < 0:
        raise ArgumentError(f"lengths: the facts of the task {task} have up to {length - room} tokens; got {length}")
    costs = {sentence: count(f"{sentence} {sentence}") - count(sentence) for sentence in of.filler}
    draw = random.Random(f"{task} {seed} {length}")
    texts = []
    for _, fact in facts:
        state, room = draw.getstate(), length - count(fact)
        text = document(of, fact, room, draw, costs)
        while (over := count(text) - length) > 0:  # a sentence may have more tokens than behind itself
            room -= over
            draw.setstate(state)
            text = document(of, fact, room, draw, costs)
        texts.append(text)
    asked = {f"q{number}": fact for number, fact in enumerate(facts[: max(1, documents // 2)])}
    return Collection(
        {f"d{number}": text for number, text in enumerate(texts)},
        {name: query for name, (query, _) in asked.items()},
        {name: {f"d{name[1:]}": 1} for name in asked},
    )


def document(of: GeneratedTask, fact: str, room: int, draw: random.Random, costs: Mapping[str, int]) -> str:
    """Returns a text with the fact at a random place between whole sentences of filler, of at most ``room`` tokens."""
    order = draw.sample(of.filler, len(of.filler)) if of.shuffled else of.filler
    share, sentences = draw.random(), []
    for sentence in itertools.cycle(order):
        room -= costs[sentence]
        if room < 0:
            break
        sentences.append(sentence)
    place = round(share * len(sentences))
    return " ".join([*sentences[:place], fact, *sentences[place:]])
