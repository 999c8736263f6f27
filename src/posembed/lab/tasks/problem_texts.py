"""Writes problems as text: a question and its only correct answer, or several in turn. One character is one token.

``^`` starts a text, ``$`` ends it, and ``_`` pads it to the training length.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
START, END, PADDING, EQUALS = "^", "$", "_", "="
ALPHABET = PADDING + START + END + DIGITS + LETTERS + " +=#"
"""The vocabulary. The token id of a character is its index in this string."""

FILLER = "the grass is green the sky is blue the sun is yellow here we go there and back again "
"""The filler of Mohtashami and Jaggi 2023 (arXiv:2305.16300), in which the key is hidden."""
KEY_DIGITS = 5

CUPS = "12345"

Write: TypeAlias = Callable[[int, random.Random], tuple[str, ...]]
"""Maps a size and a random generator to the pieces of a text: a question, its answer, and so on, in turn. The size
determines the length of the text."""


@dataclass(frozen=True)
class Problem:
    write: Write
    line: str
    """The task, as an infinitive phrase."""
    unit: str
    """The unit of the size."""
    ids: tuple[str, ...] = ()
    """The names of position ids that match characters of the question to characters of the answer."""
    tails: Mapping[str, Write] = field(default_factory=dict)
    """Other distributions to test on, by name. A problem with tails trains at ``train_size`` only."""


def of_symbols(symbols: str, answer: Callable[[str], str]) -> Write:
    """Returns a function that writes ``size`` random symbols and their answer."""

    def write(size: int, draw: random.Random) -> tuple[str, str]:
        drawn = "".join(draw.choices(symbols, k=size))
        return f"{START}{drawn}{EQUALS}", f"{answer(drawn)}{END}"

    return write


def passkey(size: int, draw: random.Random) -> tuple[str, str]:
    """Writes ``size`` characters of text with a key of five digits hidden in it. The answer is the key."""
    first = draw.randrange(len(FILLER))
    text = (FILLER * (size // len(FILLER) + 2))[first : first + size]
    hidden = draw.randint(0, size)
    key = "".join(draw.choices(DIGITS, k=KEY_DIGITS))
    return f"{START}{text[:hidden]}#{key}#{text[hidden:]}{EQUALS}", f"{key}{END}"


def addition(size: int, draw: random.Random, *, forwards: bool = False) -> tuple[str, str]:
    """Writes two numbers of ``size`` digits and their sum, each with a leading zero, least significant digit first.
    With ``forwards``, the operands start with their most significant digit; the sum does not."""
    lowest = 10 ** (size - 1) if size > 1 else 0
    first, second = (f"0{draw.randrange(lowest, 10**size)}" for _ in range(2))
    asked = "+".join(number if forwards else number[::-1] for number in (first, second))
    total = f"{int(first) + int(second):0{len(first)}d}"
    return f"{START}{asked}{EQUALS}", f"{total[::-1]}{END}"


addition_written_forwards: Write = partial(addition, forwards=True)


def instructed(letters: str, rates: tuple[float, ...], values: str, change: Callable[[str, str], str]) -> Write:
    """Returns a function that writes ``size`` instructions (at least two) on a state. Each is a letter and a value.

    ``w`` writes its value, ``i`` is ignored, ``r`` is answered with the state, and any other letter changes the state
    to ``change(state, value)``. The first instruction writes and the last reads. The others are drawn from ``letters``
    at ``rates``, and the values that are not answers are uniform.
    """

    def write(size: int, draw: random.Random) -> tuple[str, ...]:
        pieces, given, state = [], "", ""
        drawn = draw.choices(letters, rates, k=max(size - 2, 0))
        for letter, value in zip(["w", *drawn, "r"], draw.choices(values, k=len(drawn) + 2), strict=True):
            if letter == "r":
                pieces += [f"{given}r", state]
                given = ""
                continue
            given += letter + value
            if letter == "w":
                state = value
            elif letter != "i":
                state = change(state, value)
        return tuple(pieces)

    return write


def flip_flops(ignore: float) -> Write:
    """Returns FFL(ignore) of flip-flop language modelling (Liu et al. 2023, arXiv:2306.00946, section 3): instructions
    to a register of one bit. ``ignore`` is the share of ignored ones; reads and writes are equally frequent."""
    return instructed("wir", ((1 - ignore) / 2, ignore, (1 - ignore) / 2), "01", lambda _, value: value)


def cups(read: float) -> Write:
    """Returns a function that puts a ball under one of five cups in a circle (``w2``: at the second place), swaps
    neighbouring cups (``s3``: third and fourth place; ``s5``: fifth and first) and asks for the place of the ball.
    These swaps generate all permutations of five: the word problem of S5, on one point."""

    def swapped(place: str, first: str) -> str:
        second = CUPS[CUPS.index(first) + 1 - len(CUPS)]
        return {first: second, second: first}.get(place, place)

    return instructed("sr", (1 - read, read), CUPS, swapped)


PROBLEMS: dict[str, Problem] = {
    "copy": Problem(of_symbols(DIGITS, str), "repeat the digits", "digits", ids=("abacus",)),
    "reverse": Problem(
        of_symbols(DIGITS, lambda digits: digits[::-1]),
        "repeat the digits in reverse order",
        "digits",
        ids=("coupled",),
    ),
    "addition": Problem(addition, "add two numbers with equally many digits", "digits", ids=("abacus", "coupled")),
    "sorting": Problem(of_symbols(LETTERS, lambda letters: "".join(sorted(letters))), "sort letters", "letters"),
    "parity": Problem(
        of_symbols("01", lambda ones: str(ones.count("1") % 2)), "decide whether the number of ones is even", "bits"
    ),
    "passkey": Problem(passkey, f"find {KEY_DIGITS} digits in a text", "characters of text"),
    "flip-flop": Problem(
        flip_flops(0.8),
        "read the bit that was written last",
        "instructions",
        tails={"sparse": flip_flops(0.98), "dense": flip_flops(0.1)},
    ),
    "tracking": Problem(
        cups(0.2),
        "follow a ball under five cups that are swapped",
        "instructions",
        tails={"sparse": cups(0.02), "dense": cups(0.5)},
    ),
}


def tokens_read(problem: str, size: int) -> int:
    """Returns the number of tokens that a model reads to write the whole answer: all tokens except the last."""
    return len("".join(PROBLEMS[problem].write(size, random.Random(0)))) - 1
