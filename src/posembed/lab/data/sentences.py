"""Generated sentences: names whose type depends on their place in the sentence, and questions about who did what.

All names come from one list, so a word alone does not show its type. Only its place does: "Lomi Dar joined Pelu" and
"Pelu hired Lomi Dar" name the same person and company in two orders, and in a list only the order shows the type.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import TypeVar

from posembed.files import data_of

WordsT = TypeVar("WordsT")

SEED = 0
DATA = data_of(__file__)
PATTERNS, THINGS, ORDINALS = (DATA[name] for name in ("patterns", "things", "ordinals"))
"""The sentences, with the types of their names: persons, organisations (companies) and locations."""
FIELD = re.compile(r"\{(\w+)\}")
NAME_WORDS = (1, 1, 2, 2, 3)
"""The numbers of words in a name, each equally likely."""

FACTS = 3
"""The number of sentences in a generated context."""


def name_list(count: int) -> list[str]:
    """Returns ``count`` different invented words, the same in every call."""
    drawn, found = random.Random("names"), dict[str, None]()
    while len(found) < count:
        word = "".join(drawn.choice("bdfgklmnprstvz") + drawn.choice("aeiou") for _ in range(drawn.choice((2, 2, 3))))
        found[word.capitalize()] = None
    return list(found)


NAMES = name_list(60)


def different(count: int, write: Callable[[random.Random], WordsT]) -> list[WordsT]:
    """Returns ``count`` different results of ``write``, the same in every call."""
    drawn, found = random.Random(SEED), dict[WordsT, None]()
    while len(found) < count:
        found[write(drawn)] = None
    return list(found)


def tagged_sentence(draw: random.Random) -> tuple[tuple[str, str], ...]:
    """Draws a sentence: pairs of a word and its IOB2 label, such as ("Lomi", "B-PER")."""
    names = iter(draw.sample(NAMES, 24))
    words = []
    for part in draw.choice(PATTERNS).split():
        field = FIELD.fullmatch(part)
        if field is None:
            words.append((part, "O"))
        else:
            size = draw.choice(NAME_WORDS)
            words += [(next(names), f"{'I' if i else 'B'}-{field[1]}") for i in range(size)]
    return tuple(words)


def question_about_facts(draw: random.Random) -> tuple[str, str, str, int]:
    """Draws (question, context, answer, start of the answer in the context).

    The context has ``FACTS`` sentences such as "Lomi Dar gave the box to Pelu ." Half the questions, at random, use an
    ordinal: who gave or got the first, second, ... thing.
    """
    things, names = draw.sample(THINGS, FACTS), iter(draw.sample(NAMES, 4 * FACTS))
    asked, side = draw.randrange(FACTS), draw.randrange(2)
    context, answer, start = "", "", 0
    for number, thing in enumerate(things):
        people = [" ".join(next(names) for _ in range(draw.choice((1, 1, 2)))) for _ in range(2)]
        sentence = f"{people[0]} gave the {thing} to {people[1]} . "
        if number == asked:
            answer = people[side]
            start = len(context) + (0 if side == 0 else sentence.rindex(answer))
        context += sentence
    which = f"the {things[asked]}" if draw.random() < 0.5 else f"the {ORDINALS[asked]} thing"
    return f"who {('gave', 'got')[side]} {which} ?", context.rstrip(), answer, start
