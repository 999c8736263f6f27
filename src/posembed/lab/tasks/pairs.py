"""Writes pairs of a source and its only correct target, for encoder-decoders. Everything is generated; nothing is read.

A tenth of the possible sources, chosen by their hash, is held out: training never draws them, and tests draw only them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from posembed.errors import DataError
from posembed.files import data_of

PADDING, START, END = "_", "^", "$"
ONE_IN = 10
"""One in this number of sources is held out."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Pair: TypeAlias = tuple[list[str], list[str]]
"""The tokens of a source and of its target, without START and END."""


@dataclass(frozen=True)
class Problem:
    write: Callable[[int, random.Random], Pair]
    """Draws a pair of the given size."""
    line: str
    """The task, as an infinitive phrase."""
    unit: str
    longest: Callable[[int], tuple[int, int]]
    """Maps a size to the largest number of tokens of a source and of a target."""
    tokens: tuple[str, ...]
    train_size: int
    test_sizes: tuple[int, ...]
    joined_by: str = ""
    """The text between tokens where a pair is shown to a reader."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All tokens. The id of a token is its index; padding is 0."""
        return (PADDING, START, END, *self.tokens)


def of_letters(answer: Callable[[list[str]], list[str]]) -> Callable[[int, random.Random], Pair]:
    def write(size: int, draw: random.Random) -> Pair:
        letters = [draw.choice(LETTERS) for _ in range(size)]
        return letters, answer(letters)

    return write


# --- dates ---------------------------------------------------------------------------------------------------------

WORDS = data_of(__file__)
MONTHS = WORDS["months"]
FORMATS = (
    "{month} {d}, {y}",
    "{d} {month} {y}",
    "{month:.3} {d} {y}",
    "{d}-{month:.3}-{y}",
    "{m}/{d}/{y}",  # month first
    "{d}.{m}.{y}",  # day first
    "{y} {month} {d}",
)
"""The ways to write a year, month and day. The separators tell whether the month or the day comes first."""
YEARS = (1900, 2099)
BETWEEN_DATES = "; "
ISO_LENGTH = len("2021-03-05")


def written(how: str, y: int, m: int, d: int) -> str:
    return how.format(y=y, m=m, d=d, month=MONTHS[m - 1])


LONGEST_DATE = max(len(written(how, 2021, month, 30)) for how in FORMATS for month in range(1, 13))


def dates(size: int, draw: random.Random) -> Pair:
    """Writes dates in mixed formats, and as year-month-day: "March 5, 2021; 6.4.1999" -> "2021-03-05 1999-04-06"."""
    drawn = [(draw.randint(*YEARS), draw.randint(1, 12), draw.randint(1, 28)) for _ in range(size)]
    source = BETWEEN_DATES.join(written(draw.choice(FORMATS), *date) for date in drawn)
    return list(source), list(" ".join(f"{y}-{m:02}-{d:02}" for y, m, d in drawn))


# --- sentences of an invented language -----------------------------------------------------------------------------

NOUNS = WORDS["nouns"]
"""Each noun with its translation and class; the translation alone does not show the class."""
ADJECTIVES, VERBS, DETERMINERS, PLURAL, TIMES = (
    WORDS[name] for name in ("adjectives", "verbs", "determiners", "plural", "times")
)
TENSES = {None: "-as", **WORDS["tenses"]}
AGREEMENT = WORDS["agreement"]
"""The ending for each class, in the singular and in the plural."""
OBJECT, AND, THEN = "wo", "and", "ne"
CLAUSE = (11, 20)
"""The largest number of tokens of a clause and the connective before it, in the source and in the target."""


def sentence(size: int, draw: random.Random) -> Pair:
    """Writes ``size`` clauses and their translation into an invented language, whose order and agreement differ.

    In the source the order is subject, verb, object, time, with adjectives before nouns. In the target it is time,
    subject, object, verb, with the noun first, then its adjectives and determiner. Adjectives and determiners agree
    with the class and the number of their noun, and the verb with those of its subject; the verb also has the tense
    that the time gives.
    """
    source: list[str] = []
    target: list[str] = []
    for clause in range(size):
        (subject, theirs, agreement), (thing, its, _) = noun_phrase(draw), noun_phrase(draw)
        verb, time = draw.choice(list(VERBS)), draw.choice([None, *TIMES])
        when, translated = ([], []) if time is None else ([time], [TIMES[time]])
        source += [*([AND] if clause else []), *subject, verb, *thing, *when]
        ending = [VERBS[verb], TENSES[time], agreement]
        target += [*([THEN] if clause else []), *translated, *theirs, *its, OBJECT, *ending]
    return source, target


