"""Reads and writes JSON files of a model: settings, and single values of a large file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from posembed.errors import CheckpointError
from posembed.files import as_bytes, reason
from posembed.modelfiles.raw_files import read_bytes

LARGEST_SETTINGS = 32_000_000
LARGEST_VOCABULARY = 1_000_000_000
BLANKS = r"[ \t\n\r]*"
OPENED = re.compile(rf"{BLANKS}\{{{BLANKS}")
MEMBER = re.compile(rf'("(?:[^"\\]|\\.)*"){BLANKS}:{BLANKS}', re.DOTALL)
COMMA = re.compile(rf"{BLANKS},?{BLANKS}")


def read_json(path: Path, *, expected: type = dict) -> Any:
    """Reads a settings file. Raises CheckpointError if it is not JSON of the expected type."""
    text = read_bytes(path, most=LARGEST_SETTINGS)
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as error:
        raise not_json(path, error) from error
    if not isinstance(value, expected):
        kind = "an object" if expected is dict else "a list"
        raise CheckpointError(f"{path}: expected {kind}, found a {type(value).__name__}")
    return value


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a name is repeated")
    return mapping


def not_json(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path}: not JSON ({reason(error)}); fetch or save it again")


def json_text(value: Any, *, one_line: bool = False) -> str:
    """Returns a value as JSON. Lone surrogates, which UTF-8 cannot encode, stay escaped."""
    if one_line:
        return encodable(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    return encodable(json.dumps(value, indent=2, ensure_ascii=False)) + "\n"


def encodable(text: str) -> str:
    return as_bytes(text).decode()


class LargeJson:
    """A JSON object whose values can be read and replaced one at a time. All other bytes stay; most are not parsed.

    As Python objects, a vocabulary of 100 MB would need gigabytes. Raises CheckpointError if the part of the text that
    is read is not a JSON object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.text = read_bytes(path, most=LARGEST_VOCABULARY).decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_json(path, error) from error

    def get(self, *names: str) -> Any:
        """Returns the value at these nested names, outermost first; None if it does not exist."""
        span = self._span(names)
        return None if span is None else json.loads(self.text[span])

    def replace(self, *names: str, value: Any) -> None:
        """Replaces the value at these nested names. Raises KeyError if it does not exist."""
        span = self._span(names)
        if span is None:
            raise KeyError(names)
        self.text = self.text[: span.start] + json_text(value, one_line=True) + self.text[span.stop :]

    def _span(self, names: tuple[str, ...]) -> slice | None:
        span: slice | None = slice(0, len(self.text))
        try:
            for name in names:
                span = span and find_value(self.text, span.start, name)
        except (ValueError, RecursionError) as error:
            raise not_json(self.path, error) from error
        return span


def find_value(text: str, start: int, name: str) -> slice | None:
    """Returns the slice of a value in the object at ``start``; None if no object is there or if it lacks the name.

    Raises ValueError if the part of the text that is read is not JSON.
    """
    opened = OPENED.match(text, start)
    if opened is None:
        if start == 0:
            raise ValueError("expected an object")
        return None
    place = opened.end()
    while (member := MEMBER.match(text, place)) is not None:
        _, stop = json.JSONDecoder().raw_decode(text, member.end())
        if json.loads(member[1]) == name:
            return slice(member.end(), stop)
        comma = COMMA.match(text, stop)
        place = stop if comma is None else comma.end()
    if text[place : place + 1] != "}":
        raise ValueError(f"expected a name or '}}' at character {place}")
    return None
