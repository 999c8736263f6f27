"""Chooses the texts or images to measure on, so that nothing like them is trained on. Finds near copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

RUN = 24
COPY = 0.25
"""Two texts are near copies if at least this share of the shorter one's runs of ``RUN`` characters is also in the
other, ignoring spaces and case. Articles of WikiText-2 share at most .05 of their runs. Source files of Python's
standard library that were written from one another (ntpath.py and posixpath.py; wave.py and aifc.py) share .33 to .43.
A text in which one word in ten was changed still shares .50."""
MOST = 0.5  # share of a text's runs
MIXER = -7046029254386353131  # 2**64 divided by the golden ratio, odd, as int64


def set_apart(total: int, number: int, fewest: int, alike: Callable[[int], Tensor]) -> tuple[list[int], list[int]]:
    """Returns the items to measure on and those to train on, both in their order.

    number: how many items to set apart. Items that are like one to measure on are in neither list, but count towards
    ``number``: otherwise, few different items would be left to train on. fewest: the least number of items to measure
    on. alike: returns which of all items are like the given one, bool (total,).
    """
    free, measured, trained = torch.ones(total, dtype=torch.bool), list[int](), list[int]()
    for item in range(total):
        if not free[item]:
            continue
        if len(measured) < fewest or int((~free).sum()) < number:
            measured.append(item)
            free &= ~alike(item)
            free[item] = False
        else:
            trained.append(item)
    return measured, trained


class Candidates:
    """The sorted runs of several texts, each with the index of its text."""

    def __init__(self, texts: Sequence[Tensor]) -> None:
        self.sizes = torch.tensor([len(each) for each in texts], dtype=torch.long)
        self.runs, order = torch.cat([*texts, torch.empty(0, dtype=torch.long)]).sort()
        self.owners = torch.arange(len(texts)).repeat_interleave(self.sizes)[order]

    def copied_by(self, text: Tensor) -> Tensor:
        """Returns, for each of the texts, whether a text with these runs is a near copy of it, bool (N,)."""
        common = self.common(text)
        return (common > 0) & (common >= COPY * self.sizes.clamp(max=len(text)))

    def make_up(self, text: Tensor) -> bool:
        """Returns whether one of the texts contains more than half of these runs of a text."""
        return bool((self.common(text) > MOST * len(text)).any())

    def common(self, text: Tensor) -> Tensor:
        """Returns how many of these runs of a text each of the texts has, (N,)."""
        first, stop = (torch.searchsorted(self.runs, text, right=right) for right in (False, True))
        number = stop - first
        within = torch.arange(int(number.sum())) - (number.cumsum(0) - number).repeat_interleave(number)
        owners = self.owners[first.repeat_interleave(number) + within]
        return owners.bincount(minlength=len(self.sizes))


def runs(text: str) -> Tensor:
    """Returns a hash of each different run of ``RUN`` characters in a text, ascending."""
    characters = "".join(text.casefold().split()).encode("utf-32-le", "surrogatepass")
    if len(characters) < 4 * RUN:
        return torch.empty(0, dtype=torch.long)
    codes = torch.frombuffer(bytearray(characters), dtype=torch.int32).long()
    found = torch.zeros(len(codes) - RUN + 1, dtype=torch.long)
    for code in codes.unfold(0, RUN, 1).unbind(1):
        found = (found ^ code) * MIXER
        found ^= found >> 29
    return found.unique()


def left_out_note(which: str, number: int) -> tuple[str, ...]:
    return (f"{which} and are left out: {number:,}.",) if number else ()