def noun_phrase(draw: random.Random) -> tuple[list[str], list[str], str]:
    """Returns a noun phrase, its translation, and the ending of the words that agree with the noun."""
    determiner, noun = draw.choice(list(DETERMINERS)), draw.choice(list(NOUNS))
    adjectives = draw.sample(list(ADJECTIVES), draw.choice((0, 0, 1, 1, 2)))
    plural = determiner in PLURAL
    translation, kind = NOUNS[noun]
    ending = AGREEMENT[kind][plural]
    agreeing = [token for each in adjectives for token in (ADJECTIVES[each], ending)]
    source = [determiner, *adjectives, f"{noun}+s" if plural else noun]
    return source, [translation, *agreeing, DETERMINERS[determiner], ending], ending


SENTENCE_TOKENS = (
    *DETERMINERS, *ADJECTIVES, *NOUNS, *(f"{noun}+s" for noun in NOUNS), *VERBS, *TIMES, AND,
    *DETERMINERS.values(), *ADJECTIVES.values(), *(noun for noun, _ in NOUNS.values()), *VERBS.values(),
    *TIMES.values(), THEN, OBJECT, *dict.fromkeys(TENSES.values()), *(ending for both in AGREEMENT for ending in both),
)  # fmt: skip

PROBLEMS: dict[str, Problem] = {
    "copy": Problem(
        of_letters(lambda letters: letters), "repeat letters", "letters", lambda size: (size, size), tuple(LETTERS),
        train_size=16, test_sizes=(8, 16, 20, 24),
    ),
    "reverse": Problem(
        of_letters(lambda letters: letters[::-1]), "write letters in reverse order", "letters",
        lambda size: (size, size), tuple(LETTERS), train_size=16, test_sizes=(8, 16, 20, 24),
    ),
    "dates": Problem(
        dates, "rewrite dates of many formats as year-month-day", "dates",
        lambda size: (
            LONGEST_DATE * size + len(BETWEEN_DATES) * (size - 1),
            (ISO_LENGTH + 1) * size - 1,
        ),
        tuple(sorted({*"0123456789 ,;-/.", *"".join(MONTHS)})), train_size=1, test_sizes=(1,),
    ),
    "sentences": Problem(
        sentence, "translate sentences into an invented language", "clauses",
        lambda size: (CLAUSE[0] * size - 1, CLAUSE[1] * size - 1), SENTENCE_TOKENS, train_size=2, test_sizes=(1, 2, 3),
        joined_by=" ",
    ),
}  # fmt: skip


def is_held_out(source: list[str]) -> bool:
    digest = hashlib.sha256("\0".join(source).encode()).digest()
    return int.from_bytes(digest[:8], "big") % ONE_IN == 0


def train_pair(problem: Problem, largest: int, draw: random.Random) -> Pair:
    """Draws a pair of size 1 to ``largest`` that is not held out."""
    while True:
        pair = problem.write(draw.randint(1, largest), draw)
        if not is_held_out(pair[0]):
            return pair


@cache
def held_out_pairs(name: str, size: int, count: int) -> list[Pair]:
    """Returns ``count`` held-out pairs of one size, no two alike, the same in every run. Raises DataError if there are
    fewer."""
    problem, draw = PROBLEMS[name], random.Random(f"{name} {size}")
    found: dict[str, Pair] = {}
    for _ in range(4 * ONE_IN * count + 1_000):  # 1,000 draws without a held-out one of many have a chance of 1e-46
        pair = problem.write(size, draw)
        if is_held_out(pair[0]):
            found["\0".join(pair[0])] = pair
            if len(found) == count:
                return list(found.values())
    raise DataError(
        f"{name} of {size} {problem.unit} has too few held-out pairs: {len(found)} were found and {count} are needed; "
        "choose larger --test-sizes, or fewer --test-pairs"
    )
