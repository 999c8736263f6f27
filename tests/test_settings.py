"""Options as users give them from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posembed.errors import ArgumentError
from posembed.settings import Ascending, Count, Sides, TwoOrMore, converted
from together import together


@together(
    ("value", "hint", "expected"),
    [
        ("16, 32", tuple[int, ...], (16, 32)),
        ("1,1.5", tuple[float, ...], (1.0, 1.5)),
        ("rope, alibi", tuple[str, ...], ("rope", "alibi")),
        (np.array([8, 16]), tuple[int, ...], (8, 16)),
        (range(2), tuple[float, ...], (0.0, 1.0)),
        (3, float | None, 3.0),
        (np.int64(3), int, 3),
        (Path("a"), str, "a"),
        ("a", Path | None, Path("a")),
        (False, bool, False),
    ],
)
def test_values_become_the_type_of_their_option(value: Any, hint: Any, expected: Any) -> None:
    found = converted("option", value, hint)
    assert (found, type(found)) == (expected, type(expected))


@together(
    ("value", "hint", "expected"),
    [
        ("16,many", tuple[int, ...], "a list, each a whole number"),
        (16, tuple[int, ...], "a list, each a whole number"),
        ([1.5], tuple[int, ...], "a list, each a whole number"),
        ([True], tuple[int, ...], "a list, each a whole number"),
        (True, int, "a whole number"),
        ("three", float, "a number"),
        ("", Path, "a path"),
        (3, str | None, "text"),
        (1, bool, "True or False"),
    ],
)
def test_other_types_are_refused(value: Any, hint: Any, expected: str) -> None:
    with pytest.raises(ArgumentError, match=f"option: expected {expected}; got"):
        converted("option", value, hint)


def test_the_wrong_item_of_a_list_is_named() -> None:
    for kind, good, bad in ((tuple[Count, ...], "16", "1e3"), (Ascending[TwoOrMore], "16", "1")):
        for text in (f"{good},{bad}", f"{bad},{good}", f"{good}, {good}, {bad}"):
            with pytest.raises(ArgumentError) as raised:
                converted("sizes", text, kind)
            assert f"got '{bad}', in the list {text!r}; separate items by commas" in str(raised.value)
        with pytest.raises(ArgumentError, match=f"got '{bad}'$"):
            converted("sizes", bad, kind)
    for kind, text in ((Sides, "0x5"), (Path | str, 5)):
        with pytest.raises(ArgumentError) as raised:
            converted("given", text, kind)
        assert str(raised.value).endswith(f"got {text!r}")
