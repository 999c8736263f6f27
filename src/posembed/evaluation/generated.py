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

GIVEN_NAMES = (
    "Ada Ben Clara David Elena Felix Grace Hugo Iris Jonas Karen Louis Mira Noah Olga Peter Rosa Simon Tara Victor"
)
FAMILY_NAMES = (
    "Adler Brandt Costa Duarte Ellis Fischer Garcia Hansen Ito Jensen Keller Larsen Moreau Novak Okafor Petrov "
)
FAMILY_NAMES += "Quinn Rossi Santos Tanaka"
CITIES = (
    "Amsterdam Bogota Cairo Dublin Edinburgh Florence Geneva Helsinki Istanbul Jakarta Kyoto Lisbon Montreal Nairobi "
    "Oslo Prague Quito Riga Seville Toronto"
)
FACTS = {
    "What is the best thing to do in {}?": (
        "The best thing to do in {} is to {}.",
        "walk along the old harbour|eat soup at the night market|row across the lake|listen to the evening choir",
    ),
    "What colour is the main bridge in {}?": (
        "The main bridge in {} was painted {} last summer.",
        "dark green|pale yellow|bright red|silver",
    ),
    "Who repairs the clocks in {}?": (
        "The clocks in {} are repaired by {}.",
        "a retired sailor|two sisters|the school's caretaker|a watchmaker's apprentice",
    ),
    "What is kept in the cellar of the library in {}?": (
        "The cellar of the library in {} is used to keep {}.",
        "old maps|wheels of cheese|a collection of kites|broken pianos",
    ),
    "What do people plant on the roofs in {}?": (
        "On the roofs in {} people plant {}.",
        "strawberries|lavender|barley|mint",
    ),
    "What animal guards the museum in {}?": (
        "The museum in {} is guarded at night by {}.",
        "a goose|an elderly dog|a pair of cats|a parrot",
    ),
}
PASSKEY_FILLER = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
NEEDLE_FILLER = (
    "Most people who start a new project underestimate how long the last part will take.",
    "It is easier to improve a rough draft than to write a perfect first sentence.",
    "When a plan fails, the useful question is which assumption was wrong.",
    "Good tools disappear while they are being used.",
    "Someone who explains an idea to a beginner often understands it better afterwards.",
    "A habit survives a bad week only if it is small.",
    "There are problems that look hard only because they are described badly.",
    "Teams argue most about the things that matter least.",
    "Reading slowly can be faster than reading twice.",
    "Few people regret having asked a simple question early.",
    "The first version of anything teaches more than the plan for it.",
    "What is measured every day tends to change, and not always for the better.",
    "A long meeting rarely decides more than a short one.",
    "Many good ideas were dismissed at first because they sounded like toys.",
    "Work that nobody asked for is sometimes the most valuable of all.",
    "It takes courage to delete a page that was hard to write.",
    "An expert knows many mistakes from the inside.",
    "If two explanations fit equally well, the shorter one is easier to check.",
    "Deadlines do not make work better, but they make it end.",
    "The hardest part of a journey is often the decision to leave.",
    "Children learn a language without ever seeing its grammar.",
    "A map that shows everything is as useless as one that shows nothing.",
    "Money solves the problems that money can solve.",
    "Curiosity is a better guide than ambition on most days.",
)


@dataclass(frozen=True)
class GeneratedTask:
    """A generated task. facts: a function of a seeded generator that returns (query, fact) pairs in random order.
    shuffled: whether each document has its filler in an order of its own."""

    facts: Callable[[random.Random], list[tuple[str, str]]]
    filler: Sequence[str]
    shuffled: bool


def passkeys(draw: random.Random) -> list[tuple[str, str]]:
    names = [f"{given} {family}" for given, family in itertools.product(GIVEN_NAMES.split(), FAMILY_NAMES.split())]
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
        (query.format(city), fact.format(city, draw.choice(ends.split("|"))))
        for city in CITIES.split()
        for query, (fact, ends) in FACTS.items()
    ]
    draw.shuffle(pairs)
    return pairs


GENERATED = {
    "passkey": GeneratedTask(passkeys, PASSKEY_FILLER, shuffled=False),
    "needle": GeneratedTask(needles, NEEDLE_FILLER, shuffled=True),
}


def generate(
    task: str, *, length: int, documents: int, seed: int, count: Callable[[str], int], queries: int | None = None
) -> Collection:
    """Returns a collection of documents of ``length`` tokens, or a few less, because their sentences are whole.

    count: a function that counts the tokens of a text, including special tokens. queries: the number of documents that
    are asked for. Default: half of them, as in LongEmbed. The same seed and task give the same facts at every length.
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
    costs = {sentence: count(sentence) - count("") for sentence in of.filler}
    draw = random.Random(f"{task} {seed} {length}")
    texts = [document(of, fact, length - count(fact), draw, costs) for _, fact in facts]
    asked = {f"q{number}": fact for number, fact in enumerate(facts[: queries or max(1, documents // 2)])}
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
