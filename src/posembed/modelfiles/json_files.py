"""JSON files of a model: settings, and one value replaced inside a large file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posembed.errors import CheckpointError
from posembed.files import as_bytes
from posembed.modelfiles.raw_files import read_bytes

LARGEST_SETTINGS = 32_000_000
LARGEST_VOCABULARY = 1_000_000_000
BLANKS = re.compile(r"[ \t\n\r]*")


def read_json(path: Path, *, expected: type = dict) -> Any:
    """Reads a file of settings. Raises CheckpointError if it is not JSON of the expected kind."""
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
    return CheckpointError(f"{path}: not JSON ({str(error)[:80]}); fetch or save it again")


def json_text(value: Any, *, one_line: bool = False) -> str:
    """Returns JSON in UTF-8. Lone surrogates, which UTF-8 cannot hold, stay escaped."""
    if one_line:
        return encodable(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    return encodable(json.dumps(value, indent=2, ensure_ascii=False)) + "\n"


def encodable(text: str) -> str:
    r"""Returns the text with each lone surrogate as ``\udXXX``."""
    return as_bytes(text).decode()


class LargeJson:
    """A JSON object of which single values are read and replaced. All other bytes stay, and most are not parsed.

    A vocabulary of 100 MB as Python objects would need gigabytes. Raises CheckpointError if the text, as far as it is
    read, is not a JSON object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        text = read_bytes(path, most=LARGEST_VOCABULARY)
        try:
            self.text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise not_json(path, error) from error

    def get(self, *names: str) -> Any:
        """Returns the value under these names, from the outermost in; None if there is none."""
        span = self._span(names)
        return None if span is None else json.loads(self.text[span])

    def replace(self, *names: str, value: Any) -> None:
        """Replaces the value under these names. Raises KeyError if there is none."""
        span = self._span(names)
        if span is None:
            raise KeyError(names)
        self.text = self.text[: span.start] + json_text(value, one_line=True) + self.text[span.stop :]

    def _span(self, names: tuple[str, ...]) -> slice | None:
        span: slice | None = slice(0, len(self.text))
        try:
            for name in names:
                span = span and dict(members_until(self.text, span.start, name)).get(name)
        except (ValueError, RecursionError) as error:
            raise not_json(self.path, error) from error
        return span


def members_until(text: str, start: int, last: str) -> Iterator[tuple[str, slice]]:
    """Yields each name of the object that begins at ``start``, and where its value is, up to the name ``last``.

    Yields nothing for a value that is not an object. Raises ValueError if the text is not JSON.
    """
    decoder = json.JSONDecoder()

    def after(place: int) -> int:
        found = BLANKS.match(text, place)
        return place if found is None else found.end()

    place = after(start)
    if text[place : place + 1] != "{":
        if start == 0:
            raise ValueError("expected an object")
        return
    place = after(place + 1)
    while text[place : place + 1] == '"':
        name, stop = decoder.raw_decode(text, place)
        place = after(stop)
        if text[place : place + 1] != ":":
            raise ValueError(f"expected ':' at character {place}")
        begin = after(place + 1)
        _, stop = decoder.raw_decode(text, begin)
        yield name, slice(begin, stop)
        if name == last:
            return
        place = after(stop)
        if text[place : place + 1] == ",":
            place = after(place + 1)
    if text[place : place + 1] != "}":
        raise ValueError(f"expected a name or '}}' at character {place}")
