"""What each item of a fine-tuning reads, and its random numbers. Both depend only on the seed and the item."""

from __future__ import annotations

import hashlib

import torch


def seeded(seed: int, what: str) -> torch.Generator:
    """Returns a generator that depends only on the seed and on what is drawn."""
    return torch.Generator().manual_seed(number_of(seed, what))


def number_of(seed: int, what: str) -> int:
    """Returns a number from 0 to 2^63 - 1 that depends only on the seed and on what is drawn."""
    return int.from_bytes(hashlib.sha256(f"{seed} {what}".encode()).digest()[:8], "little") >> 1


def window_of(item: int, windows: int, seed: int) -> int:
    """Returns the window of an item. Every window comes once before any comes again."""
    turn, place = divmod(item, windows)
    return int(torch.randperm(windows, generator=seeded(seed, f"windows {turn}"))[place])


def pieces(width: int, most: int) -> list[slice]:
    """Splits a window of ``width`` tokens into pieces of at most ``most`` tokens, without overlap.

    >>> pieces(10, 4)
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """
    return [slice(start, min(start + most, width)) for start in range(0, width, most)]
