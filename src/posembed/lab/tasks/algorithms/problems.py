"""The problems as text: a question, and the one answer to it. One character is one token.

``^`` starts a text, ``$`` ends it, and ``_`` fills up what is shorter than the others of its batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

DIGITS = "0123456789"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
START, END, PADDING, EQUALS = "^", "$", "_", "="
ALPHABET = PADDING + START + END + DIGITS + LETTERS + " +=#"
"""The vocabulary: a character's token is its place in here."""

FILLER = "the grass is green the sky is blue the sun is yellow here we go there and back again "
"""Of Mohtashami and Jaggi 2023 (arXiv:2305.16300), who hide the key in it."""
KEY_DIGITS = 5

Write: TypeAlias = Callable[[int, random.Random], tuple[str, str]]
"""A size and where to draw from -> question and answer. One size, one length of both."""


@dataclass(frozen=True)
class Problem:
    write: Write
    line: str
    """What is asked, in one line."""
    unit: str
    """What sizes are counted in."""
    ids: tuple[str, ...] = ()
    """Those position ids that say which characters of question and answer belong together."""


def copy(size: int, draw: random.Random) -> tuple[str, str]:
    symbols = "".join(draw.choices(DIGITS, k=size))
    return f"{START}{symbols}{EQUALS}", f"{symbols}{END}"


def reverse(size: int, draw: random.Random) -> tuple[str, str]:
    symbols = "".join(draw.choices(DIGITS, k=size))
    return f"{START}{symbols}{EQUALS}", f"{symbols[::-1]}{END}"


def sorting(size: int, draw: random.Random) -> tuple[str, str]:
    letters = draw.choices(LETTERS, k=size)
    return f"{START}{''.join(letters)}{EQUALS}", f"{''.join(sorted(letters))}{END}"


def parity(size: int, draw: random.Random) -> tuple[str, str]:
    bits = "".join(draw.choices("01", k=size))
    return f"{START}{bits}{EQUALS}", f"{bits.count('1') % 2}{END}"


def passkey(size: int, draw: random.Random) -> tuple[str, str]:
    """Five digits somewhere in as many characters of text."""
    first = draw.randrange(len(FILLER))
    text = (FILLER * (size // len(FILLER) + 2))[first : first + size]
    hidden = draw.randint(0, size)
    key = "".join(draw.choices(DIGITS, k=KEY_DIGITS))
    return f"{START}{text[:hidden]}#{key}#{text[hidden:]}{EQUALS}", f"{key}{END}"


def addition(size: int, draw: random.Random) -> tuple[str, str]:
    """Two numbers of as many digits and their sum, each written with one digit more, least significant first."""
    first, second = numbers(size, draw)
    return f"{START}{first[::-1]}+{second[::-1]}{EQUALS}", total(first, second)


def addition_written_forwards(size: int, draw: random.Random) -> tuple[str, str]:
    """The same with the operands, and not the sum, most significant digit first."""
    first, second = numbers(size, draw)
    return f"{START}{first}+{second}{EQUALS}", total(first, second)


def numbers(size: int, draw: random.Random) -> tuple[str, str]:
    """Of so many digits, behind a zero."""
    lowest = 10 ** (size - 1) if size > 1 else 0
    return f"0{draw.randrange(lowest, 10**size)}", f"0{draw.randrange(lowest, 10**size)}"


def total(first: str, second: str) -> str:
    return f"{int(first) + int(second):0{len(first)}d}"[::-1] + END


PROBLEMS: dict[str, Problem] = {
    "copy": Problem(copy, "say the digits again", "digits", ids=("abacus",)),
    "reverse": Problem(reverse, "say the digits again from the last to the first", "digits", ids=("coupled",)),
    "addition": Problem(addition, "add two numbers of as many digits", "digits", ids=("abacus", "coupled")),
    "sorting": Problem(sorting, "put letters in their order", "letters"),
    "parity": Problem(parity, "say whether the number of ones is even or odd", "bits"),
    "passkey": Problem(passkey, f"find {KEY_DIGITS} digits in a text", "characters of text"),
}
